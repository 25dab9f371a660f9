"""Training a program's own module on its own clients' data."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fullrank import methods
from fullrank.config.experiment import Experiment, merged, nested
from fullrank.data import DataSet, Pipeline, Split, as_split
from fullrank.data.dataset import MOST_CLASSES
from fullrank.data.federation import divide_by_sizes, keep_unseen
from fullrank.errors import InputError
from fullrank.methods import Method
from fullrank.models.findhead import output_width
from fullrank.plugins import GIVEN
from fullrank.runs.assemble import pipeline
from fullrank.runs.callbacks import Callback
from fullrank.runs.result import Run
from fullrank.runs.run import execute


def fit(
    model: nn.Module,
    clients: Sequence[Any],
    method: str | Method = "fedavg+feddecorr",
    test: Any = None,
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
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Train a module on the data of clients.

    Floating-point inputs are used as given, 8-bit images are divided by 255. Nothing else is normalised or augmented
    unless `set` says so. The module itself is not changed.

    Args:
        model: The module, in its own precision.
        clients: The data of each client, as (x, y) tensors or a torch Dataset. A Dataset is read once, so a random
            transform in it is drawn only once. A `fullrank.data.Split` may have groups (samples that belong together,
            such as those of a patient), numbered by each client for itself: hold-outs keep them whole.
        method: The method, by name or as a `Method`.
        test: Test data, in the form of a client's.
        rounds: Number of communication rounds.
        epochs: Local epochs per client and round.
        batch_size: Samples per local step.
        lr: Initial learning rate of local training.
        momentum: Momentum of SGD.
        weight_decay: Weight decay.
        participation: Clients per round, as a fraction of all clients (float) or a number (int).
        seed: Seed of all random numbers.
        head: Name of the classifier, if it is not the last Linear that a forward pass calls.
        engine: How clients are trained (`engine.name`). "auto" means the serial engine or, for networks of dense layers
            and at least eight clients per round, the vectorised one; it never means worker processes here.
        device: Device; by default the one of the module.
        out: Run directory. Without one, nothing is written.
        set: Other keys of the experiment, as in `{"data.augment": ["flip"], "data.holdout": 0.2}`.
        callbacks: Objects that are notified of the events of the run, see `fullrank.Callback`.
        progress: Whether the progress of the run is shown. None shows it in a notebook only.

    Returns:
        The run.

    Raises:
        InputError: If the arguments do not fit together.

    >>> import torch, fullrank
    >>> clients = [(torch.randn(20, 4), torch.randint(0, 2, (20,))) for _ in range(3)]
    >>> fullrank.fit(torch.nn.Sequential(torch.nn.Linear(4, 2)), clients, rounds=2).metrics[-1]["round"]
    2
    """
    if not clients:
        raise InputError("fit needs at least one client")
    _reject_no_module(model)
    methods.reject_no_method(method)
    changes = nested(set or {})
    _reject_arguments(changes)
    model = _copied(model)
    device = device or ("cuda" if any(p.is_cuda for p in model.parameters()) else "")
    model = model.cpu()  # from where it goes to the device with everything else
    splits = [_client_split(number, data) for number, data in enumerate(clients)]
    # Groups of test data are numbered independently of the clients'.
    tested = None if test is None else dataclasses.replace(as_split(test), group=None)
    values: dict[str, Any] = {
        "seed": seed,
        "data": {
            "name": GIVEN,
            "partition": GIVEN,
            "clients": len(splits),
            "normalise": "none",
            "augment": "none",
        },
        "model": {"name": GIVEN, "head": head or "", "structure": _structure(model)},
        "method": method_table(method),
        "train": {
            "rounds": rounds,
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "participation": participation,
        },
        "engine": {"name": engine, "device": device},
    }
    experiment = Experiment(**_plain(merged(values, changes)))
    data = _joined(splits, tested, _width(model, splits[0], head))
    divided = divide_by_sizes(
        data,
        pipeline(experiment, data),
        [len(split) for split in splits],
        experiment.data.holdout,
        experiment.data.validation,
        seed,
    )
    parts: dict[str, Any] = {
        "federation": keep_unseen(divided, experiment.data.unseen, seed),
        "module": model,
        "method": method if isinstance(method, Method) else None,
        "head": head,
        "engines": _allowed_engines(device),
        "own_precision": _own_precision(model),
    }
    return execute(experiment, Path(out) if out is not None else None, callbacks=callbacks, progress=progress, **parts)


def _reject_no_module(model: Any) -> None:
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}; give an instance, {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
            why = "its lazy layers have no shape yet: run it once on a batch before fit, as in model(x)"
        else:
            why = f"copy.deepcopy raised {type(error).__name__}: {error}"
        raise InputError(f"the model ({type(model).__name__}) cannot be copied: {why}") from error


def _allowed_engines(device: str) -> tuple[str, ...]:
    """Return the engines that `auto` may choose. Worker processes, to which not every model can be sent, are not."""
    return ("cuda",) if device.startswith("cuda") else ("serial", "vectorised")


def _own_precision(model: nn.Module) -> str:
    """Return the precision of a program's own model, or an empty string if its parameters have several or another."""
    kinds = {p.dtype for p in model.parameters() if not is_lazy(p)}
    return {torch.float32: "float32", torch.float64: "float64"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _client_split(number: int, data: Any) -> Split:
    try:
        split = as_split(data)
        return Split(split.x.cpu(), split.y.cpu(), group=None if split.group is None else split.group.cpu())
    except InputError as problem:
        raise InputError(f"client {number}: {problem}") from None


def _reject_arguments(changes: Mapping[str, Any]) -> None:
    """Reject keys that `fit` has as arguments, or that have no effect because the data are divided already."""
    taken = {"model": ("name", "head", "start"), "method": ("name",)}
    for table, names in taken.items():
        for name in names:
            if name in changes.get(table, {}):
                raise InputError(f'set["{table}.{name}"]: it is an argument of fit; pass it there')
    for name in changes.get("data", {}):
        if name not in ("normalise", "augment", "holdout", "validation", "unseen"):
            raise InputError(f'set["data.{name}"]: clients have their own data, so there is nothing to load or divide')


def _structure(model: nn.Module) -> str:
    """Return a hash of a module's layers and the shapes of its entries, which must be the same when a run is
    resumed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if not is_lazy(tensor)}
    return hashlib.sha256(f"{model!r} {shapes}".encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers to Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _width(model: nn.Module, split: Split, head: str | None) -> int:
    """Return the number of classes of the model, of which the data need not contain all."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    return output_width(copy.deepcopy(model), Pipeline()(split.x[:2], None, dtype), head)


def _joined(splits: list[Split], test: Split | None, width: int) -> DataSet:
    first = splits[0]
    for number, split in enumerate(splits):
        if split.x.shape[1:] != first.x.shape[1:] or split.x.dtype != first.x.dtype:
            raise InputError(
                f"client {number} has {split.x.dtype} inputs of shape {tuple(split.x.shape[1:])}, "
                f"client 0 {first.x.dtype} of {tuple(first.x.shape[1:])}; all clients' must agree"
            )
    x, y = torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits])
    train = Split(x, y, group=_groups(splits))
    largest = max(int(split.y.max()) for split in (train, test) if split is not None)
    if largest >= MOST_CLASSES:
        raise InputError(f"the largest label is {largest}; labels must number the classes from 0")
    return DataSet(GIVEN, train, test, tuple(str(c) for c in range(max(width, largest + 1))))


def _groups(splits: list[Split]) -> torch.Tensor | None:
    """Number the groups of all clients. Each sample of a client without groups forms a group."""
    if all(split.group is None for split in splits):
        return None
    found: list[torch.Tensor] = []
    used = 0
    for split in splits:
        own = torch.arange(len(split)) if split.group is None else torch.unique(split.group, return_inverse=True)[1]
        found.append(own + used)
        used += int(own.max()) + 1
    return torch.cat(found)


def method_table(method: str | Method) -> dict[str, Any]:
    """Return the table `[method]` of a method; one from outside the library is described by its name and fields."""
    if isinstance(method, str):
        return {"name": method}
    library = methods.available()
    if all(library.get(part.name) is type(part) for part in method.parts):
        return {"name": method.name, **{part.name: dataclasses.asdict(part) for part in method.parts}}
    tables = {part.name: {k: _recorded(v) for k, v in vars(part).items()} for part in method.parts}
    return {"name": f"{GIVEN}:{method.name}", **tables}


def _recorded(value: Any) -> Any:
    """Return a hyper-parameter in the types of TOML, so that a resume notices a change."""
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
