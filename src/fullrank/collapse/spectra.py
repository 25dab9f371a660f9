"""The spectrum of a representation's covariance, and how many dimensions the representation uses.

Shi, Liang, Zhang, Tan and Bai, *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning* (ICLR 2023), and, with Xue, *Understanding and Mitigating Dimensional Collapse in Federated Learning* (TPAMI).
"""

from __future__ import annotations

import math
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from fullrank.collapse.arrays import Array, Features, Numbers, in_one_piece, is_whole, no_samples, plain, raw, wide
from fullrank.collapse.moments import Moments, moments_of
from fullrank.errors import InputError
from fullrank.objectives import singular_variance as _singular_variance

THRESHOLD = math.exp(-2)
"""The threshold above which singular values are significant, TPAMI's example log τ = −2."""
RELATIVE_ZERO = 1e-12
"""The share of the largest singular value up to which others count as rounding errors."""


def spectrum(features: Features | Moments) -> Numbers:
    """Compute the d singular values of Σ = (1/N)Σ(z − z̄)(z − z̄)ᵀ (ICLR Eq. 5, TPAMI Eq. 6), which Figs. 2–7 draw.

    With fewer samples than features in one piece, the N×N Gram matrix is decomposed.

    Args:
        features: Features of shape (N, d), a stream of batches, or `Moments`.

    Returns:
        The values in descending order, of shape (d,). They are never negative; they are 0 for a single sample, and nan
        if a feature is not finite.

    Raises:
        InputError: If there are no samples, or the features have another shape.

    >>> spectrum([[2.0, 1], [2, -1], [-2, 1], [-2, -1]]).tolist()
    [4.0, 1.0]
    """
    if not isinstance(features, Moments) and is_whole(features):
        whole = in_one_piece(features)
        n, d = whole.shape
        if n == 0:
            raise no_samples("spectrum")
        if n < d:
            z = wide(whole) - wide(whole[:1])  # relative to the first sample, so that constant features are exactly 0
            z = z - z.mean(0)
            values = _descending(z @ z.mT / n)
            return np.pad(values, (0, d - n), constant_values=0.0 * values[0])  # nan if the other values are
    return _descending(moments_of(features).covariance)


def effective_rank(features: Features | Moments) -> float:
    """Compute exp(−Σ p log p) with p = λ/Σλ, the effective number of dimensions (Roy and Vetterli).

    The λ are the singular values of the covariance, as the papers plot them.

    Args:
        features: Features of shape (N, d), a stream of batches, `Moments`, or a spectrum of shape (d,).

    Returns:
        A number between 1 and d; 0 if all features are constant, and nan if one is not finite.

    Raises:
        InputError: If there are no samples, or the features have another shape.

    >>> round(effective_rank([[2.0, 1], [2, -1], [-2, 1], [-2, -1]]), 6)
    1.649385
    >>> round(effective_rank([1.0] * 8), 9)
    8.0
    """
    values = _spectrum_or(features)
    if not np.isfinite(values).all():
        return math.nan
    total = values.sum()
    if total <= 0:
        return 0.0
    p = values[values > 0] / total
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def significant(values: Array, threshold: float = THRESHOLD) -> int:
    """Count the singular values above a threshold.

    Args:
        values: A spectrum of shape (d,).
        threshold: The threshold τ; by default e⁻², TPAMI's example log τ = −2.

    Returns:
        The number of values above the threshold.

    Raises:
        InputError: If the spectrum is not one-dimensional.

    >>> significant([4.46, 0.75, 0.042])
    2
    """
    return int((_one_dimensional(values) > threshold).sum())


@overload
def spectrum_gap(
    local: Array, global_: Array, *, top: int | None = ..., count: Literal[False] = ...
) -> float: ...  # pragma: no cover
@overload
def spectrum_gap(
    local: Array, global_: Array, *, top: int | None = ..., count: Literal[True]
) -> tuple[float, int]: ...  # pragma: no cover
def spectrum_gap(
    local: Array, global_: Array, *, top: int | None = None, count: bool = False
) -> float | tuple[float, int]:
    """Compute R of TPAMI Eq. 1, the mean of log(λ_k^local / λ_k^global) over the singular values of two spectra.

    A k is left out if either value is a rounding error (10⁻¹² of its spectrum's largest or less).

    Args:
        local: The spectrum of a client's model, of shape (d,).
        global_: The spectrum of the global model, of shape (d,).
        top: The number of leading values that are compared (100 in the figures); by default all.
        count: Whether to return the number of compared values as well.

    Returns:
        The mean, which is nan if no values can be compared, or with `count` the mean and the number of values.

    Raises:
        InputError: If a spectrum is not one-dimensional.

    >>> round(spectrum_gap([3 * math.e, math.e], [3.0, 1.0]), 12)
    1.0
    """
    spectra = [np.sort(_one_dimensional(values))[::-1] for values in (local, global_)]
    k = min(map(len, spectra))
    a, b = (values[: k if top is None else min(k, top)] for values in spectra)
    if not len(a):
        return (math.nan, 0) if count else math.nan
    usable = (a > RELATIVE_ZERO * max(a[0], 0)) & (b > RELATIVE_ZERO * max(b[0], 0))
    number = int(usable.sum())
    gap = float(np.mean(np.log(a[usable] / b[usable]))) if number else math.nan
    return (gap, number) if count else gap


def singular_variance(features: Features | Moments) -> float:
    """Compute L_singular (ICLR Eq. 6, TPAMI Eq. 7), (1/d)Σ(λ_i − λ̄)² of the covariance's singular values.

    It is the loss of this name in `fullrank.objectives`, as a number and for any amount of features. No singular value
    is computed.

    Args:
        features: Features of shape (N, d), a stream of batches, or `Moments`.

    Returns:
        The variance.

    Raises:
        InputError: If there are no samples, or the features have another shape.

    >>> singular_variance([[2.0, 1], [2, -1], [-2, 1], [-2, -1]])
    2.25
    """
    if not isinstance(features, Moments) and is_whole(features):
        whole = in_one_piece(features)
        if len(whole) == 0:
            raise no_samples("singular_variance")
        if len(whole) < whole.shape[1]:
            return float(_singular_variance(wide(whole)))
    covariance = moments_of(features).covariance
    mean = covariance.diagonal().mean()
    rest = covariance - mean * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return float(rest.square().sum() / len(covariance))


def _descending(covariance: Tensor) -> Numbers:
    """Return eigenvalues in descending order; nan if an entry is not finite, which LAPACK would reject."""
    if not covariance.isfinite().all():
        return np.full(len(covariance), np.nan)
    return plain(torch.linalg.eigvalsh(covariance).clamp(min=0).flip(0))


def _spectrum_or(features: Features | Moments) -> Numbers:
    if not isinstance(features, Moments) and is_whole(features) and raw(features).dim() == 1:  # type: ignore[arg-type]
        return _one_dimensional(features)  # type: ignore[arg-type]
    return spectrum(features)


def _one_dimensional(values: Array) -> Numbers:
    found = raw(values)
    if found.dim() != 1:
        raise InputError(f"a spectrum has one number per dimension, so its shape is (d,), not {tuple(found.shape)}")
    return plain(found)
