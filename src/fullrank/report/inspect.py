"""Inspection of one model: a run's, or any torch model on a data set."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fullrank.collapse import recall
from fullrank.config.experiment import Experiment, merged
from fullrank.data import DataSet, Split, load_dataset
from fullrank.engine.machine import threads
from fullrank.errors import CallFailed, InputError
from fullrank.federated.site import Stage
from fullrank.models.network import Network
from fullrank.plugins import GIVEN, import_object
from fullrank.probe import ModelProbe
from fullrank.randomness import seeded
from fullrank.runs.assemble import Assembly, assemble
from fullrank.runs.result import Run, check_model, chosen_model

FILE = ".safetensors"


@dataclass(frozen=True)
class Inspected:
    """The result of an inspection: descriptions, numbers, and arrays (spectrum, confusion, norms)."""

    model: str
    data: str
    classes: tuple[str, ...]
    samples: int
    features: int
    numbers: dict[str, Any]
    arrays: dict[str, Any]
    stage: str = ""
    """The stage of a client's own model."""

    def facts(self) -> dict[str, Any]:
        """Return the result as one dict."""
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
    """Inspect a run's final global model, or a client's own model, on a test set.

    Args:
        run: The run.
        client: The number of a client, to inspect the client's own model in place of the global one.
        data: A data set, as `load_dataset` accepts it, whose test set is prepared as in the run; by default that of the
            run.
        root: The folder of the data set.
        stage: The stage of the client's model, as in `Run.client_model`.

    Raises:
        InputError: If there is no such model, or the data do not fit it.
    """
    check_model(run, "inspect")
    module = chosen_model(run, client, stage)
    if data:
        given = load_dataset(data, root, seed=run.experiment.seed, size=run.experiment.data.size)
        assembly = _with_data_if_there(run)
    else:
        assembly = run._assembled("the model is evaluated on the run's test set")
        given = assembly.federation.data
    counts = assembly.federation.class_counts
    seen = counts[assembly.federation.seen].sum(0) if client is None else counts[client]
    chosen = run.stage_of(stage) if client is not None else ""
    whose = f"client {client}'s model" if client is not None else "global model"
    probe = ModelProbe(assembly, _test_of(given))
    _check_fit(assembly, given)
    probe.put({name: tensor for name, tensor in module.state_dict().items() if name in assembly.network.names})
    with threads(run.experiment.engine.threads):
        found = _measured(probe, seen if len(seen) == probe.classes and seen.any() else None)
    return _inspected(f"{whose} of {run.path or 'the run'}", given, probe, found, chosen)


def _with_data_if_there(run: Run) -> Assembly:
    """Return the run's parts, with its data if they can be read, for the number of training samples by class."""
    try:
        return run._assembled()
    except (InputError, CallFailed):
        return run._without_data()


def inspect_model(name: str, data: str, *, kind: str = "", root: str = "", settings: dict[str, Any]) -> Inspected:
    """Inspect a model on a data set's test split.

    Args:
        name: A `package.module:function` that returns a module, or a safetensors file with the weights of a network.
        data: The data set, as `load_dataset` accepts it.
        kind: The library's network whose weights the file holds.
        root: The folder of the data set.
        settings: Further keys of an experiment: the network's options, and how inputs are prepared.

    Raises:
        InputError: If the model cannot be loaded, or the data do not fit it.
    """
    described = {"name": data, "root": root, "partition": "iid", "clients": 1}
    values = merged({"data": described, "evaluate": {"personal": "never"}}, settings)
    if name.endswith(FILE):
        if not kind:
            raise InputError(f'"{name}" holds weights only; name their network, as in --model cnn')
        assembly = _from_file(Experiment(**merged(values, {"model": {"name": kind, "start": name}})))
    else:
        if kind:
            raise InputError(
                f'--model {kind} names the network of a safetensors file, but "{name}" makes its own network'
            )
        loaded = load_dataset(data, root, seed=values.get("seed", 0))
        with seeded(0, "model"):  # seeded, so that an untrained network is the same every time
            module = _made(name, loaded)
        assembly = assemble(Experiment(**merged(values, {"model": {"name": GIVEN}})), module=module)
    probe = ModelProbe(assembly, _test_of(assembly.federation.data))
    with threads(assembly.experiment.engine.threads):
        found = _measured(probe)  # its training data are unknown
    return _inspected(f"{name} ({kind})" if kind else name, assembly.federation.data, probe, found)


def _from_file(experiment: Experiment) -> Assembly:
    """Assemble an experiment with `model.start`; errors name the file and not that key, which the user has not set."""
    try:
        return assemble(experiment)
    except InputError as problem:
        raise InputError(str(problem).removeprefix("model.start: ")) from None


def _made(name: str, data: DataSet) -> nn.Module:
    """Call a function that returns a module, with the numbers of classes and channels if it accepts them."""
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


def _measured(probe: ModelProbe, counts: np.ndarray | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    numbers, arrays = probe.measure(counts)
    return {**numbers, "eigenvalue_variance": probe.eigenvalue_variance()}, arrays


def _test_of(data: DataSet) -> Split:
    if data.test is None or not len(data.test):
        raise InputError(f'"{data.name}" has no test set on which to measure the representation')
    return data.test


def _check_fit(assembly: Assembly, data: DataSet) -> None:
    """Reject data whose inputs or classes the network does not take."""
    network: Network = assembly.network
    if data.num_classes > network.num_classes:
        raise InputError(f'"{data.name}" has {data.num_classes} classes, but the model has only {network.num_classes}')
    try:
        with torch.no_grad(), network.mode(train=False):
            network(assembly.federation.pipeline(data.train.x[:2].to(assembly.device), None, network.dtype))
    except RuntimeError as error:
        shape = "×".join(map(str, data.input_shape))
        raise InputError(f'the model does not take "{data.name}" ({shape}): {str(error).splitlines()[0]}') from None


def _inspected(
    model: str, data: DataSet, probe: ModelProbe, found: tuple[dict[str, Any], dict[str, Any]], stage: str = ""
) -> Inspected:
    return Inspected(model, f"{data.name}, test", data.classes, len(probe.y), probe.network.feature_dim, *found, stage)


def is_run(path: str) -> bool:
    """Return whether a path is a run directory."""
    return (Path(path) / "experiment.toml").is_file()
