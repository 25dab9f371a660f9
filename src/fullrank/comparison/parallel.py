"""Several runs: one after the other in this process, or so many at a time in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fullrank.config.experiment import Experiment
from fullrank.errors import InputError, RunFailed, in_words, writing
from fullrank.federated.site import Result
from fullrank.files import write_atomically
from fullrank.local import interrupt
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import Silent
from fullrank.runs.result import Run
from fullrank.runs.run import run

POLL = 0.2
"""Seconds after which a signal is obeyed at the latest while children are at work."""


@dataclass(frozen=True)
class Task:
    """One run that is to be made or completed."""

    name: str
    experiment: Experiment
    path: Path

    @property
    def rounds(self) -> int:
        """The rounds that the run will have in the end."""
        return self.experiment.train.rounds

    @property
    def done(self) -> int:
        """The rounds that are saved."""
        return RunDirectory(self.path).last_round() if self.path.is_dir() else 0


class Onlooker:
    """Somebody who looks on while several runs go on; this one does nothing, others start from it."""

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """All runs that there will be, and those of them that are not complete yet."""

    def began(self, task: Task) -> None:
        """A run begins, or goes on."""

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """A run's round is over; this is its row of the metrics."""

    def phase(self, task: Task, name: str, done: int, clients: int) -> None:
        """So many of the clients have done what follows the last round of a run."""

    def said(self, task: Task, text: str) -> None:
        """A run's own code has printed a line."""

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """A run is complete."""

    def failed(self, task: Task, reason: str) -> None:
        """A run has failed; the others continue."""


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    reason: str
    traceback: str = ""
    rejected: bool = False
    """Whether the run was rejected, for what is wrong with its experiment or its files."""


def run_all(tasks: Sequence[Task], jobs: int, onlooker: Onlooker, begun: bool = False) -> dict[Path, Failure]:
    """Make or complete the runs, so many at a time; those that failed, by their directories.

    One that fails does not stop the others. One that cannot even begin, while none has begun among these or before
    (`begun`), does: nothing is lost, and the same is most often wrong with all of them.
    """
    failed: dict[Path, Failure] = {}

    def note(task: Task, failure: Failure | None) -> None:
        if failure is None:
            return
        if not (begun or any(RunDirectory(other.path).started for other in tasks)):
            message = f"{task.name}: {failure.reason}"
            raise InputError(message) if failure.rejected else RunFailed(message, failure.traceback)
        failed[task.path] = failure
        onlooker.failed(task, failure.reason)

    if jobs > 1 and len(tasks) > 1:
        _in_children(tasks, jobs, onlooker, note)
    else:
        _one_by_one(tasks, onlooker, note)
    return failed


Note = Callable[[Task, "Failure | None"], None]


# In this process


class _Passing(Silent):
    """Passes on what one run tells its watcher."""

    def __init__(self, task: Task, onlooker: Onlooker):
        self.task, self.onlooker = task, onlooker

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.onlooker.round_done(self.task, row)

    def phase(self, name: str, done: int, clients: int) -> None:
        super().phase(name, done, clients)
        self.onlooker.phase(self.task, name, done, clients)

    def client_done(self, result: Result) -> None:
        super().client_done(result)
        if self.phase_name:
            self.onlooker.phase(self.task, self.phase_name, self.clients_done, self.clients)

    def ended(self, run: Run) -> None:
        self.onlooker.ended(self.task, run.summary())


def _one_by_one(tasks: Iterable[Task], onlooker: Onlooker, note: Note) -> None:
    for task in tasks:
        interrupt.check()
        onlooker.began(task)
        note(task, _run_here(task, onlooker))


def _run_here(task: Task, onlooker: Onlooker) -> Failure | None:
    try:
        run(task.experiment, task.path, watcher=_Passing(task, onlooker))
    except Exception as error:
        return Failure(*in_words(error), rejected=isinstance(error, InputError))
    return None


# In processes of their own


def _in_children(tasks: Sequence[Task], jobs: int, onlooker: Onlooker, note: Note) -> None:
    waiting, working = deque(tasks), list[_Child]()
    lines: queue.Queue[tuple[_Child, str | None]] = queue.Queue()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                onlooker.began(waiting[0])
                working.append(_Child(waiting.popleft(), lines))
            interrupt.check()
            with contextlib.suppress(queue.Empty):
                child, line = lines.get(timeout=POLL)
                if line is None:
                    working.remove(child)
                    note(child.task, child.end())
                else:
                    pass_on(child.task, line, onlooker)
    finally:
        _stop(working)


def _stop(children: Sequence[_Child]) -> None:
    """Let the children save what they have and end; a second signal ends them at once."""
    try:
        for child in children:
            child.process.terminate()
        for child in children:
            child.process.wait()
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()


class _Child:
    """One `fullrank run` in a process of its own.

    It reports over a pipe, once a round, so that it ends after its round if this process is killed and cannot stop it.
    """

    def __init__(self, task: Task, lines: queue.Queue[tuple[_Child, str | None]]):
        self.task = task
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        command = [sys.executable, "-m", "fullrank", "run", str(_written(task)), "--out", str(task.path), "--json"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_surroundings(),
            start_new_session=True,  # Ctrl-C is for this process to pass on, or children would get it twice
            text=True,
            errors="replace",
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._read, args=(self.process.stdout, lines), daemon=True).start()

    def _read(self, stream: IO[str], lines: queue.Queue[tuple[_Child, str | None]]) -> None:
        with stream:
            for line in stream:
                lines.put((self, line.rstrip("\n")))
        lines.put((self, None))

    def end(self) -> Failure | None:
        """Wait for the process, which has closed its output; what went wrong in it, if anything did."""
        status = self.process.wait()
        interrupt.check()  # a Ctrl-C reaches the children too: then they have not failed
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.close()
        if status == 0:
            return None
        above, sentence = _last_line(text)
        if status < 0 or not sentence:
            above, sentence = text, _how_it_ended(status)
        return Failure(sentence, above, rejected=status == 2)


def pass_on(task: Task, line: str, onlooker: Onlooker) -> None:
    """Tell an onlooker what one line of a run's output says, be it ours or printed by the user's own code."""
    try:
        event = json.loads(line)
        kind = event.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError):
        onlooker.said(task, line)
        return
    if kind == "round":
        onlooker.round_done(task, event)
    elif kind == "phase":
        onlooker.phase(task, event["phase"], event["done"], event["clients"])
    elif kind == "end":
        onlooker.ended(task, event["summary"])


def experiment_file(task: Task) -> Path:
    """The file from which a child reads its experiment."""
    return task.path.parent / "experiments" / f"{task.path.name}.toml"


def _written(task: Task) -> Path:
    file = experiment_file(task)
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, task.experiment.as_toml().encode())
    return file


def _surroundings() -> dict[str, str]:
    """The environment of a child: what this process can import, the child can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _last_line(text: str) -> tuple[str, str]:
    """The sentence with which a run has ended, and what stands above it."""
    above, _, last = text.rstrip().rpartition("\n")
    return f"{above}\n" if above else "", last.removeprefix("fullrank: ")


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    hint = " (did the memory run out?)" if -status == getattr(signal, "SIGKILL", None) else ""
    return f"its process was ended by {signal.Signals(-status).name}{hint}; the rounds before are saved"
