"""Running an experiment: the rounds, what is written after each, and going on where a run stopped."""

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
from fullrank.engine import Engine, choose, open_engine
from fullrank.engine.vectorised import suits
from fullrank.errors import (
    ClientFailed,
    InputError,
    Interrupted,
    RunFailed,
    StoppedNow,
    WriteFailed,
    in_words,
    naming_file,
)
from fullrank.federated.server import Progress, RoundResult, Server
from fullrank.federated.site import Result
from fullrank.files import save_tensors, writable, write_json
from fullrank.local import interrupt
from fullrank.metrics.evaluate import DYING, dying
from fullrank.metrics.measures import Metric
from fullrank.models.net import Net
from fullrank.probe import Prober
from fullrank.runs.assemble import Assembly, assemble, find_device
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import Plain, Silent, Together, Unwatched, Watcher
from fullrank.runs.ending import Ending
from fullrank.runs.result import Run, load_run, threads
from fullrank.runs.resume import Start, begin, check_resumable, with_engine
from fullrank.runs.summary import over_stages
from fullrank.trees import clone

WORTH_COMPILING = 200_000
"""Client steps of a run from which on compiling the network pays: minutes, for a third of a millisecond a step."""
LOSSES = ("loss", "validation_loss")
"""Of the global model, by key of the metrics."""


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    resume: bool = True,
    *,
    change_engine: bool = False,
    watcher: Watcher | None = None,
) -> Run:
    """Run an experiment, or go on with it where it stopped, to the bit.

    `experiment` is an Experiment, the path of a TOML file, or a dict with nested or dotted keys. Without `out` the
    directory is named after the experiment, so that the same call goes on with the same run.

    >>> import fullrank, tempfile
    >>> result = fullrank.run({"train.rounds": 2, "data.clients": 3}, out=tempfile.mkdtemp())
    >>> [row["round"] for row in result.metrics]
    [1, 2]
    """
    described = Experiment.of(experiment)
    path = Path(out) if out is not None else described.directory()
    return execute(described, path, resume=resume, change_engine=change_engine, watcher=watcher)


def execute(
    experiment: Experiment,
    path: Path | None,
    *,
    resume: bool = True,
    change_engine: bool = False,
    watcher: Watcher | None = None,
    **parts: Any,
) -> Run:
    """Run what is described and given; without a path nothing is written."""
    directory = RunDirectory(_nameable(path)) if path is not None else None
    experiment = experiment.resolved()
    find_device(experiment.engine)  # first, because no directory can go on with one that is not there
    if directory is not None:
        directory.open()
    try:
        changes: dict[str, Any] = {}
        if directory is not None and directory.started:
            if not resume:
                raise InputError(f'"{path}" holds a run already; resume it, or choose another directory')
            experiment, changes = check_resumable(experiment, directory, change_engine)
        with interrupt.guard(), _in_words(directory, experiment.train.rounds), threads(experiment.engine.threads):
            assembly = assemble(experiment, **parts)
            assembly.experiment = with_engine(experiment, **decided(assembly))
            return _run_rounds(assembly, directory, Together(_log(directory), watcher or Unwatched()), changes)
    except WriteFailed as failure:
        if directory is None:
            raise
        saved = _what_is_saved(directory.last_round(), experiment.train.rounds, directory.path)
        raise RunFailed(f"{failure}; {saved}") from failure
    except BaseException:
        if directory is not None:
            directory.abandon()
        raise
    finally:
        if directory is not None:
            directory.close()


def _nameable(path: Path) -> Path:
    """A directory whose files can be read again: safetensors takes no name that is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f'the name of the run directory "{path}" is not UTF-8; choose another --out') from None
    return path


def decided(assembly: Assembly) -> dict[str, str]:
    """What `auto` means for a run, by key of `[engine]`: recorded before round 1, so that a resume means the same."""
    table, train, federation = assembly.experiment.engine, assembly.experiment.train, assembly.federation
    clients = len(assembly.server.sample(0))
    samples = sum(map(len, federation.parts)) * clients / federation.clients * train.epochs
    if train.steps:
        samples = clients * train.steps * train.batch_size
    found: dict[str, str] = {}
    if table.name == "auto":
        parameters = sum(parameter.numel() for parameter in assembly.network.module.parameters())
        mapped = suits(assembly.site, clients) and not table.device.startswith("cuda")
        chosen = choose(table.device, clients, parameters * samples * train.rounds, table.workers)
        found["name"] = "vectorised" if mapped else chosen
    if found.get("name", table.name) == "cuda":
        if table.precision == "auto" and assembly.network.half is not None:
            found["precision"] = "bfloat16"
        if table.compile == "auto":
            worth = samples * train.rounds / train.batch_size >= WORTH_COMPILING
            found["compile"] = "on" if worth and isinstance(assembly.network.module, Net) else "off"
    return found


def _run_rounds(
    assembly: Assembly, directory: RunDirectory | None, watcher: Watcher, changes: Mapping[str, Any]
) -> Run:
    experiment, server = assembly.experiment, assembly.server
    path = directory.path if directory is not None else None
    prober = Prober(assembly, path)
    start = begin(assembly, directory, prober, changes) if directory is not None else Start()
    if directory is not None and start.finished:
        finished = load_run(directory.path, trust=True)  # what it names is what the user's experiment names
        finished._assembly = assembly
        watcher.started(experiment, server.round, 0, path)
        watcher.ended(finished)
        return finished
    rows = start.rows
    engine = open_engine(
        experiment.engine.name,
        assembly.site,
        workers=experiment.engine.workers,
        threads=experiment.engine.threads,
        clients_a_round=len(server.sample(server.round)),
        slots=experiment.engine.slots,
        compile=experiment.engine.compile == "on",
        last=rows[-1] if rows else None,
    )
    try:
        start.write()
        watcher.started(experiment, server.round, len(server.sample(server.round)), path)
        for text in (*start.cautions, *assembly.cautions()):
            watcher.cautioned(text)
        with _reason_in_log(directory):
            while server.round < experiment.train.rounds:
                _one_round(assembly, engine, directory, rows, watcher, prober)
            return _end(assembly, engine, directory, rows, watcher, prober.found)
    except (Interrupted, ClientFailed) as stop:
        # After a second signal nothing is saved any more: it may have come in the middle of a change of the state.
        if not isinstance(stop, StoppedNow) and directory is not None and directory.last_round() < server.round:
            directory.save(server, experiment.run.keep)
        raise
    finally:
        engine.close()


@contextlib.contextmanager
def _reason_in_log(directory: RunDirectory | None) -> Iterator[None]:
    """Write into the log why a run that had begun ends before its last round."""
    try:
        yield
    except BaseException as error:
        if directory is not None:
            sentence, details = in_words(error)
            with contextlib.suppress(OSError):  # as on a full disk, of which the error itself tells
                _Log(directory.path / "log.txt").say(f"{details}stopped: {sentence or 'by a signal'}")
        raise


@contextlib.contextmanager
def _in_words(directory: RunDirectory | None, rounds: int) -> Iterator[None]:
    """A signal, and `sys.exit` or KeyboardInterrupt of the user's own code outside a client, as one sentence."""

    def saved() -> str:
        if directory is None:
            return "nothing is on disk, because no directory was given"
        return _what_is_saved(directory.last_round(), rounds, directory.path)

    try:
        yield
    except Interrupted as stop:
        how = "stopped at once" if isinstance(stop, StoppedNow) else "stopped"
        raise type(stop)(f"{how}; {saved()}") from None
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
    return f"{saved}; the same command goes on from there"


def _one_round(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory | None,
    rows: list[dict[str, Any]],
    watcher: Watcher,
    prober: Prober,
) -> None:
    experiment, server = assembly.experiment, assembly.server
    start = time.perf_counter()
    evaluate = experiment.evaluate.personal == "every" and assembly.federation.has_holdouts
    due = prober.is_due(server.round + 1)
    shown = prober.shown(server.sample(server.round)) if due else ()
    outcome = server.run_round(engine, watcher.client_done, evaluate, shown)
    trained = time.perf_counter()
    last = server.round == experiment.train.rounds
    scores = assembly.evaluate(server.model) if server.round % experiment.evaluate.every == 0 else {}
    row = _row(outcome, scores, assembly.site.metrics, trained - start, time.perf_counter() - start)
    found = [*outcome.cautions, *_not_finite(outcome, scores)]
    for text in found:
        watcher.cautioned(text)
    if cautions := (assembly.cautions() if server.round == 1 else []) + found:
        row["cautions"] = cautions
    if text := _dying_features([*rows, row]):
        row["cautions"] = [*row.get("cautions", []), text]
    row = writable({**row, **engine.notes()})
    rows.append(row)
    if due:
        # Before the row and the checkpoint: a round that a resume does not play again has its probe already.
        prober.note(outcome)
    if directory is not None:
        # The row comes first: on resume, rows beyond the newest checkpoint are dropped and played again.
        directory.append_row(row)
        if last or server.round % experiment.run.checkpoint_every == 0:
            directory.save(server, experiment.run.keep)
    watcher.round_done(row)
    if text:
        watcher.cautioned(text)


def _dying_features(rows: Sequence[Mapping[str, Any]]) -> str:
    """A warning in the first round after which too many of the global model's features have died; else nothing."""
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
    watcher: Watcher,
    probes: list[dict[str, Any]],
) -> Run:
    """Let the methods finish, evaluate what they made of the model, and write the result."""
    ending: dict[str, Any] = {}
    experiment, server = assembly.experiment, assembly.server
    path = directory.path if directory is not None else None
    done = Ending(path, server.round)
    model = server.model
    if experiment.train.rounds % experiment.evaluate.every:
        # Not in the last row: a run that goes on from here is to have the rows of one that never ended here.
        ending["last"] = assembly.evaluate(model)
    skipped: dict[str, str] = {}
    if assembly.composition.defined("finish"):
        server, facts = _finished(assembly, engine, watcher, done)
        model, skipped = server.model, facts["skipped"]
        ending |= facts["measured"]
    absent: dict[str, str] = {}
    keep = _keeper(directory) if directory is not None and experiment.run.keep_personal else None
    if not assembly.federation.has_holdouts:
        absent["personal"] = "clients have no hold-out (data.holdout = 0)"
    elif experiment.evaluate.personal == "never":
        absent["personal"] = 'it was not asked for (evaluate.personal = "never")'
    if keep is not None or "personal" not in absent:
        progress = Progress(partial(watcher.phase, "clients' own models"), watcher.client_done)
        evaluated, evaluation, failed = server.evaluate_clients(
            engine, known=done.clients, note=done.add, progress=progress, keep=keep, evaluate="personal" not in absent
        )
        skipped = {**skipped, **{str(client): reason for client, reason in failed.items()}}
    if "personal" not in absent:
        new, asked = set(assembly.federation.unseen.tolist()), assembly.site.metrics
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
    if skipped:
        ending["skipped"] = skipped
    ending = writable({**ending, "seconds": done.seconds})
    result = Run(assembly.experiment, rows, path, assembly, clone(model), ending, probes)
    if directory is not None:
        own = set(assembly.entries.personal)
        save_tensors(directory.path / "model.safetensors", {n: t for n, t in model.items() if n not in own})
        write_json(directory.path / "summary.json", {**result.summary(), "ending": ending})
        done.discard()
    watcher.ended(result)
    return result


def _keeper(directory: RunDirectory) -> Callable[[Result], None]:
    """A function that writes a client's own model into a run directory."""
    folder = directory.personal_file(0).parent
    with naming_file(folder):
        folder.mkdir(exist_ok=True)
    return lambda result: save_tensors(directory.personal_file(result.client), result.model)


def _not_finite(outcome: RoundResult, scores: Mapping[str, Any]) -> list[str]:
    """A warning for each evaluated loss of a round that is not finite."""
    where = {
        f"{name.removesuffix('loss').replace('_', ' ')}loss of the global model": scores.get(name) for name in LOSSES
    }
    for result in outcome.results:
        for stage, found in result.metrics.get("personal", {}).items():
            where[f"loss of client {result.client} ({stage})"] = found.get("loss")
    odd = [what for what, value in where.items() if value is not None and not math.isfinite(value)]
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return [f"round {outcome.round + 1}: the {', the '.join(odd[:3])}{more} is not finite"] if odd else []


def _finished(assembly: Assembly, engine: Engine, watcher: Watcher, done: Ending) -> tuple[Server, dict[str, Any]]:
    """The server after the methods' `finish`, and what is known of that: from an earlier process, or now."""
    if (known := done.finish(assembly.server, assembly.device)) is not None:
        return known
    progress = Progress(partial(watcher.phase, "the method's finish"), watcher.client_done)
    server, traffic, skipped = assembly.server.finished(engine, progress)
    facts = {
        "measured": {**assembly.evaluate(server.model), **dataclasses.asdict(traffic)},
        "skipped": {str(client): reason for client, reason in skipped.items()},
    }
    done.keep_finish(server, facts)
    return server, facts


def _row(
    outcome: RoundResult, scores: Mapping[str, float], asked: Sequence[Metric], training: float, seconds: float
) -> dict[str, Any]:
    clients = [{"client": result.client, **result.metrics} for result in outcome.results]
    row: dict[str, Any] = {"round": outcome.round + 1, **scores, **dataclasses.asdict(outcome.traffic)}
    row |= {"seconds": seconds, "training_seconds": training, "clients": clients}
    own = {result.client: result.metrics.get("personal", {}) for result in outcome.results}
    if personal := over_stages(own, asked):
        row |= {"personal_accuracy": personal["local"]["mean"], "personal": personal}
    if outcome.skipped:
        row["skipped"] = {str(client): reason for client, reason in outcome.skipped.items()}
    if outcome.idle:
        row["idle"] = outcome.idle
    return row


class _Log(Plain):
    """The run's own log of plain lines, opened for each: a line that cannot be written says in which file."""

    def __init__(self, path: Path):
        self.path = path

    def say(self, text: str) -> None:
        """Add a line."""
        self._say(text)

    def _say(self, text: str) -> None:
        with naming_file(self.path), self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            print(text, file=file)


def _log(directory: RunDirectory | None) -> Watcher:
    return Silent() if directory is None else _Log(directory.path / "log.txt")
