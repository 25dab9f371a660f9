"""The plan of a reproduction: the runs behind the cells of a table, and how long they take."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank.comparison.compare import at_once, is_complete, sharing_cores
from fullrank.comparison.measured import check_measure, with_terms
from fullrank.comparison.parallel import Task
from fullrank.config.experiment import Experiment, dotted, nested, same
from fullrank.data.sources.load import load_dataset
from fullrank.data.sources.registry import stored
from fullrank.errors import InputError, Interrupted
from fullrank.papers.tables import TIME, Cell, Table
from fullrank.runs.callbacks import Callback
from fullrank.runs.directory import RunDirectory, read_rows
from fullrank.runs.display import counted
from fullrank.runs.run import run

MEASURED = 2
"""The number of rounds that are run to measure the time of a round; the first one includes the preparations."""
WITHOUT_EFFECT = ("engine.", "run.", "data.root", "train.rounds")
"""Keys that a reproduction may change and that leave the experiment the same; rounds are reported separately."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its runs."""

    cell: Cell
    tasks: Mapping[int, tuple[Task, ...]]
    """By seed the runs of which the value is the mean, most often one."""
    rounds: tuple[int, int]
    """The number of rounds that are run, and that of the paper."""
    changed: Mapping[str, Any]
    """The keys in which the experiments differ from the paper's, with their values."""
    problem: str = ""
    """Why the cell cannot be run, if it cannot."""


@dataclass(frozen=True)
class Plan:
    """The cells of a table with their runs, which are in one folder. Equal experiments are one run."""

    table: Table
    folder: Path
    seeds: tuple[int, ...]
    cells: tuple[PlannedCell, ...]
    """All cells of the table."""
    selected: tuple[PlannedCell, ...]
    """The cells to run."""
    command: tuple[str, ...] = ()
    """The arguments of the command that makes the reproduction, if it is one of the command line."""

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The runs of the selected cells that can be run, seed by seed."""
        found: dict[Path, Task] = {}
        for seed in self.seeds:
            for planned in self.selected:
                for task in planned.tasks[seed] if not planned.problem else ():
                    found.setdefault(task.path, task)  # a shared run is named after the first of its cells
        return tuple(found.values())

    def check(self) -> None:
        """Check that a cell of the plan can be run.

        Raises:
            InputError: If none can; it has the reasons.
        """
        if all(one.problem for one in self.selected):
            raise InputError("\n".join(dict.fromkeys(one.problem for one in self.selected)))

    def jobs(self, asked: int) -> int:
        """Return the number of parallel runs as `fullrank.compare` takes it: runs whose time counts are not parallel.

        Args:
            asked: The number that was asked for; 0 leaves the choice to fullrank.
        """
        return asked or (1 if self.timed else 0)

    @property
    def timed(self) -> bool:
        """Whether times are compared."""
        return any(one.cell.measure == TIME for one in self.selected)

    def pending(self) -> list[Task]:
        """Return the runs that are not complete."""
        return [task for task in self.tasks if not is_complete(task)]

    def facts(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "table": self.table.name,
            "folder": str(self.folder),
            "runs": len(self.tasks),
            "pending": len(self.pending()),
            "rounds": sum(task.rounds - task.done for task in self.pending()),
            "cells": [
                {
                    "at": dict(planned.cell.at),
                    "measure": planned.cell.measure,
                    "rounds": planned.rounds[0],
                    "rounds_of_the_paper": planned.rounds[1],
                    "changed": dict(planned.changed),
                    "problem": planned.problem,
                    "runs": [
                        {"seed": seed, "directory": task.path.name, "rounds_done": task.done}
                        for seed, tasks in planned.tasks.items()
                        for task in tasks
                    ],
                }
                for planned in self.selected
            ],
        }


def make_plan(
    table: Table,
    cells: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    command: Sequence[str] = (),
) -> Plan:
    """Plan the reproduction of a table, or of some of its cells.

    Args:
        table: The table.
        cells: Patterns of cells, as `Table.select` takes them; all cells without one.
        seeds: The seeds.
        rounds: The number of rounds, in place of the paper's.
        changes: Changes to the keys of all experiments.
        out: The folder of the runs; by default a name in `runs`.
        command: The arguments of the command that asks for it, which the report records.

    Raises:
        InputError: If an argument is rejected.
    """
    if not table.cells:
        raise InputError(f"{table.name} has no cells: {table.unavailable}")
    chosen = _with_references(table, table.select(cells))
    changes = dotted(nested(changes or {}))
    if "seed" in changes:
        raise InputError("--set seed has no effect in a reproduction; use --seeds")
    if rounds is not None:
        if rounds < 1:
            raise InputError(f"--rounds {rounds}: there must be at least one round")
        changes["train.rounds"] = rounds
    folder = Path(out) if out is not None else _usual_folder(table, rounds)
    if RunDirectory(folder).started:
        raise InputError(f'"{folder}" is a run itself; a reproduction holds several, so choose another directory')
    missing: dict[str, str] = {}
    planned = {id(cell): _planned(cell, seeds, changes, folder, missing) for cell in table.cells}
    selected = tuple(planned[id(cell)] for cell in chosen)
    return Plan(table, folder, tuple(seeds), tuple(planned.values()), selected, tuple(command))


def _with_references(table: Table, chosen: Sequence[Cell]) -> list[Cell]:
    """Return cells together with those to which their times are ratios, in the order of the table."""
    needed = [table.reference(cell) for cell in chosen if cell.measure == TIME]
    return [cell for cell in table.cells if any(cell is one for one in (*chosen, *needed))]


def _usual_folder(table: Table, rounds: int | None) -> Path:
    """Return the default folder, another one for a shortened reproduction, so that each has its report."""
    label = Path(table.name).stem if table.name.endswith(".toml") else table.name.replace("/", "-")
    return Path("runs") / (f"reproduce-{label}" + (f"-{counted(rounds, 'round')}".replace(" ", "-") if rounds else ""))


def _planned(
    cell: Cell, seeds: Sequence[int], changes: Mapping[str, Any], folder: Path, missing: dict[str, str]
) -> PlannedCell:
    if cell.impossible:
        return PlannedCell(cell, {}, (0, 0), {}, cell.impossible)
    try:
        original = cell.experiments(seed=0)
        experiments = {seed: cell.experiments(seed, changes) for seed in seeds}
        for one in experiments[seeds[0]]:
            check_measure(cell.measure, one, with_terms([one.method.name]))
    except InputError as problem:
        return PlannedCell(cell, {}, (0, 0), {}, str(problem))
    first = experiments[seeds[0]]
    rounds = min(one.train.rounds for one in first), min(one.train.rounds for one in original)
    tasks = {
        seed: tuple(
            Task(_name(cell, seed, number, len(several)), experiment, folder / directory_name(experiment))
            for number, experiment in enumerate(several, start=1)
        )
        for seed, several in experiments.items()
    }
    lacking = next((text for one in first if (text := _missing_data(one, missing))), "")
    longer = {"train.rounds": rounds[0]} if rounds[0] > rounds[1] else {}
    return PlannedCell(cell, tasks, rounds, {**longer, **differing(original, first)}, lacking)


def _name(cell: Cell, seed: int, number: int, of: int) -> str:
    part = f" part {number} of {of}" if of > 1 else ""
    return f"{cell.name}{part} seed {seed}"


def directory_name(experiment: Experiment) -> str:
    """Return the name of the directory of a run, the same for equal experiments with as many rounds.

    >>> directory_name(Experiment(train={"rounds": 2})).partition("-")[0]
    'digits'
    """
    return f"{experiment.directory().name}-seed{experiment.seed}-{counted(experiment.train.rounds, 'round')}".replace(
        " ", "-"
    )


def differing(original: Sequence[Experiment], now: Sequence[Experiment]) -> dict[str, Any]:
    """Return the keys that decide the result and in which experiments differ from others.

    Seeds and the number of rounds do not count.

    Args:
        original: The experiments of a cell.
        now: As many experiments, whose values are returned.

    >>> differing([Experiment()], [Experiment(train={"lr": 0.5, "rounds": 7})])
    {'train.lr': 0.5}
    """
    found: dict[str, Any] = {}
    for one, other in zip(original, now, strict=True):
        before, after = one.resolved().flat(), other.resolved().flat()
        for key, value in after.items():
            if key != "seed" and not key.startswith(WITHOUT_EFFECT) and not same(before.get(key), value):
                found[key] = value
    return found


def _missing_data(experiment: Experiment, known: dict[str, str]) -> str:
    """Return the sentence that says which files of the data set are missing; empty if they are there."""
    table = experiment.data
    key = repr((table.name, table.root, table.reading))
    if key not in known:
        try:
            if table.name in stored():
                stored()[table.name].find(table.root)
            else:
                load_dataset(table.name, table.root, seed=experiment.seed, **table.reading)
            known[key] = ""
        except InputError as problem:
            known[key] = str(problem)
    return known[key]


# Time


@dataclass(frozen=True)
class Estimate:
    """The time that the runs of a plan still need."""

    seconds: float
    """The seconds of the runs whose time is known, with several at a time where the machine has room."""
    rounds: int
    """The number of rounds that remain."""
    at_once: int
    """The number of parallel runs."""
    unknown: int
    """The number of runs whose time is not known."""
    per_round: Mapping[str, float]
    """Seconds per round by workload, which the name of one of its runs stands for."""


def estimate(plan: Plan, jobs: int = 0) -> Estimate:
    """Estimate the time that the runs of a plan still need from the rounds that have been run.

    Runs that differ only in their seed, in the concentration of a Dirichlet partition or in the number of rounds are
    one workload.

    Args:
        plan: The plan.
        jobs: The number of parallel runs; 0 means as many as the machine has room for.
    """
    pending = plan.pending()
    number = at_once(pending, plan.jobs(jobs))
    seconds, unknown, per_round = 0.0, 0, {}
    for tasks in _workloads(pending).values():
        each = seconds_per_round(task.path for task in _of_the_same_workload(plan, tasks[0]))
        if each is None:
            unknown += len(tasks)
            continue
        per_round[tasks[0].name] = each
        seconds += each * sum(task.rounds - task.done for task in tasks)
    left = sum(task.rounds - task.done for task in pending)
    return Estimate(seconds / max(1, number), left, number, unknown, per_round)


def measure(plan: Plan, jobs: int = 0) -> None:
    """Run the first rounds of one run of each workload whose time is not known; the run continues from them later.

    Runs whose time is compared are not interrupted for it.

    Args:
        plan: The plan.
        jobs: The number of parallel runs with which the plan will be run.

    Raises:
        Interrupted: If the measurement is interrupted; the rounds so far are saved.
    """
    for task in unmeasured(plan, jobs):
        _run_first_rounds(task)


def unmeasured(plan: Plan, jobs: int = 0) -> list[Task]:
    """Return the runs whose first rounds `measure` runs, one of each workload whose time is not known.

    Args:
        plan: The plan.
        jobs: The number of parallel runs with which the plan will be run.
    """
    pending = plan.pending() if not plan.timed else []
    found = []
    for tasks in _workloads(sharing_cores(pending, at_once(pending, jobs))).values():
        same_time = _of_the_same_workload(plan, tasks[0])
        left = sum(task.rounds - task.done for task in tasks)
        if left > MEASURED and seconds_per_round(task.path for task in same_time) is None:
            found.append(tasks[0])
    return found


class _Enough(Interrupted):
    """Raised to stop a run after the rounds that were measured; they are saved."""


class _FirstRounds(Callback):
    """Stops a run after a few rounds."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] >= MEASURED:
            raise _Enough


def _run_first_rounds(task: Task) -> None:
    try:
        run(task.experiment, task.path, callbacks=[_FirstRounds()], progress=False)
    except _Enough:
        return
    except Exception:
        return  # the reason is reported when the run fails again, as one of the plan


def _workloads(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(_workload(task.experiment), []).append(task)
    return found


def _of_the_same_workload(plan: Plan, task: Task) -> list[Task]:
    return _workloads(plan.tasks)[_workload(task.experiment)]


def _workload(experiment: Experiment) -> str:
    return experiment.but(seed=0, data__alpha=1.0).hash()


def seconds_per_round(paths: Iterable[Path]) -> float | None:
    """Return the median time of a round in run directories, without their first rounds if there are others.

    Args:
        paths: Directories, of which those without a run are left out.

    Returns:
        The seconds, or None if no round has been run.
    """
    rows = [read_rows(path) for path in paths if RunDirectory(path).started]
    later = [row["seconds"] for several in rows for row in several[1:]]
    first = [several[0]["seconds"] for several in rows if several]
    return statistics.median(later or first) if first else None
