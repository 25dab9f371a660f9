"""What a person sees of a run: a live display in a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fullrank.config.experiment import Experiment
from fullrank.federated.site import Result
from fullrank.runs.summary import MEASURED

if TYPE_CHECKING:
    from fullrank.runs.result import Run

PAUSE = 10.0
"""Seconds between two lines about how far something is, where there is no live display."""
STAGES = {
    "received": "of the model as received",
    "local": "after local training",
    "personalised": "personalised by the method",
}


class Watcher(Protocol):
    """Somebody who looks on while a run goes on."""

    def started(self, experiment: Experiment, done: int, clients: int, out: Path | None) -> None:
        """The run begins, or goes on after `done` rounds, with so many clients a round."""

    def cautioned(self, text: str) -> None:
        """The run is not what a method or the network promises; said before the first round that is played."""

    def client_done(self, result: Result) -> None:
        """A client has finished its part of the round."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """A round is over; this is its row of the metrics."""

    def phase(self, name: str, done: int, clients: int) -> None:
        """After the last round so many clients have something to do, of whom some have done it before."""

    def ended(self, run: Run) -> None:
        """The run is complete."""


class Silent:
    """Shows nothing; the others start from it."""

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def started(self, experiment: Experiment, done: int, clients: int, out: Path | None) -> None:
        """The run begins or goes on."""
        self.experiment, self.rounds, self.clients = experiment, experiment.train.rounds, clients
        self.done, self.clients_done = done, 0
        self.pace = Pace(self.rounds - done)
        self.phase_name = ""

    def cautioned(self, text: str) -> None:
        """Shown by others; the first row of the metrics has it too."""

    def client_done(self, result: Result) -> None:
        """One more client has finished."""
        self.clients_done += 1
        if self.phase_name:
            self.pace.round_done()

    def phase(self, name: str, done: int, clients: int) -> None:
        """Count the clients from here on."""
        self.phase_name, self.clients, self.clients_done = name, clients, done
        self.pace = Pace(clients - done)

    def so_far(self) -> str:
        """How many clients of the phase are done, and how long the others will take."""
        left = f"  left {clock(self.pace.left())}" if self.clients_done < self.clients and self.pace.played else ""
        return f"{self.clients_done}/{self.clients}{left}"

    def round_done(self, row: Mapping[str, Any]) -> None:
        """One more round is over."""
        self.done, self.clients_done = row["round"], 0
        self.pace.round_done()

    def ended(self, run: Run) -> None:
        """The run is complete."""


class Unwatched(Silent):
    """Nobody looks on, as when a program runs an experiment: cautions become Python's warnings."""

    def cautioned(self, text: str) -> None:
        """Warn."""
        warnings.warn(text, stacklevel=2)


class Plain(Silent):
    """One line a round."""

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def started(self, experiment: Experiment, done: int, clients: int, out: Path | None) -> None:
        """Say what runs, and where it writes."""
        super().started(experiment, done, clients, out)
        for line in opening(experiment, done, clients, out):
            self._say(line)

    def cautioned(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Say how the round ended."""
        super().round_done(row)
        left = f"  left {clock(self.pace.left())}" if self.done < self.rounds else ""
        self._say(f"round {row['round']}/{self.rounds}{scores(row)}  {row['seconds']:.1f} s{left}")
        for warning in amiss(row):
            self._say(warning)

    def phase(self, name: str, done: int, clients: int) -> None:
        """Say what begins, or continues."""
        super().phase(name, done, clients)
        self.spoken = time.monotonic()
        self._say(f"{name}: {counted(clients, 'client')}" + (f", {done} of them done already" if done else ""))

    def client_done(self, result: Result) -> None:
        """Say now and then how far the clients of a phase are."""
        super().client_done(result)
        over = self.clients_done == self.clients
        if self.phase_name and (over or time.monotonic() - self.spoken > PAUSE):
            self.spoken = time.monotonic()
            self._say(f"{self.phase_name}: {self.so_far()}")


class Live(Silent):
    """A live display: round, accuracy, clients done, time left."""

    def __init__(self, console: Console):
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
        )
        self.rounds_bar = TaskID(0)
        self.clients_bar = TaskID(0)

    def __exit__(self, *_: object) -> None:
        """Stop the display."""
        self.progress.stop()

    def started(self, experiment: Experiment, done: int, clients: int, out: Path | None) -> None:
        """Say what runs and show the bars."""
        super().started(experiment, done, clients, out)
        for line in opening(experiment, done, clients, out):
            self.console.print(line, highlight=False, soft_wrap=True)
        if done < self.rounds:
            self.rounds_bar = self.progress.add_task(
                "rounds ", total=self.rounds, completed=done, state=self._state({})
            )
            self.clients_bar = self.progress.add_task("clients", total=clients, state=f"0/{clients}")
            self.progress.start()

    def cautioned(self, text: str) -> None:
        """Say it in yellow."""
        self._warn(text)

    def client_done(self, result: Result) -> None:
        """Move the clients' bar."""
        super().client_done(result)
        self.progress.update(self.clients_bar, completed=self.clients_done, state=self.so_far())

    def phase(self, name: str, done: int, clients: int) -> None:
        """Show a bar of the phase alone."""
        super().phase(name, done, clients)
        for bar in self.progress.task_ids:
            self.progress.remove_task(bar)
        self.clients_bar = self.progress.add_task(name, total=clients, completed=done, state=self.so_far())
        self.progress.start()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Move the rounds' bar and show the scores."""
        super().round_done(row)
        self.progress.update(self.rounds_bar, completed=self.done, state=self._state(row))
        self.progress.update(self.clients_bar, completed=0, state=f"0/{self.clients}")
        for warning in amiss(row):
            self._warn(warning)

    def ended(self, run: Run) -> None:
        """Show the result."""
        self.progress.stop()

    def _warn(self, text: str) -> None:
        self.progress.console.print(text, style="yellow", highlight=False, markup=False)

    def _state(self, row: Mapping[str, Any]) -> str:
        left = f"  left {clock(self.pace.left())}" if row and self.done < self.rounds else ""
        return f"{self.done}/{self.rounds}{scores(row)}{left}"


class Json(Silent):
    """One JSON object a line: each round's row, and the summary at the end."""

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Print the row."""
        super().round_done(row)
        print(json.dumps({"event": "round", **row}), file=self.stream, flush=True)

    def phase(self, name: str, done: int, clients: int) -> None:
        """Print what begins."""
        super().phase(name, done, clients)
        self._print_phase()

    def client_done(self, result: Result) -> None:
        """Print how far the clients of a phase are."""
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


class Together:
    """Several watchers as one."""

    def __init__(self, *watchers: Watcher):
        self.watchers = watchers

    def started(self, experiment: Experiment, done: int, clients: int, out: Path | None) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.started(experiment, done, clients, out)

    def cautioned(self, text: str) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.cautioned(text)

    def client_done(self, result: Result) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.client_done(result)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.round_done(row)

    def phase(self, name: str, done: int, clients: int) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.phase(name, done, clients)

    def ended(self, run: Run) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.ended(run)


class Pace:
    """How long the remaining rounds will take, from those played in this process."""

    def __init__(self, rounds: int):
        self.remaining = rounds
        self.played = 0
        self.start = time.monotonic()

    def round_done(self) -> None:
        """Count a round."""
        self.played += 1
        self.remaining -= 1

    def left(self) -> float:
        """Seconds left."""
        return (time.monotonic() - self.start) / max(1, self.played) * self.remaining


def choose(quiet: bool, as_json: bool) -> Silent:
    """The display for this terminal and these options."""
    if as_json:
        return Json(sys.stdout)
    if quiet:
        return Silent()
    return Live(Console()) if sys.stdout.isatty() else Plain(sys.stdout)


def opening(experiment: Experiment, done: int, clients: int, out: Path | None) -> list[str]:
    """What stands above a run."""
    train = experiment.train
    lines = [f"{experiment.method.name} on {setting(experiment, clients)}, seed {experiment.seed}"]
    if out is not None and done >= train.rounds:
        behind = "its only round is" if done == 1 else f"all {done} rounds are"
        if clients:
            lines.append(f"writing to {out}: {behind} behind it, and what follows the last one is left to do")
        else:
            lines.append(f"complete already in {out}: {behind} behind it")
    elif out is not None:
        lines.append(f"writing to {out}" + (f", going on after round {done}" if done else ""))
    return lines


def setting(experiment: Experiment, clients: int = 0) -> str:
    """The data, their division and the training in a few words; with the number of clients a round, where known."""
    data, train = experiment.data, experiment.train
    how = {"dirichlet": f"dirichlet α={data.alpha:g}"}.get(data.partition, data.partition)
    amount = counted(train.steps, "step") if train.steps else counted(train.epochs, "epoch")
    part = f"{clients} a round, " if clients else ""
    rounds = f"{counted(train.rounds, 'round')} of {amount}"
    return f"{data.name}: {counted(data.clients, 'client')} ({how}), {part}{rounds}, {experiment.model.name}"


def counted(number: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def amiss(row: Mapping[str, Any]) -> list[str]:
    """What went wrong in a round without stopping it."""
    lines = [f"round {row['round']}: client {k} was left out: {why}" for k, why in row.get("skipped", {}).items()]
    if row.get("idle"):
        names = ", ".join(map(str, row["idle"]))
        nobody = len(row["idle"]) == len(row["clients"]) and not row.get("skipped")
        stays = ", so the model stays as it is" if nobody else ""
        lines.append(f"round {row['round']}: no batch to train on and so nothing sent by client {names}{stays}")
    if row["round"] == 1:
        lines += [f"steps run one by one, not from a recording: {reason}" for reason in row.get("not_recorded", [])]
        lines += [f"clients train one by one, not in groups: {reason}" for reason in row.get("one_by_one", [])]
    return lines


def scores(row: Mapping[str, Any]) -> str:
    """Accuracy and loss of a row, as far as they were measured."""
    found = [("accuracy", 4), ("loss", 4), ("validation_accuracy", 4)]
    return "".join(
        f"  {name.replace('_', ' ')} {row[name]:.{digits}f}" for name, digits in found if row.get(name) is not None
    )


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def averaged(experiment: Experiment) -> int:
    """How many evaluations a mean of the last five is over: a short run has fewer."""
    return min(5, math.ceil(experiment.train.rounds / experiment.evaluate.every))


def summary_table(run: Run) -> Table:
    """The result of a run; without rows where there is no global model that could be judged."""
    summary = run.summary()
    table = Table(title=None, box=None, pad_edge=False)
    columns = {"last": "last", "best": "best over rounds", "last5": f"mean of last {averaged(run.experiment)}"}
    if "validated_round" in summary:
        columns["validated"] = f"at round {summary['validated_round']}, best in validation"
    for column in ("", *columns.values()):
        table.add_column(column, justify="left" if not column else "right")
    for measure in (*MEASURED, *(f"validation_{name}" for name in MEASURED)):
        if measure in summary:
            values = summary[measure]
            shown = (f"{values[key]:.4f}" if key in values else "" for key in columns)
            table.add_row(measure.replace("_", " "), *shown)
            if "final" in values:
                table.add_row(f"{measure.replace('_', ' ')} after finishing", f"{values['final']:.4f}")
    return table


def personal_lines(summary: Mapping[str, Any]) -> list[str]:
    """How clients' own models did: their accuracy, and all that was measured where nothing else was judged."""
    measures = MEASURED[:1] if any(measure in summary for measure in MEASURED) else MEASURED
    return [
        f"personal {measure.replace('_', ' ')}, {STAGES[stage]}: {_over_clients(values)} {who}"
        for group, who in (("personal", "clients"), ("unseen", "clients that never trained"))
        for stage, found in summary.get(group, {}).items()
        for measure in measures
        if (values := found if measure == "accuracy" else found.get(measure))
    ]


def _over_clients(values: Mapping[str, Any]) -> str:
    spread = f"weighted {values['weighted']:.4f}, std {values['std']:.4f}, worst tenth {values['worst_decile']:.4f}"
    return f"{values['mean']:.4f} ({spread}) over {values['clients']}"
