"""The base class of augmentations."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Operation(ABC):
    """A random change of a batch of images (N, C, H, W), determined by uniform numbers (N, draws).

    Operations are compared by value, so a subclass is a frozen dataclass.
    """

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of uniform numbers in [0, 1) that a sample needs."""

    @abstractmethod
    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the changed images, of the same shape and dtype."""

    def place(self, device: torch.device) -> None:  # noqa: B027 - most operations have no constants
        """Put constants on a device ahead of time."""


def pick(u: Tensor, count: int) -> Tensor:
    """Return a whole number of 0..count-1, each equally likely, from a uniform number."""
    # a number just below 1 may have been rounded to 1 in a shorter dtype
    return (u * count).floor().long().clamp(max=count - 1)
