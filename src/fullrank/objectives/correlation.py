"""Losses that keep a representation from collapsing onto few dimensions.

Shi, Liang, Zhang, Tan and Bai, *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning* (ICLR 2023), and, with Xue, *Understanding and Mitigating Dimensional Collapse in
Federated Learning* (TPAMI).

Since ‖ZᵀZ‖_F = ‖ZZᵀ‖_F, everything here needs only the smaller of the two Gram matrices: N·d·min(N, d) operations,
where the equations as printed cost N·d².
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fullrank.errors import InputError, nearest
from fullrank.objectives.dtypes import at_least_float32

Scale = Literal["code", "paper", "algorithm"]

EPS = 1e-8
"""A constant added to each variance, as in the authors' code, so that a dead feature has correlation 0, not NaN."""


def decorrelation(z: Tensor, scale: Scale = "code") -> Tensor:
    """Compute FedDecorr's loss, which measures how strongly the columns of the features correlate in a batch.

    With r_ij the correlation of columns i and j, the papers and their code use three scales:

    - `"paper"`, ICLR Eq. 8 and TPAMI Eq. 9: ‖K‖_F² / d² of the correlation matrix K, diagonal included;
    - `"algorithm"`, Algorithm 1 as printed: ((N−1)/N)² times that, and NaN if a column is constant;
    - `"code"`, the authors' released code, to which their β = 0.1 refers: (N−1)²/N · mean of r_ij² over i ≠ j.

    Their gradients are parallel: β = 0.1 in `"code"` is β = 0.1 · (N−1)²/N · d/(d−1) in `"paper"`. A constant column
    counts as uncorrelated (except in `"algorithm"`).

    Args:
        z: Features of shape (N, d).
        scale: The scale of the loss.

    Returns:
        The loss, a scalar; in float32 for half-precision features. For a single sample it is 0, with a zero gradient.

    Raises:
        InputError: If the features are not of shape (N, d), or there is no such scale.

    >>> z = torch.tensor([[1.0, 1, 0], [2, 3, 1], [3, 2, -1], [4, 6, 0]])
    >>> [round(decorrelation(z, scale).item(), 4) for scale in ("code", "paper", "algorithm")]
    [0.6268, 0.519, 0.292]
    """
    if scale not in get_args(Scale):
        raise InputError(f'decorrelation: no scale "{scale}"; {nearest(str(scale), get_args(Scale))}')
    n, d = _shape(z)
    if n < 2:
        return _zero(z)
    z = _centred(z)
    energy = z.square().sum(0)
    variance = energy / (n if scale == "paper" else n - 1)
    inverse = (variance if scale == "algorithm" else variance + EPS).rsqrt()
    gram = _gram(z * inverse)
    if scale != "code":
        return gram.square().sum() / (n * d) ** 2
    if d < n:
        off_diagonal = 2 * gram.triu(1).square().sum()
    else:
        off_diagonal = gram.square().sum() - (energy * inverse.square()).square().sum()
    return off_diagonal / (max(d * (d - 1), 1) * n)


def singular_variance(z: Tensor) -> Tensor:
    """Compute L_singular (ICLR Eq. 6, TPAMI Eq. 7), the variance of the covariance's d singular values.

    It is (1/d) Σ_i (λ_i − λ̄)², with λ_i the singular values of the biased covariance Σ of the features. No
    decomposition is needed: with λ̄ = tr Σ / d, Σ_i (λ_i − λ̄)² = ‖Σ − λ̄I‖_F², and the N×N Gram matrix has the same
    singular values up to d − N zeros.

    Args:
        z: Features of shape (N, d).

    Returns:
        The variance, a scalar; in float32 for half-precision features. For a single sample it is 0.

    Raises:
        InputError: If the features are not of shape (N, d).

    >>> round(singular_variance(torch.tensor([[2.0, 1], [2, -1], [-2, 1], [-2, -1]])).item(), 6)
    2.25
    """
    n, d = _shape(z)
    if n < 2:
        return _zero(z)
    gram = _gram(_centred(z)) / n
    m = min(n, d)
    mean = gram.diagonal().sum() / d
    deviation = gram - mean * torch.eye(m, dtype=gram.dtype, device=gram.device)
    return (deviation.square().sum() + (d - m) * mean.square()) / d


def _shape(z: Tensor) -> tuple[int, int]:
    if z.ndim != 2 or z.shape[1] == 0:
        raise InputError(f"features must have the shape (samples, width), not {tuple(z.shape)}")
    return z.shape[0], z.shape[1]


def _zero(z: Tensor) -> Tensor:
    # An empty sum stays in the graph and, unlike 0 · z, is zero even if z is not finite.
    return at_least_float32(z)[:0].sum()


def _centred(z: Tensor) -> Tensor:
    # The first row is subtracted, so that a constant column is exactly zero; a rounded mean would give it a variance.
    z = at_least_float32(z)
    z = z - z[:1].detach()
    return z - z.mean(0)


def _gram(z: Tensor) -> Tensor:
    # Autocast would round the products to half precision, and the off-diagonal sum is a difference of two of them.
    with torch.autocast(z.device.type, enabled=False):
        return z @ z.mT if z.shape[0] <= z.shape[1] else z.mT @ z
