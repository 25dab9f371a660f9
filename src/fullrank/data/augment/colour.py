"""Changing levels of 8-bit images: whole batches, each image in its own way.

Nearly every change gives a pixel a level that depends on its old one alone, once the image has been looked at as a
whole: that is one table of 256 levels per image or channel, and one lookup for the batch. Only two changes look at
other channels or pixels. Levels come out as Pillow's ImageOps and ImageEnhance give them, roundings included; the
comments say which.
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
    """How an image's levels change."""

    TABLE = 0
    """By a table that does not depend on the image."""
    CONTRAST = 1
    """Away from, or towards, the image's mean grey."""
    AUTO_CONTRAST = 2
    """Spread, per channel, so that the darkest is 0 and the lightest 255."""
    EQUALIZE = 3
    """Spread, per channel, so that all levels are about equally frequent."""
    COLOR = 4
    """Away from, or towards, the pixel's own grey; a grey image has no colour and stays as it is."""
    SHARPNESS = 5
    """Away from, or towards, the smoothed image."""


def place(device: torch.device) -> None:
    """Put constants on a device ahead of time."""
    _grey_shares(device)


def recolour(x: Tensor, kind: Tensor, factor: Tensor, table: Tensor) -> Tensor:
    """Change each image of (N, C, H, W) by its kind (N,), and as this asks for by its factor (N,) or table (N, 256).

    A factor of 1 leaves an image as it is, above 1 there is more of contrast, colour or sharpness, below 1 less.
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
    """From the first through the second and beyond, in float32 and cut off to whole levels as Pillow does."""
    return (dull + factor * (vivid - dull)).clamp(0, LEVELS - 1).to(torch.uint8)


def brightness(factor: float) -> npt.NDArray[np.uint8]:
    """Levels between black and, beyond the original, white."""
    levels = np.arange(LEVELS, dtype=np.float32) * np.float32(factor)
    return levels.clip(max=LEVELS - 1).astype(np.uint8)


def posterize(bits: int) -> npt.NDArray[np.uint8]:
    """Levels with only their highest bits kept."""
    kept = LEVELS - (1 << (8 - bits))
    return np.bitwise_and(np.arange(LEVELS), kept).astype(np.uint8)


def solarize(threshold: float) -> npt.NDArray[np.uint8]:
    """Levels from the threshold on inverted: 0 inverts all, 256 none."""
    levels = np.arange(LEVELS)
    return np.where(levels >= threshold, LEVELS - 1 - levels, levels).astype(np.uint8)


def lighten_dark(by: int) -> npt.NDArray[np.uint8]:
    """Levels of the darker half raised, the others as they were."""
    levels = np.arange(LEVELS)
    return np.where(levels < LEVELS // 2, np.minimum(levels + by, LEVELS - 1), levels).astype(np.uint8)


def _grey_shares(device: torch.device) -> Tensor:
    return constant("grey", lambda: np.array(_GREY)[:, None, None], device, torch.float32)


def _grey(values: Tensor) -> Tensor:
    """The level of grey of every pixel (N, 1, H, W)."""
    if values.shape[1] == 1:
        return values
    # sums stay below 2^24, so float32 holds them exactly and the order of additions does not matter
    total = (values * _grey_shares(values.device)).sum(1, keepdim=True)
    return ((total + (1 << (_GREY_BITS - 1))) * 2.0**-_GREY_BITS).floor()


def _frequency(pixels: Tensor) -> Tensor:
    """How often each level occurs in each channel (N, C, 256), of pixels (N, C, H·W)."""
    none = pixels.new_zeros((*pixels.shape[:2], LEVELS), dtype=torch.int32)
    return none.scatter_add(2, pixels, none.new_ones(1, 1, 1).expand(pixels.shape))


def _contrast(grey: Tensor, factor: Tensor, levels: Tensor) -> Tensor:
    count = grey.shape[-2] * grey.shape[-1]
    total = grey.sum((2, 3), dtype=torch.float64).long().unsqueeze(-1)
    # the mean, rounded to the nearest level, in whole numbers: the same on every device
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
    # too few pixels to spread them over all levels: as it was
    return torch.where(step > 0, spread, levels).to(torch.uint8)


def _smooth(values: Tensor) -> Tensor:
    """Every pixel but those of the border: a mean with its neighbours in which it counts five times."""
    if min(values.shape[-2:]) < 3:
        return values
    rows = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    inner = values[..., 1:-1, 1:-1]
    total = (rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]).add(inner, alpha=4)
    # a thirteenth rounded to the nearest: half a unit more than needed, so that no rounding of 1/13 matters
    smoothed = ((total + 6.5) / 13).floor()
    return values + torch.nn.functional.pad(smoothed - inner, (1, 1, 1, 1))
