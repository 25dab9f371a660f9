"""Panels with a representation on the unit sphere, for the two studies that draw one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fullrank import collapse
from fullrank.errors import InputError
from fullrank.runs.result import Run

PROJECTIONS = ("neck", "pca")


@dataclass(frozen=True)
class Sphere:
    """A panel: the directions of a representation in three dimensions, and the numbers of its title."""

    name: str
    points: NDArray[np.float64]
    """The unit vectors, of shape (samples, 3)."""
    classes: NDArray[np.int64]
    effective_rank: float
    smallest_angle: float
    """The smallest angle between two class means, in degrees."""
    accuracy: float


def sphere(name: str, z: Tensor, y: Tensor, accuracy: float, project: str = "neck") -> Sphere:
    """Return a panel that shows a representation on the unit sphere.

    Its effective rank is that of z before the projection.

    Args:
        name: The title of the panel.
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        accuracy: The accuracy of the model on these samples.
        project: "neck" to show z itself, which must have three dimensions, or "pca" for its three leading principal
            components.

    Returns:
        The panel.

    Raises:
        InputError: If there is no such projection, or z has other than three dimensions without "pca".

    >>> panel = sphere("two", torch.eye(3)[[0, 1]] * 5, torch.tensor([0, 1]), 1.0)
    >>> panel.points.tolist(), round(panel.smallest_angle)
    ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 90)
    """
    reject_projection(project)
    points = z.double().cpu().numpy()
    if project == "pca":
        points = points - points.mean(0)
        points = points @ np.linalg.svd(points, full_matrices=False)[2][:3].T
    if points.shape[1] != 3:
        raise InputError(f'z has {points.shape[1]} dimensions, not 3; use project = "pca"')
    length = np.linalg.norm(points, axis=1, keepdims=True)
    points = points / np.where(length > 0, length, 1)
    labels = y.cpu().numpy().astype(np.int64)
    return Sphere(name, points, labels, collapse.effective_rank(z), smallest_angle(points, labels), accuracy)


def reject_projection(project: str) -> None:
    """Reject an unknown projection to three dimensions.

    Raises:
        InputError: If it is neither "neck" nor "pca".
    """
    if project not in PROJECTIONS:
        raise InputError(f'project = "{project}": must be neck (z is three-dimensional) or pca')


def smallest_angle(points: NDArray[np.float64], classes: NDArray[np.int64]) -> float:
    """Compute the angle between the two nearest class means.

    Args:
        points: Unit vectors of shape (N, 3).
        classes: Labels of shape (N,).

    Returns:
        The angle in degrees; nan for a single class.

    >>> round(smallest_angle(np.eye(3)[[0, 1, 1]], np.array([0, 1, 1])))
    90
    """
    means = np.stack([points[classes == c].mean(0) for c in np.unique(classes)])
    length = np.linalg.norm(means, axis=1)
    if len(means) < 2 or (length == 0).any():
        return math.nan
    cosine = (means / length[:, None]) @ (means / length[:, None]).T
    return math.degrees(math.acos(np.clip(cosine[np.triu_indices(len(means), 1)].max(), -1, 1)))


@torch.no_grad()
def represented(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the representation of prepared inputs.

    Args:
        model: The model.
        x: The inputs.

    Returns:
        The representation z, and the predicted classes.
    """
    model.eval()
    features: Any = model.features
    return features(x), model(x).argmax(1)


def client_after_next_round(run: Run, client: int) -> nn.Module:
    """Train a client for one further round.

    Args:
        run: The run.
        client: The client.

    Returns:
        The model that the client would send.

    Raises:
        Exception: The exception of the client, if it fails.
    """
    assembly = run._assembled()
    result = assembly.site.do(assembly.server.job("train", client))
    if result.error is not None:
        raise result.error
    own = result.upload[""]
    model = run.model()
    model.load_state_dict({**model.state_dict(), **own["w"].tree, **own["buffers"].tree})
    return model
