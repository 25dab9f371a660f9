"""Checks of how a method trains: its hooks, its step, and the engines that run them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fullrank import methods
from fullrank.engine import ENGINES, EngineOptions, open_engine
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, FullrankError, InputError, WroteInPlace
from fullrank.local.loop import Eager, Samples
from fullrank.local.step import Context, Functional, State, Step
from fullrank.testing.results import CheckFailed
from fullrank.testing.trial import ROUNDS, TOLERANCE, Trial, distance, entries_of, opened, recorded, serial
from fullrank.trees import clone

IN_WORDS = {"cuda": "a recorded step", "vectorised": "a group of clients"}
"""Descriptions of the ways in which engines train clients."""


def check_writes(trial: Trial) -> str:
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


def check_degenerate(trial: Trial) -> str:
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
    got, want = (trial.trained(serial, method).server.w for method in (still, methods.build("fedavg")))
    for name, value in want.items():
        if name not in got or not torch.equal(got[name], value):
            at = ", ".join(f"{part}.{field} = {value}" for part, values in neutral for field, value in values.items())
            raise CheckFailed(f'"{trial.method.name}" at {at} is not FedAvg to the bit: {name} differs')
    return "holds"


def check_trace(trial: Trial) -> str:
    """Check that the step of every kind of fit is a pure function of tensors, which can be traced and mapped."""
    parts = trial.assembled()
    parts.server.run_round(serial(parts))  # from the second round on, all state exists
    problems: list[str] = []

    def checked_stepper(step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype) -> Eager:
        if not problems:
            problems.extend(_problem(step, state, context, samples, dtype))
        return Eager(step, state, context, samples, dtype)

    parts.site.stepper_of = checked_stepper
    parts.server.run_round(serial(parts))
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


def check_engines(trial: Trial) -> str:
    """Check that the engines of the library give the result of `serial`.

    Worker processes, which Ray starts on other machines, are checked by `check_processes`.
    """
    for engine in ENGINES.own:
        if engine in ("serial", "processes", "ray"):
            continue
        name = IN_WORDS.get(engine, f'the engine "{engine}"')
        engine_of = recorded if engine == "cuda" else partial(opened, engine)
        values = trial.in_groups if engine == "vectorised" else trial.values
        start = entries_of(trial.assembled(values=values))
        want = entries_of(trial.trained(serial, values=values))
        moved = distance(want, start)
        got = entries_of(trial.trained(engine_of, values=values))
        if not distance(want, got) <= TOLERANCE * moved:
            raise CheckFailed(
                f'"{trial.method.name}" trains differently in {name} than in the serial engine: its weights differ by '
                f"{distance(want, got) / moved if moved else float('inf'):.1e} of the update; a hook reads a value "
                "that is not a tensor of its state, or writes into a tensor in place"
            )
    return "holds"


def check_processes(trial: Trial) -> str:
    """Check that worker processes give the same bits."""
    want = entries_of(trial.trained(serial))
    two = EngineOptions(workers=2, clients=2)
    got = entries_of(trial.trained(lambda parts: open_engine("processes", parts.site, two)))
    for name, value in want.items():
        if not torch.equal(value, got[name]):
            raise CheckFailed(
                f'"{trial.method.name}" gives other weights in worker processes: {name} differs; it keeps values '
                "outside its state"
            )
    return "holds"


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


def check_head(trial: Trial) -> str:
    """Check that the method runs with a module whose classifier is not called `head`."""
    if trial.module is not None:
        return "the other checks run with a module already"
    if any(part.tried_on for part in trial.method.parts):
        return "the method asks for a network"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = Trial(trial.method, _OtherNames(16, 10).double(), {})
    try:
        parts = other.trained(serial)
        parts.server.finished(serial(parts))
    except (ClientFailed, FullrankError) as failure:
        raise CheckFailed(
            f'"{trial.method.name}" fails with a model whose classifier is not called head: {failure}; use b.head, '
            "b.logits_at and network.head_name, or name the network that it needs in tried_on"
        ) from failure
    return "holds"
