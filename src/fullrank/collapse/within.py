"""Variance of the eigenvalues within each class, as in FedMR's Table 7.

Fan, Yao, Zhang, Lyu, Zhang and Wang, *Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping*
(TMLR 2023).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fullrank.collapse.arrays import Array, matrix, no_samples, plain, whole_numbers, wide
from fullrank.errors import InputError

TOP = 50
BATCH = 128
EPS = 1e-8
"""A constant that is added to each standard deviation, so that a dead feature stays 0."""


def class_eigenvalue_variance(
    features: Array, labels: Array, *, top: int = TOP, batch_size: int = BATCH
) -> dict[int, float]:
    """Compute v_c = (1/128)Σ(λ_i − λ̄)² over the 50 largest eigenvalues of M_c, for each class c of a mini-batch.

    M_c = (1/(n_c − 1))Σẑẑᵀ, with the features ẑ standardised inside the class by the biased deviation. The divisor is
    the batch size as printed, not the number of eigenvalues.

    Args:
        features: Features of shape (N, d).
        labels: Labels of shape (N,).
        top: The number of eigenvalues; with fewer features, all of them count.
        batch_size: The divisor.

    Returns:
        The variance of each class that has at least two samples.

    Raises:
        InputError: If there are no samples, or the number of labels is not theirs.

    >>> line = np.arange(8.0)[:, None] * np.ones(4)
    >>> {c: round(v, 6) for c, v in class_eigenvalue_variance(line, [0] * 7 + [1]).items()}
    {0: 0.127604}
    """
    z, y = matrix(features), whole_numbers(labels)
    if len(z) != len(y):
        raise InputError(f"there are {len(z)} samples, but {len(y)} labels")
    if len(z) == 0:
        raise no_samples("class_eigenvalue_variance")
    found = {}
    for c in torch.unique(y).tolist():
        own = wide(z[(y == c).to(z.device)])
        if len(own) > 1:
            found[c] = _variance(own, min(top, z.shape[1])) / batch_size
    return found


def mean_class_eigenvalue_variance(features: Array, labels: Array, *, top: int = TOP, batch_size: int = BATCH) -> float:
    """Compute the number of FedMR's Table 7: the mean of v_c over a mini-batch's classes, then over the mini-batches.

    Args:
        features: Features of shape (N, d), which are cut into mini-batches in their order. A last, shorter one is left
            out unless it is the only one.
        labels: Labels of shape (N,).
        top: The number of eigenvalues; with fewer features, all of them count.
        batch_size: The size of the mini-batches.

    Returns:
        The mean; nan if no class has two samples.

    Raises:
        InputError: If there are no samples, or the number of labels is not theirs.

    >>> line = np.arange(8.0)[:, None] * np.ones(4)
    >>> round(mean_class_eigenvalue_variance(line, [0] * 4 + [1] * 4), 6)
    0.166667
    """
    z, y = matrix(features), whole_numbers(labels)
    if len(z) == 0:
        raise no_samples("mean_class_eigenvalue_variance")
    ends = range(batch_size, len(z) + 1, batch_size) if len(z) >= batch_size else [len(z)]
    means = []
    for end in ends:
        batch = slice(max(0, end - batch_size), end)
        found = class_eigenvalue_variance(z[batch], y[batch], top=top, batch_size=batch_size)
        if found:
            means.append(np.mean(list(found.values())))
    return float(np.mean(means)) if means else math.nan


def _variance(z: Tensor, top: int) -> float:
    """Compute Σ(λ_i − λ̄)² over the largest eigenvalues, at most n of which are not 0."""
    z = z - z[:1]
    z = z - z.mean(0)
    z = z / (z.square().mean(0).sqrt() + EPS)
    gram = (z @ z.mT if z.shape[0] <= z.shape[1] else z.mT @ z) / (len(z) - 1)
    if not gram.isfinite().all():
        return math.nan
    values = plain(torch.linalg.eigvalsh(gram).flip(0))[:top]
    values = np.pad(values, (0, top - len(values)))
    return float(np.square(values - values.mean()).sum())
