"""A table of all changes that a policy can make to 8-bit images, with one row per change.

A change is an operation with its magnitude, such as ("Rotate", -6.7). All changes are known in advance, so random
numbers only choose rows, and a batch is changed at once with a separate change for each image.
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
    """Changes of images of one size, applied to batches."""

    changes: tuple[Change, ...]
    height: int
    width: int

    def apply(self, x: Tensor, rows: Tensor) -> Tensor:
        """Change every image by one row of the catalogue. The shape stays the same.

        Args:
            x: Images of shape (N, C, H, W).
            rows: The row of each image, of shape (N,).
        """
        # a row changes positions or levels, never both, so their order does not matter
        return sample(self.recolour(x, rows), self._fixed_maps(x.device)[rows])

    def apply_smoothly(self, x: Tensor, rows: Tensor, cubic: Tensor, outside: int) -> Tensor:
        """Change every image as `apply` does, but interpolate pixels that move.

        Args:
            x: Images of shape (N, C, H, W).
            rows: The row of each image, of shape (N,).
            cubic: Whether an image is interpolated between 4×4 pixels instead of 2×2, of shape (N,).
            outside: The level of a pixel that comes from outside the image.
        """
        return interpolate(self.recolour(x, rows), self._maps(x.device)[rows], cubic, outside)

    def recolour(self, x: Tensor, rows: Tensor) -> Tensor:
        """Change the levels of every image by its row, without moving pixels."""
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
    """Return two rows for every change, the first in the opposite direction if the operation has one.

    Args:
        changes: The changes.
        signed: The names of operations with two directions.
    """
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
        return rotation(round(math.cos(angle), 15), round(math.sin(angle), 15), height, width)  # rounded as in Pillow
    return IDENTITY
