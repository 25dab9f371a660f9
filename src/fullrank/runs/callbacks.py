"""Callbacks: objects that are notified of the events of a run, such as the display, the log and trackers."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.config.experiment import Experiment
from fullrank.errors import CallbackFailed, FullrankError, InputError, message_of
from fullrank.federated.site import Result
from fullrank.lazy import OnFirstUse
from fullrank.local import interrupt
from fullrank.plugins import Registry, called

if TYPE_CHECKING:
    from fullrank.runs.result import Run


class Callback:
    """The base class of objects that follow a run, for example to send its metrics to a tracking server.

    Override the members that you need; the others do nothing. Instances are passed to `fullrank.run` and `fullrank.fit`
    as `callbacks=[…]`. A class that needs no arguments can be named in an experiment instead, as in
    `run.track = ["package.module:Class"]`; an instance of it is created when the run starts.

    All members are called in the process that started the run, whatever the engine, one after the other:

    1. `started`, then `warned` for each problem that is known before the first round;
    2. in each round `round_started`, `client_done` for each client, `round_done`, and `warned` for each problem;
    3. after the last round, for each phase, `phase_started` and `client_done` for each client;
    4. `ended`, or `failed` if the run stops before its end for any reason.

    When `round_done` is called, the row and the checkpoint of the round have been written. Of several callbacks each
    is called in the order of the list, after the library's own.

    What a callback receives belongs to the run and must not be changed. An exception that a callback raises stops the
    run; all rounds that are complete are saved before.

    >>> import fullrank, tempfile
    >>> class Accuracies(fullrank.Callback):
    ...     def started(self, experiment, path, done, clients):
    ...         self.accuracies = []
    ...     def round_done(self, row):
    ...         self.accuracies.append(row["accuracy"])
    >>> seen = Accuracies()
    >>> finished = fullrank.run({"train.rounds": 2, "data.clients": 3}, tempfile.mkdtemp(), callbacks=[seen])
    >>> seen.accuracies == [row["accuracy"] for row in finished.metrics]
    True
    """

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Called when the run starts or resumes.

        Args:
            experiment: The experiment, with a value for every key that was left open.
            path: The run directory; None if nothing is written.
            done: The number of rounds that are complete already, from earlier processes.
            clients: The number of clients per round; 0 if the whole run was complete already.
        """

    def round_started(self, round: int, clients: Sequence[int]) -> Iterable[int] | None:
        """Called when a round starts.

        Args:
            round: The number of the round; the first is 1.
            clients: The ids of the clients that take part.

        Returns:
            The ids of clients whose trained models are needed; `client_done` receives these models. Ids of clients that
            do not take part are ignored. None means that no model is needed.
        """
        return None

    def client_done(self, result: Result) -> None:
        """Called when a client has finished its part of a round, or of a phase after the last round.

        Args:
            result: `result.client` is the id, `result.samples` the number of training samples, `result.steps` the
                number of optimiser steps and `result.metrics` a dict of what the client measured. In a round,
                `result.model` is the trained model, a dict of tensors, if a callback asked for it in `round_started`,
                and otherwise empty.
        """

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Called when a round is complete and saved.

        Args:
            row: The row of the round in metrics.jsonl, for example `row["round"]` and `row["accuracy"]`.
        """

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Called when a phase after the last round starts, in which every client takes part.

        Args:
            name: The name of the phase, for example "clients' own models".
            done: The number of clients that have finished already, in an earlier process.
            clients: The number of all clients of the phase.
        """

    def warned(self, text: str) -> None:
        """Called when the run has a problem that does not stop it.

        Args:
            text: The description of the problem, which is also in the row of the round, under "cautions".
        """

    def ended(self, run: Run) -> None:
        """Called when the run is complete and its result is written.

        Args:
            run: The same object that `fullrank.run` returns.
        """

    def failed(self, error: BaseException) -> None:
        """Called once when the run stops before its end, also if it fails before `started`.

        An experiment whose keys are rejected is not a run: then no member is called.

        Args:
            error: The exception that the caller of `fullrank.run` receives. It is a `fullrank.errors.Interrupted` if
                the run was stopped by a signal. An exception that is raised here becomes a warning.
        """


CALLBACKS: Registry[type[Callback]] = Registry(
    "callbacks",
    "run.track",
    OnFirstUse(
        {
            "tensorboard": "fullrank.runs.trackers.tensorboard:TensorBoard",
            "mlflow": "fullrank.runs.trackers.mlflow:MLflow",
            "wandb": "fullrank.runs.trackers.wandb:WeightsAndBiases",
        }
    ),
    "Class",
)
"""The callbacks that an experiment can name in `run.track`."""


class Callbacks(Callback):
    """A callback that passes each event to several callbacks, in their order.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Iterable[Callback]):
        self.callbacks = list(callbacks)

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Notify all callbacks."""
        self._call("started", experiment, path, done, clients)

    def round_started(self, round: int, clients: Sequence[int]) -> Collection[int]:
        """Notify all callbacks, and return the clients of the round whose models any of them needs."""
        found: set[int] = set()
        for callback in self.callbacks:
            found.update(_wanted(callback, round, clients))
        return found.intersection(clients)

    def client_done(self, result: Result) -> None:
        """Notify all callbacks."""
        self._call("client_done", result)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Notify all callbacks."""
        self._call("round_done", row)

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Notify all callbacks."""
        self._call("phase_started", name, done, clients)

    def warned(self, text: str) -> None:
        """Notify all callbacks."""
        self._call("warned", text)

    def ended(self, run: Run) -> None:
        """Notify all callbacks."""
        self._call("ended", run)

    def failed(self, error: BaseException) -> None:
        """Notify all callbacks. An exception of one of them becomes a warning, so that it does not hide the error."""
        for callback in self.callbacks:
            try:
                callback.failed(error)
            except (Exception, SystemExit) as problem:
                warnings.warn(_sentence(callback, "failed", problem), stacklevel=2)

    def _call(self, member: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            notify(callback, member, *arguments)


def notify(callback: object, member: str, *arguments: Any) -> Any:
    """Call a member of a callback.

    Args:
        callback: The callback.
        member: The name of the member.
        *arguments: The arguments of the member.

    Returns:
        What the member returns.

    Raises:
        CallbackFailed: If a callback from outside the library raises an exception, which the message names.
    """
    try:
        return getattr(callback, member)(*arguments)
    except BaseException as error:
        ours = type(callback).__module__.partition(".")[0] == __package__.partition(".")[0]
        if ours or not interrupt.raised_by_code(error):
            raise
        details = "" if isinstance(error, FullrankError) else traceback.format_exc()
        raise CallbackFailed(_sentence(callback, member, error), details) from error


def _wanted(callback: Callback, round: int, clients: Sequence[int]) -> Collection[int]:
    found = notify(callback, "round_started", round, clients)
    if found is None:
        return ()
    try:
        return frozenset(found)
    except TypeError:
        raise CallbackFailed(
            f"{_named(callback)}: its round_started returned {found!r}; it must return ids of clients, or None"
        ) from None


def _sentence(callback: object, member: str, error: BaseException) -> str:
    return f"{_named(callback)}: its {member} raised {type(error).__name__}: {message_of(error)}"


def _named(callback: object) -> str:
    return f'the callback "{type(callback).__module__}:{type(callback).__qualname__}"'


def check_callbacks(given: Iterable[Any], base: type = Callback) -> None:
    """Check that objects are callbacks and not, for example, the class of one.

    Args:
        given: The objects.
        base: The class of which they must be instances.

    Raises:
        InputError: If one of them is not.
    """
    if isinstance(given, base):
        raise InputError("callbacks: give a list of callbacks, as in callbacks=[…]")
    for each in given:
        if isinstance(each, type):
            raise InputError(f"callbacks: {each.__name__} is a class; give an instance, {each.__name__}()")
        if not isinstance(each, base):
            raise InputError(f"callbacks: {each!r} is not a fullrank.{base.__name__}")


def tracked(names: Iterable[str]) -> list[Callback]:
    """Return an instance of each callback that `run.track` names."""
    return [_made(name) for name in names]


def _made(name: str) -> Callback:
    made = called(CALLBACKS.find(name), name, CALLBACKS.key)
    if not isinstance(made, Callback):
        raise InputError(f'{CALLBACKS.key} = "{name}": it must be a subclass of fullrank.Callback')
    return made
