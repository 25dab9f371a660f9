"""The consequence of Theorem 1: with few classes at a client, few singular values of Π grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fullrank import collapse
from fullrank.errors import InputError
from fullrank.randomness import generator
from fullrank.theory.linear import Matrix, balanced_start, one_hot, orthogonal, product, velocity


@dataclass(frozen=True)
class Growth:
    """The singular values and the effective rank of a linear network over time."""

    times: NDArray[np.float64]
    """The times of the measurements, in units of the flow of the mean loss."""
    singular: NDArray[np.float64]
    """The singular values of Π, of shape (times, d)."""
    effective_rank: NDArray[np.float64]
    """The effective rank of z over samples of all classes in equal shares, of shape (times,)."""


WIDTH = 16


def growth(
    shares: Sequence[float],
    *,
    depth: int = 1,
    inputs: int = 32,
    width: int = WIDTH,
    samples: int = 400,
    time: float = 30.0,
    steps: int = 300,
    records: int = 60,
    seed: int = 0,
) -> Growth:
    """Integrate the gradient flow of a linear network from a small balanced start, on classes of given shares.

    Each class is a Gaussian cloud around its own mean. The representation is measured on samples of all classes in
    equal shares, as a client's model is on the common test set.

    Args:
        shares: The share of each class in the training samples; they sum to 1.
        depth: The number L of layers of Π.
        inputs: The number of dimensions of the samples.
        width: The width of the layers.
        samples: The number of training samples.
        time: The end of the flow, in units of the flow of the mean loss.
        steps: The number of steps of the integration.
        records: The number of times at which the network is measured, besides the start.
        seed: The seed of samples and weights.

    Returns:
        The singular values of Π and the effective rank of z over time.

    Raises:
        InputError: If the shares do not sum to 1, or classes ≤ width ≤ inputs does not hold.

    >>> found = growth([0.5, 0.5, 0, 0], time=10, steps=100, records=4)
    >>> found.singular.shape, bool(found.singular[-1, 0] > found.singular[0, 0])
    ((5, 16), True)
    """
    given = np.asarray(shares, dtype=np.float64)
    if given.ndim != 1 or (given < 0).any() or not np.isclose(given.sum(), 1):
        raise InputError(f"shares must be the classes' parts of the samples and sum to 1, not {given.tolist()}")
    classes = len(given)
    if not classes <= width <= inputs:
        raise InputError(f"classes ≤ width ≤ inputs must hold, not {classes}, {width} and {inputs}")
    rng = generator(seed, "theory", "growth")
    means = 3 * orthogonal(rng, classes, inputs)

    def draw(y: NDArray[np.int64]) -> Matrix:
        return means[y].T + 0.5 * rng.normal(size=(inputs, len(y)))

    test = draw(np.repeat(np.arange(classes), 50))
    y = np.repeat(np.arange(classes), np.round(given * samples).astype(np.int64))
    X, Y = draw(y), one_hot(y, classes)
    weights = balanced_start([inputs, *[width] * depth, classes], 0.1, seed)
    h, times, singular, ranks = time / steps, [], [], []
    every = max(1, steps // records)
    for step in range(steps + 1):
        if step % every == 0:
            P = product(weights)
            times.append(step * h)
            singular.append(np.linalg.svd(P, compute_uv=False))
            ranks.append(collapse.effective_rank((P @ test).T))
        weights = [W + h * v / len(y) for W, v in zip(weights, velocity(weights, X, Y), strict=True)]
    return Growth(np.array(times), np.array(singular), np.array(ranks))
