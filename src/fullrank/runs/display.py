"""The output of a run: progress bars in a terminal, plain lines elsewhere, or JSON for programs."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from fullrank.config.experiment import Experiment
from fullrank.config.schema import Data
from fullrank.data.registry import is_file
from fullrank.errors import Interrupted, in_words, naming_file
from fullrank.federated.site import Result
from fullrank.metrics.registry import METRICS, Metric, label_of, single_numbers
from fullrank.runs.callbacks import Callback
from fullrank.runs.summary import measures
from fullrank.runs.terminal import print_above

if TYPE_CHECKING:
    from fullrank.runs.result import Run

PAUSE = 10.0
"""Seconds between two lines about progress where there are no progress bars."""
WIDE_ENOUGH = 78
"""The number of columns of a terminal from which the table of clients' models has all its columns."""
STAGES = {
    "received": "of the model as received",
    "local": "after local training",
    "personalised": "personalised by the method",
}


class Display(Callback):
    """The base class of the displays. It counts rounds and clients, and shows nothing itself."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Start counting rounds and clients."""
        self.experiment, self.rounds, self.clients = experiment, experiment.train.rounds, clients
        self.done, self.clients_done = done, 0
        self.pace = Pace(self.rounds - done)
        self.phase_name = ""

    def client_done(self, result: Result) -> None:
        """Count a client."""
        self.clients_done += 1
        if self.phase_name:
            self.pace.round_done()

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Start counting the clients of a phase."""
        self.phase_name, self.clients, self.clients_done = name, clients, done
        self.pace = Pace(clients - done)

    def so_far(self) -> str:
        """Return how many clients of the phase have finished, and the estimated time for the others."""
        left = f"  left {clock(self.pace.left())}" if self.clients_done < self.clients and self.pace.finished else ""
        return f"{self.clients_done}/{self.clients}{left}"

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Count a round."""
        self.done, self.clients_done = row["round"], 0
        self.pace.round_done()


class PythonWarnings(Callback):
    """Issues the problems of a run as Python warnings, for runs that no display shows."""

    def warned(self, text: str) -> None:
        """Issue a warning."""
        warnings.warn(text, stacklevel=2)


class Plain(Display):
    """Prints one line per round.

    Args:
        stream: Where the lines are printed.
    """

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Print what is run, and where it is written."""
        super().started(experiment, path, done, clients)
        for line in opening(experiment, path, done, clients):
            self._say(line)

    def warned(self, text: str) -> None:
        """Print the problem."""
        self._say(text)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Print the metrics of the round."""
        super().round_done(row)
        left = f"  left {clock(self.pace.left())}" if self.done < self.rounds else ""
        self._say(f"round {row['round']}/{self.rounds}{scores(row)}  {row['seconds']:.1f} s{left}")
        for warning in problems_of(row):
            self._say(warning)

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Print which phase starts or resumes."""
        super().phase_started(name, done, clients)
        self.spoken = time.monotonic()
        self._say(f"{name}: {counted(clients, 'client')}" + (f", {done} of them complete already" if done else ""))

    def client_done(self, result: Result) -> None:
        """Print the progress of the clients of a phase from time to time."""
        super().client_done(result)
        over = self.clients_done == self.clients
        if self.phase_name and (over or time.monotonic() - self.spoken > PAUSE):
            self.spoken = time.monotonic()
            self._say(f"{self.phase_name}: {self.so_far()}")


class Bars(Progress):
    """Progress bars, with a line below them that is broken between measures where it is too long.

    Args:
        console: The console in which the bars are shown.
        bar_width: The width of a bar in characters; None takes the space that is left.
    """

    def __init__(self, console: Console, bar_width: int | None = None):
        self.below = ""
        """Accuracy, loss and other measures, as `scores` formats them."""
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=bar_width),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
        )
        super().__init__(*columns, console=console, transient=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bars, and the line."""
        yield from super().get_renderables()
        if self.below:
            pieces = self.below.split("  ")
            whole = "  ".join(piece.replace(" ", "\N{NO-BREAK SPACE}") for piece in pieces)
            yield Text(whole)


class Live(Display):
    """Shows progress bars with the round, the accuracy, the clients that have finished and the time left.

    Args:
        console: Where the bars are shown.
    """

    def __init__(self, console: Console):
        self.console = console
        self.progress = Bars(console)
        self.rounds_bar = TaskID(0)
        self.clients_bar = TaskID(0)

    def __exit__(self, *_: object) -> None:
        """Remove the progress bars."""
        self.progress.stop()

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Print what is run and show the progress bars."""
        super().started(experiment, path, done, clients)
        for line in opening(experiment, path, done, clients):
            print_above(self.console, line)
        if done < self.rounds:
            self.rounds_bar = self.progress.add_task("rounds ", total=self.rounds, completed=done, state=self._state())
            self.clients_bar = self.progress.add_task("clients", total=clients, state=f"0/{clients}")
            self.progress.start()

    def warned(self, text: str) -> None:
        """Print the problem in yellow."""
        self._warn(text)

    def client_done(self, result: Result) -> None:
        """Advance the progress bar of the clients."""
        super().client_done(result)
        self.progress.update(self.clients_bar, completed=self.clients_done, state=self.so_far())

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Replace the progress bars by one for the phase."""
        super().phase_started(name, done, clients)
        for bar in self.progress.task_ids:
            self.progress.remove_task(bar)
        self.progress.below = ""
        self.clients_bar = self.progress.add_task(name, total=clients, completed=done, state=self.so_far())
        self.progress.start()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Advance the progress bar of the rounds and show the metrics."""
        super().round_done(row)
        self.progress.below = scores(row).strip()
        self.progress.update(self.rounds_bar, completed=self.done, state=self._state())
        self.progress.update(self.clients_bar, completed=0, state=f"0/{self.clients}")
        for warning in problems_of(row):
            self._warn(warning)

    def ended(self, run: Run) -> None:
        """Remove the progress bars."""
        self.progress.stop()

    def failed(self, error: BaseException) -> None:
        """Remove the progress bars."""
        self.progress.stop()

    def _warn(self, text: str) -> None:
        print_above(self.progress.console, text, "yellow")

    def _state(self) -> str:
        left = f"  left {clock(self.pace.left())}" if self.pace.finished and self.done < self.rounds else ""
        return f"{self.done}/{self.rounds}{left}"


class Json(Display):
    """Prints one JSON object per line: the metrics of each round, and the summary at the end.

    Args:
        stream: Where the lines are printed.
    """

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Print the metrics of the round."""
        super().round_done(row)
        print(json.dumps({"event": "round", **row}), file=self.stream, flush=True)

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Print which phase starts."""
        super().phase_started(name, done, clients)
        self._print_phase()

    def client_done(self, result: Result) -> None:
        """Print the progress of the clients of a phase."""
        super().client_done(result)
        if self.phase_name:
            self._print_phase()

    def _print_phase(self) -> None:
        facts = {"phase": self.phase_name, "done": self.clients_done, "clients": self.clients}
        print(json.dumps({"event": "phase", **facts}), file=self.stream, flush=True)

    def ended(self, run: Run) -> None:
        """Print the summary."""
        where = str(run.path) if run.path is not None else None
        print(json.dumps({"event": "end", "out": where, "summary": run.summary()}), file=self.stream, flush=True)


class LogFile(Plain):
    """Writes the lines of `Plain` to the log of a run, and the reason if the run stopped.

    The file is opened for each line, so that an error names it if the line cannot be written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._started = False

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Write what is run."""
        self._started = True
        super().started(experiment, path, done, clients)

    def failed(self, error: BaseException) -> None:
        """Write the reason, unless the run failed before it started."""
        if not self._started:
            return
        sentence, details = in_words(error)
        if isinstance(error, Interrupted):
            sentence, details = "by a signal", ""
        with contextlib.suppress(OSError):  # for example a full disk, which the error itself reports
            self._say(f"{details}stopped: {sentence}")

    def _say(self, text: str) -> None:
        with naming_file(self.path), self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            print(text, file=file)


class Pace:
    """Estimates the time of the remaining rounds from the rounds of this process.

    Args:
        rounds: The number of rounds, or of clients of a phase, that remain.
    """

    def __init__(self, rounds: int):
        self.remaining = rounds
        self.finished = 0
        self.start = time.monotonic()

    def round_done(self) -> None:
        """Count a round."""
        self.finished += 1
        self.remaining -= 1

    def left(self) -> float:
        """Return the estimated number of seconds left."""
        return (time.monotonic() - self.start) / max(1, self.finished) * self.remaining


def choose(quiet: bool, as_json: bool) -> Display:
    """Return the display for this terminal.

    Args:
        quiet: Whether nothing is shown.
        as_json: Whether the display prints JSON.
    """
    if as_json:
        return Json(sys.stdout)
    if quiet:
        return Display()
    return Live(Console()) if sys.stdout.isatty() else Plain(sys.stdout)


def opening(experiment: Experiment, out: Path | None, done: int, clients: int) -> list[str]:
    """Return the first lines of the output of a run.

    Args:
        experiment: The experiment.
        out: The run directory, if there is one.
        done: The number of rounds that are complete already.
        clients: The number of clients per round; 0 if the run is complete.
    """
    train = experiment.train
    lines = [f"{experiment.method_label} on {setting(experiment, clients)}, seed {experiment.seed}"]
    if out is not None and done >= train.rounds:
        complete = "its only round is" if done == 1 else f"all {done} rounds are"
        if clients:
            lines.append(f"writing to {out}: {complete} complete, the steps after the last round remain")
        else:
            lines.append(f"complete already in {out}: {complete} complete")
    elif out is not None:
        lines.append(f"writing to {out}" + (f", resuming after round {done}" if done else ""))
    if experiment.model.start and not experiment.model.start_partial and not done:
        lines.append(f"all initial weights come from {experiment.model.start}")
    return lines


def setting(experiment: Experiment, clients: int = 0) -> str:
    """Describe data, partition, training and network in a few words.

    Args:
        experiment: The experiment.
        clients: The number of clients per round; 0 if it is not known.
    """
    data, train = experiment.data, experiment.train
    amount = counted(train.steps, "step") if train.steps else counted(train.epochs, "epoch")
    part = f"{clients} per round, " if clients else ""
    rounds = f"{counted(train.rounds, 'round')} of {amount}"
    return f"{data.name}: {clients_of(data)}, {part}{rounds}, {experiment.model.name}"


def clients_of(data: Data) -> str:
    """Describe the clients and the partition; the number of clients is left out where the data decide it.

    >>> clients_of(Data(clients=10, alpha=0.1)), clients_of(Data(partition="domain"))
    ('10 clients (dirichlet α=0.1)', 'clients by domain')
    """
    how = {"dirichlet": f"dirichlet α={data.alpha:g}"}.get(data.partition, data.partition)
    if data.clients:
        return f"{counted(data.clients, 'client')} ({how})"
    if is_file(how):
        return f"clients as in {how}"
    return {"domain": "clients by domain", "natural": "natural clients"}.get(how, f"clients by {how}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def problems_of(row: Mapping[str, Any]) -> list[str]:
    """Describe the problems of a round that did not stop the run."""
    lines = [f"round {row['round']}: client {k} was left out: {why}" for k, why in row.get("skipped", {}).items()]
    if row.get("idle"):
        names = ", ".join(map(str, row["idle"]))
        nobody = len(row["idle"]) == len(row["clients"]) and not row.get("skipped")
        stays = ", so the model does not change" if nobody else ""
        lines.append(f"round {row['round']}: client {names} had no batch to train on and sent nothing{stays}")
    if far := row.get("far_client"):
        lines.append(
            f"round {row['round']}: the weights of client {far['client']} moved by {far['drift']:.3g}, those of the "
            f"next client by {far['next']:.3g}; if the accuracy falls, it may be because of this client"
        )
    again = row.get("ray", {}).get("again", {})
    lines += [f"round {row['round']}: client {k} was run again on another worker: {why}" for k, why in again.items()]
    if row["round"] == 1:
        lines += [f"steps run eagerly, not as CUDA graphs: {reason}" for reason in row.get("not_recorded", [])]
        lines += [f"clients train one after the other, not in groups: {reason}" for reason in row.get("one_by_one", [])]
    return lines


def scores(row: Mapping[str, Any]) -> str:
    """Format accuracy and loss of a row, if they were measured."""
    known = measures()
    words = {
        "accuracy": "accuracy",
        "mean_accuracy": "of the clients' mean",
        "loss": "loss",
        "validation_accuracy": "validation accuracy",
    }
    return "".join(
        f"  {text} {known[name].shown(row[name])}" for name, text in words.items() if row.get(name) is not None
    )


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def size(number: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def averaged(experiment: Experiment) -> int:
    """Return the number of evaluations over which `last5` is a mean, which is smaller in a short run."""
    return min(5, math.ceil(experiment.train.rounds / experiment.evaluate.every))


def summary_table(run: Run) -> Table:
    """Return the table of the result of a run; it has no rows if the global model could not be evaluated."""
    summary = run.summary()
    table = Table(title=None, box=None, pad_edge=False)
    columns = {"last": "last", "best": "best over rounds", "last5": f"mean of last {averaged(run.experiment)}"}
    if "validated_round" in summary:
        columns["validated"] = f"at round {summary['validated_round']}, best validation"
    for column in ("", *columns.values()):
        table.add_column(column, justify="left" if not column else "right", no_wrap=not column)
    for measure, metric in measures(run.asked).items():
        if measure in summary and measure != "personal_accuracy":
            values = summary[measure]
            shown = (metric.shown(values[key]) if key in values else "" for key in columns)
            table.add_row(label_of(measure), *shown)
            if "final" in values:
                table.add_row(f"{label_of(measure)} after finishing", metric.shown(values["final"]))
    return table


def tables_of(run: Run, width: int = 80) -> list[Table]:
    """Return the tables of the result of a run that have rows: the global model, the clients' models, unseen clients.

    Args:
        run: The run.
        width: The width of the terminal.
    """
    summary = run.summary() if run.metrics else {}
    groups = (personal_table(summary, run.asked, group=group, width=width) for group in ("personal", "unseen"))
    return [table for table in (summary_table(run), *groups) if table.rows] if run.metrics else []


def one_line(run: Run) -> str:
    """Describe a run in one line: method, data, how many rounds are complete, the last accuracy, and the directory."""
    experiment = run.experiment
    rounds = f"{run.metrics[-1]['round'] if run.metrics else 0} of {counted(experiment.train.rounds, 'round')}"
    last = run.summary().get("accuracy", {}).get("last") if run.metrics else None
    accuracy = f", accuracy {METRICS.own['accuracy'].shown(last)}" if last is not None else ""
    where = f", {run.path}" if run.path is not None else ""
    return f"{experiment.method_label} on {experiment.data.name}, seed {experiment.seed}: {rounds}{accuracy}{where}"


def personal_table(
    summary: Mapping[str, Any], metrics: Sequence[Metric] = (), *, group: str = "personal", width: int = 80
) -> Table:
    """Return the table of the results of clients' own models; it has no rows if there are none.

    It shows the accuracy, and all metrics if there is no global model. A model is evaluated as the client received it,
    after local training ("local"), or as the method personalised it.

    Args:
        summary: The summary of a run.
        metrics: The metrics of the run that are not the library's.
        group: "personal", or "unseen" for clients that never trained.
        width: The width of the terminal; a narrow one gets fewer columns.
    """
    columns = {"mean": "mean", "weighted": "weighted", "std": "std", "worst_decile": "worst tenth"}
    if width < WIDE_ENOUGH:
        columns = {"mean": "mean", "std": "std"}
    every = single_numbers(metrics)
    shown = every[:1] if any(metric.key in summary for metric in every) else every
    table = Table(title=None, box=None, pad_edge=False)
    table.add_column("clients' models" if group == "personal" else "unseen clients")
    table.add_column("stage", no_wrap=True)
    for column in (*columns.values(), "clients"):
        table.add_column(column, justify="right", no_wrap=True)
    for stage, found in summary.get(group, {}).items():
        for metric in shown:
            if values := found if metric.key == "accuracy" else found.get(metric.key):
                numbers = (metric.shown(values[key]) for key in columns)
                table.add_row(metric.key.replace("_", " "), stage, *numbers, str(values["clients"]))
    return table
