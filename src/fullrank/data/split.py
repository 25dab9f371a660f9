"""Splitting off a share or a number of the samples, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fullrank.data.dataset import Split
from fullrank.data.groups import choose_groups_by_class
from fullrank.errors import InputError
from fullrank.randomness import generator

Indices = npt.NDArray[np.int64]

TEST_SHARE = 0.2


def split_by_class(
    y: Tensor | npt.NDArray[Any], share: float, seed: int, groups: Tensor | npt.NDArray[Any] | None = None
) -> tuple[Indices, Indices]:
    """Split off a share of the samples of every class.

    In total ceil(share · N) samples are split off, allotted to classes by largest remainder (the lower class on a tie).
    No class loses its last sample, so fewer are split off if there are almost as many classes as samples.

    Groups are split off as wholes, so that the number in each class is met as nearly as whole groups allow. The total
    exceeds the one above by less than one group, and no class loses its last group. Groups may have several labels.
    Groups of one sample each give the split without groups. The rule is that of
    :func:`fullrank.data.groups.choose_groups_by_class`.

    Args:
        y: The labels.
        share: The share to split off.
        seed: The seed of the draw.
        groups: The group of each sample, if some belong together.

    Returns:
        The positions to keep and the positions that are split off, each ascending.

    Raises:
        InputError: If the share is out of range, or there is not one label or group per sample.

    >>> keep, taken = split_by_class(torch.tensor([0, 0, 0, 1, 1, 1]), 0.3, seed=0)
    >>> len(keep), len(taken)
    (4, 2)
    """
    if not 0 <= share < 1:
        raise InputError(f"a share of {share} cannot be split off; it must be at least 0 and below 1")
    # 0.07 · 100 is 7.000000000000001 in binary, but 7 in decimal
    return _split(y, Fraction(str(float(share))), seed, groups)


def choose_by_class(y: Tensor | npt.NDArray[Any], number: int, seed: int) -> Indices:
    """Draw a number of samples, of each class its share.

    Args:
        y: The labels.
        number: The number of samples; all are returned if there are fewer.
        seed: The seed of the draw.

    Returns:
        Their positions, ascending.

    >>> torch.tensor([0, 0, 0, 0, 1, 1])[choose_by_class(torch.tensor([0, 0, 0, 0, 1, 1]), 3, seed=0)]
    tensor([0, 0, 1])
    """
    if number >= len(y):
        return np.arange(len(y))
    return _split(y, Fraction(number, len(y)), seed)[1]


def keep_share(
    y: Tensor | npt.NDArray[Any], share: float, seed: int, groups: Tensor | npt.NDArray[Any] | None = None
) -> Indices:
    """Draw a share of the samples of each class, and at least one.

    Groups stay whole, as in :func:`split_by_class`.

    Args:
        y: The labels.
        share: The share to keep.
        seed: The seed of the draw.
        groups: The group of each sample, if some belong together.

    Returns:
        The positions of the samples, ascending.

    >>> len(keep_share(torch.zeros(100), 0.1, seed=0))
    10
    """
    return _split(y, 1 - Fraction(str(float(share))), seed, groups)[0]


def _split(
    y: Tensor | npt.NDArray[Any], share: Fraction, seed: int, groups: Tensor | npt.NDArray[Any] | None = None
) -> tuple[Indices, Indices]:
    labels = _one_per_sample("labels", y)
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quotas = _largest_remainder([int(size) for size in sizes], share)
    # the length is part of the key, so that splitting the kept samples again with the same seed draws other numbers;
    # samples are ordered by drawn numbers, because only the raw stream is the same in every version of NumPy
    drawn = generator(seed, "split", len(labels)).random(len(labels))
    if groups is not None:
        chosen = choose_groups_by_class(_one_per_sample("groups", groups), class_of, quotas, drawn)
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)
    order = np.lexsort((drawn, class_of))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = rank < np.repeat(np.asarray(quotas, dtype=np.int64), sizes)
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _one_per_sample(what: str, values: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if array.ndim != 1:
        raise InputError(f"{what} have shape {array.shape}; they must be one per sample")
    return array


def _largest_remainder(sizes: Sequence[int], exact: Fraction) -> list[int]:
    quotas = [math.floor(exact * size) for size in sizes]
    missing = math.ceil(exact * sum(sizes)) - sum(quotas)
    by_remainder = sorted(range(len(sizes)), key=lambda label: (quotas[label] - exact * sizes[label], label))
    while missing > 0:
        able = [label for label in by_remainder if quotas[label] < sizes[label] - 1][:missing]
        if not able:
            break
        for label in able:
            quotas[label] += 1
        missing -= len(able)
    return quotas


def split_off_test(whole: Split, seed: int) -> tuple[Split, Split]:
    """Split off a fifth of every class as test data, for data that have no test split; groups stay whole.

    Args:
        whole: The data.
        seed: The seed of the draw.

    Returns:
        The training split and the test split.

    Raises:
        InputError: If no class has two samples or groups.
    """
    keep, taken = split_by_class(whole.y, TEST_SHARE, seed, whole.group)
    if not len(taken):
        what = "samples" if whole.group is None else "groups"
        raise InputError(
            f"no class has two {what}, so no test set can be split off; give training and test data separately"
        )
    return whole.take(torch.from_numpy(keep)), whole.take(torch.from_numpy(taken))
