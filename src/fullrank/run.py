"""Running an experiment: the rounds, what is written after each, and going on where a run stopped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import interrupt
from .assemble import Assembly, assemble, find_device
from .config import Experiment, Recorded, merged, same
from .display import Plain, Silent, Together, Unwatched, Watcher
from .engine import Engine, choose, open_engine
from .engine.vectorised import suits
from .errors import CallFailed, ClientFailed, Interrupted, Refusal, RunFailed, WriteFailed, naming_file
from .evaluate import DYING, dying
from .models.net import Net
from .probe import Prober
from .result import Run, load_run, threads
from .rundir import RunDirectory, environment, read_json, save_tensors, writable, write_atomically, write_json
from .server import Played
from .summary import over_stages
from .trees import clone

WORTH_COMPILING = 200_000
"""Client steps of a run from which on compiling the network pays: minutes, for a third of a millisecond a step."""
FREE_ON_RESUME = ("train.rounds", "data.root", "engine.workers", "run.")


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
    directory = RunDirectory(path) if path is not None else None
    experiment = experiment.resolved()
    find_device(experiment.engine)  # first, because no directory can go on with one that is not there
    if directory is not None:
        directory.open()
    try:
        changes: dict[str, Any] = {}
        if directory is not None and directory.started:
            if not resume:
                raise Refusal(f'"{path}" holds a run already; resume it, or choose another directory')
            experiment, changes = agreed(experiment, directory, change_engine)
        with interrupt.guard(), threads(experiment.engine.threads):
            assembly = assemble(experiment, **parts)
            assembly.experiment = _with_engine(experiment, **decided(assembly))
            return _play(assembly, directory, Together(_log(directory), watcher or Unwatched()), changes)
    except WriteFailed as failure:
        if directory is None:
            raise
        saved = _what_is_saved(directory.last_round(), experiment.train.rounds, directory.path)
        raise RunFailed(f"{failure}; {saved}") from failure
    except (Refusal, CallFailed):
        if directory is not None:
            directory.abandon()
        raise
    finally:
        if directory is not None:
            directory.close()


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
        chosen = choose(table.device, clients, parameters * samples * train.rounds)
        found["name"] = "vectorised" if mapped else chosen
    if found.get("name", table.name) == "cuda":
        if table.precision == "auto" and assembly.network.half is not None:
            found["precision"] = "bfloat16"
        if table.compile == "auto":
            worth = samples * train.rounds / train.batch_size >= WORTH_COMPILING
            found["compile"] = "on" if worth and isinstance(assembly.network.module, Net) else "off"
    return found


def _with_engine(experiment: Experiment, **values: str) -> Experiment:
    return Experiment(**merged(experiment.model_dump(), {"engine": values}))


def _play(assembly: Assembly, directory: RunDirectory | None, watcher: Watcher, changes: Mapping[str, Any]) -> Run:
    experiment, server = assembly.experiment, assembly.server
    path = directory.path if directory is not None else None
    prober = Prober(assembly, path)
    rows = _begin(assembly, directory, changes) if directory is not None else []
    if directory is not None and directory.has_its_result(experiment.train.rounds):
        finished = load_run(directory.path)
        finished._assembly = assembly
        watcher.started(experiment, server.round, 0, path)
        watcher.ended(finished)
        return finished
    if directory is not None:
        directory.discard_result()
    prober.go_on(server.round)
    engine = open_engine(
        experiment.engine.name,
        assembly.site,
        workers=experiment.engine.workers,
        threads=experiment.engine.threads,
        clients_a_round=len(server.sample(server.round)),
        slots=experiment.engine.slots,
        compile=experiment.engine.compile == "on",
    )
    try:
        watcher.started(experiment, server.round, len(server.sample(server.round)), path)
        for text in assembly.cautions():
            watcher.cautioned(text)
        while server.round < experiment.train.rounds:
            _one_round(assembly, engine, directory, rows, watcher, prober)
        return _end(assembly, engine, directory, rows, watcher, prober.found)
    except (Interrupted, ClientFailed) as stop:
        if directory is not None and directory.last_round() < server.round:
            directory.save(server, experiment.run.keep)
        if isinstance(stop, Interrupted):
            raise Interrupted(_how_to_go_on(server.round, experiment.train.rounds, path)) from None
        raise
    finally:
        engine.close()


def _how_to_go_on(done: int, rounds: int, path: Path | None) -> str:
    if path is None:
        return f"stopped after round {done} of {rounds}; nothing is on disk, because no directory was given"
    return f"stopped; {_what_is_saved(done, rounds, path)}"


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
    judge = experiment.evaluate.personal == "every" and assembly.federation.has_holdouts
    due = prober.is_due(server.round + 1)
    shown = prober.shown(server.sample(server.round)) if due else ()
    played = server.play(engine, watcher.client_done, judge, shown)
    trained = time.perf_counter()
    last = server.round == experiment.train.rounds
    scores = assembly.judge(server.model) if server.round % experiment.evaluate.every == 0 else {}
    row = _row(played, scores, trained - start, time.perf_counter() - start)
    if server.round == 1 and (cautions := assembly.cautions()):
        row["cautions"] = cautions
    if text := _dying_features([*rows, row]):
        row["cautions"] = [*row.get("cautions", []), text]
    row = writable({**row, **engine.notes()})
    rows.append(row)
    if due:
        # Before the row and the checkpoint: a round that a resume does not play again has its probe already.
        prober.note(played)
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


def _begin(assembly: Assembly, directory: RunDirectory, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write what is known before round 1, or check that it still holds and go back to the newest checkpoint."""
    experiment, path = assembly.experiment, directory.path
    around = environment(experiment.engine.threads, assembly.device)
    if directory.started:
        directory.refuse_if_stripped()
        assembly.check_data(path)
        history = read_json(path / "environment.json")
        assembly.check_files(path, history.get("files", {}))
        if not directory.has_its_result(experiment.train.rounds):
            entry = {"after_round": directory.last_round(), **around, "changed_engine": dict(changes)}
            history.setdefault("resumed", []).append(entry)
    else:
        save_tensors(path / "partition.safetensors", assembly.federation.tensors())
        write_json(path / "partition.json", assembly.facts())
        history = {**around, "files": assembly.files()}
    write_json(path / "environment.json", history)
    write_atomically(path / "experiment.toml", experiment.as_toml().encode())
    directory.restore(assembly.server, assembly.device)
    directory.tidy(experiment.run.keep)
    return directory.cut_rows(assembly.server.round)


def _end(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory | None,
    rows: list[dict[str, Any]],
    watcher: Watcher,
    probes: list[dict[str, Any]],
) -> Run:
    """Let the methods finish, judge what they made of the model, and write the result."""
    ending: dict[str, Any] = {}
    experiment, server = assembly.experiment, assembly.server
    model = server.model
    if experiment.train.rounds % experiment.evaluate.every:
        # Not in the last row: a run that goes on from here is to have the rows of one that never ended here.
        ending["last"] = assembly.judge(model)
    skipped: dict[int, str] = {}
    if assembly.composition.defined("finish"):
        server, traffic, skipped = server.finished(engine)
        model = server.model
        ending |= {**assembly.judge(model), **dataclasses.asdict(traffic)}
    absent: dict[str, str] = {}
    if not assembly.federation.has_holdouts:
        absent["personal"] = "clients have no hold-out (data.holdout = 0)"
    elif experiment.evaluate.personal == "never":
        absent["personal"] = 'it was not asked for (evaluate.personal = "never")'
    else:
        judged, evaluation, failed = server.judge_clients(engine)
        skipped |= failed
        new = set(assembly.federation.unseen.tolist())
        ending |= {
            "personal": over_stages({k: found for k, found in judged.items() if k not in new}),
            "evaluation": dataclasses.asdict(evaluation),
        }
        if new:
            ending["unseen"] = over_stages({k: found for k, found in judged.items() if k in new})
    if assembly.no_global_model:
        absent["accuracy"] = assembly.no_global_model
    elif assembly.federation.data.test is None:
        absent["accuracy"] = "no test set was given"
    ending["absent"] = absent
    if skipped:
        ending["skipped"] = {str(client): reason for client, reason in skipped.items()}
    ending = writable(ending)
    path = directory.path if directory is not None else None
    result = Run(assembly.experiment, rows, path, assembly, clone(model), ending, probes)
    if directory is not None:
        own = set(assembly.entries.personal)
        save_tensors(directory.path / "model.safetensors", {n: t for n, t in model.items() if n not in own})
        write_json(directory.path / "summary.json", {**result.summary(), "ending": ending})
    watcher.ended(result)
    return result


def _row(played: Played, scores: Mapping[str, float], training: float, seconds: float) -> dict[str, Any]:
    clients = [{"client": result.client, **result.metrics} for result in played.results]
    row: dict[str, Any] = {"round": played.round + 1, **scores, **dataclasses.asdict(played.traffic)}
    row |= {"seconds": seconds, "training_seconds": training, "clients": clients}
    if personal := over_stages({result.client: result.metrics.get("personal", {}) for result in played.results}):
        row |= {"personal_accuracy": personal["local"]["mean"], "personal": personal}
    if played.skipped:
        row["skipped"] = {str(client): reason for client, reason in played.skipped.items()}
    if played.idle:
        row["idle"] = played.idle
    return row


def agreed(
    experiment: Experiment, directory: RunDirectory, change_engine: bool = False
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment to go on with, if it differs from the recorded one in nothing that matters, and engine changes."""
    path = directory.path
    recorded = Experiment.of(Recorded.by(path)).resolved()
    mine, theirs = experiment.engine, recorded.engine
    open_still = [key for key in ("name", "precision", "compile") if getattr(mine, key) == "auto"]
    experiment = _with_engine(experiment, **{key: getattr(theirs, key) for key in open_still})
    before, now = recorded.flat(), experiment.flat()
    different = [
        key
        for key in sorted(before.keys() | now.keys())
        if not same(before.get(key), now.get(key)) and not key.startswith(FREE_ON_RESUME)
    ]
    refused = [key for key in different if not (change_engine and key.startswith("engine."))]
    if refused:
        shown = "; ".join(f"{key} was {before.get(key)!r}, is now {now.get(key)!r}" for key in refused)
        free = all(key.startswith("engine.") for key in refused)
        hint = " (fullrank run --change-engine allows it)" if free else ""
        raise Refusal(f'"{path}" holds another experiment: {shown}; choose another --out{hint}')
    done = directory.last_round()
    if done and now["train.lr_schedule"] == "cosine" and before["train.rounds"] != now["train.rounds"]:
        raise Refusal(
            f"train.rounds was {before['train.rounds']}, is now {now['train.rounds']}: the cosine schedule runs over "
            "all rounds, so those played already would have been others; choose another --out"
        )
    if experiment.train.rounds < done:
        raise Refusal(f'train.rounds = {experiment.train.rounds}, but "{path}" has {done} rounds behind it already')
    return experiment, {key: [before.get(key), now.get(key)] for key in different}


class _Log(Plain):
    """The run's own log of plain lines, opened for each: a line that cannot be written says in which file."""

    def __init__(self, path: Path):
        self.path = path

    def _say(self, text: str) -> None:
        with naming_file(self.path), self.path.open("a") as file:
            print(text, file=file)


def _log(directory: RunDirectory | None) -> Watcher:
    return Silent() if directory is None else _Log(directory.path / "log.txt")
