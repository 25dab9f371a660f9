"""Changes of the levels of 8-bit images in batches, with a separate change for each image.

In nearly every change a pixel's new level depends only on its old level and on statistics of the image: a table of 256
levels per image or channel, and one lookup for the batch. Only two changes use other channels or pixels. Levels are
those of Pillow's ImageOps and ImageEnhance, including rounding.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fullrank.data.augment.constants import constant

LEVELS = 256
_GREY_BITS = 16
_GREY = (19595.0, 38470.0, 7471.0)
"""Shares of red, green and blue in a grey level (ITU-R 601-2), in units of 2^-16."""


class Kind(IntEnum):
    """The kind of change of an image's levels."""

    TABLE = 0
    """A table that does not depend on the image."""
    CONTRAST = 1
    """Blend with the image's mean grey."""
    AUTO_CONTRAST = 2
    """Stretch each channel, so that the darkest level is 0 and the lightest 255."""
    EQUALIZE = 3
    """Equalise each channel, so that all levels are about equally frequent."""
    COLOR = 4
    """Blend with the pixel's own grey; a grey image does not change."""
    SHARPNESS = 5
    """Blend with the smoothed image."""


def place(device: torch.device) -> None:
    """Put constants on a device ahead of time."""
    _grey_shares(device)


def recolour(x: Tensor, kind: Tensor, factor: Tensor, table: Tensor) -> Tensor:
    """Change the levels of each image.

    A factor of 1 does not change an image; larger factors increase contrast, colour or sharpness, smaller ones reduce
    it.

    Args:
        x: 8-bit images of shape (N, C, H, W).
        kind: The `Kind` of each image's change, of shape (N,).
        factor: The factor of each change that has one, of shape (N,).
        table: The new levels of each change that is a table, of shape (N, 256).
    """
    kind, factor = kind[:, None, None], factor[:, None, None]
    pixels, levels = x.flatten(2).long(), torch.arange(LEVELS, device=x.device)
    values = x.float()
    grey = _grey(values)
    frequency = _frequency(pixels)
    tables = torch.where(kind == Kind.CONTRAST, _contrast(grey, factor, levels), table.unsqueeze(1))
    tables = torch.where(kind == Kind.AUTO_CONTRAST, _auto_contrast(x, levels), tables)
    tables = torch.where(kind == Kind.EQUALIZE, _equalize(frequency, levels), tables)
    looked_up = tables.expand(-1, x.shape[1], -1).gather(2, pixels).reshape(x.shape)
    kind, factor = kind.unsqueeze(-1), factor.unsqueeze(-1)
    dull = torch.where(kind == Kind.COLOR, grey, _smooth(values))
    return torch.where(kind >= Kind.COLOR, blend(dull, values, factor), looked_up)


def blend(dull: Tensor, vivid: Tensor, factor: Tensor) -> Tensor:
    """Interpolate or extrapolate between two images in float32, truncated to whole levels as in Pillow.

    Args:
        dull: The images at factor 0.
        vivid: The images at factor 1.
        factor: The position between them, or beyond either.
    """
    return (dull + factor * (vivid - dull)).clamp(0, LEVELS - 1).to(torch.uint8)


def brightness(factor: float) -> npt.NDArray[np.uint8]:
    """Return levels between black and the original, or beyond it."""
    levels = np.arange(LEVELS, dtype=np.float32) * np.float32(factor)
    return levels.clip(max=LEVELS - 1).astype(np.uint8)


def posterize(bits: int) -> npt.NDArray[np.uint8]:
    """Return levels with only their highest bits kept."""
    kept = LEVELS - (1 << (8 - bits))
    return np.bitwise_and(np.arange(LEVELS), kept).astype(np.uint8)


def solarize(threshold: float) -> npt.NDArray[np.uint8]:
    """Return levels of which those from the threshold on are inverted: 0 inverts all, 256 none."""
    levels = np.arange(LEVELS)
    return np.where(levels >= threshold, LEVELS - 1 - levels, levels).astype(np.uint8)


def lighten_dark(by: int) -> npt.NDArray[np.uint8]:
    """Return levels raised in the darker half, and unchanged in the other."""
    levels = np.arange(LEVELS)
    return np.where(levels < LEVELS // 2, np.minimum(levels + by, LEVELS - 1), levels).astype(np.uint8)


def _grey_shares(device: torch.device) -> Tensor:
    return constant("grey", lambda: np.array(_GREY)[:, None, None], device, torch.float32)


def _grey(values: Tensor) -> Tensor:
    """Return the grey level of every pixel (N, 1, H, W)."""
    if values.shape[1] == 1:
        return values
    # sums stay below 2^24, so they are exact in float32 in any order
    total = (values * _grey_shares(values.device)).sum(1, keepdim=True)
    return ((total + (1 << (_GREY_BITS - 1))) * 2.0**-_GREY_BITS).floor()


def _frequency(pixels: Tensor) -> Tensor:
    """Count the levels in each channel (N, C, 256) of pixels (N, C, H·W)."""
    none = pixels.new_zeros((*pixels.shape[:2], LEVELS), dtype=torch.int32)
    return none.scatter_add(2, pixels, none.new_ones(1, 1, 1).expand(pixels.shape))


def _contrast(grey: Tensor, factor: Tensor, levels: Tensor) -> Tensor:
    count = grey.shape[-2] * grey.shape[-1]
    total = grey.sum((2, 3), dtype=torch.float64).long().unsqueeze(-1)
    # the mean, rounded to the nearest level, in integers, so that it is the same on every device
    mean = (2 * total + count).div(2 * count, rounding_mode="floor").float()
    return blend(mean, levels.float(), factor)


def _auto_contrast(x: Tensor, levels: Tensor) -> Tensor:
    flat = x.flatten(2)
    lowest, highest = flat.amin(2, keepdim=True).double(), flat.amax(2, keepdim=True).double()
    scale = torch.full_like(lowest, LEVELS - 1) / (highest - lowest).clamp(min=1)
    spread = (levels * scale + -lowest * scale).clamp(0, LEVELS - 1).to(torch.uint8)
    return torch.where(highest > lowest, spread, levels.to(torch.uint8))


def _equalize(frequency: Tensor, levels: Tensor) -> Tensor:
    upto = frequency.cumsum(2, dtype=torch.int32)
    below_highest = torch.where(upto < upto[:, :, -1:], upto, 0).amax(2, keepdim=True)
    step = below_highest.div(LEVELS - 1, rounding_mode="floor")
    shifted = upto - frequency + step.div(2, rounding_mode="floor")
    spread = shifted.div(step.clamp(min=1), rounding_mode="floor").clamp(max=LEVELS - 1)
    # too few pixels to spread them over all levels: unchanged
    return torch.where(step > 0, spread, levels).to(torch.uint8)


def _smooth(values: Tensor) -> Tensor:
    """Replace every pixel, except on the border, by the mean with its neighbours, in which it has weight five."""
    if min(values.shape[-2:]) < 3:
        return values
    rows = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    inner = values[..., 1:-1, 1:-1]
    total = (rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]).add(inner, alpha=4)
    # a thirteenth rounded to the nearest, plus half a unit, so that the rounding of 1/13 does not matter
    smoothed = ((total + 6.5) / 13).floor()
    return values + torch.nn.functional.pad(smoothed - inner, (1, 1, 1, 1))
