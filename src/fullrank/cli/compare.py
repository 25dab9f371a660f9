"""The command `fullrank compare`: the progress of several runs, and the table at the end."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fullrank.cli.options import AsJson, Overrides, Root, experiment_values, fail
from fullrank.comparison.compare import compare
from fullrank.comparison.parallel import ComparisonCallback, Task
from fullrank.comparison.table import Comparison, Row, compare_runs
from fullrank.errors import InputError, Interrupted
from fullrank.metrics.measures import label_of, single_numbers
from fullrank.runs.display import PAUSE, STAGES, Pace, amiss, averaged, clock, counted, scores, setting

WIDE = 10_000


def compare_command(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE.toml",
            help="Experiment file. If omitted, all keys have their defaults. With --runs, the run directories.",
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", "-m", metavar="A,B,…", help="Methods. Differences are to the first one.")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", "-s", metavar="N,N,…", help="Seeds, as in 0,1,2 or 0-4.")] = "0,1,2",
    overrides: Overrides = None,
    root: Root = "",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs. By default a name in runs/."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", metavar="N", help="Number of parallel runs. 0: one per core, or one on a GPU."),
    ] = 0,
    measure: Annotated[
        str,
        typer.Option(
            "--measure",
            metavar="NAME",
            help=f"Measure to compare: {', '.join(metric.key for metric in single_numbers())}, another metric of "
            "evaluate.metrics, personal, bytes_up …",
        ),
    ] = "accuracy",
    value: Annotated[
        str,
        typer.Option(
            "--value",
            metavar="NAME",
            help="Value of a run: last5 (mean of the last five rounds), last, best (over rounds), validated (round "
            "with the best validation score) or final (after the last step of the method).",
        ),
    ] = "last5",
    runs: Annotated[bool, typer.Option("--runs", help="Compare existing run directories, or all in a folder.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table without progress.")] = False,
) -> None:
    """Compare methods over several seeds on the same partitions.

    Each seed draws its own partition of the data, and all methods use the same one. The table has the mean and standard
    deviation over seeds, and the differences to the first method, paired by seed, with a 95 % confidence interval
    (Student's t). Every run has an ordinary run directory: if the comparison was interrupted, the same command resumes
    it, and more seeds can be added later. A run that fails, for example because it diverges, is marked in the table
    and excluded from the means; the other runs continue, and the exit status is 1.

    Example: fullrank compare examples/demo.toml --methods fedavg,fedprox,fedavg+feddecorr --seeds 0-4

    Example: fullrank compare --runs runs/a runs/b runs/c runs/d
    """
    if runs:
        if methods or overrides or out or root:
            raise InputError("--runs compares existing runs: omit --methods, --set, --root and --out")
        found = compare_runs(inputs or [], measure=measure, value=value)
    else:
        there = [f"data.root={root}"] if root else []
        experiment = _experiment(inputs or [], methods, [*(overrides or []), *there])
        views: dict[str, Any] = {"jobs": jobs, "measure": measure, "value": value}
        found = _run(quiet or as_json, experiment, methods.split(","), parse_seeds(seeds), out, **views)
    if as_json:
        print(found.to_json())
    else:
        _show(found)
    for warning in found.warnings():
        print(f"fullrank: warning: {warning}", file=sys.stderr)
    if found.failed:
        every = len(found.failed) + len(found.runs)
        fail(f"{len(found.failed)} of {every} runs failed; see log.txt in the directory of each", 1)


def _experiment(inputs: Sequence[str], methods: str, overrides: list[str] | None) -> dict[str, Any]:
    """Return the values of the experiment that all methods and seeds share."""
    if len(inputs) > 1:
        raise InputError(f"compare takes one experiment, not {len(inputs)}; use --runs to compare run directories")
    if not methods.strip():
        raise InputError("name the methods to compare, as in --methods fedavg,fedavg+feddecorr")
    for text in overrides or []:
        key = text.partition("=")[0].strip()
        if key in ("seed", "method.name"):
            raise InputError(
                f"--set {key} has no effect in a comparison; use {'--seeds' if key == 'seed' else '--methods'}"
            )
    return experiment_values(inputs[0] if inputs else None, overrides)


def _run(silent: bool, *what: Any, **how: Any) -> Comparison:
    with _board(silent) as board:
        try:
            return compare(*what, **how, callbacks=[board])
        except Interrupted as stop:
            sentence = str(stop)
    fail(sentence, 130)  # here, because typer would print "Aborted." only


MOST_SEEDS = 10_000


def parse_seeds(text: str) -> list[int]:
    """Parse seeds from a list of numbers and ranges.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", piece)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f'--seeds "{text}" is not a list of seeds, as in 0,1,2 or 0-4')
        several = range(int(match[1]), int(match[2] or match[1]) + 1)
        if several.stop - several.start > MOST_SEEDS:
            raise InputError(f'--seeds "{text}" are more than {MOST_SEEDS} seeds; each seed is a run of every method')
        found += several
    return found


# Progress of the runs


class PlainBoard(ComparisonCallback):
    """Prints a line when a run starts or ends, and its progress from time to time."""

    def __init__(self, stream: IO[str]):
        self.stream = stream
        self.spoken: dict[str, float] = {}

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Print what will be run, and what is complete already."""
        self.runs, self.complete = len(tasks), len(tasks) - len(pending)
        for line in opening(tasks, pending):
            self._say(line)

    def started(self, task: Task) -> None:
        """Print that a run starts."""
        self.spoken[task.name] = time.monotonic()
        self._say(f"{task.name}: " + (f"resumes after round {task.done}" if task.done else "starts"))

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """Print the progress of a run, unless it was printed a moment ago."""
        for warning in (*row.get("cautions", []), *amiss(row)):
            self._say(f"{task.name}: {warning}")
        if row["round"] < task.rounds and time.monotonic() - self.spoken[task.name] > PAUSE:
            self.spoken[task.name] = time.monotonic()
            self._say(f"{task.name}: round {row['round']}/{task.rounds}{scores(row)}")

    def progressed(self, task: Task, phase: str, done: int, clients: int) -> None:
        """Print the progress of the clients, unless it was printed a moment ago."""
        if time.monotonic() - self.spoken[task.name] > PAUSE:
            self.spoken[task.name] = time.monotonic()
            self._say(f"{task.name}: {phase}: {done}/{clients}")

    def printed(self, task: Task, text: str) -> None:
        """Print what the code of a run printed."""
        self._say(f"{task.name}: {text}")

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """Print the result of a run."""
        self.complete += 1
        self._say(f"{_outcome(task, summary)}  ({self.complete} of {self.runs})")

    def failed(self, task: Task, reason: str) -> None:
        """Print why a run failed."""
        self._say(f"{task.name}: failed: {reason}")


class LiveBoard(ComparisonCallback):
    """Shows a progress bar for all runs together and one for each active run."""

    def __init__(self, console: Console):
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[state]}"))
        self.progress = Progress(*columns, console=console, transient=True)
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> LiveBoard:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the progress bars."""
        self.progress.stop()

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Show how many of the runs are complete."""
        self.runs, self.complete = len(tasks), len(tasks) - len(pending)
        self.rounds = sum(task.rounds for task in tasks)
        self.pace = Pace(sum(task.rounds - task.done for task in pending))
        for line in opening(tasks, pending):
            self._print(line)
        if pending:
            self.all = self.progress.add_task("all runs", total=self.rounds, **self._state())
            self.progress.start()

    def started(self, task: Task) -> None:
        """Add the progress bar of a run."""
        state = f"{task.done}/{task.rounds}"
        self.bars[task.name] = self.progress.add_task(task.name, total=task.rounds, completed=task.done, state=state)

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """Advance the progress bar of the run and that of all runs."""
        state = f"{row['round']}/{task.rounds}{scores(row)}"
        self.progress.update(self.bars[task.name], completed=row["round"], state=state)
        self.pace.round_done()
        self.progress.update(self.all, **self._state())
        for warning in (*row.get("cautions", []), *amiss(row)):
            self._print(f"{task.name}: {warning}", style="yellow")

    def progressed(self, task: Task, phase: str, done: int, clients: int) -> None:
        """Show the progress of the clients next to the progress bar of the run."""
        self.progress.update(self.bars[task.name], state=f"{phase} {done}/{clients}")

    def printed(self, task: Task, text: str) -> None:
        """Print what the code of a run printed."""
        self._print(f"{task.name}: {text}")

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """Replace the progress bar of the run by a line with its result."""
        self.complete += 1
        self.progress.remove_task(self.bars.pop(task.name))
        self.progress.update(self.all, **self._state())
        self._print(_outcome(task, summary))

    def failed(self, task: Task, reason: str) -> None:
        """Replace the progress bar of the run by the reason of its failure."""
        self.pace.remaining -= task.rounds - task.done
        self.progress.remove_task(self.bars.pop(task.name))
        self.progress.update(self.all, **self._state())
        self._print(f"{task.name}: failed: {reason}", style="red")

    def _print(self, text: str, style: str | None = None) -> None:
        self.progress.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _state(self) -> dict[str, Any]:
        left = f"  left {clock(self.pace.left())}" if self.pace.finished and self.pace.remaining else ""
        return {
            "completed": self.rounds - self.pace.remaining,
            "state": f"{self.complete}/{self.runs} complete{left}",
        }


def _board(silent: bool) -> AbstractContextManager[ComparisonCallback]:
    if silent:
        return nullcontext(ComparisonCallback())
    return LiveBoard(Console()) if sys.stdout.isatty() else nullcontext(PlainBoard(sys.stdout))


def opening(tasks: Sequence[Task], pending: Sequence[Task]) -> list[str]:
    """Return the first lines of the output of a comparison."""
    methods = {task.experiment.method.name for task in tasks}
    seeds = {task.experiment.seed for task in tasks}
    lines = [f"{_number_of(methods, 'method')} × {_number_of(seeds, 'seed')} on {setting(tasks[0].experiment)}"]
    if not pending:
        lines.append(f"complete already in {tasks[0].path.parent}")
    elif len(pending) < len(tasks):
        complete = len(tasks) - len(pending)
        lines.append(f"writing to {tasks[0].path.parent}, where {complete} of {len(tasks)} runs are complete already")
    else:
        lines.append(f"writing to {tasks[0].path.parent}")
    return lines


def _number_of(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _outcome(task: Task, summary: Mapping[str, Any]) -> str:
    last = {measure: summary[measure]["last"] for measure in ("accuracy", "loss") if measure in summary}
    return f"{task.name}: {counted(summary['rounds'], 'round')}{scores(last)}  {summary['seconds']:.1f} s"


# The table

Show = Callable[[float, bool], str]
"""Formats a value of the measure; the second argument says whether the sign is shown."""


def _show(found: Comparison) -> None:
    show = _numbers(found)
    console, wide = Console(highlight=False), Console(highlight=False, width=WIDE)
    table = _table(found, show, by_seed=True)
    if not console.is_terminal:
        console = wide  # lines in a file can have any length
    elif wide.measure(table).maximum > console.width:
        table = _table(found, show, by_seed=False)
    print(f"\n{_title(found)}\n")
    console.print(table)
    print()
    for remark in found.remarks():
        console.print(remark, markup=False)
    where = f"; results in {found.out}" if found.out is not None else ""
    failed = f", {len(found.failed)} failed" if found.failed else ""
    print(f"{_number_of(found.runs, 'run')} complete{failed}{where}")


def _title(found: Comparison) -> str:
    experiment, measure = found.experiment, found.measure
    evaluated = "round" if experiment.evaluate.every == 1 else "evaluation"
    values = {
        "last5": f"mean of the last {counted(averaged(experiment), evaluated)}",
        "last": "last round",
        "best": "best over rounds",
        "validated": "round with the best validation score",
        "final": "after the last step of the method",
    }
    words = {"accuracy": "test accuracy", "loss": "test loss", "personal": "accuracy on the clients' held-out samples"}
    words["personal_accuracy"] = f"personal accuracy {STAGES['local']}"
    name = words.get(measure, label_of(measure))
    unit = " in percent" if found.is_share else ""
    value = f", {values[found.value]}" if found.has_values else ""
    stages = found.stages()
    stage = f", {STAGES[stages[0]]}" if stages else ""
    if len(stages) > 1:
        stage = ", of each method at its last stage"
    return f"{name[0].upper()}{name[1:]}{unit}{value}{stage}:"


def _table(found: Comparison, show: Show, by_seed: bool) -> Table:
    seeds = found.seeds if by_seed else ()
    several, staged = len(found.methods) > 1, len(found.stages()) > 1
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    if staged:
        table.add_column("stage")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for header in ("mean ± std", "difference (95 % CI)")[: 1 + several]:
        table.add_column(header, no_wrap=True)
    for row in found.rows():
        missing = {seed: "failed" if (row.method, seed) in found.failed else "–" for seed in seeds}
        cells = [show(row.values[seed], False) if seed in row.values else missing[seed] for seed in seeds]
        stage = [STAGES[row.stage] if row.stage else ""] if staged else []
        table.add_row(row.method, *stage, *cells, _mean(row, show), *([_difference(row, show)] if several else []))
    return table


def _mean(row: Row, show: Show) -> str:
    if row.mean is None:
        return "absent"
    return show(row.mean, False) + (f" ± {show(row.std, False)}" if row.std is not None else "")


def _difference(row: Row, show: Show) -> str:
    difference = row.difference
    if difference is None:
        return ""
    text = show(difference.mean, True)
    if difference.low is None or difference.high is None:
        return text
    return f"{text} ({show(difference.low, True)} to {show(difference.high, True)})"


def _numbers(found: Comparison) -> Show:
    """Return the format of a measure: fractions in percent, other values with digits that fit their size."""
    if found.is_share:
        # + 0.0: a value that rounds to zero has no sign
        return lambda value, signed: f"{round(100 * value, 2) + 0.0:{'+' if signed else ''}.2f}"
    large = any(abs(value) >= 1000 for row in found.rows() for value in row.values.values())
    digits = 0 if large else 4
    return lambda value, signed: f"{round(value, digits) + 0.0:{'+' if signed else ''},.{digits}f}"
