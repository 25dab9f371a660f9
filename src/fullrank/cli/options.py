"""Common parts of the commands: help pages, options, reading an experiment, and reporting errors."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperCommand, TyperGroup

from fullrank import models
from fullrank.config.experiment import merged, parse_overrides, read_toml, without_none
from fullrank.config.schema import Model
from fullrank.data.sources.progress import watching
from fullrank.errors import ClientFailed, InputError, Interrupted, RunFailed, WriteFailed, in_words, printable
from fullrank.runs.terminal import say

File = Annotated[
    str | None,
    typer.Argument(metavar="FILE.toml", help="Experiment file. If omitted, all keys have their defaults."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key, as in --set data.alpha=0.05; an empty value removes it. Can be repeated.",
    ),
]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="Folder of the data set, instead of data.root.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import and execute code outside fullrank that the run directory names."),
]
Client = Annotated[
    int | None,
    typer.Option("--client", metavar="K", help="Own model of client K, in place of the global model."),
]
StageName = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="STAGE",
        help="With --client: received (the model before local training), local (after it) or personalised (by the "
        "method). By default the last stage that the method has.",
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Make the runs on the nodes of a Ray cluster: host:port, or auto for the one of which this machine is a "
        "node. All nodes must share the folder of the runs.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of the system for a full disk or an exceeded quota."""
PANELS = ("Run", "Compare", "Inspect", "Data", "Models and methods", "Reproduce", "Tools")
"""Groups of commands in `fullrank --help`, in this order."""


class _Readable:
    """Help pages that fit the terminal: paragraphs are re-flowed, and arguments and flags are shown without a type."""

    def __init__(self, *args: Any, help: str | None = None, **options: Any):
        super().__init__(*args, help=reflowed(help) if help else None, **options)  # type: ignore[call-arg]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of a command."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.param_type_name == "argument":
                parameter.display_type_rich = _no_type
        return found


def _no_type(ctx: Any) -> None:
    """Return the type that a help page shows for an argument, whose name says what it is."""


class Command(_Readable, TyperCommand):
    """A command with a readable help page."""


class CommandGroup(_Readable, TyperGroup):
    """A group of commands with a readable help page."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of their panels."""
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        return sorted(
            super().list_commands(ctx),
            key=lambda name: PANELS.index(panels[name]) if panels[name] in PANELS else len(PANELS),
        )


def command_group(help: str, **options: Any) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(help=help, cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, **options)


def reflowed(text: str) -> str:
    """Join the lines of each paragraph, so that the terminal wraps them; items of a list keep their own lines.

    >>> reflowed("One\\nline.\\n\\n- an\\n  item\\n- another")
    'One line.\\n\\n- an item\\n- another'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n(?!- )\s*", " ", paragraph) for paragraph in paragraphs)


def picture(png: str | None) -> None:
    """Check that a picture can be written to this file, before the work for it is done."""
    if png is not None:
        from fullrank.report.style import figure_file

        figure_file(png)


def experiment_values(file: str | None, overrides: list[str] | None) -> dict[str, Any]:
    """Return the values of a file, if there is one, with the overrides applied; they are not validated yet.

    An override without a value, as in `model.width=`, removes the key.
    """
    values, changes = read_toml(file) if file is not None else {}, parse_overrides(overrides or [])
    return without_none(merged(_for_another_model(values, changes), changes))


def _for_another_model(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out the options of a file's network that another network, named in the command line, does not have."""
    table, name = values.get("model"), (changes.get("model") or {}).get("name")
    if not isinstance(table, Mapping) or not name or name == table.get("name"):
        return values
    foreign = models.unknown_options(name, [key for key in table if key not in Model.model_fields])
    for key in foreign:
        print(f'fullrank: model.{key} of the file is left out, because "{name}" has no such option', file=sys.stderr)
    return {**values, "model": {key: value for key, value in table.items() if key not in foreign}}


def answer(command: Callable[[], Any]) -> None:
    """Run a command line. Errors that a user can cause end in one sentence and a non-zero exit status."""
    try:
        with bars_while_reading():
            _run_and_flush(command)
    except InputError as problem:
        fail(str(problem), 2)
    except (ClientFailed, RunFailed) as failure:
        sentence, traceback = in_words(failure)
        print(traceback, end="", file=sys.stderr)
        fail(sentence, 1)
    except WriteFailed as failure:
        fail(str(failure), 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe has closed it
        sys.exit(1)
    except OSError as error:
        if error.errno in NO_ROOM:
            _give_up_output()
            what = f'"{error.filename}"' if error.filename else "the output"
            fail(f"{what} cannot be written: {error.strerror}", 1)
        if error.filename is None:
            raise
        fail(f'"{_shortened(error.filename)}" cannot be used: {error.strerror}', 2)
    except _out_of_memory() as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else "out of memory"
        fail(f"there is not enough memory ({why}); use smaller data, a smaller model or smaller batches", 1)


@contextlib.contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """End the process with the sentence of an interruption; typer would only print "Aborted."."""
    try:
        yield
    except Interrupted as stop:
        fail(str(stop), 130)


def _out_of_memory() -> tuple[type[BaseException], ...]:
    """Return the exceptions for exhausted memory; torch's is among them if torch has been imported."""
    torch = sys.modules.get("torch")
    return (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)


def _shortened(name: object) -> str:
    text = str(name)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-60:]}"


@contextlib.contextmanager
def bars_while_reading() -> Iterator[None]:
    """Show a progress bar on the terminal while image files are decoded."""
    if not sys.stderr.isatty():
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)

    def watch(what: str, done: int, total: int) -> None:
        if not bars.tasks:
            bars.start()
            bars.add_task(what, total=total)
        bars.update(bars.task_ids[0], completed=done)
        if done == total:
            hide()

    def hide() -> None:
        bars.stop()
        for task in bars.task_ids:
            bars.remove_task(task)

    with watching(watch):
        try:
            yield
        finally:
            hide()


def prepare_streams() -> None:
    """Make printing safe: characters that the terminal cannot encode are replaced by question marks.

    A process that was started without an output stream gets one that discards everything.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run_and_flush(command: Callable[[], Any]) -> None:
    try:
        command()
    finally:
        if sys.stdout is not None:  # a process can be started without a stream
            sys.stdout.flush()  # an error at the end of the interpreter could no longer be reported


def _give_up_output() -> None:
    """Discard output that cannot be written: the interpreter would try again at its end and fail."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # closing tries to write too
            sys.stdout.close()


def fail(sentence: str, status: int) -> NoReturn:
    """End the process with one sentence and an exit status."""
    lines = map(printable, sentence.split("\n"))  # one for each problem
    say("fullrank: " + "\n".join(lines), file=sys.stderr)
    sys.exit(status)
