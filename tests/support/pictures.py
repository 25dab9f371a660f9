"""Small images of all sorts, and the way to Pillow and back."""

from __future__ import annotations

import platform

import numpy as np
from PIL import Image

SHAPES = [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 20, 33), (3, 33, 20), (3, 8, 8), (3, 2, 5), (1, 1, 1)]

# Where the compiler may join a multiplication and an addition, Pillow itself rounds otherwise now and then.
ROUNDING = 0 if platform.machine().lower() in ("x86_64", "amd64") else 1


def pictures(channels: int, height: int, width: int, each: int = 3, seed: int = 0) -> np.ndarray:
    """Noise, smooth streaks, low contrast and plain colour."""
    rng = np.random.default_rng(seed)
    shape = (each, channels, height, width)
    start = rng.integers(0, 256, (each, channels, 1, 1))
    sorts = [
        rng.integers(0, 256, shape),
        start + np.cumsum(rng.normal(0, 6, shape), -1),
        start + rng.integers(-9, 10, shape),
        np.broadcast_to(start, shape),
    ]
    return np.concatenate([np.clip(sort, 0, 255).astype(np.uint8) for sort in sorts])


def to_pillow(picture: np.ndarray) -> Image.Image:
    """(C, H, W) as an image of mode L or RGB."""
    return Image.fromarray(picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0)))


def from_pillow(image: Image.Image) -> np.ndarray:
    """Back to (C, H, W)."""
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def difference(ours: np.ndarray, theirs: Image.Image) -> int:
    """The largest difference in levels."""
    return int(np.abs(ours.astype(int) - from_pillow(theirs)).max())
