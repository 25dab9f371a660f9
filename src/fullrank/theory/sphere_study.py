"""FedDecorr's Fig. 1 (ICLR, TPAMI): equal clients spread classes over the sphere, unequal ones do not, FedDecorr helps.

The papers specify neither the heterogeneity of the clients nor how 64 dimensions became three. Here α = .05, with a
linear bottleneck to three dimensions in front of the classifier, or the principal components of the unchanged network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fullrank import models
from fullrank.config.experiment import Experiment, merged
from fullrank.errors import InputError, nearest
from fullrank.models import Net
from fullrank.runs.assemble import federate
from fullrank.runs.result import Run
from fullrank.runs.run import execute
from fullrank.theory.panels import Sphere, reject_projection, represented, sphere

Size = Literal["paper", "small", "tiny"]
SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "data": {"name": "cifar10"},
        "model": {"base": "resnet20"},
        "train": {"rounds": 100, "epochs": 10, "lr": 0.01, "weight_decay": 1e-5},
    },
    "small": {
        "data": {"name": "fashion-mnist"},
        "model": {"base": "cnn", "norm": "batch"},
        "train": {"rounds": 20, "epochs": 1, "lr": 0.01},
    },
    "tiny": {
        "data": {"name": "digits"},
        "model": {"base": "cnn"},
        "train": {"rounds": 20, "epochs": 5, "lr": 0.01},
    },
}
"""Experiments: the papers' (for a GPU), Fashion-MNIST, and the embedded digits (a minute on one core)."""
PANELS = {
    "homogeneous": ({"data": {"partition": "iid"}}, "fedavg"),
    "heterogeneous": ({"data": {"partition": "dirichlet"}}, "fedavg"),
    "with FedDecorr": ({"data": {"partition": "dirichlet"}}, "fedavg+feddecorr"),
}
SHOWN = 200
"""The number of test images of each class that are shown."""


@dataclass(frozen=True)
class UnitSphere:
    """The numbers that FedDecorr's Fig. 1 shows."""

    counts: NDArray[np.int64]
    """Samples by client and class of the heterogeneous division."""
    panels: list[Sphere]


def bottleneck(num_classes: int, in_channels: int = 3, *, base: str = "cnn", neck: bool = True, **options: Any) -> Net:
    """Build a network of the library with a linear map to three dimensions, without bias, before its classifier.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        base: The name of the network.
        neck: Whether the map is there.
        **options: The options of the network.

    Raises:
        InputError: If there is no such network.

    >>> bottleneck(10, 1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    net = models.build(base, num_classes, in_channels, **options)
    if not isinstance(net, Net):
        raise InputError(f'model.base = "{base}" is no network of the library; {nearest(base, models.available())}')
    if neck:
        net.neck = nn.Linear(net.feature_dim, 3, bias=False)
        net.head = nn.Linear(3, num_classes)
        net.feature_dim = 3
    return net


def unit_sphere(
    size: Size = "small",
    *,
    project: Literal["neck", "pca"] = "neck",
    alpha: float = 0.05,
    clients: int = 10,
    beta: float = 0.1,
    seed: int = 0,
    rounds: int | None = None,
    root: str = "",
    runs: str | Path | None = None,
    device: str = "",
) -> UnitSphere:
    """Train the networks of FedDecorr's Fig. 1, and show test images under their global models on the sphere.

    They are FedAvg on equal clients, FedAvg on unequal clients, and FedDecorr on unequal clients.

    Args:
        size: The experiment: "paper", "small" (Fashion-MNIST) or "tiny" (the embedded digits).
        project: "neck" for a bottleneck to three dimensions, or "pca" for principal components of the unchanged
            network.
        alpha: The parameter α of the Dirichlet distribution for unequal clients.
        clients: The number of clients.
        beta: FedDecorr's β.
        seed: The seed of the runs.
        rounds: The number of rounds; by default that of the experiment.
        root: The folder of the data; by default the usual places.
        runs: A folder in which the three runs are kept, so that the same call again continues them.
        device: The device; by default a GPU if there is one.

    Returns:
        The samples of the unequal clients by class, and three panels.

    Raises:
        InputError: If there is no such size or projection.

    >>> [panel.name for panel in unit_sphere("tiny", rounds=1, clients=2).panels]
    ['homogeneous', 'heterogeneous', 'with FedDecorr']
    """
    if size not in SIZES:
        raise InputError(f'size = "{size}" is not known; {nearest(size, SIZES)}')
    reject_projection(project)  # checked before anything is trained
    common = merged(
        SIZES[size],
        {
            "seed": seed,
            "data": {"alpha": alpha, "clients": clients, "root": root},
            "model": {"name": f"{__name__}:bottleneck", "neck": project == "neck"},
            "method": {"feddecorr": {"beta": beta}},
            "engine": {"device": device},
        },
    )
    if rounds is not None:
        common = merged(common, {"train": {"rounds": rounds}})
    found: list[Sphere] = []
    for name, (changes, method) in PANELS.items():
        experiment = Experiment(**merged(merged(common, changes), {"method": {"name": method}}))
        directory = None if runs is None else Path(runs) / name.replace(" ", "-").lower()
        found.append(_panel(name, execute(experiment, directory), project))
    return UnitSphere(_counts(Experiment(**merged(common, PANELS["heterogeneous"][0]))), found)


def _panel(name: str, run: Run, project: str) -> Sphere:
    assembly = run._assembled()
    test = assembly.federation.data.test
    assert test is not None
    order = torch.cat([(test.y == c).nonzero().flatten()[:SHOWN] for c in range(len(assembly.federation.data.classes))])
    model = run.model()
    place = next(model.parameters())
    z = [
        represented(model, assembly.federation.pipeline(test.x[some].to(place.device), None, place.dtype))[0]
        for some in torch.split(order, 512)
    ]
    return sphere(name, torch.cat(z), test.y[order], float(run.summary()["accuracy"]["last"]), project)


def _counts(experiment: Experiment) -> NDArray[np.int64]:
    federation = federate(experiment)
    labels = federation.data.train.y.numpy()
    classes = len(federation.data.classes)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in federation.parts])
