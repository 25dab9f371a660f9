"""Splitting a share of the samples off, by class."""

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
from fullrank.errors import InputError
from fullrank.randomness import generator

Indices = npt.NDArray[np.int64]

TEST_SHARE = 0.2


def split_by_class(y: Tensor | npt.NDArray[Any], share: float, seed: int) -> tuple[Indices, Indices]:
    """Return positions to keep and positions split off, each ascending; `share` of every class is split off.

    In total ceil(share · N) samples are split off, allotted to classes by largest remainder (the lower class on a tie).
    No class loses its last sample, so fewer are split off if there are almost as many classes as samples.

    >>> keep, taken = split_by_class(torch.tensor([0, 0, 0, 1, 1, 1]), 0.3, seed=0)
    >>> len(keep), len(taken)
    (4, 2)
    """
    if not 0 <= share < 1:
        raise InputError(f"a share of {share} cannot be split off; it must be at least 0 and below 1")
    labels = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if labels.ndim != 1:
        raise InputError(f"labels have shape {labels.shape}; they must be one per sample")
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quotas = _largest_remainder([int(size) for size in sizes], share)
    # the length is part of the key, so that splitting the kept samples again with the same seed draws other numbers;
    # samples are ordered by drawn numbers, because only the raw stream is the same in every version of NumPy
    drawn = generator(seed, "split", len(labels)).random(len(labels))
    order = np.lexsort((drawn, class_of))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = rank < np.repeat(np.asarray(quotas, dtype=np.int64), sizes)
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _largest_remainder(sizes: Sequence[int], share: float) -> list[int]:
    # 0.07 · 100 is 7.000000000000001 in binary, but 7 in decimal
    exact = Fraction(str(float(share)))
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
    """Split a fifth of every class off as test data, for data that have no test split."""
    if whole.group is not None:
        raise InputError(
            "the data have groups, and splitting off a test set by class would put samples of one group on both sides; "
            "give training and test data separately"
        )
    keep, taken = split_by_class(whole.y, TEST_SHARE, seed)
    if not len(taken):
        raise InputError(
            "no class has two samples, so no test set can be split off; give training and test data separately"
        )
    return whole.take(torch.from_numpy(keep)), whole.take(torch.from_numpy(taken))
