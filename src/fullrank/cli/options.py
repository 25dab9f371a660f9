"""What the commands have in common: options, how an experiment is read, and how a failure ends."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import torch
import typer

from fullrank.config.experiment import merged, parse_overrides, read_toml
from fullrank.errors import ClientFailed, Refusal, RunFailed, WriteFailed, in_words

File = Annotated[
    str | None,
    typer.Argument(metavar="[FILE.toml]", help="The experiment; without one, the defaults (embedded digits)."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Another value for a key, as in --set data.alpha=0.05. Repeatable."
    ),
]
Root = Annotated[
    str, typer.Option("--root", metavar="DIR", help="Where the data lie, if not where the experiment says.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code outside fullrank that the run directory names, which runs it."),
]
StageName = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="received|local|personalised",
        help="With --client: the model as received, after local training, or as the method personalises it; else the "
        "last of these that the method has.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a disk, or one's share of it, is full."""


def picture(png: str | None) -> None:
    """Refuse a file that no picture could be drawn in, before the work for it is done in vain."""
    if png is not None:
        from fullrank.report.style import figure_file

        figure_file(png)


def experiment_values(file: str | None, overrides: list[str] | None) -> dict[str, Any]:
    """A file's values, if there is one, with the overrides on top; not yet checked."""
    values = read_toml(file) if file is not None else {}
    return merged(values, parse_overrides(overrides or []))


def answer(command: Callable[[], Any]) -> None:
    """Run a command line: one clear sentence and a non-zero status for everything that a user can get wrong."""
    try:
        _run_and_flush(command)
    except Refusal as problem:
        fail(str(problem), 2)
    except (ClientFailed, RunFailed) as failure:
        sentence, traceback = in_words(failure)
        print(traceback, end="", file=sys.stderr)
        fail(sentence, 1)
    except WriteFailed as failure:
        fail(str(failure), 1)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has read enough
        sys.exit(1)
    except OSError as error:
        if error.errno in NO_ROOM:
            _give_up_output()
            what = f'"{error.filename}"' if error.filename else "the output"
            fail(f"{what} cannot be written: {error.strerror}", 1)
        if error.filename is None:
            raise
        fail(f'"{_shortened(error.filename)}" cannot be used: {error.strerror}', 2)
    except (MemoryError, torch.OutOfMemoryError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else "the system gives no more"
        fail(f"there is not enough memory ({why}); take smaller data, a smaller model or smaller batches", 1)


def _shortened(name: object) -> str:
    text = str(name)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-60:]}"


def prepare_streams() -> None:
    """Let nothing that is printed fail: characters that the terminal has no code for are replaced by question marks.

    A process that was started without an output gets one that leads nowhere.
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
        if sys.stdout is not None:  # as in a process that was started without one
            sys.stdout.flush()  # at the interpreter's own end nobody could say any more what went wrong


def _give_up_output() -> None:
    """Forget what was printed and cannot be written: the interpreter would try it again at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # closing tries it too
            sys.stdout.close()


def fail(sentence: str, status: int) -> NoReturn:
    """End the process with one sentence and a status."""
    print(f"fullrank: {sentence}", file=sys.stderr)
    sys.exit(status)
