"""A trial run of a method on a small federation, which the checks inspect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fullrank.config.experiment import Experiment, merged, nested
from fullrank.engine import Engine, EngineOptions, open_engine
from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.serial import Serial
from fullrank.methods import Method
from fullrank.runs.assemble import Assembly, assemble
from fullrank.runs.fit import method_table
from fullrank.trees import Tensors, Tree, clone, flatten

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


class Trial:
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


def serial(parts: Assembly) -> Engine:
    """Return the reference engine for the parts of a run."""
    return Serial(parts.site)


def recorded(parts: Assembly) -> Engine:
    """Return the `cuda` engine on the CPU, which runs recorded steps again instead of replaying a graph."""

    def run_again(step: Callable[[], None], pool: Any) -> Callable[[], None]:
        step()
        return step

    return Cuda(parts.site, EngineOptions(slots=2, clients=2), record=run_again, devices=[torch.device("cpu")])


def opened(engine: str, parts: Assembly) -> Engine:
    """Return an engine for the parts of a run.

    Args:
        engine: The name of the engine.
        parts: The parts of the run.
    """
    return open_engine(engine, parts.site, EngineOptions(clients=len(parts.server.sample(0))))


def entries_of(parts: Assembly) -> Tensors:
    """Return all entries of the global model, and the states of the server and the clients."""
    kept: Tree = {"model": parts.server.model, "own": parts.server.state().get("own", {})}
    kept["clients"] = {str(k): state for k in range(parts.federation.clients) if (state := parts.server.store.get(k))}
    return {path: value.double() for path, value in flatten(clone(kept)).items()}


def distance(one: Tensors, other: Tensors) -> float:
    """Return the Euclidean distance between two trees, over the entries that both have."""
    common = one.keys() & other.keys()
    return float(sum(float((one[name] - other[name]).norm() ** 2) for name in common) ** 0.5)
