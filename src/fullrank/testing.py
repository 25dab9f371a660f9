"""Checks that any method must pass, the library's and your own: `fullrank.testing.check(MyMethod())`.

A method is run on a small federation (the embedded digits, a small network with BatchNorm, in float64), and the first
property that does not hold is reported in one sentence.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fullrank import methods
from fullrank.channels import Traffic
from fullrank.config.experiment import Experiment, merged, nested
from fullrank.engine import ENGINES, Engine, EngineOptions, open_engine
from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.machine import threads
from fullrank.engine.recording import RecordingEngine
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, FullrankError, InputError, WroteInPlace
from fullrank.local.loop import Eager, Samples
from fullrank.local.step import Context, Functional, State, Step
from fullrank.methods import Method
from fullrank.runs.assemble import Assembly, assemble
from fullrank.runs.fit import method_table
from fullrank.runs.run import execute
from fullrank.trees import Tensors, Tree, clone, flatten, misfit

TOLERANCE = 1e-8
"""The largest accepted difference, relative to the update, of engines that compute in another order in float64."""
ROUNDS = 2
EXPERIMENT: dict[str, Any] = {
    "data": {"clients": 4, "alpha": 0.5, "holdout": 0.2},
    "model": {"name": "cnn", "norm": "batch", "width": 4, "features": 16},
    "train": {"rounds": ROUNDS, "participation": 3, "steps": 5, "batch_size": 24, "weight_decay": 1e-3},
    "engine": {"name": "serial", "precision": "float64"},
    "evaluate": {"personal": "never"},
}
"""The experiment of the checks. Three of four clients take part, so that one of them joins late, and the last batch of
an epoch is smaller than the others."""
IN_GROUPS: dict[str, Any] = {
    "data": {"clients": 9},
    "train": {"participation": 0.7},
    "engine": {"name": "vectorised"},
}
"""Changes of the experiment with which clients train as a group. In round 2 some take part for the first time."""


class CheckFailed(AssertionError):
    """Raised if a method does not have a property that it must have.

    >>> from fullrank import Method
    >>> class InPlace(Method):
    ...     def after(self, client):
    ...         client.w0["head.bias"].add_(1)
    ...         return {}
    >>> try:
    ...     check(InPlace(), only=["writes"])
    ... except CheckFailed as error:
    ...     print(str(error).partition(";")[0])
    the method "inplace" wrote into a tensor that it received (w0, sent, own …) in place
    """


@dataclasses.dataclass
class Checked:
    """The results of the checks of a method, which `print` lists.

    >>> from fullrank.testing import check
    >>> print(check("fedprox", only=["degenerate"]))
    fedprox:
    degenerate   holds
    """

    method: str
    results: dict[str, str] = dataclasses.field(default_factory=dict)
    exchange: dict[str, int] = dataclasses.field(default_factory=dict)
    """The numbers exchanged with one client (down at first contact, down later, and up), and with all at the end."""

    def __str__(self) -> str:
        lines = [f"{name:<12} {result}" for name, result in self.results.items()]
        exchanged = [f"{'exchanged':<12} {self.exchange}"] if self.exchange else []
        return "\n".join([f"{self.method}:", *lines, *exchanged])


def check(
    method: Method | str,
    *,
    only: Sequence[str] = (
        "writes",
        "degenerate",
        "trace",
        "engines",
        "processes",
        "resume",
        "checksums",
        "exchange",
        "uploads",
        "head",
    ),
    module: nn.Module | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Checked:
    """Run a method through all checks.

    - `writes`: it does not write into tensors that it receives.
    - `degenerate`: at its `neutral` values it is FedAvg, to the bit.
    - `trace`: its step can be traced and mapped over clients.
    - `engines`: recorded steps, and steps of a group of clients, give the result of `serial`.
    - `processes`: worker processes give it to the bit.
    - `resume`: a run that was stopped and resumed ends like one that was not, with clients that train one by one and as
      a group (`vectorised`).
    - `checksums`: damage to any tensor that the method left on disk is noticed.
    - `exchange`: uploads have the same names and shapes in every round, and nothing personal is exchanged.
    - `uploads`: the method declares everything that its clients send besides the model.
    - `head`: it works with a module whose classifier has another name than that of the library's networks, unless the
      method asks for a network (`tried_on`).

    Args:
        method: An instance of the method, or a name as for `fullrank.methods.build`.
        only: The names of the checks to run; by default all.
        module: A model to train in place of a small convolutional network.
        settings: Further keys of the experiment, nested or dotted.

    Returns:
        The result of each check, and what the method exchanges.

    Raises:
        CheckFailed: If a check fails; the first that fails ends the call.
        InputError: If the method is rejected.
        ValueError: If there is no such check.

    >>> from fullrank.testing import check
    >>> print(check("fedprox", only=["degenerate"]).results)
    {'degenerate': 'holds'}
    """
    methods.reject_no_method(method)
    built = methods.build(method) if isinstance(method, str) else method
    methods.reject_undeclared(built)
    trial = _Trial(built, module, settings or {})
    checks: dict[str, Callable[[_Trial], str]] = {
        "writes": _writes,
        "degenerate": _degenerate,
        "trace": _trace,
        "engines": _engines,
        "processes": _processes,
        "resume": _resume,
        "checksums": _checksums,
        "exchange": _exchange,
        "uploads": _uploads,
        "head": _head,
    }
    if unknown := [name for name in only if name not in checks]:
        raise ValueError(f'there is no check "{unknown[0]}"; choose from {", ".join(checks)}')
    done = Checked(built.name)
    with threads(1):
        for name in only:
            try:
                done.results[name] = checks[name](trial)
            except ClientFailed as failure:
                raise CheckFailed(f'"{built.name}" cannot run on the small federation: {failure}') from failure
    done.exchange = trial.exchange
    return done


IN_WORDS = {"cuda": "a recorded step", "vectorised": "a group of clients"}
"""Descriptions of the ways in which engines train clients."""


class _Trial:
    """A trial run of a method on the small federation.

    Args:
        method: The method.
        module: A model to train in place of the experiment's.
        settings: Further keys of the experiment, nested or dotted.
    """

    def __init__(self, method: Method, module: nn.Module | None, settings: Mapping[str, Any]):
        self.method = method
        self.module = module
        self.exchange: dict[str, int] = {}
        values = merged(EXPERIMENT, nested(settings))
        wanted = next((part.tried_on for part in method.parts if part.tried_on), None)
        if wanted and "model" not in nested(settings):
            values["model"] = dict(wanted)
        if module is not None:
            values = merged(values, {"model": {"name": "given"}})
            values["model"] = {"name": "given"}
        self.values = values
        self.in_groups = merged(merged(values, IN_GROUPS), nested(settings))

    def assembled(self, method: Method | None = None, values: Mapping[str, Any] | None = None) -> Assembly:
        """Assemble the server, the site and the data of a run.

        Args:
            method: A method to use in place of the trial's.
            values: The keys of an experiment to use in place of the trial's.
        """
        chosen = method or self.method
        return assemble(self.experiment(chosen, values), module=copy.deepcopy(self.module), method=chosen)

    def experiment(self, method: Method, values: Mapping[str, Any] | None = None) -> Experiment:
        """Return the experiment of a run with a method.

        Args:
            method: The method.
            values: The keys of an experiment to use in place of the trial's.
        """
        return Experiment(**merged(values or self.values, {"method": method_table(method)}))

    def trained(
        self,
        engine_of: Callable[[Assembly], Engine],
        method: Method | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Assembly:
        """Run all rounds, and return the parts of the run.

        Args:
            engine_of: A function that creates the engine from the parts of the run.
            method: A method to use in place of the trial's.
            values: The keys of an experiment to use in place of the trial's.
        """
        parts = self.assembled(method, values)
        engine = engine_of(parts)
        try:
            for _ in range(ROUNDS):
                parts.server.run_round(engine)
        finally:
            engine.close()
        return parts


def _serial(parts: Assembly) -> Engine:
    return Serial(parts.site)


def _writes(trial: _Trial) -> str:
    """Check that no hook writes into a tensor that it receives, which a site detects by the tensors' versions."""
    parts = trial.assembled()
    found: list[str] = []

    class Watching(Serial):
        def run(self, jobs: Any) -> Any:
            for job in jobs:
                result = self.site.do(job)
                if isinstance(result.error, WroteInPlace):
                    found.append(str(result.error))
                yield result

    engine = Watching(parts.site)
    try:
        for _ in range(ROUNDS):
            parts.server.run_round(engine)
        parts.server.finished(engine)
    except InputError:
        if not found:
            raise
    if found:
        raise CheckFailed(found[0])
    return "holds"


def _uploads(trial: _Trial) -> str:
    """Check that all uploads besides the model are declared."""
    parts = trial.assembled()
    engine = RecordingEngine(parts.site)
    for _ in range(ROUNDS):
        parts.server.run_round(engine)
    parts.server.finished(engine)
    declared = {f"{part.name}/{name}" for part in trial.method.parts for name in part.uploads}
    if missing := sorted(what for what in (engine.seen | engine.asked).keys() - declared if "/" in what):
        part, name = missing[0].split("/", 1)
        raise CheckFailed(
            f'"{part}" sends {name}, which it does not declare; write uploads = {{"{name}": "what it is, in plain '
            'words"} in its class'
        )
    return "holds"


def _degenerate(trial: _Trial) -> str:
    """Check that the method is FedAvg at its neutral values."""
    neutral = [(part.name, dict(part.neutral)) for part in trial.method.parts if part.neutral]
    if not neutral:
        return "the method declares no neutral values"
    if len(neutral) < len(trial.method.parts):
        return "not every part declares neutral values"
    parts = [dataclasses.replace(part, **dict(part.neutral)) for part in trial.method.parts]
    still = parts[0]
    for part in parts[1:]:
        still = still + part
    got, want = (trial.trained(_serial, method).server.w for method in (still, methods.build("fedavg")))
    for name, value in want.items():
        if name not in got or not torch.equal(got[name], value):
            at = ", ".join(f"{part}.{field} = {value}" for part, values in neutral for field, value in values.items())
            raise CheckFailed(f'"{trial.method.name}" at {at} is not FedAvg to the bit: {name} differs')
    return "holds"


def _engines(trial: _Trial) -> str:
    """Check that the engines of the library give the result of `serial`; `_processes` checks worker processes, which
    Ray starts on other machines.
    """
    for engine in ENGINES.own:
        if engine in ("serial", "processes", "ray"):
            continue
        name = IN_WORDS.get(engine, f'the engine "{engine}"')
        engine_of = _recorded if engine == "cuda" else partial(_opened, engine)
        values = trial.in_groups if engine == "vectorised" else trial.values
        start = _entries(trial.assembled(values=values))
        want = _entries(trial.trained(_serial, values=values))
        moved = _distance(want, start)
        got = _entries(trial.trained(engine_of, values=values))
        if not _distance(want, got) <= TOLERANCE * moved:
            raise CheckFailed(
                f'"{trial.method.name}" trains differently in {name} than in the serial engine: its weights differ by '
                f"{_distance(want, got) / moved if moved else float('inf'):.1e} of the update; a hook reads a value "
                "that is not a tensor of its state, or writes into a tensor in place"
            )
    return "holds"


def _recorded(parts: Assembly) -> Engine:
    """Return the `cuda` engine on the CPU, which runs recorded steps again instead of replaying a graph."""

    def run_again(step: Callable[[], None], pool: Any) -> Callable[[], None]:
        step()
        return step

    return Cuda(parts.site, EngineOptions(slots=2, clients=2), record=run_again, devices=[torch.device("cpu")])


def _opened(engine: str, parts: Assembly) -> Engine:
    return open_engine(engine, parts.site, EngineOptions(clients=len(parts.server.sample(0))))


def _processes(trial: _Trial) -> str:
    """Check that worker processes give the same bits."""
    want = _entries(trial.trained(_serial))
    two = EngineOptions(workers=2, clients=2)
    got = _entries(trial.trained(lambda parts: open_engine("processes", parts.site, two)))
    for name, value in want.items():
        if not torch.equal(value, got[name]):
            raise CheckFailed(
                f'"{trial.method.name}" gives other weights in worker processes: {name} differs; it keeps values '
                "outside its state"
            )
    return "holds"


def _resume(trial: _Trial) -> str:
    """Check that a run that is stopped and resumed ends like one that is not, also if clients train as a group."""
    _resumed(trial, trial.experiment(trial.method), "")
    _resumed(trial, trial.experiment(trial.method, trial.in_groups), " where clients train as a group")
    return "holds"


def _resumed(trial: _Trial, experiment: Experiment, where: str) -> None:
    short = Experiment(**merged(experiment.model_dump(), {"train": {"rounds": 1}}))
    with tempfile.TemporaryDirectory() as folder:
        for name, stages in (("whole", [experiment]), ("parts", [short, experiment])):
            for stage in stages:
                execute(stage, Path(folder) / name, module=copy.deepcopy(trial.module), method=trial.method)
        whole, parts = (_saved(Path(folder) / name) for name in ("whole", "parts"))
    for file in sorted(whole.keys() | parts.keys()):
        if whole.get(file) != parts.get(file):
            raise CheckFailed(
                f'"{trial.method.name}" stopped after a round and resumed does not end like a run that was never '
                f"stopped{where}: {file} differs; a value that it needs is not in its state"
            )


def _checksums(trial: _Trial) -> str:
    """Check that a flipped bit in the last tensor of any file of a stopped run is noticed when the run continues."""
    experiment = trial.experiment(trial.method)
    short = Experiment(**merged(experiment.model_dump(), {"train": {"rounds": 1}}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        execute(short, path, module=copy.deepcopy(trial.module), method=trial.method)
        for file in sorted(path.glob("checkpoints/*.safetensors")):
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            try:
                execute(experiment, path, module=copy.deepcopy(trial.module), method=trial.method)
            except InputError:
                file.write_bytes(whole)
            else:
                raise CheckFailed(f'"{trial.method.name}" continued a run although {file.name} is damaged')
    return "holds"


def _saved(path: Path) -> dict[str, bytes]:
    tensors = [*path.glob("checkpoints/*.safetensors"), path / "model.safetensors"]
    return {file.name: file.read_bytes() for file in tensors if file.is_file()}


def _trace(trial: _Trial) -> str:
    """Check that the step of every kind of fit is a pure function of tensors, which can be traced and mapped."""
    parts = trial.assembled()
    parts.server.run_round(_serial(parts))  # from the second round on, all state exists
    problems: list[str] = []

    def checked_stepper(step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype) -> Eager:
        if not problems:
            problems.extend(_problem(step, state, context, samples, dtype))
        return Eager(step, state, context, samples, dtype)

    parts.site.stepper_of = checked_stepper
    parts.server.run_round(_serial(parts))
    if problems:
        raise CheckFailed(
            f'the step of "{trial.method.name}" cannot be traced ({problems[0]}); write criterion, loss and grad as '
            "pure functions of tensors: no .item(), no boolean indexing, no branch on a tensor's value"
        )
    return "holds"


def _problem(step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype) -> list[str]:
    network = step.backend.network
    pure = dataclasses.replace(step, backend=Functional(network))
    still = State(*(clone(tree) for tree in (state.trained, state.rest, state.buffers, state.memory)))
    trees = clone(context.received), clone(context.own), clone(context.sent)
    around = Context(*trees, context.counts.clone(), fixed=clone(context.fixed))
    rows = samples.index[:4]
    x, y = samples.prepare(samples.x[rows], None, dtype), samples.y[rows]

    def run_step(state: State, context: Context, x: Tensor, y: Tensor) -> Any:
        return pure(state, context, x, y)

    try:
        make_fx(run_step, tracing_mode="fake")(still, around, x, y)
        both = torch.utils._pytree.tree_map(lambda t: torch.stack([t, t]), (still, around, x, y))
        torch.func.vmap(run_step)(*both)
    except Exception as error:
        return [f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"]
    return []


def _exchange(trial: _Trial) -> str:
    """Check that the same is exchanged in every round and with every client, and nothing personal; count numbers."""
    parts = trial.assembled()
    seen: dict[str, Tree] = {}
    name = trial.method.name
    server, entries = parts.server, parts.entries
    downs: dict[str, set[int]] = {"first": set(), "later": set()}
    ups: set[int] = set()
    met: set[int] = set()

    class Watching(Serial):
        """An engine that inspects everything that is exchanged."""

        def run(self, jobs: Any) -> Any:
            for job in jobs:
                if job.kind == "data":  # answers before the first round are not those of a round
                    result = self.site.do(job)
                    _inspect(name, result.upload, set(entries.personal), {})
                    yield result
                    continue
                traffic = Traffic()
                traffic.count_down(job.broadcast)
                traffic.count_down(job.personal)
                first = job.client not in met
                if server.store.contacts.get(job.client) != server.frozen_version:
                    traffic.count_down(job.frozen)
                downs["first" if first else "later"].add(traffic.elements_down)
                met.add(job.client)
                if leak := set(entries.personal) & {path.split("/")[-1] for path in flatten(job.broadcast)}:
                    raise CheckFailed(f'"{name}" broadcasts {leak.pop()}, which is personal')
                result = self.site.do(job)
                if result.error is None:
                    _inspect(name, result.upload, set(entries.personal), seen)
                    counted = Traffic()
                    counted.count_up(result.upload)
                    ups.add(counted.elements_up)
                yield result

    engine = Watching(parts.site)
    for _ in range(ROUNDS + 1):
        server.run_round(engine)
    if len(ups) != 1 or any(len(found) > 1 for found in downs.values()):
        raise CheckFailed(f'"{name}" does not exchange the same amount with every client: up {ups}, down {downs}')
    _, ending, _ = server.finished(Serial(parts.site))
    trial.exchange = {
        "down_first": downs["first"].pop(),
        "down_later": downs["later"].pop() if downs["later"] else 0,
        "up": ups.pop(),
        "down_at_end": ending.elements_down,
        "up_at_end": ending.elements_up,
    }
    return "holds"


def _inspect(name: str, upload: Any, personal: set[str], seen: dict[str, Tree]) -> None:
    for space, uploads in upload.items():
        for part, sent in uploads.items():
            where = f"{space}/{part}" if space else part
            if leak := personal & sent.tree.keys():
                raise CheckFailed(f'"{name}" uploads {leak.pop()} in {where}, which is personal')
            before = seen.setdefault(where, sent.tree)
            if problem := misfit(sent.tree, before):
                raise CheckFailed(f'"{name}" uploads {where} in another form than in an earlier round: {problem}')


class _OtherNames(nn.Module):
    """A network as a user may write it: other names than the library's, and the classifier inside another module.

    Args:
        width: The number of features of the representation.
        classes: The number of classes.
    """

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.top = nn.ModuleDict({"hidden": nn.Linear(24, width), "scores": nn.Linear(width, classes)})

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden: Tensor = self.top["hidden"](self.stem(x).flatten(1)).relu()
        scores: Tensor = self.top["scores"](hidden)
        return scores


def _head(trial: _Trial) -> str:
    """Check that the method runs with a module whose classifier is not called `head`."""
    if trial.module is not None:
        return "the other checks run with a module already"
    if any(part.tried_on for part in trial.method.parts):
        return "the method asks for a network"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = _Trial(trial.method, _OtherNames(16, 10).double(), {})
    try:
        parts = other.trained(_serial)
        parts.server.finished(_serial(parts))
    except (ClientFailed, FullrankError) as failure:
        raise CheckFailed(
            f'"{trial.method.name}" fails with a model whose classifier is not called head: {failure}; use b.head, '
            "b.logits_at and network.head_name, or name the network that it needs in tried_on"
        ) from failure
    return "holds"


def _entries(parts: Assembly) -> Tensors:
    """Return all entries of the global model, and the states of the server and the clients."""
    kept: Tree = {"model": parts.server.model, "own": parts.server.state().get("own", {})}
    kept["clients"] = {str(k): state for k in range(parts.federation.clients) if (state := parts.server.store.get(k))}
    return {path: value.double() for path, value in flatten(clone(kept)).items()}


def _distance(one: Tensors, other: Tensors) -> float:
    common = one.keys() & other.keys()
    return float(sum(float((one[name] - other[name]).norm() ** 2) for name in common) ** 0.5)
