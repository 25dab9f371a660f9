"""The progress of a comparison: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

from rich.console import Console
from rich.progress import TaskID

from fullrank.comparison.parallel import ComparisonCallback, Task
from fullrank.runs.display import PAUSE, Bars, Pace, clock, counted, problems_of, scores, setting
from fullrank.runs.notebook import Bar, in_notebook
from fullrank.runs.terminal import print_above

SHOWN = ("accuracy", "loss")
"""The measures in the line of a run that has ended."""
WIDE_ENOUGH = 110
"""The number of columns of a terminal from which the line of an active run has all measures; else the accuracy."""


class PlainBoard(ComparisonCallback):
    """Prints a line when a run starts or ends, and its progress from time to time.

    Args:
        stream: Where the lines are printed.
    """

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
        for warning in (*row.get("cautions", []), *problems_of(row)):
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

    def stopped(self, task: Task, reason: str) -> None:
        """Print why a run was stopped."""
        self._say(f"{task.name}: {reason}")


class LiveBoard(ComparisonCallback):
    """Shows a progress bar for all runs together and one for each active run.

    Args:
        console: Where the bars are shown.
    """

    def __init__(self, console: Console):
        self.narrow = console.width < WIDE_ENOUGH
        self.progress = Bars(console, bar_width=10 if self.narrow else 24)
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
        shown = {key: row.get(key) for key in SHOWN[:1]} if self.narrow else row
        state = f"{row['round']}/{task.rounds}{scores(shown)}"
        self.progress.update(self.bars[task.name], completed=row["round"], state=state)
        self.pace.round_done()
        self.progress.update(self.all, **self._state())
        for warning in (*row.get("cautions", []), *problems_of(row)):
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
        self._remove(task)
        self._print(f"{task.name}: failed: {reason}", style="red")

    def stopped(self, task: Task, reason: str) -> None:
        """Replace the progress bar of the run by the reason why it was stopped."""
        self._remove(task)
        self._print(f"{task.name}: {reason}")

    def _remove(self, task: Task) -> None:
        """Remove the progress bar of a run that has ended before its last round."""
        self.pace.remaining -= task.rounds - task.done
        self.progress.remove_task(self.bars.pop(task.name))
        self.progress.update(self.all, **self._state())

    def _print(self, text: str, style: str | None = None) -> None:
        print_above(self.progress.console, text, style)

    def _state(self) -> dict[str, Any]:
        left = f"  left {clock(self.pace.left())}" if self.pace.finished and self.pace.remaining else ""
        return {
            "completed": self.rounds - self.pace.remaining,
            "state": f"{self.complete}/{self.runs} complete{left}",
        }


class CellBoard(ComparisonCallback):
    """Shows a progress bar for all runs together in the output of a notebook's cell."""

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Show how many of the runs are complete."""
        self._bar, self._lines, self._problems = Bar(), opening(tasks, pending), list[str]()
        self._done = {task.name: task.rounds for task in tasks} | {task.name: task.done for task in pending}
        self._rounds = sum(task.rounds for task in tasks)
        self._runs, self._ended = len(tasks), len(tasks) - len(pending)
        self._show()

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """Advance the bar."""
        self._done[task.name] = row["round"]
        self._problems += [f"{task.name}: {warning}" for warning in (*row.get("cautions", []), *problems_of(row))]
        self._show()

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """Add the result of a run."""
        self._ended += 1
        self._lines.append(_outcome(task, summary))
        self._show()

    def failed(self, task: Task, reason: str) -> None:
        """Add the reason of a failure."""
        self._problems.append(f"{task.name}: failed: {reason}")
        self._show()

    def stopped(self, task: Task, reason: str) -> None:
        """Add the reason why a run was stopped."""
        self._lines.append(f"{task.name}: {reason}")
        self._show()

    def _show(self) -> None:
        state = f"{self._ended}/{self._runs} runs complete"
        self._bar.show(sum(self._done.values()) / max(1, self._rounds), [*self._lines, state], self._problems)


def boards(progress: bool | None) -> list[ComparisonCallback]:
    """Return the display of a comparison that a program starts.

    Args:
        progress: Whether progress is shown. None shows it in a notebook only.
    """
    if progress is False or (progress is None and not in_notebook()):
        return []
    return [CellBoard() if in_notebook() else PlainBoard(sys.stdout)]


def choose_board(silent: bool) -> AbstractContextManager[ComparisonCallback]:
    """Return the display of a comparison for this terminal."""
    if silent:
        return nullcontext(ComparisonCallback())
    return LiveBoard(Console()) if sys.stdout.isatty() else nullcontext(PlainBoard(sys.stdout))


def opening(tasks: Sequence[Task], pending: Sequence[Task]) -> list[str]:
    """Return the first lines of the output of a comparison."""
    methods = {task.experiment.method.name for task in tasks}
    seeds = {task.experiment.seed for task in tasks}
    settings = list(dict.fromkeys(setting(task.experiment) for task in tasks))
    on = settings[0] if len(settings) == 1 else number_of(settings, "setting")
    lines = [f"{number_of(methods, 'method')} × {number_of(seeds, 'seed')} on {on}"]
    if not pending:
        lines.append(f"complete already in {tasks[0].path.parent}")
    elif len(pending) < len(tasks):
        complete = len(tasks) - len(pending)
        lines.append(f"writing to {tasks[0].path.parent}, where {complete} of {len(tasks)} runs are complete already")
    else:
        lines.append(f"writing to {tasks[0].path.parent}")
    return lines


def number_of(things: Collection[object], noun: str) -> str:
    """Return the number of things with their noun.

    >>> number_of(["fedavg"], "method")
    '1 method'
    """
    return counted(len(things), noun)


def _outcome(task: Task, summary: Mapping[str, Any]) -> str:
    shown = SHOWN if any(measure in summary for measure in SHOWN) else ("validation_accuracy",)
    last = {measure: summary[measure]["last"] for measure in shown if measure in summary}
    return f"{task.name}: {counted(summary['rounds'], 'round')}{scores(last)}  {summary['seconds']:.1f} s"
