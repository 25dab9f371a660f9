"""Mean and standard deviation of the columns of a table, from sums over the samples of each client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fullrank.data.columns import Column
from fullrank.errors import InputError

Numbers = npt.NDArray[np.float64]


class Sums(NamedTuple):
    """Sums over the values of one client's samples, for each feature; missing values do not count.

    The sums of several clients are added, which secure aggregation can do.
    """

    number: Numbers
    """The number of values."""
    total: Numbers
    """The sum of the values."""
    squares: Numbers
    """The sum of the squares of the values."""


def column_sums(x: Tensor, around: Numbers | float = 0.0) -> Sums:
    """Return the sums of one client's features (N, F) in float64; NaN is a missing value.

    Args:
        x: The features.
        around: Numbers that are subtracted from the values first, for each feature.

    >>> import torch
    >>> column_sums(torch.tensor([[1.0], [3.0], [float("nan")]]))
    Sums(number=array([2.]), total=array([4.]), squares=array([10.]))
    """
    values = x.double().cpu().numpy() - around
    there = ~np.isnan(values)
    values = np.where(there, values, 0.0)
    with np.errstate(over="ignore"):  # the caller rejects infinite sums, by the name of the column
        return Sums(there.sum(0).astype(np.float64), values.sum(0), (values**2).sum(0))


def added(sums: Iterable[Sums]) -> Sums:
    """Return the sums over several clients."""
    with np.errstate(over="ignore"):
        return Sums(*(np.sum(numbers, axis=0) for numbers in zip(*sums, strict=True)))


def moments(sums: Sums) -> tuple[Numbers, Numbers]:
    """Compute the moments of each feature; both are 0 for a feature without values.

    Args:
        sums: The sums over all samples.

    Returns:
        The mean, and the standard deviation of the population.
    """
    number = np.maximum(sums.number, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sums.total / number
        return mean, np.sqrt(np.maximum(sums.squares / number - mean**2, 0))


def standardisation(
    columns: Sequence[Column], x: Tensor, parts: Iterable[npt.NDArray[np.int64]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation with which the features of a table are standardised.

    Each client computes sums twice: of its values, which give the mean, and of the differences from the mean, because
    the squares of large numbers that hardly differ lose all digits. Features of categories and of missing values keep
    their 0 and 1, and a column that is constant becomes 0.

    Args:
        columns: The columns of the table.
        x: The features (N, F) of all samples.
        parts: The training samples of each client.

    Returns:
        The mean and the standard deviation of each feature.

    Raises:
        InputError: If a column holds numbers that are too large.
    """
    own = [x[part] for part in parts]
    first, _ = moments(added(column_sums(features) for features in own))
    rest, spread = moments(added(column_sums(features, first) for features in own))
    mean = first + rest
    _reject_too_large(columns, mean, spread)
    # a column of one value may differ from its mean by rounding
    constant = spread <= len(x) * np.finfo(np.float64).eps * np.abs(mean)
    kept = ~_numeric(columns)
    mean, spread = np.where(kept, 0.0, mean), np.where(kept | constant, 1.0, spread)
    return tuple(map(float, mean)), tuple(map(float, spread))


def _numeric(columns: Sequence[Column]) -> npt.NDArray[np.bool_]:
    """Return which features are the values of numeric columns."""
    return np.concatenate([np.arange(column.width) < column.numeric for column in columns])


def _reject_too_large(columns: Sequence[Column], mean: Numbers, spread: Numbers) -> None:
    names = [column.name for column in columns for _ in range(column.width)]
    for name, *numbers in zip(names, mean, spread, strict=True):
        if not all(map(math.isfinite, numbers)):
            raise InputError(f'the column "{name}" holds numbers that are too large to be standardised')
