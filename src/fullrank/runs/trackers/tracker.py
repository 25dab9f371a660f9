"""The base class of the trackers: every round is sent once, also if the run is killed and resumed."""

from __future__ import annotations

import contextlib
import importlib
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fullrank.config.experiment import Experiment
from fullrank.errors import (
    CallFailed,
    ClientFailed,
    FullrankError,
    InputError,
    RunFailed,
    in_words,
    kind_of,
    message_of,
)
from fullrank.files import Damaged, read_json, write_json
from fullrank.runs.callbacks import CALLBACKS, Callback
from fullrank.runs.directory import RunDirectory
from fullrank.runs.trackers.values import problems

if TYPE_CHECKING:
    from fullrank.runs.result import Run

RECORD = "tracking.json"
"""The file in a run directory that has the name under which trackers know the run."""


class Tracker(Callback):
    """A callback that sends the metrics of a run to another program.

    The source of everything that is sent is metrics.jsonl: when a run is resumed, the tracker receives the rounds that
    it missed, and those that are run again are not sent twice. A tracker that fails while the run is active does not
    stop the run: what is missing is sent as soon as it works again.

    Subclasses define how a row, the warnings and the end are sent. Any exception of these members is handled here.

    Raises:
        InputError: If the program's library is not installed.
    """

    key: ClassVar[str]
    """The name in `run.track`."""
    title: ClassVar[str]
    """The name of the program."""
    library: ClassVar[str]
    """The module that must be installed."""

    def __init__(self) -> None:
        try:
            importlib.import_module(self.library)
        except ImportError as error:
            raise InputError(
                f"{CALLBACKS.key} = \"{self.key}\" needs {self.title}: pip install 'fullrank[track]'"
            ) from error
        self._active = self._failing = False
        self._round = 0
        self._pending: list[Mapping[str, Any]] = []
        self._warnings: list[str] = []
        self._unsent = False

    # What subclasses define

    def open(self, experiment: Experiment, path: Path, id: str) -> None:
        """Start the run in the tracker, or continue it.

        Args:
            experiment: The experiment.
            path: The run directory.
            id: A name for the run that is unique, and the same when it is resumed.
        """
        raise NotImplementedError

    def send(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a round, unless the tracker has them from an earlier process."""
        raise NotImplementedError

    def send_warnings(self, texts: list[str]) -> None:
        """Send all warnings so far, which replace those sent before."""
        raise NotImplementedError

    def caught_up(self) -> None:
        """Finish the work on earlier processes, all of whose rounds have been sent; called once after the start."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the summary and mark the run as complete."""
        raise NotImplementedError

    def give_up(self, error: BaseException, reason: str) -> None:
        """Send the reason in one sentence and mark the run as failed.

        Args:
            error: The exception that ended the run.
            reason: The reason in one sentence.
        """
        raise NotImplementedError

    # The events of a run

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Start or continue the run in the tracker, and send the rounds that it does not have.

        Args:
            experiment: The experiment.
            path: The run directory.
            done: The number of rounds that are complete already.
            clients: The number of clients.

        Raises:
            InputError: If there is no run directory.
            RunFailed: If the tracker cannot be started.
        """
        if path is None:
            raise InputError(f'{CALLBACKS.key} = "{self.key}" needs a run directory: give one, as in out="runs/name"')
        rows = RunDirectory(path).rows_until(done)
        try:
            self.open(experiment, path, _id_of(path))
        except Exception as error:
            raise RunFailed(
                f'{CALLBACKS.key} = "{self.key}": {self.title} cannot be started: {_cause(error)}'
            ) from error
        self._active, self._path = True, path
        for row in rows:
            self._add(row)
        self._flush()
        self._attempt(self.caught_up)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Send the row."""
        self._add(row)
        self._flush()

    def warned(self, text: str) -> None:
        """Send the warning."""
        self._note(text)
        self._flush()

    def ended(self, run: Run) -> None:
        """Send the summary."""
        self._flush()
        self._attempt(lambda: self.finish(run.summary()))
        self._active = False

    def failed(self, error: BaseException) -> None:
        """Mark the run as failed."""
        if self._active:  # a run may fail before it starts
            with contextlib.suppress(InputError):
                for row in RunDirectory(self._path).rows():
                    if row["round"] > self._round:  # another callback has failed before this one received the round
                        self._add(row)
            self._flush()
            self._attempt(lambda: self.give_up(error, _reason(error)))
            self._active = False

    # Sending

    def _add(self, row: Mapping[str, Any]) -> None:
        self._pending.append(row)
        self._round = row["round"]
        for text in problems(row):
            self._note(text)

    def _note(self, text: str) -> None:
        if text not in self._warnings:  # what `warned` says of a round is in its row too
            self._warnings.append(text)
            self._unsent = True

    def _flush(self) -> None:
        """Send what has not been sent yet; after an error the rest waits for the next round."""
        while self._pending:
            if not self._attempt(lambda: self.send(self._pending[0])):
                return
            del self._pending[0]
        if self._unsent:
            self._unsent = not self._attempt(lambda: self.send_warnings(list(self._warnings)))

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Do something and return whether it succeeded. The first of several errors in a row becomes a warning."""
        try:
            action()
        except Exception as error:
            if not self._failing:
                text = f"sending to {self.title} failed ({_cause(error)}); the run continues and tries again "
                warnings.warn(f"{text}after the next round", stacklevel=2)
            self._failing = True
            return False
        self._failing = False
        return True


def _reason(error: BaseException) -> str:
    """Return why a run failed, without the messages of the user's code, which can quote data."""
    if isinstance(error, ClientFailed):
        return f"client {error.client} failed; log.txt has the reason"
    if isinstance(error, CallFailed) or not isinstance(error, (FullrankError, KeyboardInterrupt)):
        return f"{kind_of(error.__cause__ or error)}; log.txt has the message"
    return in_words(error)[0]


def _cause(error: Exception) -> str:
    lines = message_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _id_of(path: Path) -> str:
    """Return the name under which trackers know the run in a directory."""
    file = path / RECORD
    try:
        return str(read_json(file, dict[str, str])["id"])
    except (FileNotFoundError, Damaged, KeyError):
        found = uuid.uuid4().hex
        write_json(file, {"id": found})
        return found
