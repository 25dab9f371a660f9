"""AutoAugment and RandAugment on whole batches of 8-bit images.

Magnitudes and operations are torchvision's on Pillow images: the nearest pixel is taken and what comes from outside is
black.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import Refusal
from .catalogue import Catalogue, both_ways
from .constants import constant
from .operation import Operation, pick

Rule = tuple[str, float, int]
"""An operation, how probable it is, and its magnitude's level of 0..9."""

CIFAR10: tuple[tuple[Rule, Rule], ...] = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)
"""The policy found on CIFAR-10 (Cubuk et al., AutoAugment, arXiv:1805.09501, table 7)."""

RANDOM = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""The operations among which RandAugment draws."""

SIGNED = frozenset(RANDOM[1:10])
"""Operations that go either way, by equal chance."""

_LARGEST = {
    "ShearX": 0.3,
    "ShearY": 0.3,
    "Rotate": 30.0,
    "Brightness": 0.9,
    "Color": 0.9,
    "Contrast": 0.9,
    "Sharpness": 0.9,
}


def magnitude(name: str, level: int, levels: int, height: int, width: int) -> float:
    """What a level of 0..levels-1 means: a slope, pixels, degrees, a part of 1, bits that stay, or a threshold."""
    last = levels - 1
    if name in ("TranslateX", "TranslateY"):
        return float(math.trunc(150 / 331 * (width if name == "TranslateX" else height) * level / last))
    if name == "Posterize":
        return float(8 - round(level / (last / 4)))
    if name == "Solarize":
        return 255 * (last - level) / last
    return _LARGEST.get(name, 0.0) * level / last


@lru_cache
def _cifar10(height: int, width: int) -> Catalogue:
    every = ((name, magnitude(name, level, 10, height, width)) for pair in CIFAR10 for name, _, level in pair)
    changes = both_ways(every, SIGNED)
    return Catalogue((*changes, ("Identity", 0.0)), height, width)


@lru_cache
def _random(level: int, levels: int, height: int, width: int) -> Catalogue:
    every = ((name, magnitude(name, level, levels, height, width)) for name in RANDOM)
    return Catalogue(both_ways(every, SIGNED), height, width)


@dataclass(frozen=True)
class AutoAugment(Operation):
    """Two operations in a row, with probabilities and magnitudes of a policy's 25 pairs, drawn for every image.

    The policy is that of Cubuk et al. for CIFAR-10 (arXiv:1805.09501), with magnitudes on 10 levels.
    """

    height: int
    width: int
    draws: ClassVar[int] = 5

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change each sample: one number chooses the pair, two whether, and two in which direction."""
        catalogue = _cifar10(self.height, self.width)
        for rows in self.rows(u).unbind(1):
            x = catalogue.apply(x, rows)
        return x

    def rows(self, u: Tensor) -> Tensor:
        """The rows of the catalogue that the numbers choose (N, 2)."""
        pair = pick(u[:, :1], len(CIFAR10))
        first_or_second = torch.arange(2, device=u.device)
        row = (2 * pair + first_or_second) * 2 + (u[:, 3:] >= 0.5)
        happens = u[:, 1:3] < self._probabilities(u.device)[pair[:, 0]]
        return torch.where(happens, row, 4 * len(CIFAR10))

    def place(self, device: torch.device) -> None:
        """Put the policy on a device ahead of time."""
        self._probabilities(device)
        _cifar10(self.height, self.width).place(device)

    def _probabilities(self, device: torch.device) -> Tensor:
        return constant(
            "cifar10", lambda: np.array([[p for _, p, _ in pair] for pair in CIFAR10]), device, torch.float32
        )


@dataclass(frozen=True)
class RandAugment(Operation):
    """Some operations in a row, each drawn among 14 and all of one magnitude (Cubuk et al., arXiv:1909.13719)."""

    height: int
    width: int
    number: int = 2
    level: int = 9
    levels: ClassVar[int] = 31

    @property
    def draws(self) -> int:
        """Two for every operation: which, and in which direction."""
        return 2 * self.number

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change each sample by as many operations as asked for."""
        catalogue = self._catalogue()
        for rows in self.rows(u).unbind(1):
            x = catalogue.apply(x, rows)
        return x

    def rows(self, u: Tensor) -> Tensor:
        """The rows of the catalogue that the numbers choose (N, number)."""
        return pick(u[:, : self.number], len(RANDOM)) * 2 + (u[:, self.number :] >= 0.5)

    def place(self, device: torch.device) -> None:
        """Put the operations on a device ahead of time."""
        self._catalogue().place(device)

    def _catalogue(self) -> Catalogue:
        return _random(self.level, self.levels, self.height, self.width)

    @classmethod
    def parse(cls, argument: str, height: int, width: int) -> RandAugment:
        """From what follows the colon."""
        if not argument:
            return cls(height, width)
        numbers = argument.split(",")
        if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
            raise Refusal(
                f'"randaugment:{argument}" must say how many operations and which level, as in "randaugment:2,9"'
            )
        number, level = map(int, numbers)
        if number < 1 or level >= cls.levels:
            raise Refusal(
                f'"randaugment:{argument}": there must be one operation at least, at a level of 0 to {cls.levels - 1}'
            )
        return cls(height, width, number, level)
