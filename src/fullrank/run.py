"""Runs: start one, resume one, read one back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from . import interrupt, methods
from .assemble import Assembly, assemble, is_given, pipeline
from .config import GIVEN, Experiment, merged, nested, read_toml, same
from .data import DataSet, Split, as_split
from .data.federation import given
from .display import Plain, Silent, Together, Watcher
from .engine import Engine, choose, open_engine
from .errors import Interrupted, Refusal
from .methods import Method
from .rundir import RunDirectory, environment, read_rows, save_tensors, write_atomically, write_json
from .server import Played
from .summary import summarise
from .trees import Tensors, clone, moved

FREE_ON_RESUME = ("train.rounds", "data.root", "engine.workers", "run.")


class Run:
    """A run, finished or not: its experiment, its metrics, its models."""

    def __init__(
        self,
        experiment: Experiment,
        metrics: list[dict[str, Any]],
        path: Path | None = None,
        assembly: Assembly | None = None,
        final: Tensors | None = None,
        ending: Mapping[str, Any] | None = None,
    ):
        self.experiment = experiment
        self.metrics = metrics
        self.path = path
        self._assembly = assembly
        self._final = final
        self._ending = dict(ending or {})

    @property
    def complete(self) -> bool:
        """Whether all rounds have been played."""
        return bool(self.metrics) and self.metrics[-1]["round"] >= self.experiment.train.rounds

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers: each measure's last value, its best over rounds, its mean over the last five."""
        return summarise(self.metrics, self._ending)

    def model(self) -> nn.Module:
        """The trained global model, in eval mode; the user's own class where the user gave one."""
        assembly = self._assembled()
        if assembly.no_global_model:
            raise Refusal(f"there is no complete global model: {assembly.no_global_model}; use client_model(k)")
        return self._module(self._final_entries())

    def client_model(self, client: int) -> nn.Module:
        """A client's own model: the global one with the client's personal entries, personalised by the method."""
        assembly = self._assembled()
        if not 0 <= client < assembly.federation.clients:
            raise Refusal(f"there is no client {client}; clients are 0 to {assembly.federation.clients - 1}")
        job = assembly.server.holding(self._final_entries()).job("personal", client)
        with _threads(self.experiment.engine.threads):
            result = assembly.site.do(job)
        if result.error is not None:
            raise result.error
        return self._module(result.model)

    def _module(self, entries: Tensors) -> nn.Module:
        network = self._assembled().network
        network.load(entries)
        return copy.deepcopy(network.module).eval()

    def _final_entries(self) -> Tensors:
        assembly = self._assembled()
        if self._final is None:
            assert self.path is not None
            file = self.path / "model.safetensors"
            result = moved(load_file(file), assembly.device) if file.is_file() else {}
            self._final = {**assembly.server.model, **result}
        return self._final

    def _assembled(self) -> Assembly:
        """The run's parts, put together again from the directory if this process did not run it."""
        if self._assembly is None:
            assert self.path is not None
            if is_given(self.experiment):
                raise Refusal(
                    f'the model or data of "{self.path}" came from a program; call fullrank.fit with them again'
                )
            self._assembly = assemble(self.experiment)
            RunDirectory(self.path).restore(self._assembly.server, self._assembly.device)
        return self._assembly


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
    return _execute(described, path, resume=resume, change_engine=change_engine, watcher=watcher)


def fit(
    model: nn.Module,
    clients: Sequence[Any],
    method: str | Method = "fedavg",
    test: Any = None,
    *,
    rounds: int = 10,
    epochs: int = 1,
    batch_size: int = 64,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    participation: float | int = 1.0,
    seed: int = 0,
    head: str | None = None,
    engine: str = "auto",
    device: str | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Train any module over clients' own data: a list of (x, y) tensors or torch Datasets, one a client.

    Floating x is used as given, 8-bit images are divided by 255; nothing else is normalised or augmented unless `set`
    says so (`set={"data.augment": ["flip"]}`; any key of an experiment). `head` names the classifier if it is not the
    last Linear that a forward calls. The module itself is not changed. `out=None` writes nothing.

    >>> import torch, fullrank
    >>> clients = [(torch.randn(20, 4), torch.randint(0, 2, (20,))) for _ in range(3)]
    >>> fullrank.fit(torch.nn.Sequential(torch.nn.Linear(4, 2)), clients, rounds=2).metrics[-1]["round"]
    2
    """
    if not clients:
        raise Refusal("fit needs at least one client")
    splits = [_client_split(number, data) for number, data in enumerate(clients)]
    data = _joined(splits, None if test is None else as_split(test))
    values: dict[str, Any] = {
        "seed": seed,
        "data": {
            "name": GIVEN,
            "partition": GIVEN,
            "clients": len(splits),
            "normalise": "none",
            "augment": "none",
        },
        "model": {"name": GIVEN},
        "method": _method_table(method),
        "train": {
            "rounds": rounds,
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "participation": participation,
        },
        # A program that hands over its model need not be able to start over in other processes.
        "engine": {"name": "serial" if engine == "auto" else engine, "device": device or ""},
    }
    experiment = Experiment(**merged(values, nested(set or {})))
    federation = given(data, pipeline(experiment, data), [len(split) for split in splits])
    parts: dict[str, Any] = {
        "federation": federation,
        "module": model,
        "method": method if isinstance(method, Method) else None,
        "head": head,
    }
    return _execute(experiment, Path(out) if out is not None else None, watcher=watcher, **parts)


def load_run(path: str | Path) -> Run:
    """A finished or unfinished run directory."""
    path = Path(path)
    if not (path / "experiment.toml").is_file():
        raise Refusal(f'"{path}" is not a run directory: it has no experiment.toml')
    experiment = Experiment(**read_toml(path / "experiment.toml"))
    summary = path / "summary.json"
    ending = json.loads(summary.read_text()).get("ending", {}) if summary.is_file() else {}
    return Run(experiment, read_rows(path), path, ending=ending)


# How a run goes


def _execute(
    experiment: Experiment,
    path: Path | None,
    *,
    resume: bool = True,
    change_engine: bool = False,
    watcher: Watcher | None = None,
    **parts: Any,
) -> Run:
    directory = RunDirectory(path) if path is not None else None
    experiment = experiment.resolved()
    if directory is not None:
        directory.open()
    try:
        if directory is not None and directory.started:
            if not resume:
                raise Refusal(f'"{path}" holds a run already; resume it, or choose another directory')
            experiment = _agreed(experiment, directory, change_engine)
        with interrupt.guard(), _threads(experiment.engine.threads), _log(directory) as log:
            assembly = assemble(experiment, **parts)
            if experiment.engine.name == "auto":
                assembly.experiment = _with_engine(experiment, _engine_for(assembly))
            return _play(assembly, directory, Together(watcher or Silent(), log))
    finally:
        if directory is not None:
            directory.close()


def _engine_for(assembly: Assembly) -> str:
    """What `auto` means for a run: recorded before its first round, so that a resume means the same."""
    train, federation = assembly.experiment.train, assembly.federation
    clients = len(assembly.server.sample(0))
    samples = sum(map(len, federation.parts)) * clients / federation.clients * train.epochs
    if train.steps:
        samples = clients * train.steps * train.batch_size
    parameters = sum(parameter.numel() for parameter in assembly.network.module.parameters())
    return choose(assembly.experiment.engine.device, clients, parameters * samples * train.rounds)


def _with_engine(experiment: Experiment, name: str) -> Experiment:
    return Experiment(**merged(experiment.model_dump(), {"engine": {"name": name}}))


def _play(assembly: Assembly, directory: RunDirectory | None, watcher: Watcher) -> Run:
    experiment, server = assembly.experiment, assembly.server
    rows = _begin(assembly, directory) if directory is not None else []
    path = directory.path if directory is not None else None
    if directory is not None and directory.finished(experiment.train.rounds):
        finished = load_run(directory.path)
        finished._assembly = assembly
        watcher.started(experiment, server.round, 0, path)
        watcher.ended(finished)
        return finished
    if directory is not None:
        directory.discard_result()
    engine = open_engine(
        experiment.engine.name,
        assembly.site,
        workers=experiment.engine.workers,
        threads=experiment.engine.threads,
        clients_a_round=len(server.sample(server.round)),
    )
    try:
        watcher.started(experiment, server.round, len(server.sample(server.round)), path)
        while server.round < experiment.train.rounds:
            _one_round(assembly, engine, directory, rows, watcher)
        return _end(assembly, engine, directory, rows, watcher)
    except Interrupted:
        if directory is not None and directory.last_round() < server.round:
            directory.save(server, experiment.run.keep)
        raise Interrupted(_how_to_go_on(server.round, experiment.train.rounds, path)) from None
    finally:
        engine.close()


def _how_to_go_on(done: int, rounds: int, path: Path | None) -> str:
    if path is None:
        return f"stopped after round {done} of {rounds}; nothing is on disk, because no directory was given"
    saved = (
        f'the first {done} of {rounds} rounds are saved in "{path}"'
        if done
        else f'no round was complete yet in "{path}"'
    )
    return f"stopped; {saved}; the same command goes on from there"


def _one_round(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory | None,
    rows: list[dict[str, Any]],
    watcher: Watcher,
) -> None:
    experiment, server = assembly.experiment, assembly.server
    start = time.perf_counter()
    played = server.play(engine, watcher.client_done)
    trained = time.perf_counter()
    last = server.round == experiment.train.rounds
    scores = assembly.judge(server.model) if last or server.round % experiment.evaluate.every == 0 else {}
    row = _row(played, scores, trained - start, time.perf_counter() - start)
    rows.append(row)
    if directory is not None:
        # The row comes first: on resume, rows beyond the newest checkpoint are dropped and played again.
        directory.append_row(row)
        if last or server.round % experiment.run.checkpoint_every == 0:
            directory.save(server, experiment.run.keep)
    watcher.round_done(row)


def _begin(assembly: Assembly, directory: RunDirectory) -> list[dict[str, Any]]:
    """Write what is known before round 1, or check that it still holds and go back to the newest checkpoint."""
    experiment, federation = assembly.experiment, assembly.federation
    facts = {"data": _data_facts(federation.data), **federation.describe()}
    path = directory.path
    around = environment(experiment.engine.threads, assembly.device)
    if directory.started:
        recorded = json.loads((path / "partition.json").read_text())
        for key, now in (("data", facts["data"]["fingerprint"]), ("hash", facts["hash"])):
            before = recorded["data"]["fingerprint"] if key == "data" else recorded["hash"]
            if before != now:
                what = "the data set's content" if key == "data" else "the partition"
                raise Refusal(
                    f'{what} is not what it was when "{path}" was started ({before[:12]}… is now {now[:12]}…)'
                )
        history = json.loads((path / "environment.json").read_text())
        history.setdefault("resumed", []).append({"after_round": directory.last_round(), **around})
    else:
        save_tensors(path / "partition.safetensors", federation.tensors())
        write_json(path / "partition.json", facts)
        history = around
    write_json(path / "environment.json", history)
    write_atomically(path / "experiment.toml", experiment.as_toml().encode())
    directory.restore(assembly.server, assembly.device)
    directory.sweep(experiment.run.keep)
    return directory.cut_rows(assembly.server.round)


def _end(
    assembly: Assembly,
    engine: Engine,
    directory: RunDirectory | None,
    rows: list[dict[str, Any]],
    watcher: Watcher,
) -> Run:
    """Let the methods finish, judge what they made of the model, and write the result."""
    ending: dict[str, Any] = {}
    model = assembly.server.model
    if assembly.composition.defined("finish"):
        final, traffic = assembly.server.finished(engine)
        model = final.model
        ending = {**assembly.judge(model), **dataclasses.asdict(traffic)}
    absent: dict[str, str] = {}
    if assembly.no_global_model:
        absent["accuracy"] = assembly.no_global_model
    elif assembly.federation.data.test is None:
        absent["accuracy"] = "no test set was given"
    if absent:
        ending["absent"] = absent
    path = directory.path if directory is not None else None
    result = Run(assembly.experiment, rows, path, assembly, clone(model), ending)
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
    if played.skipped:
        row["skipped"] = {str(client): reason for client, reason in played.skipped.items()}
    if played.idle:
        row["idle"] = played.idle
    return row


def _agreed(experiment: Experiment, directory: RunDirectory, change_engine: bool) -> Experiment:
    """The experiment to go on with, if it differs from the recorded one in nothing that matters."""
    path = directory.path
    recorded = Experiment(**read_toml(path / "experiment.toml")).resolved()
    if experiment.engine.name == "auto":
        experiment = _with_engine(experiment, recorded.engine.name)
    before, now = recorded.flat(), experiment.flat()
    different = [
        key
        for key in sorted(before.keys() | now.keys())
        if not same(before.get(key), now.get(key)) and not key.startswith(FREE_ON_RESUME)
    ]
    refused = [key for key in different if not (change_engine and key.startswith("engine."))]
    if refused:
        shown = "; ".join(f"{key} was {before.get(key)!r}, is now {now.get(key)!r}" for key in refused)
        hint = " (--change-engine allows it)" if all(key.startswith("engine.") for key in refused) else ""
        raise Refusal(f'"{path}" holds another experiment: {shown}; choose another --out{hint}')
    done = directory.last_round()
    if experiment.train.rounds < done:
        raise Refusal(f'train.rounds = {experiment.train.rounds}, but "{path}" has {done} rounds behind it already')
    return experiment


@contextlib.contextmanager
def _log(directory: RunDirectory | None) -> Iterator[Watcher]:
    """The run's own log of plain lines."""
    if directory is None:
        yield Silent()
        return
    with (directory.path / "log.txt").open("a") as file:
        yield Plain(file)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Data and methods that a program hands over


def _client_split(number: int, data: Any) -> Split:
    try:
        return as_split(data)
    except Refusal as problem:
        raise Refusal(f"client {number}: {problem}") from None


def _joined(splits: list[Split], test: Split | None) -> DataSet:
    first = splits[0]
    for number, split in enumerate(splits):
        if split.x.shape[1:] != first.x.shape[1:] or split.x.dtype != first.x.dtype:
            raise Refusal(
                f"client {number} has {split.x.dtype} inputs of shape {tuple(split.x.shape[1:])}, "
                f"client 0 {first.x.dtype} of {tuple(first.x.shape[1:])}; all clients' must agree"
            )
    train = Split(torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits]))
    labels = torch.cat([train.y, test.y]) if test is not None else train.y
    return DataSet(GIVEN, train, test, tuple(str(c) for c in range(int(labels.max()) + 1)))


def _method_table(method: str | Method) -> dict[str, Any]:
    if isinstance(method, str):
        return {"name": method}
    library = methods.available()
    if all(library.get(part.name) is type(part) for part in method.parts):
        return {"name": method.name, **{part.name: dataclasses.asdict(part) for part in method.parts}}
    return {"name": f"{GIVEN}:{method.name}"}


def _data_facts(data: DataSet) -> dict[str, Any]:
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "train": len(data.train),
        "test": len(data.test) if data.test is not None else 0,
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
    }
