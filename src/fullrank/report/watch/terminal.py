"""The state of runs in a terminal, in any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fullrank.errors import printable
from fullrank.report.watch.follow import COMPLETE, FAILED, PRUNED, RUNNING, STOPPED, WAITING, RunState, Snapshot
from fullrank.report.watch.rows import KNOWN, thinned
from fullrank.runs.display import clock, counted

STYLES = {RUNNING: "cyan", COMPLETE: "green", FAILED: "red", STOPPED: "yellow", PRUNED: "dim", WAITING: "dim"}
BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 60
"""The largest number of characters of a curve."""
FIRST = (RUNNING, FAILED, STOPPED, COMPLETE, PRUNED, WAITING)
"""The order in which runs are shown if there is no room for all."""
WARNINGS = 5
"""The number of last warnings that are shown in a terminal."""
BAR, GAP = 10, 2
"""The widths of a progress bar in a table, and of the space between two columns."""


def view(snapshot: Snapshot, console: Console) -> RenderableType:
    """Return what a terminal shows of a snapshot, in the width and height of a console."""
    width = console.width
    if not snapshot.several:
        return Group(*_one(snapshot.runs[0], width, blocks=console.encoding.lower().startswith("utf")))
    return Group(*_several(snapshot, width, console.height))


def _one(run: RunState, width: int, blocks: bool) -> Iterator[RenderableType]:
    if run.title:
        yield Text(printable(run.title))
    yield Text.assemble(f"{printable(run.name)}  ", (_state_of(run), STYLES[run.state]))
    if not run.rounds:
        return
    yield Text()
    yield from _progress(run, width)
    if run.measures:
        yield Text()
        yield _measures(run)
    course = run.curves.get(run.measures[0]["key"], []) if run.measures else []
    if len(course) > 1 and blocks:
        yield Text()
        yield from _curve(run.measures[0], course, width)
    yield from _problems(run)


def _progress(run: RunState, width: int) -> Iterator[RenderableType]:
    """Yield the progress bar, and below it the time and the phase."""
    label = f"round {run.done}/{run.rounds} "
    bar = ProgressBar(run.rounds, run.done, width=max(10, min(48, width - len(label))))
    line = Table.grid(padding=(0, 1))
    line.add_row(label.strip(), bar)
    yield line
    facts = []
    if run.pace is not None:
        facts.append(f"{_seconds(run.pace)} per round")
    if run.left is not None and run.done < run.rounds:
        facts.append(f"left {clock(run.left)}")
    if run.phase:
        facts.append(run.phase)
    if facts:
        yield Text(", ".join(facts))


def _measures(run: RunState) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "newest", "best so far", "in round"):
        table.add_column(name, justify="right" if name else "left", no_wrap=bool(name))
    for facts in run.measures:
        table.add_row(facts["label"], facts["newest"], facts["best"], str(facts["best_round"]))
    return table


def _curve(facts: dict[str, Any], course: Sequence[tuple[int, float]], width: int) -> Iterator[RenderableType]:
    """Yield the course of a measure in block characters, with its least and its largest value."""
    points = thinned(list(course), min(CURVE, width))
    values = [value for _, value in points]
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    shown = KNOWN[facts["key"]].shown
    yield Text(f"{facts['label']}, rounds {points[0][0]} to {points[-1][0]}, {shown(low)} to {shown(high)}")
    yield Text("".join(BLOCKS[round((value - low) * scale)] for value in values), style="cyan")


def _problems(run: RunState) -> Iterator[RenderableType]:
    if run.skipped:
        yield Text()
        yield Text(f"clients were left out {counted(run.skipped, 'time')}", style="yellow")
    if run.warnings:
        yield Text()
        last = run.warnings[-WARNINGS:]
        yield Text(f"the last {len(last)} of {run.warned} warnings:" if run.warned > len(last) else "warnings:")
        for text in last:
            yield Text(f"- {printable(text)}", style="yellow")


def _several(snapshot: Snapshot, width: int, height: int) -> Iterator[RenderableType]:
    runs = snapshot.runs
    left = f", left {clock(snapshot.left)}" if snapshot.left is not None else ""
    yield Text.assemble(f"{printable(snapshot.name)}  ", (snapshot.state, STYLES[snapshot.state]))
    yield Text(f"{_counts(runs)}{left}")
    room = max(5, height - 8)
    chosen = sorted(range(len(runs)), key=lambda place: (FIRST.index(runs[place].state), place))[:room]
    shown = [runs[place] for place in sorted(chosen)]
    yield Text()
    yield _table(shown, width)
    if len(shown) < len(runs):
        yield Text(f"… and {len(runs) - len(shown)} more")
    for run in [run for run in runs if run.state in (FAILED, STOPPED)][-WARNINGS:]:
        yield Text(f"{printable(run.name)}: {_state_of(run)}", style=STYLES[run.state])
    if warned := [f"{printable(run.name)} ({run.warned})" for run in runs if run.warned]:
        more = ", …" if len(warned) > WARNINGS else ""
        yield Text(f"warnings: {', '.join(warned[:WARNINGS])}{more}", style="yellow")


def _table(runs: Sequence[RunState], width: int) -> Table:
    """Return a line for each run. Columns that do not fit next to the names are left out, the least important first."""
    facts = [run.measures[0] if run.measures else None for run in runs]
    label = next((each["label"] for each in facts if each is not None), "accuracy")
    columns: dict[str, list[RenderableType]] = {
        "course": [ProgressBar(max(1, run.rounds), run.done, width=BAR) for run in runs],
        "round": [f"{run.done}/{run.rounds}" if run.rounds else "" for run in runs],
        label: [each["newest"] if each else "" for each in facts],
        "best so far": [each["best"] if each else "" for each in facts],
        "left": [clock(run.left) if run.left is not None else "" for run in runs],
        "state": [Text("ending" if run.phase else run.state, style=STYLES[run.state]) for run in runs],
    }
    names = [printable(run.name) for run in runs]
    widths = {name: max(cell_len(name), *map(_cells, cells)) + GAP for name, cells in columns.items()}
    if not any(columns["left"]):
        del columns["left"]
    for name in ("course", "best so far"):
        if sum(widths[each] for each in columns) + max(map(cell_len, names)) > width:
            del columns[name]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    table.add_column("run", overflow="fold")
    for name in columns:
        table.add_column("" if name == "course" else name, justify="right", no_wrap=True)
    for name, *cells in zip(names, *columns.values(), strict=True):
        table.add_row(Text(name), *cells)
    return table


def _cells(cell: RenderableType) -> int:
    return BAR if isinstance(cell, ProgressBar) else cell_len(str(cell))


def _counts(runs: Sequence[RunState]) -> str:
    found = Counter(run.state for run in runs)
    parts = [
        f"{found[state]} {state}" for state in (COMPLETE, RUNNING, FAILED, STOPPED, PRUNED, WAITING) if found[state]
    ]
    return f"{counted(len(runs), 'run')}: {', '.join(parts)}"


def line_of(run: RunState, several: bool) -> str:
    """Return a run in one line, for output that is not a terminal."""
    start = f"{run.name}: " if several else ""
    if run.state == WAITING:
        return printable(f"{start}{_state_of(run)}")
    rounds = f"round {run.done}/{run.rounds}"
    values = "".join(f"  {facts['label']} {facts['newest']}" for facts in run.measures)
    left = f"  left {clock(run.left)}" if run.left is not None and run.done < run.rounds else ""
    state = "" if run.state == RUNNING and not run.phase else f"  {run.phase or _state_of(run)}"
    return printable(f"{start}{rounds}{values}{left}{state}")


def _state_of(run: RunState) -> str:
    return printable(f"{run.state}: {run.reason}" if run.reason else run.state)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else clock(seconds)
