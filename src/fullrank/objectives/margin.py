"""Prototype margins: FedMR's inter-class loss (TMLR 2023, Eq. 4) in the readings that its text allows.

All classes of a batch have the same weight, regardless of their number of samples. Prototypes are constants; a sample
whose class has no prototype contributes 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.errors import InputError

_EXACT = "donot_use_mm_for_euclid_dist"
"""The mode of `torch.cdist` that does not expand squares, in which small distances would be lost."""


def prototype_margin(z: Tensor, y: Tensor, prototypes: Tensor, available: Tensor, margin: float = 0.0) -> Tensor:
    """Compute FedMR's L_inter (Eq. 4), the mean margin by which other prototypes are nearer than that of the class.

    It is the mean over the batch's classes, over a class's samples, and over the other available classes j, of max(‖z −
    g_y‖ − ‖z − g_j‖ + margin, 0). With margin 0, the loss and its gradient are 0 once every sample is nearest to its
    own prototype.

    Args:
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        prototypes: Prototypes g of the classes, of shape (C, d). No gradient flows to them.
        available: A boolean mask of shape (C,), which is False for classes without a prototype.
        margin: The margin by which other prototypes must be farther away.

    Returns:
        The loss, a scalar; in float32 for half-precision features.

    Raises:
        InputError: If the shapes do not match, or `available` is not boolean.

    >>> g = torch.tensor([[0.0, 0], [4, 0], [0, 3]])
    >>> z = torch.tensor([[1.0, 0], [3, 0], [0, 2]])
    >>> round(prototype_margin(z, torch.tensor([0, 0, 1]), g, torch.tensor([True, True, True])).item(), 6)
    1.736068
    """
    distance = _distances(z, y, prototypes, available)
    known = available.to(distance.dtype)
    beyond = (distance.gather(1, y[:, None]) - distance + margin).relu() * known
    # The term of a sample's own class is the margin itself, which does not count.
    return _over_classes((beyond.sum(1) - max(margin, 0.0)) * (known[y] / (known.sum() - 1).clamp(min=1)), y)


def prototype_pull(z: Tensor, y: Tensor, prototypes: Tensor, available: Tensor) -> Tensor:
    """Compute the mean distance ‖z − g_y‖ of samples to their own prototypes, FedMR's loss without other classes.

    It is the reading after the paper's Theorem 1. The mean is over the batch's classes and over a class's samples.

    Args:
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        prototypes: Prototypes g of the classes, of shape (C, d). No gradient flows to them.
        available: A boolean mask of shape (C,), which is False for classes without a prototype.

    Returns:
        The loss, a scalar; in float32 for half-precision features.

    Raises:
        InputError: If the shapes do not match, or `available` is not boolean.

    >>> g, z = torch.tensor([[0.0, 0], [4, 0], [0, 3]]), torch.tensor([[1.0, 0], [3, 0], [0, 2]])
    >>> round(prototype_pull(z, torch.tensor([0, 0, 1]), g, torch.tensor([True, True, True])).item(), 6)
    3.236068
    """
    own = _distances(z, y, prototypes, available).gather(1, y[:, None])[:, 0]
    return _over_classes(own * available[y], y)


def prototype_margin_literal(z: Tensor, y: Tensor, prototypes: Tensor, available: Tensor) -> Tensor:
    """Compute FedMR's Eq. 4 as printed, which compares the n-th samples of two classes, each with its own class's
    prototype.

    The loss is the mean over ordered pairs of the batch's classes, and over n up to the smaller one's size, of
    max(‖z_n^i − g_i‖ − ‖z_n^j − g_j‖, 0), with samples numbered in the order of the batch.

    Args:
        z: Features of shape (N, d).
        y: Labels of shape (N,).
        prototypes: Prototypes g of the classes, of shape (C, d). No gradient flows to them.
        available: A boolean mask of shape (C,), which is False for classes without a prototype.

    Returns:
        The loss, a scalar; in float32 for half-precision features. For a batch of one class it is 0.

    Raises:
        InputError: If the shapes do not match, or `available` is not boolean.

    >>> g = torch.tensor([[0.0, 0], [4, 0]])
    >>> z = torch.tensor([[3.0, 0], [4, 1], [1, 0]])
    >>> prototype_margin_literal(z, torch.tensor([0, 1, 0]), g, torch.tensor([True, True])).item()
    1.0
    """
    own = _distances(z, y, prototypes, available).gather(1, y[:, None])[:, 0]
    alike = (y[:, None] == y).to(own.dtype)
    size = alike.sum(1)
    number = alike.tril(-1).sum(1)
    known = available[y].to(own.dtype)
    paired = (number[:, None] == number) * (1 - alike) * known[:, None] * known
    each = paired * (own[:, None] - own).relu() / torch.minimum(size[:, None], size)
    classes = (1 / size).sum()
    return each.sum() / (classes * (classes - 1)).clamp(min=1)


def _distances(z: Tensor, y: Tensor, prototypes: Tensor, available: Tensor) -> Tensor:
    """Compute the distance of every sample to every prototype."""
    if z.ndim != 2 or y.shape != z.shape[:1] or prototypes.shape[1:] != z.shape[1:]:
        raise InputError(
            "prototypes: features must be (samples, width), labels (samples,) and prototypes (classes, width), "
            f"not {tuple(z.shape)}, {tuple(y.shape)} and {tuple(prototypes.shape)}"
        )
    if available.shape != prototypes.shape[:1] or available.dtype != torch.bool:
        raise InputError(
            f"available must be a boolean tensor of {len(prototypes)} classes, "
            f"not {tuple(available.shape)} of {available.dtype}"
        )
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return torch.cdist(z, prototypes.detach().to(z.dtype), compute_mode=_EXACT)


def _over_classes(each: Tensor, y: Tensor) -> Tensor:
    """Return the mean over the batch's classes of the mean over a class's samples."""
    share = 1 / (y[:, None] == y).to(each.dtype).sum(1)
    return (share * each).sum() / share.sum().clamp(min=1)
