"""AutoAugment and RandAugment on whole batches of 8-bit images.

A change is an operation with its magnitude, such as ("Rotate", -6.7). All changes that a policy can make are known
beforehand; what each needs stands in one row of a catalogue, and the random numbers only choose rows. Magnitudes and
operations are torchvision's on Pillow images: the nearest pixel is taken and what comes from outside is black.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import Refusal
from . import colour
from .colour import Kind
from .constants import constant
from .geometry import IDENTITY, Affine, fixed_point, rotation, sample
from .operation import Operation, pick

Change = tuple[str, float]

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

_KINDS = {
    "Contrast": Kind.CONTRAST,
    "AutoContrast": Kind.AUTO_CONTRAST,
    "Equalize": Kind.EQUALIZE,
    "Color": Kind.COLOR,
    "Sharpness": Kind.SHARPNESS,
}

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


@dataclass(frozen=True)
class Catalogue:
    """Changes of images of one size, a row for each, and what they do to a batch."""

    changes: tuple[Change, ...]
    height: int
    width: int

    def apply(self, x: Tensor, rows: Tensor) -> Tensor:
        """Change every image of (N, C, H, W) as its row (N,) says; labels and shapes stay."""
        kind, factor, table, affine = (part[rows] for part in self._parts(x.device))
        # a row changes places or levels, never both, so the order of the two does not matter
        return sample(colour.recolour(x, kind, factor, table), affine)

    def place(self, device: torch.device) -> None:
        """Put the rows on a device ahead of time."""
        colour.place(device)
        self._parts(device)

    def _parts(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (
            constant((self, "kind"), self._kinds, device, torch.int64),
            constant((self, "factor"), self._factors, device, torch.float32),
            constant((self, "table"), self._tables, device, torch.uint8),
            constant((self, "affine"), self._affines, device, torch.int64),
        )

    def _kinds(self) -> npt.NDArray[np.int64]:
        return np.array([_KINDS.get(name, Kind.TABLE) for name, _ in self.changes], np.int64)

    def _factors(self) -> npt.NDArray[np.float32]:
        return np.array([1 + size for _, size in self.changes], np.float32)

    def _tables(self) -> npt.NDArray[np.uint8]:
        return np.stack([_table(*change) for change in self.changes])

    def _affines(self) -> npt.NDArray[np.int64]:
        maps = [fixed_point(_affine(*change, self.height, self.width)) for change in self.changes]
        return np.array(maps, np.int64)


def _table(name: str, size: float) -> npt.NDArray[np.uint8]:
    if name == "Brightness":
        return colour.brightness(1 + size)
    if name == "Posterize":
        return colour.posterize(int(size))
    if name in ("Solarize", "Invert"):
        return colour.solarize(0 if name == "Invert" else size)
    return np.arange(colour.LEVELS, dtype=np.uint8)


def _affine(name: str, size: float, height: int, width: int) -> Affine:
    a, b, c, d, e, f = IDENTITY
    if name == "ShearX":
        return a, size, c, d, e, f
    if name == "ShearY":
        return a, b, c, size, e, f
    if name == "TranslateX":
        return a, b, -size, d, e, f
    if name == "TranslateY":
        return a, b, c, d, e, -size
    if name == "Rotate":
        angle = math.radians(size)
        return rotation(math.cos(angle), math.sin(angle), height, width)
    return IDENTITY


def _both_ways(name: str, size: float) -> tuple[Change, Change]:
    """The rows of an operation: the first for numbers below one half."""
    return (name, -size if name in SIGNED else size), (name, size)


@lru_cache
def _cifar10(height: int, width: int) -> Catalogue:
    changes = _rows((name, magnitude(name, level, 10, height, width)) for pair in CIFAR10 for name, _, level in pair)
    return Catalogue((*changes, ("Identity", 0.0)), height, width)


@lru_cache
def _random(level: int, levels: int, height: int, width: int) -> Catalogue:
    changes = _rows((name, magnitude(name, level, levels, height, width)) for name in RANDOM)
    return Catalogue(changes, height, width)


def _rows(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(row for change in changes for row in _both_ways(*change))


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
