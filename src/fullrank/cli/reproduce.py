"""The command `fullrank reproduce`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.cli.options import AsJson, Overrides, RayAddress, Root, ended_if_interrupted, fail
from fullrank.cli.several import Jobs, QuietTable, parse_seeds
from fullrank.config.experiment import dotted, parse_overrides, without_none
from fullrank.errors import InputError
from fullrank.local import interrupt
from fullrank.runs.terminal import print_table, say

if TYPE_CHECKING:
    from fullrank import papers
    from fullrank.papers.plan import Plan
    from fullrank.papers.reproduction import Reproduction


def reproduce_command(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="Name of a table or figure, as --list shows it, or a TOML file of the same form."
        ),
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            "--cell",
            "-c",
            metavar="NAME=VALUE,…",
            help="Cells with these coordinates, as in --cell method=fedavg,alpha=0.05. Can be repeated.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", "-s", metavar="N,N,…", help="Seeds, as in 0,1,2 or 0-4.")] = "0-2",
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="R", help="Number of rounds, in place of the paper's.")
    ] = None,
    overrides: Overrides = None,
    root: Root = "",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs and the report. By default a name in runs/."),
    ] = None,
    jobs: Jobs = 0,
    ray: RayAddress = "",
    list_: Annotated[
        bool, typer.Option("--list", help="List the tables, or the cells of a table, and run nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
    timed: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="With --dry-run: run the first two rounds of each kind of run to estimate the time; they are kept.",
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: QuietTable = False,
) -> None:
    """Run cells of a paper's table again and compare the values.

    Plans the runs behind the cells, runs those that are missing, and prints the printed values, ours with their
    standard deviation over seeds, and a verdict on each cell. The report is written into the folder of the runs as
    reproduction.md and reproduction.json. If it was interrupted, the same command continues. Cells whose data are
    absent are marked with the files that are missing, and the others are run. A figure is drawn into that folder from
    the runs of its cells.

    Example: fullrank reproduce --list

    Example: fullrank reproduce feddecorr-tpami/table-1 --list

    Example: fullrank reproduce feddecorr-tpami/table-1 --cell data=cifar10,alpha=0.05,method=fedavg --root data

    Example: fullrank reproduce feddecorr-tpami/table-1 --dry-run
    """
    from fullrank import papers
    from fullrank.comparison.board import choose_board
    from fullrank.papers.drawing import draw_panels
    from fullrank.papers.plan import make_plan
    from fullrank.papers.reproduction import check_jobs, complete
    from fullrank.runs.display import counted

    if timed and not dry_run:
        raise InputError("--estimate belongs to --dry-run; without it the time is always estimated")
    if table is None:
        if not list_:
            raise InputError("name a table, as in feddecorr-tpami/table-1; `fullrank reproduce --list` shows them")
        _list_tables(as_json)
        return
    found = papers.load_table(table)
    if list_:
        _list_cells(found, cells or [], as_json)
        return
    check_jobs(jobs)
    there = [f"data.root={root}"] if root else []
    changes = dotted(without_none(parse_overrides([*(overrides or []), *there])))
    plan = make_plan(
        found,
        cells or [],
        parse_seeds(seeds),
        rounds,
        changes,
        out,
        _command(table, cells, seeds, rounds, [*(overrides or []), *there]),
    )
    silent = quiet or as_json
    with ended_if_interrupted():
        if dry_run:
            _show_plan(plan, jobs, timed, as_json)
            return
        _announce(plan, jobs, silent, ray)
        with choose_board(silent) as board:
            done = complete(plan, jobs, [board], ray)
    files, problems = draw_panels(done)
    print(done.to_json()) if as_json else _show(done)
    for problem in problems:
        say(f"fullrank: warning: {problem}", file=sys.stderr)
    for file in files if not as_json else ():
        say(f"drawn in {file}")
    if done.failed:
        fail(f"{done.failed} of {counted(len(plan.tasks), 'run')} failed; see log.txt in the directory of each", 1)


def _command(
    table: str, cells: list[str] | None, seeds: str, rounds: int | None, overrides: list[str]
) -> tuple[str, ...]:
    """Return the arguments of the command, without those that do not change the results."""
    found = ["fullrank", "reproduce", table]
    found += [part for cell in cells or [] for part in ("--cell", cell)]
    found += ["--seeds", seeds, *(["--rounds", str(rounds)] if rounds is not None else [])]
    return (*found, *(part for override in overrides for part in ("--set", override)))


# Lists


def _list_tables(as_json: bool) -> None:
    from fullrank import papers

    tables = [papers.load_table(name) for name in [*papers.available(), *papers.figures()]]
    if as_json:
        facts = [{"name": one.name, "title": one.title, "cells": len(one.cells), "paper": one.paper} for one in tables]
        print(json.dumps(facts, indent=1))
        return
    rows = [[one.name, str(len(one.cells)), one.title + _unavailable(one)] for one in tables]
    _print_table(["table or figure", "cells", "title"], rows)


def _unavailable(table: papers.Table) -> str:
    return f" ({table.unavailable})" if table.unavailable else ""


def _list_cells(table: papers.Table, patterns: list[str], as_json: bool) -> None:
    from fullrank.comparison.derived import derived

    cells = table.select(patterns) if table.cells else []
    if as_json:
        facts = [
            {"cell": cell.name, "paper": str(cell.printed or ""), "measure": cell.measure, "value": cell.value}
            for cell in cells
        ]
        print(json.dumps(facts, indent=1))
        return
    say(f"{table.name}: {table.title}{_unavailable(table)}\n{table.paper}\n")
    shown = [cell.measure if derived(cell.measure) else f"{cell.measure} {cell.value}" for cell in cells]
    rows = [[str(cell.printed or ""), text] for cell, text in zip(cells, shown, strict=True)]
    _print_cells(cells, ["paper", "measure"], rows)


# The plan


def _announce(plan: Plan, jobs: int, silent: bool, ray: str) -> None:
    """Print what will be run, and measure how long it will take, unless it will be run on other machines."""
    from fullrank.papers.plan import MEASURED, measure, unmeasured
    from fullrank.runs.display import counted

    plan.check()
    if not silent:
        _print_left_out(plan)
    if ray:
        if not silent:
            pending = plan.pending()
            left = counted(sum(task.rounds - task.done for task in pending), "round")
            say(f"{counted(len(plan.tasks), 'run')} in {plan.folder}, of which {left} remain")
        return
    first = unmeasured(plan, jobs)
    if first and not silent:
        say(f"measuring the time of a round: the first {MEASURED} rounds of {counted(len(first), 'run')}")
    with interrupt.guard():
        measure(plan, jobs)
    if not silent:
        say(_time_left(plan, jobs))


def _print_left_out(plan: Plan) -> None:
    """Print which cells cannot be run, each reason once."""
    cells: dict[str, list[str]] = {}
    for one in plan.selected:
        if one.problem:
            cells.setdefault(one.problem, []).append(one.cell.name)
    for problem, names in cells.items():
        which = f"{names[0]} is" if len(names) == 1 else f"{len(names)} of {len(plan.selected)} cells are"
        say(f"{which} left out: {problem}")


def _show_plan(plan: Plan, jobs: int, timed: bool, as_json: bool) -> None:
    from fullrank.papers.plan import estimate, measure
    from fullrank.papers.verdict import Footnotes
    from fullrank.runs.display import setting

    if timed:
        with interrupt.guard():
            measure(plan, jobs)
    if as_json:
        left = estimate(plan, jobs)
        facts = {**plan.facts(), "seconds": left.seconds, "runs_of_unknown_time": left.unknown}
        print(json.dumps({**facts, "seconds_per_round": dict(left.per_round)}, indent=1))
        return
    rows, below = [], Footnotes()
    for one in plan.selected:
        tasks = [task for several in one.tasks.values() for task in several]
        complete = f"{sum(task.done for task in tasks)} of {sum(task.rounds for task in tasks)}"
        what = [setting(tasks[0].experiment)] if tasks else []
        about = "; ".join([*what, below.short("left out", one.problem)] if one.problem else what)
        rows.append([str(len(tasks)), complete, about])
    _print_cells([one.cell for one in plan.selected], ["runs", "rounds complete", "each run"], rows)
    say("".join(f"\n{text}" for text in below.sentences()))
    say(f"\n{_time_left(plan, jobs)}")


def _time_left(plan: Plan, jobs: int) -> str:
    """Return a sentence about the runs that remain and the time that they need."""
    from fullrank.papers.plan import estimate
    from fullrank.runs.display import clock, counted

    pending, left = plan.pending(), estimate(plan, jobs)
    complete = len(plan.tasks) - len(pending)
    text = f"{counted(len(plan.tasks), 'run')} in {plan.folder}, {complete} complete"
    if not pending:
        return text
    together = f", {left.at_once} at a time" if left.at_once > 1 else ""
    text += f"; {counted(left.rounds, 'round')} remain{together}"
    if left.unknown == len(pending):
        return f"{text}; the time is not known before the first rounds"
    more = f", and {counted(left.unknown, 'run')} of unknown time" if left.unknown else ""
    return f"{text}, about {clock(left.seconds)} (h:mm:ss){more}"


# The result


def _show(found: Reproduction) -> None:
    from fullrank.papers.reproduction import REPORT
    from fullrank.papers.verdict import COMPARED, RULE

    table = found.plan.table
    say(f"\n{table.name}: {table.title}\n{table.paper}\n")
    _print_table(*found.rows(found.selected))
    say()
    for remark in found.remarks(found.selected):
        say(remark)
    if any(result.verdict.kind in COMPARED for result in found.selected):
        say(RULE)
    print(f"The report is in {found.plan.folder / REPORT}.md and .json.")


def _print_cells(cells: Sequence[papers.Cell], titles: list[str], rows: list[list[str]]) -> None:
    """Print a row per cell with its name or, where names are too wide for the terminal, a column per coordinate."""
    console = Console()
    if console.is_terminal and max((len(cell.name) for cell in cells), default=0) > console.width // 2:
        coordinates = list(dict.fromkeys(name for cell in cells for name in cell.at))
        named = [[cell.at.get(name, "") for name in coordinates] for cell in cells]
    else:
        coordinates, named = ["cell"], [[cell.name] for cell in cells]
    _print_table([*coordinates, *titles], [[*at, *row] for at, row in zip(named, rows, strict=True)])


def _print_table(titles: list[str], rows: list[list[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)
