"""Bilinear resizing of 8-bit images, of a whole data set once and of a random window in every batch.

The arithmetic is that of Pillow's `Image.resize` with BILINEAR, which smooths before it shrinks: along the rows first,
then along the columns, each with weights of 22 binary digits and rounded to a level. (If it saves work, newer versions
of Pillow start with the columns; then a level may differ by one.) Integer arithmetic gives the same result everywhere,
so a resized data set has one fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fullrank.data.augment.operation import Operation, reject_arguments
from fullrank.data.dataset import DataSet, Split
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.decode import new_shape
from fullrank.errors import InputError

_WEIGHT_BITS = 22
_WHOLE = 1 << _WEIGHT_BITS
_CHUNK_BYTES = 1 << 24


def resized(data: DataSet, size: int | Sequence[int]) -> DataSet:
    """Resize the images of a data set.

    Args:
        data: The data set, of 8-bit images unless `size` is 0.
        size: The length of the short side, to which images are resized in proportion, or (height, width); 0 keeps the
            stored size.

    Returns:
        The data set with the resized images, or the same one if nothing changes.

    Raises:
        InputError: If the size is negative, if samples are not 8-bit images, or if the result would not fit in memory.

    >>> import fullrank.data
    >>> resized(fullrank.data.load_dataset("digits"), 16).input_shape
    (1, 16, 16)
    """
    if size == 0:
        return data
    if isinstance(size, int) and size < 0:
        raise InputError(f"data.size = {size}: must be a number of pixels, or 0 to keep the stored size")
    if not data.images:
        raise InputError(
            f"data.size = {size}: only 8-bit images can be resized, but samples of {data.name} are"
            f" {data.train.x.dtype} of shape {data.input_shape}; leave it at 0"
        )
    height, width = data.input_shape[1:]
    shape = new_shape(height, width, size)
    if shape == (height, width):
        return data
    count = len(data.train) + (0 if data.test is None else len(data.test))
    reject_too_large(f"data.size = {size}: the images", count * data.in_channels * shape[0] * shape[1], "take less")

    def changed(split: Split) -> Split:
        return replace(split, x=resize(split.x, *shape))

    test = None if data.test is None else changed(data.test)
    # the file has the images before resizing
    return replace(data, train=changed(data.train), test=test, file=None)


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Resize 8-bit images as Pillow does with BILINEAR.

    Args:
        x: Images of shape (N, C, H, W).
        height: The new height.
        width: The new width.
    """
    largest = x.shape[1] * max(x.shape[2], height) * max(x.shape[3], width)
    rows = max(1, _CHUNK_BYTES // (4 * largest))
    result = torch.empty((*x.shape[:2], height, width), dtype=x.dtype)
    for start in range(0, len(x), rows):
        columns = _resize_axis(x[start : start + rows], 3, width)
        result[start : start + rows] = _resize_axis(columns, 2, height)
    return result


def _resize_axis(x: Tensor, axis: int, size: int) -> Tensor:
    if x.shape[axis] == size:
        return x
    sources, weights = _taps(x.shape[axis], size)
    along = [size if dimension == axis else 1 for dimension in range(4)]
    total: Tensor | int = _WHOLE // 2
    for source, weight in zip(sources, weights, strict=True):
        pixels = x.index_select(axis, torch.from_numpy(source)).int()
        total = pixels * torch.from_numpy(weight).reshape(along) + total
    assert isinstance(total, Tensor)
    return (total >> _WEIGHT_BITS).to(x.dtype)


def _taps(stored: int, wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return for every new position the old positions that contribute and their weights, each (taps, wanted)."""
    step = stored / wanted
    reach = max(step, 1.0)
    centre = (np.arange(wanted) + 0.5) * step
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + reach + 0.5).astype(np.int64), stored)
    source = first + np.arange(int((end - first).max()))[:, None]
    weight = np.maximum(1 - np.abs((source - centre + 0.5) / reach), 0)
    weight[source >= end] = 0
    weight /= weight.sum(0)
    return np.minimum(source, stored - 1), np.floor(weight * _WHOLE + 0.5).astype(np.int32)


@dataclass(frozen=True)
class ResizedCrop(Operation):
    """A window of random size, shape and position, resized to the whole image (Szegedy et al., arXiv:1409.4842).

    As in torchvision's RandomResizedCrop, there are ten tries of an area between .08 and 1 of the image's and a ratio
    of width to height between 3/4 and 4/3; the first window that fits is used, otherwise the largest such window in the
    centre. All tries are drawn in advance, so that every sample needs the same number of random numbers.
    """

    tries: ClassVar[int] = 10
    draws: ClassVar[int] = 2 * tries + 2
    least_area: ClassVar[float] = 0.08
    ratios: ClassVar[tuple[float, float]] = (3 / 4, 4 / 3)

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Crop and resize one window per sample."""
        top, left, height, width = self._window(u.double(), *x.shape[-2:])
        return _stretch(_stretch(x, 3, left, width), 2, top, height)

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> ResizedCrop:
        """Create the operation, which takes no arguments."""
        reject_arguments("resized-crop", arguments)
        return cls()

    def _window(self, u: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return top, left, height and width of each sample's window, as whole numbers in float64."""
        narrow, wide = map(math.log, self.ratios)
        area = rows * columns * (self.least_area + (1 - self.least_area) * u[:, : self.tries])
        ratio = (narrow + (wide - narrow) * u[:, self.tries : 2 * self.tries]).exp()
        width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (width >= 1) & (width <= columns) & (height >= 1) & (height <= rows)
        taken = fits & (fits.cumsum(1) == 1)
        none = ~fits.any(1)
        whole_height, whole_width = self._fallback(rows, columns)
        height = torch.where(none, whole_height, (height * taken).sum(1))
        width = torch.where(none, whole_width, (width * taken).sum(1))
        top, left = (
            torch.where(none, (spare / 2).floor(), torch.minimum((number * (spare + 1)).floor(), spare))
            for number, spare in ((u[:, -2], rows - height), (u[:, -1], columns - width))
        )
        return top, left, height, width

    def _fallback(self, rows: int, columns: int) -> tuple[float, float]:
        narrow, wide = self.ratios
        if columns / rows < narrow:
            return float(round(columns / narrow)), float(columns)
        if columns / rows > wide:
            return float(rows), float(round(rows * wide))
        return float(rows), float(columns)


def _stretch(x: Tensor, axis: int, start: Tensor, length: Tensor) -> Tensor:
    """Enlarge the part of each image with this start and length to the whole axis."""
    size = x.shape[axis]
    shape = (-1, 1, 1, size) if axis == 3 else (-1, 1, size, 1)
    start, last = start[:, None], length[:, None] - 1
    position = (torch.arange(size, device=x.device) + 0.5) * (length[:, None] / size) - 0.5
    below = position.floor()
    towards = position - below
    near, far = (
        x.gather(axis, (start + torch.minimum(at.clamp(min=0), last)).long().reshape(shape).expand(x.shape))
        for at in (below, below + 1)
    )
    if x.is_floating_point():
        return near + (far - near) * towards.reshape(shape).to(x.dtype)
    to_near, to_far = ((share * _WHOLE + 0.5).floor().int().reshape(shape) for share in (1 - towards, towards))
    return ((near * to_near + far * to_far + _WHOLE // 2) >> _WEIGHT_BITS).to(x.dtype)
