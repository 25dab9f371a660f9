"""What an augmentation is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Operation(ABC):
    """One random change of a batch of images (N, C, H, W), steered by uniform numbers (N, draws).

    Equal operations are equal values, so a subclass is a frozen dataclass.
    """

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many numbers of [0, 1) a sample needs."""

    @abstractmethod
    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """The changed images, of the same shape and dtype."""

    def place(self, device: torch.device) -> None:  # noqa: B027 - most operations have no constants
        """Put constants on a device ahead of time."""


def pick(u: Tensor, count: int) -> Tensor:
    """A whole number of 0..count-1, each equally likely, from a uniform number."""
    # a number just below 1 may have been rounded up to 1 on its way into a shorter dtype
    return (u * count).floor().long().clamp(max=count - 1)
