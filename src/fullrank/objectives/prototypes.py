"""Class prototypes: sums and means of features by class."""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.errors import InputError


def class_prototypes(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the features of each class, and the number of its samples.

    Sums and counts of several parts of the data add up to those of the whole; sums / counts are the class means. A
    class without samples has zeros in both, so divide only where the count is not 0.

    Args:
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        num_classes: The number of classes C.

    Returns:
        The sums of shape (C, d), through which gradients flow to `z`, and the counts of shape (C,).

    Raises:
        InputError: If the shapes do not match.

    >>> sums, counts = class_prototypes(torch.tensor([[1.0, 2], [3, 4], [5, 6]]), torch.tensor([2, 0, 2]), 3)
    >>> sums.tolist(), counts.tolist()
    ([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]], [1.0, 0.0, 2.0])
    """
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise InputError(
            f"class_prototypes: z must be (samples, width) and y (samples,), not {tuple(z.shape)} and {tuple(y.shape)}"
        )
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    member = (y[:, None] == torch.arange(num_classes, device=y.device)).to(z.dtype)
    with torch.autocast(z.device.type, enabled=False):
        return member.mT @ z, member.sum(0)
