"""Decorrelation within each class: Fan, Yao, Zhang, Lyu, Zhang and Wang, *Federated Learning under Partially
Class-Disjoint Data via Manifold Reshaping* (TMLR 2023), whose code takes the loss from class-wise decorrelation (CwD).

With Ẑ the features standardised class by class, Σ_c ‖Ẑ_cᵀẐ_c‖_F² = Σ (ẑ_m·ẑ_n)² over pairs m, n of one class. One
masked N×N Gram matrix therefore serves all classes: N²·d operations without a loop, where the equations cost N·d².
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fullrank.errors import InputError, nearest
from fullrank.objectives.correlation import EPS

Scale = Literal["code", "paper"]


def intra_class_decorrelation(z: Tensor, y: Tensor, num_classes: int, scale: Scale = "code") -> Tensor:
    """Compute FedMR's L_intra, which measures how strongly the columns of the features correlate inside each class.

    With r_ij the correlation of columns i and j over the N_c samples of class c in the batch:

    - `"code"`, the authors' released code, to which their μ1 = 0.01 refers: Σ_c (N_c−1)²·mean_{i≠j} r_ij² / Σ_c N_c;
    - `"paper"`, Eq. 3 with one normaliser throughout: the mean over classes of ‖K_c‖_F², diagonal included.

    Classes with a single sample have no correlation and are ignored. A batch of one class gives FedDecorr's loss. A
    feature that is constant in a class counts as uncorrelated there. The loss is differentiable in reverse mode, any
    number of times.

    Args:
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        num_classes: The number of classes, on which neither the value nor the cost depends.
        scale: The scale of the loss.

    Returns:
        The loss, a scalar; in float32 for half-precision features. If no class has two samples, it is 0, with a zero
        gradient.

    Raises:
        InputError: If the shapes do not match, or there is no such scale.

    >>> z, y = torch.tensor([[1.0, 1], [2, 3], [3, 2], [0, 1], [1, 0], [9, 9]]), torch.tensor([0, 0, 0, 1, 1, 2])
    >>> [round(intra_class_decorrelation(z, y, 3, scale).item(), 4) for scale in ("code", "paper")]
    [0.4, 3.25]
    """
    if scale not in get_args(Scale):
        raise InputError(f'intra_class_decorrelation: no scale "{scale}"; {nearest(str(scale), get_args(Scale))}')
    if z.ndim != 2 or z.shape[1] == 0 or y.shape != z.shape[:1]:
        raise InputError(
            "intra_class_decorrelation: features must be (samples, width) and labels (samples,), "
            f"not {tuple(z.shape)} and {tuple(y.shape)}"
        )
    d = z.shape[1]
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    alike = (y[:, None] == y).to(z.dtype)
    size = alike.sum(1, keepdim=True)
    pairs = (size - 1).clamp(min=1)  # a single sample's features are 0 below, whatever they are divided by
    counts = (size > 1).to(z.dtype)
    # Autocast would round the products to half precision, and the off-diagonal sum is a difference of two of them.
    with torch.autocast(z.device.type, enabled=False):
        # The first sample of each class is subtracted, so that a column that is constant there is exactly zero.
        z = z - z.detach()[alike.argmax(1)]
        if scale == "paper":
            classes = (counts / size).sum()  # every class as often as it has samples, each time a share of 1
            mean = alike / size
            return _correlations(z, mean, mean, mean / size, None) / classes.clamp(min=1)
        total = _correlations(z, alike / size, alike / pairs, alike, pairs)
    return total / (max(d * (d - 1), 1) * counts.sum().clamp(min=1))


def _correlations(z: Tensor, mean: Tensor, spread: Tensor, weight: Tensor, pairs: Tensor | None) -> Tensor:
    total: Tensor = _Correlations.apply(z, mean, spread, weight, pairs)[0]  # type: ignore[no-untyped-call]
    return total


class _Correlations(torch.autograd.Function):
    """Σ_mn weight_mn·(û_m·û_n)² of features û standardised class by class: FedMR's loss up to a factor.

    `mean` and `spread` (N, N) are such that mean@z has each sample's class mean and spread@z² its class variance once z
    is centred; `weight` (N, N) is 0 for samples of different classes. With `pairs` (N, 1), the number of a class's
    samples less one, correlations of features with themselves are left out.

    The gradient is written out because that takes a third of the operations of the chain rule, each of which is a
    launch on a GPU. With û = v·s, s = (spread@v² + ε)^−½ and v centred: ∂/∂û = 4·((weight∘ûûᵀ)@û − pairs∘ρ∘û), ρ a
    feature's correlation with itself (1, or less where ε counts), ∂/∂v = s∘(∂/∂û − û∘spread@(û∘∂/∂û)), and centring is
    its own transpose.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor, mean: Tensor, spread: Tensor, weight: Tensor, pairs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        unit, inverse, gram, own = _standardised(z, mean, spread, pairs)
        weighted = gram * weight
        total = (weighted * gram).sum()
        if pairs is not None and own is not None:  # summed over samples, a class counts as often as it has them
            total = total - (own.square() / (pairs + 1)).sum()
        return total, unit, inverse, weighted, own

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(tensor for tensor in output[1:] if tensor is not None))
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        if slope is None:
            return (None,) * 5
        z, mean, spread, weight, pairs, unit, inverse, weighted, own = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient may be differentiated again, through the features
            unit, inverse, gram, own = _standardised(z, mean, spread, pairs)
            weighted = gram * weight
        with torch.autocast(z.device.type, enabled=False):
            g = weighted @ unit
            if own is not None:
                g = g - own * unit
            g = (g - unit * (spread @ (g * unit))) * inverse
            return (g - mean @ g) * (4 * slope), None, None, None, None


def _standardised(
    z: Tensor, mean: Tensor, spread: Tensor, pairs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return standardised features, the factors that scaled them, their products, and each feature's sum of squares."""
    centred = z - mean @ z
    variance = spread @ centred.square()
    inverse = (variance + EPS).rsqrt()
    unit = centred * inverse
    return unit, inverse, unit @ unit.mT, None if pairs is None else variance * inverse.square() * pairs
