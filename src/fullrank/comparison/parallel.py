"""The runs of a comparison: one after the other in this process, or several at a time in other processes."""

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
from typing import IO, Any, Protocol, TypeAlias

from fullrank.config.experiment import Experiment
from fullrank.errors import InputError, RunFailed, in_words, writing
from fullrank.federated.site import Result
from fullrank.files import write_atomically
from fullrank.local import interrupt
from fullrank.runs.callbacks import notify
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import Display
from fullrank.runs.result import Run
from fullrank.runs.run import run

POLL = 0.2
"""Maximum number of seconds until a signal is handled while child processes run."""


@dataclass(frozen=True)
class Task:
    """A run of a comparison."""

    name: str
    """The method and the seed, as in "fedavg seed 0"."""
    experiment: Experiment
    path: Path
    """The run directory."""

    @property
    def rounds(self) -> int:
        """The number of rounds of the complete run."""
        return self.experiment.train.rounds

    @property
    def done(self) -> int:
        """The number of rounds that are saved."""
        return RunDirectory(self.path).last_round() if self.path.is_dir() else 0


class ComparisonCallback:
    """The base class of objects that follow the runs of a comparison, as the board of `fullrank compare` does.

    Override the members that you need; the others do nothing. Instances are passed to `fullrank.compare` as
    `callbacks=[…]`. They are called in the process that called `fullrank.compare`, also for runs in child processes,
    and in the order of the list. To give every run a `fullrank.Callback`, name it in `run.track` of the experiment.

    >>> import fullrank, tempfile
    >>> class Finished(fullrank.ComparisonCallback):
    ...     def ended(self, task, summary):
    ...         print(task.name, "has", summary["rounds"], "round")
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}
    >>> found = fullrank.compare(few, ["fedavg"], [0], tempfile.mkdtemp(), callbacks=[Finished()])
    fedavg seed 0 has 1 round
    """

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Called when the comparison starts.

        Args:
            tasks: All runs of the comparison.
            pending: The runs that are not complete yet.
        """

    def started(self, task: Task) -> None:
        """Called when a run starts or resumes.

        Args:
            task: The run, with `task.name`, `task.experiment` and `task.path`.
        """

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """Called when a round of a run is complete.

        Args:
            task: The run.
            row: The row of the round in metrics.jsonl.
        """

    def progressed(self, task: Task, phase: str, done: int, clients: int) -> None:
        """Called when a client has finished in a phase after the last round of a run.

        Args:
            task: The run.
            phase: The name of the phase.
            done: The number of clients that have finished.
            clients: The number of all clients of the phase.
        """

    def printed(self, task: Task, text: str) -> None:
        """Called when the user's own code in a run has printed a line.

        Args:
            task: The run.
            text: The line.
        """

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """Called when a run is complete.

        Args:
            task: The run.
            summary: The result of `Run.summary`.
        """

    def failed(self, task: Task, reason: str) -> None:
        """Called when a run has failed; the others continue.

        Args:
            task: The run.
            reason: The reason, in a sentence.
        """

    def stopped(self, task: Task, reason: str) -> None:
        """Called when a sweep has stopped a run before its last round, because others are better.

        Args:
            task: The run.
            reason: The reason, in a sentence.
        """


class ComparisonCallbacks(ComparisonCallback):
    """A callback that passes each event to several callbacks, in their order.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Sequence[ComparisonCallback]):
        self.callbacks = callbacks

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Notify all callbacks."""
        self._call("planned", tasks, pending)

    def started(self, task: Task) -> None:
        """Notify all callbacks."""
        self._call("started", task)

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        """Notify all callbacks."""
        self._call("round_done", task, row)

    def progressed(self, task: Task, phase: str, done: int, clients: int) -> None:
        """Notify all callbacks."""
        self._call("progressed", task, phase, done, clients)

    def printed(self, task: Task, text: str) -> None:
        """Notify all callbacks."""
        self._call("printed", task, text)

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        """Notify all callbacks."""
        self._call("ended", task, summary)

    def failed(self, task: Task, reason: str) -> None:
        """Notify all callbacks."""
        self._call("failed", task, reason)

    def stopped(self, task: Task, reason: str) -> None:
        """Notify all callbacks."""
        self._call("stopped", task, reason)

    def _call(self, member: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            notify(callback, member, *arguments)


@dataclass(frozen=True)
class Failure:
    """The failure of a run: its reason in one sentence, and the traceback."""

    reason: str
    traceback: str = ""
    rejected: bool = False
    """Whether the run was rejected because of its experiment or its files."""


class RunProcess(Protocol):
    """A run that is being made in another process."""

    task: Task

    def end(self) -> Failure | None:
        """Return the failure of the run if it failed; called when it has ended."""

    def terminate(self) -> None:
        """Ask the run to save its state and end."""

    def wait(self) -> None:
        """Wait until the run has ended."""

    def kill(self) -> None:
        """End the run at once."""


Lines: TypeAlias = "queue.Queue[tuple[RunProcess, str | None]]"
"""Lines that runs print, and None at the end of each."""


class Place(Protocol):
    """A place other than this machine at which runs are made."""

    def room(self, tasks: Sequence[Task]) -> int:
        """Return how many of the runs can be made at the same time."""

    def start(self, task: Task, lines: Lines) -> RunProcess:
        """Start a run.

        Args:
            task: The run.
            lines: A queue for the lines that the run prints.
        """


def run_all(
    tasks: Sequence[Task],
    jobs: int,
    callbacks: ComparisonCallback,
    begun: bool = False,
    place: Place | None = None,
) -> dict[Path, Failure]:
    """Run or complete all tasks, here or at another place.

    A run that fails does not stop the others, unless it fails before it starts and no run has started, among these or
    earlier (`begun`): then nothing is lost, and most often all of them would fail for the same reason.

    Args:
        tasks: The runs.
        jobs: The number of parallel runs.
        callbacks: What is notified of the progress.
        begun: Whether a run has started earlier.
        place: Where the runs are made, if not on this machine.

    Returns:
        The failures by directory.

    Raises:
        InputError: If the first run is rejected before it starts.
        RunFailed: If it fails before it starts.
    """
    failed: dict[Path, Failure] = {}

    def note(task: Task, failure: Failure | None) -> None:
        if failure is None:
            return
        if not (begun or any(RunDirectory(other.path).started for other in tasks)):
            message = f"{task.name}: {failure.reason}"
            raise InputError(message) if failure.rejected else RunFailed(message, failure.traceback)
        failed[task.path] = failure
        callbacks.failed(task, failure.reason)

    if place is not None:
        _in_children(tasks, jobs, callbacks, note, place.start)
    elif jobs > 1 and len(tasks) > 1:
        _in_children(tasks, jobs, callbacks, note, _Child)
    else:
        _one_by_one(tasks, callbacks, note)
    return failed


Note = Callable[[Task, "Failure | None"], None]


# In this process


class _Passing(Display):
    """Passes the events of one run to the callbacks of the comparison."""

    def __init__(self, task: Task, callbacks: ComparisonCallback):
        self.task, self.callbacks = task, callbacks
        self.error: BaseException | None = None
        """The exception that a callback of the comparison raised."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        super().round_done(row)
        self._pass("round_done", row)

    def phase_started(self, name: str, done: int, clients: int) -> None:
        super().phase_started(name, done, clients)
        self._pass("progressed", name, done, clients)

    def client_done(self, result: Result) -> None:
        super().client_done(result)
        if self.phase_name:
            self._pass("progressed", self.phase_name, self.clients_done, self.clients)

    def ended(self, run: Run) -> None:
        self._pass("ended", run.summary())

    def _pass(self, member: str, *arguments: Any) -> None:
        try:
            getattr(self.callbacks, member)(self.task, *arguments)
        except BaseException as error:
            self.error = error
            raise


def _one_by_one(tasks: Iterable[Task], callbacks: ComparisonCallback, note: Note) -> None:
    for task in tasks:
        interrupt.check()
        callbacks.started(task)
        note(task, _run_here(task, callbacks))


def _run_here(task: Task, callbacks: ComparisonCallback) -> Failure | None:
    passing = _Passing(task, callbacks)
    try:
        run(task.experiment, task.path, callbacks=[passing])
    except Exception as error:
        if passing.error is not None:  # the comparison is at fault, not this run
            raise
        return Failure(*in_words(error), rejected=isinstance(error, InputError))
    return None


# In child processes


def _in_children(
    tasks: Sequence[Task],
    jobs: int,
    callbacks: ComparisonCallback,
    note: Note,
    start: Callable[[Task, Lines], RunProcess],
) -> None:
    waiting, working = deque(tasks), list[RunProcess]()
    lines: Lines = queue.Queue()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                callbacks.started(waiting[0])
                working.append(start(waiting.popleft(), lines))
            interrupt.check()
            with contextlib.suppress(queue.Empty):
                child, line = lines.get(timeout=POLL)
                if line is None:
                    working.remove(child)
                    note(child.task, child.end())
                else:
                    pass_on(child.task, line, callbacks)
    finally:
        _stop(working)


def _stop(children: Sequence[RunProcess]) -> None:
    """End the runs after they have saved their state. A second signal ends them at once."""
    try:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
    finally:
        for child in children:
            child.kill()
            child.wait()


class _Child(RunProcess):
    """A child process that runs `fullrank run`.

    It reports over a pipe once per round, so that it ends after its round if this process is killed and cannot stop it.
    """

    def __init__(self, task: Task, lines: Lines):
        self.task = task
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        command = [sys.executable, "-m", "fullrank", "run", str(written(task)), "--out", str(task.path), "--json"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_surroundings(),
            start_new_session=True,  # this process passes Ctrl-C on; otherwise children would receive it twice
            text=True,
            errors="replace",
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._read, args=(self.process.stdout, lines), daemon=True).start()

    def _read(self, stream: IO[str], lines: Lines) -> None:
        with stream:
            for line in stream:
                lines.put((self, line.rstrip("\n")))
        lines.put((self, None))

    def end(self) -> Failure | None:
        """Wait for the process, which has closed its output, and return its failure, if it failed."""
        status = self.process.wait()
        interrupt.check()  # Ctrl-C reaches the children as well: then they have not failed
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.close()
        return failure(status, text)

    def terminate(self) -> None:
        """Ask the process to save its state and end."""
        self.process.terminate()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self.process.wait()

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()


def failure(status: int, text: str) -> Failure | None:
    """Return the failure of a run whose process ended with a status and wrote a text to standard error, if any."""
    if status == 0:
        return None
    above, sentence = _last_line(text)
    if status < 0 or not sentence:
        above, sentence = text, _how_it_ended(status)
    return Failure(sentence, above, rejected=status == 2)


def pass_on(task: Task, line: str, callbacks: ComparisonCallback) -> None:
    """Notify callbacks of a line of a run's output.

    Args:
        task: The run.
        line: The line, which is an event in JSON or was printed by the user's own code.
        callbacks: The callbacks.
    """
    try:
        event = json.loads(line)
        kind = event.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError):
        callbacks.printed(task, line)
        return
    if kind == "round":
        callbacks.round_done(task, event)
    elif kind == "phase":
        callbacks.progressed(task, event["phase"], event["done"], event["clients"])
    elif kind == "end":
        callbacks.ended(task, event["summary"])


def experiment_file(task: Task) -> Path:
    """Return the file from which a child process reads its experiment."""
    return task.path.parent / "experiments" / f"{task.path.name}.toml"


def written(task: Task) -> Path:
    """Write the experiment of a run for the process that makes it, and return the file."""
    file = experiment_file(task)
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, task.experiment.as_toml().encode())
    return file


def _surroundings() -> dict[str, str]:
    """Return the environment of a child process, which can import what this process can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _last_line(text: str) -> tuple[str, str]:
    """Split the output of a run into everything before its last line, and the sentence in the last line."""
    above, _, last = text.rstrip().rpartition("\n")
    return f"{above}\n" if above else "", last.removeprefix("fullrank: ")


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    hint = " (did the memory run out?)" if -status == getattr(signal, "SIGKILL", None) else ""
    return f"its process was ended by {signal.Signals(-status).name}{hint}; the rounds before are saved"
