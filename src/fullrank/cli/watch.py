"""The command `fullrank watch`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from fullrank.cli.options import fail
from fullrank.errors import InputError, printable

if TYPE_CHECKING:
    from fullrank.report.watch.follow import Snapshot

EVERY = 0.5
"""Seconds between two readings of the directory."""
NAMED = 3
"""The number of failed runs that the last sentence names."""


def watch_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Run directory, or the folder of a comparison, a sweep or a reproduction. It need not exist yet.",
        ),
    ],
    page: Annotated[
        bool,
        typer.Option("--page", help="Also serve a page that refreshes itself, to this machine only, until Ctrl-C."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Port of the page; 0 takes a free one. Implies --page."
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser. Implies --page.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="S", min=0.0, help="End after this many seconds in which nothing changes. 0: never."
        ),
    ] = 0.0,
    once: Annotated[bool, typer.Option("--once", help="Show the state as it is now and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON whenever it changes.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the address of the page and errors only.")
    ] = False,
) -> None:
    """Follow a run, or several, while they are active.

    The command shows the round, the time left, the newest and the best values, the accuracy over rounds, clients that
    were left out, and warnings; several runs have one line each. Only the directory is read, so the run may have been
    started anywhere, and it may be killed and resumed meanwhile. The command ends when all runs have ended; the exit
    status is 1 if one of them failed.

    Example: fullrank watch runs/digits-fedavg-12345678

    Example: fullrank watch runs/compare-digits-12345678 --page --port 8000
    """
    from fullrank.report.watch.follow import COMPLETE, ENDED, FAILED, Follower
    from fullrank.report.watch.server import PageServer

    if once and not path.exists():
        raise InputError(f'"{path}" does not exist')
    if path.is_file():
        raise InputError(f'"{path}" is a file; give a run directory or a folder of runs')
    follower = Follower(path)
    with_page = page or port is not None or open_browser
    with contextlib.ExitStack() as open_parts:
        server = open_parts.enter_context(PageServer(follower, port or 0)) if with_page else None
        if server is not None:
            print(f"page  {server.url}", flush=True, file=sys.stderr if as_json else sys.stdout)
            if open_browser:
                webbrowser.open(server.url)
        take = server.snapshot if server is not None else follower.snapshot
        try:
            with _shown(as_json, quiet) as show:
                last = _follow(take, show, timeout, once, until_stopped=server is not None)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    failed = [run for run in last.runs if run.state == FAILED] if last.state == FAILED else []
    if len(failed) == 1:
        fail(f"{failed[0].name} failed: {failed[0].reason}", 1)
    if failed:
        named = ", ".join(run.name for run in failed[:NAMED]) + (", …" if len(failed) > NAMED else "")
        fail(f"{len(failed)} of {len(last.runs)} runs failed: {named}", 1)
    if last.state != COMPLETE and not once:
        states = [run.reason or run.state for run in last.runs if run.state not in ENDED]
        fail(f'nothing has changed in "{path}" for {timeout:g} s: {states[0]}', 1)


def _follow(
    take: Callable[[], Snapshot], show: Callable[[Snapshot], None], timeout: float, once: bool, until_stopped: bool
) -> Snapshot:
    """Show the state whenever it changes, until all runs have ended or nothing has changed for too long."""
    from fullrank.report.watch.follow import ENDED

    shown: Snapshot | None = None
    changed = time.monotonic()
    while True:
        found = take()
        if shown is None or dataclasses.replace(found, time=shown.time) != shown:
            shown, changed = found, time.monotonic()
            show(found)
        if once or (found.state in ENDED and not until_stopped):
            return found
        if timeout and time.monotonic() - changed > timeout:
            return found
        time.sleep(EVERY)


@contextlib.contextmanager
def _shown(as_json: bool, quiet: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Return a function that shows a snapshot: in place in a terminal, in lines elsewhere, or as JSON."""
    if as_json:
        yield lambda found: print(json.dumps(found.as_json()), flush=True)
    elif quiet:
        yield lambda found: None
    elif not sys.stdout.isatty():
        yield _Lines().show
    else:
        from fullrank.report.watch.terminal import view

        console = Console()
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda found: live.update(view(found, console), refresh=True)


class _Lines:
    """Prints a line when a run starts, ends or completes a round, and each warning once."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, int, int]] = {}
        self._printed: dict[str, float] = {}

    def show(self, found: Snapshot) -> None:
        """Print what has changed; of several runs, rounds from time to time only."""
        from fullrank.report.watch.terminal import line_of
        from fullrank.runs.display import PAUSE

        for run in found.runs:
            state, done, warned = self._before.get(run.name, ("", -1, 0))
            now = (f"{run.state} {run.phase}", run.done, run.warned)
            start = f"{run.name}: " if found.several else ""
            for text in run.warnings[-(run.warned - warned) :] if run.warned > warned else []:
                print(printable(f"{start}{text}"), flush=True)
            recent = found.several and time.monotonic() - self._printed.get(run.name, 0.0) < PAUSE
            if now[0] != state or (done != run.done and not recent):
                print(line_of(run, found.several), flush=True)
                self._printed[run.name] = time.monotonic()
                self._before[run.name] = now
            else:
                self._before[run.name] = (state, done, run.warned)
