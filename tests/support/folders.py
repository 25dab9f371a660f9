"""Small folders of images, written by tests."""

import numpy as np
from PIL import Image


def picture(level, height=8, width=8, spread=0):
    """An image of red, green and blue; `level` is one number, or one of each colour."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = level
    if spread:
        pixels += np.random.default_rng(spread).integers(0, 40, pixels.shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def write(path, image=None):
    """Write an image into a new folder; the suffix says the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture(100)).save(path)
    return path


def tree(root, files):
    """Write an image for every path, each of another grey level, and return the levels by path."""
    levels = {name: 10 + number % 200 for number, name in enumerate(files)}
    for name, level in levels.items():
        write(root / name, picture((level, 0, 0)))
    return levels


def levels(split):
    """The levels of `tree` in the order of a split."""
    return split.x[:, 0, 0, 0].tolist()
