"""Inputs of the measures: NumPy arrays or tensors on any device, whole or as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullrank.errors import InputError

Array: TypeAlias = Tensor | NDArray[Any] | Sequence[Any]
"""Numbers in one piece; nested lists are accepted."""
Features: TypeAlias = Array | Iterable[Any]
"""Features (N, d) in one piece, or an iterable of batches in order."""
Numbers: TypeAlias = NDArray[np.float64]

ROWS_AT_ONCE = 8192
"""The number of rows that are converted to float64 at a time, so that a large array is never copied as a whole."""


def wide(x: Array) -> Tensor:
    """Convert numbers to float64, on their device and without a gradient."""
    return raw(x).to(torch.float64)


def raw(x: Array) -> Tensor:
    """Return numbers as a tensor in their own dtype, without a gradient."""
    return x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))


def matrix(x: Array, what: str = "features") -> Tensor:
    """Return a matrix (samples, width) in its own dtype.

    Args:
        x: The numbers.
        what: What they are, as the beginning of an error.

    Raises:
        InputError: If the numbers have another shape.
    """
    found = raw(x)
    if found.dim() != 2 or found.shape[1] == 0:
        raise InputError(f"{what} must have the shape (samples, width), not {tuple(found.shape)}")
    return found


def pooled(x: Array) -> Tensor:
    """Return a layer's features (N, channels). Maps of a convolution (N, channels, …) are averaged over positions.

    Raises:
        InputError: If the features have fewer than two dimensions.
    """
    found = raw(x)
    if found.dim() < 2:
        raise InputError(f"features of a layer must have the shape (samples, channels, …), not {tuple(found.shape)}")
    return found if found.dim() == 2 else found.to(torch.float64).flatten(2).mean(2)


def is_whole(features: Any) -> bool:
    """Return whether features are in one piece. If not, they are an iterable of batches."""
    if isinstance(features, Tensor | np.ndarray):
        return True
    if not isinstance(features, Sequence):
        return False
    return not (len(features) and (_is_batch(features[0]) or _is_pair(features[0])))


def in_one_piece(features: Any) -> Tensor | NDArray[Any]:
    """Return features that are given in one piece as a tensor or an array, without a copy where possible."""
    found = features if isinstance(features, Tensor | np.ndarray) else np.array(features)
    return found if found.ndim == 2 and found.shape[1] else matrix(found)


def pieces(features: Features) -> Iterator[Tensor]:
    """Yield features in batches and in order. Labels that come with the batches are left out."""
    if is_whole(features):
        x = in_one_piece(features)
        for start in range(0, len(x), ROWS_AT_ONCE):
            yield matrix(x[start : start + ROWS_AT_ONCE])
        return
    for batch in features:
        yield matrix(batch[0] if _is_pair(batch) else batch)


def labelled(features: Features, labels: Array | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of features with their labels.

    Args:
        features: Features in one piece or in batches; without `labels`, batches are pairs (features, labels).
        labels: The labels of all samples, or None.

    Raises:
        InputError: If labels are missing, or their number is not that of the samples.
    """
    if labels is None:
        if is_whole(features):
            raise InputError("features in one piece need labels, one per sample")
        for pair in features:
            if not _is_pair(pair):
                raise InputError("labels are missing: give them whole, or make every batch a pair (features, labels)")
            yield matrix(pair[0]), whole_numbers(pair[1])
        return
    y, start = whole_numbers(labels), 0
    for z in pieces(features):
        if start + len(z) > len(y):
            raise InputError(f"there are {start + len(z)} samples or more, but {len(y)} labels")
        yield z, y[start : start + len(z)]
        start += len(z)
    if start != len(y):
        raise InputError(f"there are {start} samples, but {len(y)} labels")


def _is_batch(x: Any) -> bool:
    return isinstance(x, Tensor | np.ndarray) and x.ndim >= 2


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple | list) and len(x) == 2 and _is_batch(x[0])


def whole_numbers(labels: Array) -> Tensor:
    """Return labels (N,) as int64.

    Raises:
        InputError: If the labels are not whole numbers, or are negative.
    """
    y = raw(labels)
    if y.dim() != 1 or y.is_floating_point() or y.is_complex():
        if y.numel():
            raise InputError(f"labels must be whole numbers of the shape (samples,), not {y.dtype} {tuple(y.shape)}")
        y = y.reshape(-1)
    y = y.to(torch.int64)
    if len(y) and int(y.min()) < 0:
        raise InputError(f"labels number classes from 0, so {int(y.min())} is not a label")
    return y


def plain(x: Tensor) -> Numbers:
    """Convert a tensor to a NumPy array of float64."""
    found: Numbers = x.detach().to("cpu", torch.float64).numpy()
    return found


def no_samples(what: str) -> InputError:
    """Return the error for empty input."""
    return InputError(f"{what}: there are no samples; give at least one")
