"""RandAugment as in the training code of RepVGG, RepOptimizers and FedRepOpt, with a level drawn for every change.

It differs from the paper's RandAugment: there are 16 operations, among them Cutout; a level from 0 is drawn for every
change, where 10 is the usual largest magnitude and more is allowed; factors of colour, contrast, brightness and
sharpness grow with the level from a tenth to more than two, without an opposite direction; so does the threshold of
solarisation; pixels are interpolated, between 2×2 or 4×4 with equal probability; and pixels from outside are grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.constants import constant
from fullrank.data.augment.image_operations import Catalogue, both_ways
from fullrank.data.augment.operation import Operation, pick, size_of_pictures
from fullrank.data.dataset import DataSet
from fullrank.errors import InputError

OPERATIONS = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Cutout",
)
SIGNED = frozenset(("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"))
"""Operations whose direction is drawn, with equal probability."""

OUTSIDE = 128
HOLE = (125, 122, 113)
HOLE_IN_GREY = 122
"""The grey level of the colour of holes."""

_MOST_LEVELS = 31


def magnitude(name: str, level: int, height: int, width: int) -> float:
    """Return the magnitude of a change: degrees, kept bits, a threshold, added levels, a slope, pixels, or a factor.

    Args:
        name: The name of the operation.
        level: The level; 10 is the usual largest one.
        height: The height of the images, in proportion to which they are translated.
        width: The width of the images.
    """
    share = level / 10
    match name:
        case "Rotate":
            return share * 30
        case "Posterize":
            return min(int(share * 4), 8)
        case "Solarize":
            return int(share * 256)
        case "SolarizeAdd":
            return int(share * 110)
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return share * 1.8 + 0.1 - 1
        case "ShearX" | "ShearY":
            return share * 0.3
        case "TranslateX":
            return share * 0.45 * width
        case "TranslateY":
            return share * 0.45 * height
        case "Cutout":
            return int(max(2, share * 40))
    return 0.0


@lru_cache
def _catalogue(levels: int, height: int, width: int) -> Catalogue:
    every = ((name, magnitude(name, level, height, width)) for name in OPERATIONS for level in range(levels))
    return Catalogue(both_ways(every, SIGNED), height, width)


@dataclass(frozen=True)
class Raug(Operation):
    """Two operations in sequence, each with its own level below `levels`, drawn for every image."""

    height: int
    width: int
    levels: int = 15
    number: int = 2

    @property
    def draws(self) -> int:
        """Six numbers for every operation: its choice, level, direction, interpolation, and a square's centre (two)."""
        return 6 * self.number

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change each sample by its operations in sequence."""
        catalogue = self._catalogue()
        for numbers in u.reshape(-1, self.number, 6).unbind(1):
            rows = self.rows(numbers)
            x = catalogue.apply_smoothly(x, rows, cubic=numbers[:, 3] >= 0.5, outside=OUTSIDE)
            x = self._cut(x, self._half_sides(x.device)[rows], numbers[:, 4:])
        return x

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the rows of the catalogue that the numbers (N, 6) choose."""
        which, level = pick(numbers[:, 0], len(OPERATIONS)), pick(numbers[:, 1], self.levels)
        return (which * self.levels + level) * 2 + (numbers[:, 2] >= 0.5)

    def place(self, device: torch.device) -> None:
        """Put the operations on a device ahead of time."""
        self._catalogue().place(device)
        self._half_sides(device)
        _hole(device, grey=True)
        _hole(device, grey=False)

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> Raug:
        """Create the operation from the number of levels from which those of the changes are drawn."""
        height, width = size_of_pictures("raug", dataset)
        if not arguments:
            return cls(height, width)
        if not arguments.isdecimal() or not 1 <= int(arguments) <= _MOST_LEVELS:
            raise InputError(f'"raug:{arguments}" must give the number of levels, 1 to {_MOST_LEVELS}, as in "raug:15"')
        return cls(height, width, int(arguments))

    def _catalogue(self) -> Catalogue:
        return _catalogue(self.levels, self.height, self.width)

    def _half_sides(self, device: torch.device) -> Tensor:
        """Return half the side of the square that each row cuts out, 0 for most rows."""
        changes = self._catalogue().changes
        return constant(
            (self, "half sides"),
            lambda: np.array([int(size) // 2 if name == "Cutout" else 0 for name, size in changes]),
            device,
            torch.int64,
        )

    def _cut(self, x: Tensor, half: Tensor, middle: Tensor) -> Tensor:
        half = half[:, None]
        column = torch.arange(self.width, device=x.device) - pick(middle[:, :1], self.width)
        row = torch.arange(self.height, device=x.device) - pick(middle[:, 1:], self.height)
        across, down = (column >= -half) & (column < half), (row >= -half) & (row < half)
        hole = across[:, None, None, :] & down[:, None, :, None]
        return torch.where(hole, _hole(x.device, grey=x.shape[1] == 1), x)


def _hole(device: torch.device, grey: bool) -> Tensor:
    levels = [HOLE_IN_GREY] if grey else list(HOLE)
    return constant(("hole", grey), lambda: np.array(levels)[:, None, None], device, torch.uint8)
