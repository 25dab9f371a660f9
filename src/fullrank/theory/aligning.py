"""ICLR Fig. 6: the alignment of a linear network's classifier with the layers below it, as in Assumption 2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fullrank.data import DataSet, load_dataset
from fullrank.errors import InputError
from fullrank.randomness import generator
from fullrank.theory.linear import Matrix, Weights, balanced_start, one_hot, product, velocity

EPOCHS = (3, 5, 7, 9)
Start = Literal["balanced", "default"]


def alignment(
    data: str | DataSet = "fashion-mnist",
    *,
    root: str = "",
    epochs: Sequence[int] = EPOCHS,
    lr: float = 0.01,
    batch_size: int = 64,
    width: int = 64,
    start: Start = "balanced",
    samples: int = 0,
    seed: int = 0,
) -> dict[int, NDArray[np.float64]]:
    """Compute |u_k(Π)ᵀ v_k'(W_3)| after the given epochs, the alignment of Assumption 2 as ICLR Fig. 6 shows it.

    A linear network of three layers without biases is trained on x/255 as vectors, with mean cross-entropy and plain
    SGD. The paper specifies "3-layer", "MNIST" and the epochs; lr, width and the balanced start (Assumption 1) were
    found by trying. With lr .05 or with momentum the singular spaces do not align; the theorem is about gradient flow.
    One direction never aligns: cross-entropy's gradients sum to 0 over classes, so C − 1 of C grow.

    Args:
        data: The name of a data set, or a data set.
        root: The folder of the data; by default the usual places.
        epochs: The epochs after which the alignment is measured.
        lr: The learning rate.
        batch_size: The batch size.
        width: The width of the two hidden layers.
        start: "balanced" for a start that fulfils Assumption 1, or "default" for PyTorch's.
        samples: The number of training samples, of which the first are taken; 0 means all.
        seed: The seed of weights and batches.

    Returns:
        A (C, C) matrix for each epoch, with rows k' and columns k.

    Raises:
        InputError: If a setting is impossible, or the weights diverge.

    >>> found = alignment("digits", epochs=(1,), samples=200)
    >>> found[1].shape
    (10, 10)
    """
    if not epochs or min(epochs) < 1:
        raise InputError(f"epochs = {list(epochs)}: epochs are numbered from 1")
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"lr = {lr:g}: must be a number above 0")
    X, y, classes = _vectors(load_dataset(data, root) if isinstance(data, str) else data, samples)
    weights = _start(start, [len(X), width, width, classes], seed)
    Y = one_hot(y, classes).astype(np.float32)
    rng = generator(seed, "theory", "alignment", "batches")
    found: dict[int, NDArray[np.float64]] = {}
    for epoch in range(1, max(epochs) + 1):
        order = rng.permutation(X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # reported by the error below
            for batch in np.split(order, range(batch_size, len(order), batch_size)):
                moving = velocity(weights, X[:, batch], Y[:, batch])
                for W, v in zip(weights, moving, strict=True):
                    W += np.float32(lr / len(batch)) * v
        if not all(np.isfinite(W).all() for W in weights):
            raise InputError(f"the weights diverged in epoch {epoch} with lr = {lr:g}; choose a smaller lr")
        if epoch in epochs:
            found[epoch] = singular_alignment(weights, classes)
    return found


def singular_alignment(weights: Weights, number: int) -> NDArray[np.float64]:
    """Compute |u_kᵀ v_{L+1,k'}| of the leading singular vectors of Π and of the classifier.

    Args:
        weights: The layers W_1 … W_{L+1}.
        number: The number of singular vectors.

    Returns:
        A (number, number) matrix, with rows for the classifier and columns for Π.

    >>> singular_alignment([np.diag([2.0, 1]), np.diag([2.0, 1])], 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    u = np.linalg.svd(product(weights).astype(np.float64), full_matrices=False)[0][:, :number]
    v = np.linalg.svd(weights[-1].astype(np.float64), full_matrices=False)[2][:number]
    found: NDArray[np.float64] = np.abs(v @ u)
    return found


def _vectors(data: DataSet, samples: int) -> tuple[Matrix, NDArray[np.int64], int]:
    x, y = data.train.x, data.train.y.numpy()
    if samples:
        x, y = x[:samples], y[:samples]
    columns = x.flatten(1).numpy().astype(np.float32).T
    return (columns / np.float32(255) if x.dtype.is_floating_point is False else columns), y, len(data.classes)


def _start(kind: Start, widths: list[int], seed: int) -> Weights:
    if kind == "balanced":
        return [W.astype(np.float32) for W in balanced_start(widths, 0.3, seed)]
    if kind != "default":
        raise InputError(f'start = "{kind}": must be balanced (Assumption 1) or default (PyTorch\'s)')
    rng = generator(seed, "theory", "alignment", "start")
    pairs = itertools.pairwise(widths)
    return [rng.uniform(-1, 1, (out, below)).astype(np.float32) / np.float32(np.sqrt(below)) for below, out in pairs]
