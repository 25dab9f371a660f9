"""A reproduction of a published table: it completes the runs behind the cells and compares them with the paper."""

from __future__ import annotations

import itertools
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank._version import __version__
from fullrank.comparison.board import boards
from fullrank.comparison.compare import complete_runs, is_complete
from fullrank.comparison.intervals import std
from fullrank.comparison.measured import measured
from fullrank.comparison.parallel import ComparisonCallback, ComparisonCallbacks, Failure, Task
from fullrank.comparison.planned import PlanRecord
from fullrank.errors import InputError, writing
from fullrank.files import write_atomically, write_json
from fullrank.papers.plan import Plan, PlannedCell, make_plan
from fullrank.papers.tables import TIME, UNITS, Cell, Printed, Table, load_table
from fullrank.papers.verdict import RULE, Footnotes, Verdict, verdict
from fullrank.runs.callbacks import check_callbacks
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.result import load_run

REPORT = "reproduction"
"""The name of the files of a report, without their ending."""


@dataclass(frozen=True)
class CellResult:
    """The result of our runs for a cell, in the unit of the paper, with the verdict."""

    planned: PlannedCell
    printed: Printed | None
    """The printed value; for a time its ratio to the printed time of the reference."""
    values: Mapping[int, float]
    """Our values by seed."""
    absent: Mapping[int, str]
    """The reasons why there are no values for other seeds."""
    failed: bool
    """Whether one of the runs failed."""
    ran: bool
    """Whether the runs of a seed are complete."""
    reference: str = ""
    """The cell to whose time the values are ratios, if they are ratios."""

    @property
    def cell(self) -> Cell:
        """The cell of the table."""
        return self.planned.cell

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds."""
        return std(list(self.values.values()))

    @property
    def difference(self) -> float | None:
        """Our mean minus the printed value."""
        return self.mean - self.printed.mean if self.mean is not None and self.printed is not None else None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the cell."""
        return verdict(
            self.printed,
            list(self.values.values()),
            absent=list(self.absent.values()),
            failed=self.failed,
            ran=self.ran,
            rounds=self.planned.rounds,
            changed=self.planned.changed,
        )

    def remarks(self) -> list[str]:
        """Return sentences about seeds without a value, if there are values for others."""
        if not self.values:
            return []
        return [f"{self.cell.name}: there is no value for seed {seed}: {why}" for seed, why in self.absent.items()]


@dataclass(frozen=True)
class Reproduction:
    """The cells of a table with the printed and our values."""

    plan: Plan
    failures: Mapping[Path, str]
    """The reasons of runs that failed, by directory."""

    @cached_property
    def cells(self) -> tuple[CellResult, ...]:
        """All cells of the table."""
        return tuple(self._result(planned) for planned in self.plan.cells)

    @property
    def reported(self) -> tuple[CellResult, ...]:
        """The cells that were asked for, and those of which the folder has values from earlier commands."""
        chosen = {id(planned) for planned in self.plan.selected}
        return tuple(result for result in self.cells if id(result.planned) in chosen or result.values)

    @property
    def selected(self) -> tuple[CellResult, ...]:
        """The cells that were asked for."""
        chosen = {id(planned) for planned in self.plan.selected}
        return tuple(result for result in self.cells if id(result.planned) in chosen)

    @property
    def failed(self) -> int:
        """The number of runs that failed."""
        return len(self.failures)

    # Values

    def _result(self, planned: PlannedCell) -> CellResult:
        cell, printed = planned.cell, planned.cell.printed
        reference = self._reference(planned) if cell.measure == TIME else None
        if reference is not None:
            other = reference.cell.printed
            printed = Printed(printed.mean / other.mean) if printed is not None and other is not None else None
        values: dict[int, float] = {}
        absent: dict[int, str] = {}
        for seed in self.plan.seeds:
            value, reason = self._value(planned, reference, seed)
            if value is None:
                absent[seed] = reason
            else:
                values[seed] = value
        failed = any(task.path in self.failures for tasks in planned.tasks.values() for task in tasks)
        ran = any(all(self._complete(task) for task in tasks) for tasks in planned.tasks.values())
        return CellResult(planned, printed, values, absent, failed, ran, reference.cell.name if reference else "")

    def _reference(self, planned: PlannedCell) -> PlannedCell | None:
        """Return the cell to which the times of a cell are ratios."""
        found = self.plan.table.reference(planned.cell)
        return next((one for one in self.plan.cells if one.cell is found), None)

    def _value(self, planned: PlannedCell, reference: PlannedCell | None, seed: int) -> tuple[float | None, str]:
        """Return the value of a seed in the unit of the paper, or None and the reason of its absence."""
        cell, tasks = planned.cell, planned.tasks.get(seed, ())
        others = reference.tasks.get(seed, ()) if reference is not None else ()
        if reason := next((text for task in (*tasks, *others) if (text := self._missing(task)) is not None), None):
            return None, reason
        if planned.problem or not all(self._complete(task) for task in (*tasks, *others)):
            return None, planned.problem
        scale = UNITS[cell.unit] if cell.measure != TIME else 1
        found = []
        for task, other in itertools.zip_longest(tasks, others):
            against = load_run(other.path, trust=True) if other is not None else None
            value, reason = measured(load_run(task.path, trust=True), cell.measure, cell.value, against)
            if value is None:
                return None, f"there is no {cell.measure}: {reason}"
            found.append(scale * value)
        return statistics.fmean(found), ""

    def _missing(self, task: Task) -> str | None:
        """Return why a run has no result, or None if it has one or was not started."""
        if (reason := self.failures.get(task.path)) is not None:
            return reason
        if task.done and not self._complete(task):
            return f"{task.done} of {task.rounds} rounds are complete"
        return None

    def _complete(self, task: Task) -> bool:
        return RunDirectory(task.path).started and is_complete(task)

    # Reports

    def facts(self) -> dict[str, Any]:
        """Return the reproduction as plain data."""
        table = self.plan.table
        return {
            "table": table.name,
            "title": table.title,
            "paper": table.paper,
            "command": shlex.join(self.plan.command),
            "seeds": list(self.plan.seeds),
            "rule": RULE,
            "fullrank": __version__,
            "cells": [self._facts(result) for result in self.cells],
        }

    def _facts(self, result: CellResult) -> dict[str, Any]:
        printed, cell = result.printed, result.cell
        return {
            "at": dict(cell.at),
            "measure": cell.measure,
            "value": cell.value,
            "unit": cell.unit if not result.reference else "×",
            "paper": {"mean": printed.mean, "std": printed.std} if printed is not None else None,
            "ours": {"mean": result.mean, "std": result.std, "by_seed": dict(result.values)},
            "ratio_to": result.reference,
            "difference": result.difference,
            "verdict": {"kind": result.verdict.kind, "detail": result.verdict.detail},
            "absent": dict(result.absent),
            "rounds": list(result.planned.rounds),
            "changed": dict(result.planned.changed),
            "notes": [{"kind": note.kind, "text": note.text} for note in cell.notes],
            "runs": [
                _run_facts(seed, task)
                for seed, tasks in result.planned.tasks.items()
                for task in tasks
                if RunDirectory(task.path).started
            ],
        }

    def to_json(self) -> str:
        """Return the reproduction as JSON."""
        return json.dumps(self.facts(), indent=1)

    def rows(self, results: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
        """Return the table for display.

        Args:
            results: The cells that it has.

        Returns:
            The titles of the columns, and the texts of each row.
        """
        measures = {result.cell.measure for result in self.cells}
        coordinates = list(self.plan.table.coordinates)
        titles = [*coordinates, *(["measure"] if len(measures) > 1 else []), "paper", "ours", "difference", "verdict"]
        rows = []
        below = Footnotes()
        for result in results:
            measure = [result.cell.measure] if len(measures) > 1 else []
            at = [result.cell.at.get(name, "") for name in coordinates]
            printed, mean = result.printed, result.mean
            ours = "" if mean is None else str(Printed(mean, result.std))
            difference = "" if result.difference is None else f"{result.difference:+.2f}"
            found = below.short(result.verdict.kind, result.verdict.detail)
            rows.append([*at, *measure, str(printed or ""), ours, difference, found])
        return titles, rows

    def remarks(self, results: Sequence[CellResult]) -> list[str]:
        """Return what `rows` refers to by numbers, sentences about seeds without values, and the notes on the cells.

        Args:
            results: The cells of the table.
        """
        below = Footnotes()
        for result in results:
            below.short(result.verdict.kind, result.verdict.detail)
        found = below.sentences()
        found += [remark for result in results for remark in result.remarks()]
        if any(result.reference for result in results):
            to = ", ".join(f"{name}={value}" for name, value in self.plan.table.to.items())
            found.append(f"Times are ratios to that of {to}, on one machine.")
        kinds = {"slip": "Error in the paper", "choice": "Our choice", "note": "Note", "impossible": "Cannot be run"}
        for note in dict.fromkeys((note.kind, note.text) for result in results for note in result.cell.notes):
            found.append(f"{kinds[note[0]]}: {note[1]}")
        return found

    def markdown(self) -> str:
        """Return the report as Markdown."""
        table, results = self.plan.table, self.reported
        titles, rows = self.rows(results)
        remarks = self.remarks(results)
        if others := len(self.cells) - len(results):
            which = "The other cell" if others == 1 else f"The other {others} cells"
            remarks.append(f"{which} of the table {'was' if others == 1 else 'were'} not run.")
        lines = [
            f"# {table.name}: {table.title}",
            "",
            f"{table.paper}.",
            "",
            *([f"    {shlex.join(self.plan.command)}", ""] if self.plan.command else []),
            *markdown_table(titles, rows),
            "",
            f"Means ± standard deviations over the seeds {', '.join(map(str, self.plan.seeds))}. {RULE}",
            "",
            *(f"- {remark}" for remark in remarks),
            *([""] if remarks else []),
            *self._software(),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def _software(self) -> list[str]:
        """Return a sentence about the software and the machine of the runs."""
        runs = [run for cell in self.facts()["cells"] for run in cell["runs"]]
        used = dict.fromkeys(
            f"fullrank {run['fullrank']}{' (commit ' + run['git_commit'] + ')' if run['git_commit'] else ''}, torch "
            f"{run['torch']}, {run['device']}"
            for run in runs
        )
        return [f"Run with {'; '.join(used)}. `{REPORT}.json` has the hash of every experiment."] if used else []

    def write(self) -> None:
        """Write the report into the folder of the runs."""
        folder = self.plan.folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{REPORT}.json", self.facts())
            write_atomically(folder / f"{REPORT}.md", self.markdown().encode())


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown.

    >>> markdown_table(["a", "b"], [["1", "2|3"]])
    ['| a | b |', '|---|---|', '| 1 | 2\\\\|3 |']
    """
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in [titles, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(titles)}", *lines[1:]]


def _run_facts(seed: int, task: Task) -> dict[str, Any]:
    """Return what identifies a run: its experiment, its software and its machine."""
    around = read_json(task.path / "environment.json")
    newest = (around.get("resumed") or [around])[-1]
    return {
        "seed": seed,
        "directory": task.path.name,
        "hash": task.experiment.hash(),
        "rounds": task.done,
        "fullrank": newest["fullrank"],
        "git_commit": newest["git_commit"],
        "torch": newest["torch"],
        "device": newest["gpu"] or newest["cpu"],
    }


def reproduce(
    table: str | Path | Table,
    cells: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    jobs: int = 0,
    ray: str = "",
    callbacks: Sequence[ComparisonCallback] = (),
    progress: bool | None = None,
) -> Reproduction:
    """Run what is missing for the cells of a published table, and compare the results with the paper.

    Every run is an ordinary run directory in `out`, and cells with equal experiments share it. The same call again
    completes the runs that are not complete. A cell whose data are absent, or one of whose runs fails, is marked with
    the reason, and the others are run.

    Args:
        table: A table, its name, for example "feddecorr-tpami/table-1", or the path of a file of the same form.
        cells: Patterns of cells, such as "method=fedavg,alpha=0.05"; all cells without one.
        seeds: The seeds.
        rounds: The number of rounds, in place of the paper's.
        changes: Changes to the keys of all experiments, for example {"data.root": "data"}.
        out: The folder of the runs and of the report. By default it is named after the table.
        jobs: The number of parallel runs, as for `fullrank.compare`.
        ray: The address of a Ray cluster on whose nodes the runs are made, as for `fullrank.compare`.
        callbacks: Objects that are notified of the progress of the runs.
        progress: Whether the progress of the runs is shown. None shows it in a notebook only.

    Returns:
        The cells with the printed and our values, and the verdicts.

    Raises:
        InputError: If an argument or a directory is rejected, or none of the cells can be run.
        Interrupted: If the reproduction is interrupted; the same call continues it.
    """
    found = table if isinstance(table, Table) else load_table(table)
    plan = make_plan(found, cells, seeds, rounds, changes, out)
    return complete(plan, jobs, [*boards(progress), *callbacks], ray)


def complete(plan: Plan, jobs: int = 0, callbacks: Sequence[ComparisonCallback] = (), ray: str = "") -> Reproduction:
    """Run what is missing in a plan, and write the report.

    Args:
        plan: The plan.
        jobs: The number of parallel runs.
        callbacks: Objects that are notified of the progress of the runs.
        ray: The address of the Ray cluster on which the runs are made; if empty, they are made here.

    Raises:
        InputError: If a directory holds the run of another experiment, or none of the cells can be run.
        Interrupted: If the runs are interrupted; the same call continues them.
    """
    check_callbacks(callbacks, ComparisonCallback)
    check_jobs(jobs)
    plan.check()
    watching = [PlanRecord(plan.folder), *callbacks]
    # As if a run had started: each failure is reported at its cell, and none stops the others.
    failures: dict[Path, Failure] = complete_runs(
        plan.tasks, plan.pending(), plan.jobs(jobs), ComparisonCallbacks(watching), plan.folder, begun=True, ray=ray
    )
    found = Reproduction(plan, {path: failure.reason for path, failure in failures.items()})
    found.write()
    return found


def check_jobs(jobs: int) -> None:
    """Check the number of parallel runs.

    Raises:
        InputError: If it is negative.
    """
    if jobs < 0:
        raise InputError(f"jobs = {jobs}: must be at least 0 (one per core)")
