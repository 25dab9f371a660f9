"""How many dimensions a representation uses: the spectrum of its covariance.

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
"""Above it a singular value is significant: TPAMI's example log τ = −2."""
RELATIVE_ZERO = 1e-12
"""Below this share of the largest, a singular value is rounding."""


def spectrum(features: Features | Moments) -> Numbers:
    """The d singular values of Σ = (1/N)Σ(z − z̄)(z − z̄)ᵀ, descending (ICLR Eq. 5, TPAMI Eq. 6; what Figs. 2–7 draw).

    `features` are (N, d) in one piece, a stream of batches, or `Moments`. Biased, never negative; of one sample all 0;
    nan where a feature is not finite. With fewer samples than features in one piece, the N×N Gram matrix is decomposed.

    >>> spectrum([[2.0, 1], [2, -1], [-2, 1], [-2, -1]]).tolist()
    [4.0, 1.0]
    """
    if not isinstance(features, Moments) and is_whole(features):
        whole = in_one_piece(features)
        n, d = whole.shape
        if n == 0:
            raise no_samples("spectrum")
        if n < d:
            z = wide(whole) - wide(whole[:1])  # from the first sample, so that what is constant is exactly 0
            z = z - z.mean(0)
            values = _descending(z @ z.mT / n)
            return np.pad(values, (0, d - n), constant_values=0.0 * values[0])  # nan if the others are
    return _descending(moments_of(features).covariance)


def effective_rank(features: Features | Moments) -> float:
    """exp(−Σ p log p) with p = λ/Σλ: how many equal singular values would be as spread out as these (Roy and Vetterli).

    On the covariance's spectrum, as the papers plot it. Between 1 and d; 0 if nothing varies. A spectrum itself, one
    number a dimension, may be given instead of features.

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
    """How many singular values are above a threshold, by default e⁻² (TPAMI, log τ = −2).

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
    """R of TPAMI Eq. 1: the mean of log(λ_k^local / λ_k^global) over the singular values of two spectra.

    Only over the k where neither is rounding (10⁻¹² of its spectrum's largest or less); nan if there is none. `top` is
    the number of leading k looked at (100 in the figures), `count=True` also gives how many were compared.

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
    """L_singular (ICLR Eq. 6, TPAMI Eq. 7): (1/d)Σ(λ_i − λ̄)² of the covariance's singular values, none computed.

    The loss of this name in `fullrank.objectives`, as a number and for any amount of features.

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
    """Eigenvalues; LAPACK would reject what is not finite."""
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
        raise InputError(f"a spectrum has one number a dimension, so its shape is (d,), not {tuple(found.shape)}")
    return plain(found)
