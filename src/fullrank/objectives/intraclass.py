"""Decorrelation within each class: Fan, Yao, Zhang, Lyu, Zhang and Wang, *Federated Learning under Partially
Class-Disjoint Data via Manifold Reshaping* (TMLR 2023), whose code takes the loss from class-wise decorrelation (CwD).

With Ẑ the features standardised class by class, Σ_c ‖Ẑ_cᵀẐ_c‖_F² = Σ (ẑ_m·ẑ_n)² over pairs m, n of one class. So one
N×N Gram matrix, masked, serves all classes: N²·d operations without a loop, where the equations cost N·d².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from fullrank.errors import Refusal, nearest
from fullrank.objectives.decorrelation import EPS

Scale = Literal["code", "paper"]


def intra_class_decorrelation(z: Tensor, y: Tensor, num_classes: int, scale: Scale = "code") -> Tensor:
    """FedMR's L_intra: how strongly the columns of the features `z` (N, d) correlate inside each class of `y` (N,).

    With r_ij the correlation of columns i and j over the N_c samples of class c in the batch:

    - `"code"`, the authors' release, of which μ1 = 0.01 is meant: Σ_c (N_c−1)²·mean_{i≠j} r_ij² / Σ_c N_c;
    - `"paper"`, Eq. 3 with one normaliser throughout: the mean over classes of ‖K_c‖_F², diagonal included.

    Classes with a single sample have no correlation and count nowhere; without any other class the loss is 0, with a
    zero gradient. A batch of one class gives FedDecorr's loss. A feature that is constant in a class correlates with
    nothing there. Half precision is computed and answered in float32.

    >>> z, y = torch.tensor([[1.0, 1], [2, 3], [3, 2], [0, 1], [1, 0], [9, 9]]), torch.tensor([0, 0, 0, 1, 1, 2])
    >>> [round(intra_class_decorrelation(z, y, 3, scale).item(), 4) for scale in ("code", "paper")]
    [0.4, 3.25]
    """
    if scale not in get_args(Scale):
        raise Refusal(f'intra_class_decorrelation: no scale "{scale}"; {nearest(str(scale), get_args(Scale))}')
    if z.ndim != 2 or z.shape[1] == 0 or y.shape != z.shape[:1]:
        raise Refusal(
            "intra_class_decorrelation: features must be (samples, width) and labels (samples,), "
            f"not {tuple(z.shape)} and {tuple(y.shape)}"
        )
    d = z.shape[1]
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    alike = y[:, None] == y
    of_class = alike.to(z.dtype)
    size = of_class.sum(1)
    counts = (size > 1).to(z.dtype)
    # Autocast would round the products to half precision, and the off-diagonal is a difference.
    with torch.autocast(z.device.type, enabled=False):
        # Measured from the first sample of its class, a column that is constant there is exactly zero.
        z = z - z.detach()[alike.to(torch.uint8).argmax(1)]
        total = _class_total(y, num_classes, of_class)
        z = z - total(z) / size[:, None]
        energy = total(z.square())
        variance = energy / (size if scale == "paper" else (size - 1).clamp(min=1))[:, None]
        inverse = (variance + EPS).rsqrt()
        unit = z * inverse
        squares = (unit @ unit.mT).square() * of_class
    if scale == "paper":
        classes = (counts / size).sum()  # every class as often as it has samples, each time with their inverse number
        return (squares.sum(1) / size.square()).sum() / classes.clamp(min=1)
    diagonal = (energy * inverse.square()).square().sum(1) / size
    return (squares.sum() - diagonal.sum()) / (max(d * (d - 1), 1) * counts.sum().clamp(min=1))


def _class_total(y: Tensor, num_classes: int, of_class: Tensor) -> Callable[[Tensor], Tensor]:
    """Of rows (N, d): for each the sum over the rows of its class, by way of the classes if they are few."""
    if 2 * num_classes >= len(y):
        return lambda rows: of_class @ rows
    member = (y[:, None] == torch.arange(num_classes, device=y.device)).to(of_class.dtype)
    return lambda rows: member @ (member.mT @ rows)
