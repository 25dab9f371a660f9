"""AutoAugment and RandAugment on whole batches of 8-bit images.

Magnitudes and operations are torchvision's on Pillow images: the nearest pixel is taken, and pixels from outside the
image are black. `autoaugment:bins` has the same policy with magnitudes as in FedDecorr's authors' code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.constants import constant
from fullrank.data.augment.image_operations import Catalogue, Change, both_ways
from fullrank.data.augment.operation import Operation, pick, size_of_pictures
from fullrank.data.dataset import DataSet
from fullrank.errors import InputError

Rule = tuple[str, float, int]
"""An operation, its probability, and its magnitude's level of 0..9."""

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
"""The operations from which RandAugment draws."""

PER_BIN = 16
"""The number of magnitudes from which one is drawn inside a bin."""

SIGNED = frozenset(RANDOM[1:10])
"""Operations whose direction is drawn, with equal probability."""

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
    """Return the magnitude of an operation: a slope, pixels, degrees, a factor, kept bits, or a threshold.

    Args:
        name: The name of the operation.
        level: The level, from 0 to levels − 1.
        levels: The number of levels.
        height: The height of the images, in proportion to which they are translated.
        width: The width of the images.
    """
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


@lru_cache
def _cifar10_in_bins(height: int, width: int) -> Catalogue:
    changes = [change for pair in CIFAR10 for name, _, level in pair for change in in_bin(name, level, height, width)]
    return Catalogue((*changes, ("Identity", 0.0)), height, width)


def in_bin(name: str, level: int, height: int, width: int) -> list[Change]:
    """Return the changes of a level in FedDecorr's code, evenly over a tenth of the operation's whole range.

    The range goes from the largest magnitude in one direction to the largest in the other, so a level determines the
    direction. Shears and rotations are about the centre (in FedDecorr's code about a point one pixel off it).

    Args:
        name: The name of the operation.
        level: The level, from 0 to 9.
        height: The height of the images.
        width: The width of the images.
    """
    within = (torch.arange(PER_BIN, dtype=torch.float64) + 0.5) / PER_BIN
    shares = ((level + within) / 10).tolist()
    match name:
        case "ShearY":  # a shear moves pixels along the rows, in proportion to their vertical position
            return [("CentredShearX", 0.6 * share - 0.3) for share in shares]
        case "TranslateX" | "TranslateY":
            side = width if name == "TranslateX" else height
            return [(name, -150 / 331 * side * (2 * share - 1)) for share in shares]
        case "Rotate":
            return [(name, 30 - 60 * share) for share in shares]
        case "Posterize":
            return [(name, float(round(4 + 4 * share))) for share in shares]
        case "Solarize":
            return [(name, 256 * share) for share in shares]
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return [(name, 0.1 + 1.8 * share - 1) for share in shares]
    return [(name, 0.0)] * PER_BIN


@dataclass(frozen=True)
class AutoAugment(Operation):
    """Two operations in sequence, drawn for every image from a policy's 25 pairs with probabilities and magnitudes.

    The policy is that of Cubuk et al. for CIFAR-10 (arXiv:1805.09501), with magnitudes on 10 levels and both directions
    equally probable. With `bins` a magnitude is drawn inside the level's tenth of the whole range, as in FedDecorr's
    code, and pixels that move are interpolated (by cubic convolution, where that code uses splines).
    """

    height: int
    width: int
    bins: bool = False
    draws: ClassVar[int] = 5

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change each sample: one number chooses the pair, two whether to apply, and two the direction or magnitude."""
        catalogue = self._catalogue()
        for rows in self.rows(u).unbind(1):
            if self.bins:
                x = catalogue.apply_smoothly(x, rows, cubic=torch.ones_like(rows, dtype=torch.bool), outside=0)
            else:
                x = catalogue.apply(x, rows)
        return x

    def rows(self, u: Tensor) -> Tensor:
        """Return the rows of the catalogue that random numbers choose (N, 2)."""
        pair = pick(u[:, :1], len(CIFAR10))
        rule = 2 * pair + torch.arange(2, device=u.device)
        row = rule * PER_BIN + pick(u[:, 3:], PER_BIN) if self.bins else rule * 2 + (u[:, 3:] >= 0.5)
        happens = u[:, 1:3] < self._probabilities(u.device)[pair[:, 0]]
        return torch.where(happens, row, len(self._catalogue().changes) - 1)

    def place(self, device: torch.device) -> None:
        """Put the policy on a device ahead of time."""
        self._probabilities(device)
        self._catalogue().place(device)

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> AutoAugment:
        """Create the operation with the usual magnitudes, or with those of FedDecorr's code ("bins")."""
        height, width = size_of_pictures("autoaugment", dataset)
        if arguments not in ("", "bins"):
            raise InputError(f'"autoaugment:{arguments}" is not known; choose "autoaugment" or "autoaugment:bins"')
        return cls(height, width, arguments == "bins")

    def _catalogue(self) -> Catalogue:
        return (_cifar10_in_bins if self.bins else _cifar10)(self.height, self.width)

    def _probabilities(self, device: torch.device) -> Tensor:
        return constant(
            "cifar10", lambda: np.array([[p for _, p, _ in pair] for pair in CIFAR10]), device, torch.float32
        )


@dataclass(frozen=True)
class RandAugment(Operation):
    """Operations in sequence, each drawn from 14 and all of one magnitude (Cubuk et al., arXiv:1909.13719)."""

    height: int
    width: int
    number: int = 2
    level: int = 9
    levels: ClassVar[int] = 31

    @property
    def draws(self) -> int:
        """Two numbers for every operation, which choose it and its direction."""
        return 2 * self.number

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change each sample by `number` operations."""
        catalogue = self._catalogue()
        for rows in self.rows(u).unbind(1):
            x = catalogue.apply(x, rows)
        return x

    def rows(self, u: Tensor) -> Tensor:
        """Return the rows of the catalogue that random numbers choose (N, number)."""
        return pick(u[:, : self.number], len(RANDOM)) * 2 + (u[:, self.number :] >= 0.5)

    def place(self, device: torch.device) -> None:
        """Put the operations on a device ahead of time."""
        self._catalogue().place(device)

    def _catalogue(self) -> Catalogue:
        return _random(self.level, self.levels, self.height, self.width)

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> RandAugment:
        """Create the operation from the number of operations in sequence and their level."""
        height, width = size_of_pictures("randaugment", dataset)
        if not arguments:
            return cls(height, width)
        numbers = arguments.split(",")
        if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
            raise InputError(
                f'"randaugment:{arguments}" must give the number of operations and the level, as in "randaugment:2,9"'
            )
        number, level = map(int, numbers)
        if number < 1 or level >= cls.levels:
            raise InputError(
                f'"randaugment:{arguments}": there must be at least one operation, at a level of 0 to {cls.levels - 1}'
            )
        return cls(height, width, number, level)
