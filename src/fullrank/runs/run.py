"""Running an experiment: the rounds, what is written after each, and how a run that stopped is resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.data.federation import Federation
from fullrank.data.sources.progress import watching
from fullrank.engine import Engine, EngineFactory, open_engine
from fullrank.engine.machine import find_device, threads
from fullrank.errors import (
    CallbackFailed,
    ClientFailed,
    InputError,
    Interrupted,
    RunFailed,
    StoppedNow,
    TooFewClients,
    WriteFailed,
    naming_file,
)
from fullrank.federated.server import Progress, RoundResult, Server
from fullrank.federated.site import Result
from fullrank.files import save_tensors, writable, write_json
from fullrank.local import interrupt
from fullrank.metrics.evaluate import DYING, dying
from fullrank.runs.assemble import Assembly, assemble
from fullrank.runs.callbacks import Callback, Callbacks, check_callbacks, tracked
from fullrank.runs.cautions import cautions
from fullrank.runs.clients import ClientRow, client_rows, over_sites, write_clients
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import Display, LogFile, PythonWarnings
from fullrank.runs.drifts import far_client
from fullrank.runs.ending import Ending
from fullrank.runs.memory import record_peak, reset_peaks
from fullrank.runs.notebook import displays
from fullrank.runs.prober import Prober
from fullrank.runs.result import Run, load_run
from fullrank.runs.resume import Start, begin, check_resumable, kept_start
from fullrank.runs.summary import mean_terms, over_stages
from fullrank.trees import Tensors, clone

LOSSES = ("loss", "validation_loss")
"""Keys of the metrics that hold a loss of the global model."""


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    resume: bool = True,
    *,
    change_engine: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Run an experiment, or resume it where it stopped, to the bit.

    The run uses the memory allocator of the calling process as it is. With large networks on a CPU, under Linux, a call
    of `fullrank.engine.allocator.keep_freed_memory` before it saves most of the time that the system takes.

    Args:
        experiment: An Experiment, the path of a TOML file, or a dict with nested or dotted keys.
        out: The run directory. Without one it is named after the experiment, so that the same call resumes the run.
        resume: Whether a run that exists in the directory is resumed. Otherwise it is an error.
        change_engine: Whether a resumed run may have other `[engine]` keys than before; it is then no longer equal to
            an uninterrupted one to the bit.
        callbacks: Objects that are notified of the events of the run, in addition to those that `run.track` names.
        progress: Whether the progress of the run is shown. None shows it in a notebook only.

    Returns:
        The complete run.

    Raises:
        InputError: If the experiment or the directory is rejected.
        ClientFailed: If a client fails and `run.on_client_error` is "stop".
        RunFailed: If the run cannot continue for another reason, for example a callback that raises an exception.

    >>> import fullrank, tempfile
    >>> result = fullrank.run({"train.rounds": 2, "data.clients": 3}, out=tempfile.mkdtemp())
    >>> [row["round"] for row in result.metrics]
    [1, 2]
    """
    described = Experiment.of(experiment)
    path = Path(out) if out is not None else described.directory()
    return execute(described, path, resume=resume, change_engine=change_engine, callbacks=callbacks, progress=progress)


def execute(
    experiment: Experiment,
    path: Path | None,
    *,
    resume: bool = True,
    change_engine: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = False,
    engine: EngineFactory | None = None,
    **parts: Any,
) -> Run:
    """Run an experiment.

    Args:
        experiment: The experiment.
        path: The run directory; None writes nothing.
        resume: As in `run`.
        change_engine: As in `run`.
        callbacks: As in `run`.
        progress: As in `run`.
        engine: Creates the engine, in place of the one that the experiment names.
        **parts: Parts in place of those that the experiment names, as in `assemble`.

    Returns:
        The complete run.
    """
    check_callbacks(callbacks)
    callbacks = [*displays(progress), *callbacks]
    directory = RunDirectory(_nameable(path)) if path is not None else None
    log = [LogFile(directory.path / "log.txt")] if directory is not None else []
    warned = [] if any(isinstance(each, Display) for each in callbacks) else [PythonWarnings()]
    watching = Callbacks([*log, *warned, *callbacks])
    try:
        # Inside the guard, so that a second signal also ends a callback that does not return from `failed`.
        with interrupt.guard(), _notified_of_failure(watching):
            experiment = experiment.resolved()
            # First, because no directory can be resumed with a device that does not exist.
            find_device(experiment.engine.device, experiment.engine.name)
            watching.callbacks += tracked(experiment.run.track)
            if directory is not None:
                directory.open()
            return _execute(experiment, directory, watching, resume, change_engine, engine, parts)
    finally:
        if directory is not None:
            directory.close()


def _execute(
    experiment: Experiment,
    directory: RunDirectory | None,
    callbacks: Callbacks,
    resume: bool,
    change_engine: bool,
    engine: EngineFactory | None,
    parts: Mapping[str, Any],
) -> Run:
    try:
        changes: dict[str, Any] = {}
        if directory is not None and directory.started:
            if not resume:
                raise InputError(f'"{directory.path}" holds a run already; resume it, or choose another directory')
            experiment, changes = check_resumable(experiment, directory, change_engine)
            parts = {**parts, "start": kept_start(experiment, directory)}
        with _in_words(directory, experiment.train.rounds), threads(experiment.engine.threads):
            with watching(lambda what, done, total: interrupt.check()):
                assembly = assemble(experiment, **parts)
            return _run_rounds(assembly, directory, callbacks, changes, engine)
    except WriteFailed as failure:
        if directory is None:
            raise
        saved = _what_is_saved(directory.last_round(), experiment.train.rounds, directory.path)
        raise RunFailed(f"{failure}; {saved}") from failure
    except BaseException:
        if directory is not None:
            directory.abandon()
        raise


@contextlib.contextmanager
def _notified_of_failure(callbacks: Callbacks) -> Iterator[None]:
    """Notify callbacks of any error that ends the run; the error itself is raised in any case."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(Interrupted):  # a signal that came meanwhile
            callbacks.failed(error)
        raise


def _nameable(path: Path) -> Path:
    """Return the path if its files can be read again: safetensors takes no name that is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f'the name of the run directory "{path}" is not UTF-8; choose another --out') from None
    return path


class Recorder(Callback):
    """Writes the row of each round, and checkpoints.

    Args:
        directory: The run directory.
        assembly: The parts of the run.
    """

    def __init__(self, directory: RunDirectory, assembly: Assembly):
        self.directory, self.server, self.experiment = directory, assembly.server, assembly.experiment

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Write the row, then a checkpoint if one is due.

        The row comes first: on resume, rows after the newest checkpoint are dropped and their rounds are run again.
        """
        self.directory.append_row(row)
        last = row["round"] == self.experiment.train.rounds
        if last or row["round"] % self.experiment.run.checkpoint_every == 0:
            self.directory.save(self.server, self.experiment.run.keep)


def _run_rounds(
    assembly: Assembly,
    directory: RunDirectory | None,
    watching: Callbacks,
    changes: Mapping[str, Any],
    own_engine: EngineFactory | None,
) -> Run:
    experiment, server = assembly.experiment, assembly.server
    path = directory.path if directory is not None else None
    prober = Prober(assembly, path)
    start = begin(assembly, directory, prober, changes) if directory is not None else Start()
    if directory is not None and start.finished:
        finished = load_run(directory.path, trust=True)  # what it names is what the user's experiment names
        finished._assembly = assembly
        watching.started(experiment, path, server.round, 0)
        watching.ended(finished)
        return finished
    rows = start.rows
    options = assembly.engine.options(len(server.sample(server.round)), rows[-1] if rows else {})
    engine = (own_engine or partial(open_engine, assembly.engine.name))(assembly.site, options)
    callbacks = all_callbacks(watching, assembly, directory, prober)
    try:
        start.write()
        reset_peaks(assembly.device)
        callbacks.started(experiment, path, server.round, len(server.sample(server.round)))
        for text in (*_start_report(assembly), *start.cautions, *cautions(assembly)):
            callbacks.warned(text)
        while server.round < experiment.train.rounds:
            _one_round(assembly, engine, rows, callbacks)
        return _end(assembly, engine, directory, rows, callbacks, prober.found)
    except (Interrupted, ClientFailed, TooFewClients, CallbackFailed) as stop:
        # After a second signal nothing is saved any more: it may have come in the middle of a change of the state.
        if not isinstance(stop, StoppedNow) and directory is not None and directory.last_round() < server.round:
            directory.save(server, experiment.run.keep)
        raise
    finally:
        engine.close()


def _start_report(assembly: Assembly) -> list[str]:
    """Describe which entries of `model.start` fitted, before round 1; without `start_partial` all of them did."""
    asked = assembly.start is not None and assembly.experiment.model.start_partial and assembly.server.round == 0
    return [assembly.start.text()] if asked and assembly.start is not None else []


def all_callbacks(watching: Callbacks, assembly: Assembly, directory: RunDirectory | None, prober: Prober) -> Callbacks:
    """Return all callbacks of a run.

    The prober comes before the recorder: a round that a resumed run does not run again must have its probe already. The
    others come after it, so that a round is saved when they are notified of it.

    Args:
        watching: The callbacks of the user and the display.
        assembly: The parts of the run.
        directory: The run directory, if there is one.
        prober: The prober of the run.
    """
    recorder = [Recorder(directory, assembly)] if directory is not None else []
    return Callbacks([prober, *recorder, *watching.callbacks])


@contextlib.contextmanager
def _in_words(directory: RunDirectory | None, rounds: int) -> Iterator[None]:
    """Describe in one sentence what is saved after a signal, or after an exception of a callback or of the user's
    code."""

    def saved() -> str:
        if directory is None:
            return "nothing is on disk, because no directory was given"
        return _what_is_saved(directory.last_round(), rounds, directory.path)

    try:
        yield
    except Interrupted as stop:
        how = "stopped at once" if isinstance(stop, StoppedNow) else "stopped"
        raise type(stop)(f"{how}; {saved()}") from None
    except CallbackFailed as failure:
        raise CallbackFailed(f"{failure}; {saved()}", failure.traceback) from failure.__cause__
    except (SystemExit, KeyboardInterrupt) as error:
        if not interrupt.raised_by_code(error):
            raise
        what = "sys.exit" if isinstance(error, SystemExit) else "KeyboardInterrupt"
        text = "".join(traceback.format_exception(error))
        raise RunFailed(f"the code of the model, the method or the data raised {what}; {saved()}", text) from error


def _what_is_saved(done: int, rounds: int, path: Path) -> str:
    saved = (
        f'the first {done} of {rounds} rounds are saved in "{path}"'
        if done
        else f'no round was complete yet in "{path}"'
    )
    return f"{saved}; the same command continues from there"


def _one_round(assembly: Assembly, engine: Engine, rows: list[dict[str, Any]], callbacks: Callbacks) -> None:
    experiment, server = assembly.experiment, assembly.server
    start = time.perf_counter()
    evaluate = experiment.evaluate.personal == "every" and _has_sets(assembly.federation)
    shown = callbacks.round_started(server.round + 1, server.sample(server.round))

    def client_done(result: Result) -> None:
        callbacks.client_done(result)
        result.model = {}  # so that memory does not grow with the number of clients

    outcome = server.run_round(engine, client_done, evaluate, shown)
    trained = time.perf_counter()
    last = server.round == experiment.train.rounds
    due = server.round % experiment.evaluate.every == 0
    scores = assembly.evaluator.evaluate_server(server, keep=last) if due else {}
    if scores:
        scores |= assembly.evaluator.evaluate_mean(server)
    row = _row(outcome, scores, assembly, trained - start, time.perf_counter() - start)
    if far := far_client(row["clients"]):
        row["far_client"] = far
    found = [*outcome.cautions, *_not_finite(outcome, scores)]
    if text := _dying_features([*rows, row]):
        found.append(text)
    if warnings := (cautions(assembly) if server.round == 1 else []) + found:
        row["cautions"] = warnings
    row = writable({**row, **engine.notes()})
    rows.append(row)
    callbacks.round_done(row)
    for text in found:
        callbacks.warned(text)


def _dying_features(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a warning in the first round after which too many of the global model's features have died, else ""."""
    if rows[-1].get("dead_features", 0.0) < DYING:  # the rule's least share, so that healthy runs cost nothing
        return ""
    shares = [row["dead_features"] for row in rows if "dead_features" in row]
    if not dying(shares):
        return ""
    return (
        f"round {rows[-1]['round']}: {100 * shares[-1]:.0f} % of the features are dead, the same for every sample "
        f"(lowest share so far: {100 * min(shares):.0f} %); lower the weight of the method's added loss "
        '(for feddecorr beta, or scale = "paper"), or train.lr where it adds none'
    )


def _end(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory | None,
    rows: list[dict[str, Any]],
    callbacks: Callbacks,
    probes: list[dict[str, Any]],
) -> Run:
    """Let the methods finish, evaluate the model and the clients' own models, and write the result."""
    ending: dict[str, Any] = {}
    experiment, server = assembly.experiment, assembly.server
    path = directory.path if directory is not None else None
    done = Ending(path, server.round)
    model = server.model
    if experiment.train.rounds % experiment.evaluate.every:
        # Not in the last row: a run that is resumed with more rounds must have the rows of one that never ended here.
        ending["last"] = assembly.evaluator.evaluate_server(server, keep=True)
        ending["last"] |= assembly.evaluator.evaluate_mean(server)
    skipped: dict[str, str] = {}
    if assembly.composition.defined("finish"):
        server, facts = _finished(assembly, engine, callbacks, done)
        model, skipped = server.model, facts["skipped"]
        ending |= facts["measured"]
    absent: dict[str, str] = {}
    keep = _keeper(directory) if directory is not None and experiment.run.keep_personal else None
    if not _has_sets(assembly.federation):
        absent["personal"] = "clients have no hold-out (data.holdout = 0)"
    elif experiment.evaluate.personal == "never":
        absent["personal"] = 'it was not asked for (evaluate.personal = "never")'
    if keep is not None or "personal" not in absent:
        progress = Progress(partial(callbacks.phase_started, "clients' own models"), callbacks.client_done)
        evaluated, evaluation, failed = server.evaluate_clients(
            engine, known=done.clients, note=done.add, progress=progress, keep=keep, evaluate="personal" not in absent
        )
        skipped = {**skipped, **{str(client): reason for client, reason in failed.items()}}
    if "personal" not in absent:
        new, asked = set(assembly.federation.unseen.tolist()), assembly.site.metrics
        if not assembly.federation.has_holdouts:
            evaluated = {k: done.clients[k]["test"] for k in sorted(done.clients) if "test" in done.clients[k]}
        ending |= {
            "personal": over_stages({k: found for k, found in evaluated.items() if k not in new}, asked),
            "evaluation": dataclasses.asdict(evaluation),
        }
        if new:
            ending["unseen"] = over_stages({k: found for k, found in evaluated.items() if k in new}, asked)
    if directory is not None and keep is not None:
        for client in skipped:
            directory.personal_file(int(client)).unlink(missing_ok=True)  # of an end with fewer rounds
    if assembly.no_global_model:
        absent["accuracy"] = assembly.no_global_model
    elif assembly.federation.data.test is None:
        absent["accuracy"] = "no test set was given"
    ending["absent"] = absent
    table = _table(assembly, model, done.clients)
    if sites := over_sites(table, assembly.site.metrics):
        ending["sites"] = sites
    if skipped:
        ending["skipped"] = skipped
    ending = writable({**ending, "seconds": done.seconds})
    result = Run(assembly.experiment, rows, path, assembly, clone(model), ending, probes, table=table)
    if directory is not None:
        own = set(assembly.entries.personal)
        save_tensors(directory.path / "model.safetensors", {n: t for n, t in model.items() if n not in own})
        write_clients(directory.path, table)
        record_peak(directory.path, assembly.device)
        write_json(directory.path / "summary.json", {**result.summary(), "ending": ending})
        done.discard()
    callbacks.ended(result)
    return result


def _has_sets(federation: Federation) -> bool:
    """Return whether any client has samples on which its own model can be evaluated."""
    return federation.has_holdouts or federation.has_tests


def _table(assembly: Assembly, model: Tensors, clients: Mapping[int, Mapping[str, Any]]) -> list[ClientRow]:
    """Return the rows of the global model and of the clients' own models."""
    federation = assembly.federation
    whole: list[Any] = assembly.evaluator.rows(model)
    rows = [*whole, *client_rows(clients, federation.names, set(federation.unseen.tolist()))]
    found: list[ClientRow] = writable(rows)
    return found


def _keeper(directory: RunDirectory) -> Callable[[Result], None]:
    """Return a function that writes a client's own model into a run directory."""
    folder = directory.personal_file(0).parent
    with naming_file(folder):
        folder.mkdir(exist_ok=True)
    return lambda result: save_tensors(directory.personal_file(result.client), result.model)


def _not_finite(outcome: RoundResult, scores: Mapping[str, Any]) -> list[str]:
    """Return a warning if evaluated losses of a round are not finite."""
    where = {
        f"{name.removesuffix('loss').replace('_', ' ')}loss of the global model": scores.get(name) for name in LOSSES
    }
    for result in outcome.results:
        for stage, found in result.metrics.get("personal", {}).items():
            where[f"loss of client {result.client} ({stage})"] = found.get("loss")
    odd = [what for what, value in where.items() if value is not None and not math.isfinite(value)]
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return [f"round {outcome.round + 1}: the {', the '.join(odd[:3])}{more} is not finite"] if odd else []


def _finished(assembly: Assembly, engine: Engine, callbacks: Callbacks, done: Ending) -> tuple[Server, dict[str, Any]]:
    """Return the server after the methods' `finish`, and facts about it: from an earlier process, or computed now."""
    if (known := done.finish(assembly.server, assembly.device)) is not None:
        return known
    progress = Progress(partial(callbacks.phase_started, "the method's finish"), callbacks.client_done)
    server, traffic, skipped = assembly.server.finished(engine, progress)
    facts = {
        "measured": {**assembly.evaluator.evaluate_server(server, keep=True), **dataclasses.asdict(traffic)},
        "skipped": {str(client): reason for client, reason in skipped.items()},
    }
    done.keep_finish(server, facts)
    return server, facts


def _row(
    outcome: RoundResult, scores: Mapping[str, float], assembly: Assembly, training: float, seconds: float
) -> dict[str, Any]:
    clients = [{"client": result.client, **result.metrics} for result in outcome.results]
    row: dict[str, Any] = {"round": outcome.round + 1, **scores, **dataclasses.asdict(outcome.traffic)}
    row |= {"seconds": seconds, "training_seconds": training, "clients": clients, "terms": mean_terms(clients)}
    key = "personal" if assembly.federation.has_holdouts else "test"
    own = {result.client: result.metrics.get(key, {}) for result in outcome.results}
    if personal := over_stages(own, assembly.site.metrics):
        row |= {"personal_accuracy": personal["local"]["mean"], "personal": personal}
    if outcome.skipped:
        row["skipped"] = {str(client): reason for client, reason in outcome.skipped.items()}
    if outcome.idle:
        row["idle"] = outcome.idle
    return row
