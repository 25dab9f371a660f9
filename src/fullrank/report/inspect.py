"""One model looked at: a run's, or any torch model on a data set."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fullrank.collapse import recall
from fullrank.config.experiment import Experiment, merged
from fullrank.data import DataSet, Split, load_dataset, resized
from fullrank.errors import CallFailed, InputError
from fullrank.federated.site import Stage
from fullrank.models.network import Network
from fullrank.plugins import GIVEN, import_object
from fullrank.probe import ModelProbe
from fullrank.randomness import seeded
from fullrank.runs.assemble import Assembly, assemble
from fullrank.runs.result import Run, check_model, chosen_model, threads

FILE = ".safetensors"


@dataclass(frozen=True)
class Inspected:
    """What was found: words for what was looked at, numbers, and arrays (spectrum, confusion, norms)."""

    model: str
    data: str
    classes: tuple[str, ...]
    samples: int
    features: int
    numbers: dict[str, Any]
    arrays: dict[str, Any]
    stage: str = ""
    """Of a client's own model."""

    def facts(self) -> dict[str, Any]:
        """All of it, as a program reads it."""
        return {
            "model": self.model,
            "data": self.data,
            "samples": self.samples,
            "features": self.features,
            **({"stage": self.stage} if self.stage else {}),
            **self.numbers,
            "class_accuracy": recall(self.arrays["confusion"]).tolist(),
            **{name: array.tolist() for name, array in self.arrays.items()},
        }


def inspect_run(
    run: Run, client: int | None = None, data: str = "", root: str = "", stage: Stage | None = None
) -> Inspected:
    """A run's final global model, or a client's own, on the run's test set or on another one, prepared as the run's."""
    check_model(run, "inspect")
    module = chosen_model(run, client, stage)
    if data:
        given = resized(load_dataset(data, root, seed=run.experiment.seed), run.experiment.data.size)
        assembly = _with_data_if_there(run)
    else:
        assembly = run._assembled("the model is evaluated on the run's test set")
        given = assembly.federation.data
    counts = assembly.federation.class_counts
    seen = counts[assembly.federation.seen].sum(0) if client is None else counts[client]
    chosen = run.stage_of(stage) if client is not None else ""
    whose = f"client {client}'s model" if client is not None else "global model"
    looking = ModelProbe(assembly, _test_of(given))
    _check_fit(assembly, given)
    looking.put({name: tensor for name, tensor in module.state_dict().items() if name in assembly.network.names})
    with threads(run.experiment.engine.threads):
        found = looking.measure(seen if len(seen) == looking.classes and seen.any() else None)
    return _inspected(f"{whose} of {run.path or 'the run'}", given, looking, found, chosen)


def _with_data_if_there(run: Run) -> Assembly:
    """The run's parts, with its data if they can be read: they say how many samples of each class were seen."""
    try:
        return run._assembled()
    except (InputError, CallFailed):
        return run._without_data()


def inspect_model(name: str, data: str, *, kind: str = "", root: str = "", settings: dict[str, Any]) -> Inspected:
    """A model on a data set's test split.

    `name` is a `package.module:function` that returns a module, or a safetensors file with the weights of the library's
    network `kind`. `settings` are further keys of an experiment: the network's options, how inputs are prepared.
    """
    described = {"name": data, "root": root, "partition": "iid", "clients": 1}
    values = merged({"data": described, "evaluate": {"personal": "never"}}, settings)
    if name.endswith(FILE):
        if not kind:
            raise InputError(f'"{name}" holds weights alone; say of which network, as in --model cnn')
        assembly = _from_file(Experiment(**merged(values, {"model": {"name": kind, "start": name}})))
    else:
        if kind:
            raise InputError(f'--model {kind} says what a safetensors file holds; "{name}" makes its own network')
        loaded = load_dataset(data, root, seed=values.get("seed", 0))
        with seeded(0, "model"):  # a network that is not trained is the same every time
            module = _made(name, loaded)
        assembly = assemble(Experiment(**merged(values, {"model": {"name": GIVEN}})), module=module)
    looking = ModelProbe(assembly, _test_of(assembly.federation.data))
    with threads(assembly.experiment.engine.threads):
        found = looking.measure()  # on what it was trained nobody knows
    return _inspected(f"{name} ({kind})" if kind else name, assembly.federation.data, looking, found)


def _from_file(experiment: Experiment) -> Assembly:
    """What an experiment with model.start makes, for a user who has named the file and not that key."""
    try:
        return assemble(experiment)
    except InputError as problem:
        raise InputError(str(problem).removeprefix("model.start: ")) from None


def _made(name: str, data: DataSet) -> nn.Module:
    """What a function returns; it is told the number of classes and channels if it asks for them."""
    function = import_object(name, "the model", "function")
    known = {"num_classes": data.num_classes, "in_channels": data.in_channels}
    parameters = inspect.signature(function).parameters
    every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    try:
        made = function(**{key: value for key, value in known.items() if every or key in parameters})
    except TypeError as error:
        raise InputError(f'the model "{name}" is called with num_classes and in_channels at most: {error}') from None
    if not isinstance(made, nn.Module):
        raise InputError(f'the model "{name}": it must return a torch.nn.Module, but returned a {type(made).__name__}')
    return made


def _test_of(data: DataSet) -> Split:
    if data.test is None or not len(data.test):
        raise InputError(f'"{data.name}" has no test set to look at the representation on')
    return data.test


def _check_fit(assembly: Assembly, data: DataSet) -> None:
    """Reject data whose inputs or classes the network does not take."""
    network: Network = assembly.network
    if data.num_classes > network.num_classes:
        raise InputError(f'"{data.name}" has {data.num_classes} classes, the model tells {network.num_classes} apart')
    try:
        with torch.no_grad(), network.mode(train=False):
            network(assembly.federation.pipeline(data.train.x[:2].to(assembly.device), None, network.dtype))
    except RuntimeError as error:
        shape = "×".join(map(str, data.input_shape))
        raise InputError(f'the model does not take "{data.name}" ({shape}): {str(error).splitlines()[0]}') from None


def _inspected(
    model: str, data: DataSet, looking: ModelProbe, found: tuple[dict[str, Any], dict[str, Any]], stage: str = ""
) -> Inspected:
    return Inspected(
        model, f"{data.name}, test", data.classes, len(looking.y), looking.network.feature_dim, *found, stage
    )


def is_run(path: str) -> bool:
    """Whether a path is a run directory."""
    return (Path(path) / "experiment.toml").is_file()
