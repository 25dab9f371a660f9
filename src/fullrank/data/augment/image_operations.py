"""All changes that a policy can make to 8-bit images, a row for each.

A change is an operation with its magnitude, such as ("Rotate", -6.7). They are known beforehand, so what each needs
stands in one row, and random numbers only choose rows: a batch is changed at once, every image in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fullrank.data.augment import colour
from fullrank.data.augment.colour import Kind
from fullrank.data.augment.constants import constant
from fullrank.data.augment.geometry import IDENTITY, Affine, fixed_point, interpolate, rotation, sample

Change = tuple[str, float]

_KINDS = {
    "Contrast": Kind.CONTRAST,
    "AutoContrast": Kind.AUTO_CONTRAST,
    "Equalize": Kind.EQUALIZE,
    "Color": Kind.COLOR,
    "Sharpness": Kind.SHARPNESS,
}


@dataclass(frozen=True)
class Catalogue:
    """Changes of images of one size, and what they do to a batch."""

    changes: tuple[Change, ...]
    height: int
    width: int

    def apply(self, x: Tensor, rows: Tensor) -> Tensor:
        """Change every image of (N, C, H, W) as its row (N,) says; labels and shapes stay."""
        # a row changes places or levels, never both, so the order of the two does not matter
        return sample(self.recolour(x, rows), self._fixed_maps(x.device)[rows])

    def apply_smoothly(self, x: Tensor, rows: Tensor, cubic: Tensor, outside: int) -> Tensor:
        """The same with pixels interpolated where they move, and a level for what comes from outside."""
        return interpolate(self.recolour(x, rows), self._maps(x.device)[rows], cubic, outside)

    def recolour(self, x: Tensor, rows: Tensor) -> Tensor:
        """The changes of levels alone."""
        kind, factor, table = (part[rows] for part in self._levels(x.device))
        return colour.recolour(x, kind, factor, table)

    def place(self, device: torch.device) -> None:
        """Put the rows on a device ahead of time."""
        colour.place(device)
        self._levels(device)
        self._fixed_maps(device)
        self._maps(device)

    def _levels(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        return (
            constant((self, "kind"), self._kinds, device, torch.int64),
            constant((self, "factor"), self._factors, device, torch.float32),
            constant((self, "table"), self._tables, device, torch.uint8),
        )

    def _fixed_maps(self, device: torch.device) -> Tensor:
        return constant(
            (self, "fixed"), lambda: np.array([fixed_point(each) for each in self._affines()]), device, torch.int64
        )

    def _maps(self, device: torch.device) -> Tensor:
        return constant((self, "affine"), lambda: np.array(self._affines()), device, torch.float64)

    def _kinds(self) -> npt.NDArray[np.int64]:
        return np.array([_KINDS.get(name, Kind.TABLE) for name, _ in self.changes], np.int64)

    def _factors(self) -> npt.NDArray[np.float32]:
        return np.array([1 + size for _, size in self.changes], np.float32)

    def _tables(self) -> npt.NDArray[np.uint8]:
        return np.stack([_table(*change) for change in self.changes])

    def _affines(self) -> list[Affine]:
        return [_affine(*change, self.height, self.width) for change in self.changes]


def both_ways(changes: Iterable[Change], signed: Container[str]) -> tuple[Change, ...]:
    """Two rows for every change, the first the other way round if the operation has a direction."""
    return tuple(row for name, size in changes for row in ((name, -size if name in signed else size), (name, size)))


def _table(name: str, size: float) -> npt.NDArray[np.uint8]:
    if name == "Brightness":
        return colour.brightness(1 + size)
    if name == "Posterize":
        return colour.posterize(int(size))
    if name in ("Solarize", "Invert"):
        return colour.solarize(0 if name == "Invert" else size)
    if name == "SolarizeAdd":
        return colour.lighten_dark(int(size))
    return np.arange(colour.LEVELS, dtype=np.uint8)


def _affine(name: str, size: float, height: int, width: int) -> Affine:
    a, b, c, d, e, f = IDENTITY
    if name == "ShearX":
        return a, size, c, d, e, f
    if name == "CentredShearX":
        return a, size, -size * height / 2, d, e, f
    if name == "ShearY":
        return a, b, c, size, e, f
    if name == "TranslateX":
        return a, b, -size, d, e, f
    if name == "TranslateY":
        return a, b, c, d, e, -size
    if name == "Rotate":
        angle = math.radians(size % 360)
        return rotation(round(math.cos(angle), 15), round(math.sin(angle), 15), height, width)  # as Pillow rounds them
    return IDENTITY
