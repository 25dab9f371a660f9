"""Affine maps of images in batches, with a separate map for each image.

Where the nearest pixel is taken, coordinates are those of Pillow's `Image.transform` with NEAREST: fixed-point numbers
with 16 digits after the point. The same map therefore moves the same pixels as in Pillow, on every device.
Interpolation is that of Pillow's BILINEAR and BICUBIC, in double precision too; by rounding, a level may differ by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from fullrank.data.augment.operation import Operation
from fullrank.data.dataset import DataSet
from fullrank.errors import InputError

Number = TypeVar("Number", float, Tensor)

_FRACTION_BITS = 16
_ONE = 1 << _FRACTION_BITS

_HAIR = 1e-9
"""Larger than rounding errors, so that a sum that is a whole level is not truncated to the level below it."""

Affine = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the pixel at (x, y) comes from (a·x + b·y + c, d·x + e·y + f)."""

IDENTITY: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def rotation(
    cos: Number, sin: Number, height: int, width: int
) -> tuple[Number, Number, Number, Number, Number, Number]:
    """Return the map that rotates an image about its centre, counter-clockwise.

    Args:
        cos: The cosine of the angle.
        sin: The sine of the angle.
        height: The height of the image.
        width: The width of the image.

    Returns:
        The map, in the form of `Affine`.
    """
    across, down = width / 2, height / 2
    # added in Pillow's order
    return cos, -sin, -cos * across + sin * down + across, sin, cos, -sin * across - cos * down + down


def fixed_point(affine: Affine) -> tuple[int, ...]:
    """Return a map in fixed-point numbers, from pixel indices to the sources of the pixels' centres."""
    return tuple(math.floor(number * _ONE + 0.5) for number in _of_pixel_numbers(*affine))


def _of_pixel_numbers(
    a: Number, b: Number, c: Number, d: Number, e: Number, f: Number
) -> tuple[Number, Number, Number, Number, Number, Number]:
    # the centre of the first pixel is at (.5, .5)
    return a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5


def sample(x: Tensor, fixed: Tensor) -> Tensor:
    """Move the pixels of images by affine maps, without interpolation; pixels from outside are zero.

    Args:
        x: Images of shape (N, C, H, W).
        fixed: The map of each image as `fixed_point` returns it, of shape (N, 6).
    """
    height, width = x.shape[-2:]
    a, b, c, d, e, f = fixed[:, :, None, None].unbind(1)
    across = torch.arange(width, device=x.device)
    down = torch.arange(height, device=x.device)[:, None]
    column = (across * a + (down * b + c)) >> _FRACTION_BITS
    row = (across * d + (down * e + f)) >> _FRACTION_BITS
    inner_column, inner_row = column.clamp(0, width - 1), row.clamp(0, height - 1)
    inside = (column == inner_column) & (row == inner_row)
    source = (inner_row * width + inner_column).flatten(1).unsqueeze(1)
    moved = x.flatten(2).gather(2, source.expand(-1, x.shape[1], -1)).reshape(x.shape)
    return torch.where(inside.unsqueeze(1), moved, torch.zeros((), dtype=x.dtype, device=x.device))


def interpolate(x: Tensor, maps: Tensor, cubic: Tensor, outside: int) -> Tensor:
    """Interpolate 8-bit images under affine maps.

    Border pixels are repeated beyond the image for interpolation.

    Args:
        x: Images of shape (N, C, H, W).
        maps: The map of each image, of shape (N, 6).
        cubic: Whether an image is interpolated between 4×4 pixels instead of 2×2, of shape (N,).
        outside: The level of a pixel whose centre comes from outside the image.
    """
    height, width = x.shape[-2:]
    a, b, c, d, e, f = maps[:, :, None, None].unbind(1)
    across = torch.arange(width, device=x.device) + 0.5
    down = torch.arange(height, device=x.device)[:, None] + 0.5
    column, row = a * across + b * down + c, d * across + e * down + f
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    columns, column_weights = _taps(column - 0.5, width, cubic)
    rows, row_weights = _taps(row - 0.5, height, cubic)
    pixels = x.flatten(2).double()
    total = torch.full_like(pixels, _HAIR)
    for row, row_weight in zip(rows, row_weights, strict=True):
        for column, column_weight in zip(columns, column_weights, strict=True):
            level = pixels.gather(2, (row * width + column).expand(-1, x.shape[1], -1))
            total = torch.addcmul(total, level, row_weight * column_weight)
    moved = total.clamp(0, 255).to(x.dtype).reshape(x.shape)
    return torch.where(inside.unsqueeze(1), moved, torch.full((), outside, dtype=x.dtype, device=x.device))


def _taps(position: Tensor, size: int, cubic: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the four pixels of a line about each position (N, H, W), and their weights, each (N, 1, H·W)."""
    position = position.flatten(1).unsqueeze(1)
    first = position.floor()
    part, first = position - first, first.long()
    before = part * (-1 + part * (2 - part))
    here = 1 + part * part * (-2 + part)
    there = part * (1 + part * (1 - part))
    beyond = part * part * (-1 + part)
    none, cubic = torch.zeros_like(part), cubic[:, None, None]
    weights = [
        torch.where(cubic, curved, straight)
        for curved, straight in ((before, none), (here, 1 - part), (there, part), (beyond, none))
    ]
    return [(first + tap).clamp(0, size - 1) for tap in range(-1, 3)], weights


@dataclass(frozen=True)
class Rotate(Operation):
    """A rotation about the centre by an angle between -degrees and degrees; pixels from outside are zero.

    The nearest pixel is taken without interpolation, as in torchvision's RandomRotation.
    """

    degrees: float
    draws: ClassVar[int] = 1

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Rotate each sample by its angle; u = .5 leaves the image unchanged."""
        angle = (2 * u[:, 0].double() - 1) * math.radians(self.degrees)
        maps = torch.stack(_of_pixel_numbers(*rotation(angle.cos(), angle.sin(), *x.shape[-2:])), 1)
        return sample(x, (maps * _ONE + 0.5).floor().long())

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> Rotate:
        """Create the operation from the largest angle in degrees."""
        try:
            degrees = float(arguments)
        except ValueError:
            degrees = math.nan
        if not 0 < degrees <= 180:
            raise InputError(
                f'"rotate:{arguments}" must give the largest angle in degrees, above 0 to 180, as in "rotate:15"'
            )
        return cls(degrees)
