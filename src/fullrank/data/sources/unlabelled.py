"""Samples without labels, for a trained model to predict: image files, folders of them, and arrays in an `.npz`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.resize import resize
from fullrank.data.sources.memory import as_tensor
from fullrank.data.sources.npz import opened_npz, read_array
from fullrank.errors import InputError

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes of the files in a folder that are taken for images."""
ARRAYS = ("x", "x_test", "x_train")
"""Arrays of an `.npz` that hold samples, of which the first that is there is taken."""
AT_ONCE = 256
"""The number of images that are decoded at a time."""


@dataclass
class ImageFiles:
    """Image files that are decoded a few at a time, in the shape of the images with which a model was trained.

    Images of another size are resized to the trained height and width, and grey and colour images are converted into
    each other; `changed` counts them.
    """

    files: Sequence[Path]
    names: Sequence[str]
    """What each file is called, relative to the folder that was named."""
    shape: tuple[int, ...]
    """Channels, height and width of the model's images."""
    ignored: Sequence[str] = ()
    """Names of files in the folders that are no images."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why files could not be read, by their names; complete after all files have been read."""
    changed: dict[str, int] = field(default_factory=dict)
    """How many images were changed, by what was done to them."""

    def read(self) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names and images (N, C, H, W) of the files that can be read, some at a time."""
        for start in range(0, len(self.files), AT_ONCE):
            names: list[str] = []
            images: list[Tensor] = []
            for name, file in zip(
                self.names[start : start + AT_ONCE], self.files[start : start + AT_ONCE], strict=True
            ):
                try:
                    images.append(self._fitted(decoded(file)))
                    names.append(name)
                except InputError as error:
                    self.unreadable[name] = str(error)
            if images:
                yield names, torch.stack(images)

    def _fitted(self, image: Tensor) -> Tensor:
        fitted, changes = as_trained(image[None], self.shape)
        for change in changes:
            self.changed[change] = self.changed.get(change, 0) + 1
        return fitted[0]


def image_files(given: Sequence[str | Path], shape: tuple[int, ...]) -> ImageFiles:
    """Return the image files among files and folders, in order of their names.

    Args:
        given: Image files, and folders that are searched for images at any depth.
        shape: Channels, height and width of the images that are wanted.

    Raises:
        InputError: If a path does not exist, a folder has no images, or Pillow is missing.
    """
    if importlib.util.find_spec("PIL") is None:
        raise InputError("image files are read with Pillow, which is missing: pip install 'fullrank[images]'")
    files: list[Path] = []
    names: list[str] = []
    ignored: list[str] = []
    for one in map(Path, given):
        if not one.exists():
            raise InputError(f'there is no file or folder "{one}"')
        if not one.is_dir():
            files.append(one)
            names.append(one.as_posix())
            continue
        there = sorted(path for path in one.rglob("*") if path.is_file() and not _hidden(path.relative_to(one)))
        start = one if len(given) == 1 else Path()
        found = [path for path in there if path.suffix.lower() in IMAGES]
        if not found:
            raise InputError(f'the folder "{one}" has no images ({", ".join(sorted(IMAGES))}) at any depth')
        files += found
        names += [path.relative_to(start).as_posix() for path in found]
        ignored += [path.relative_to(start).as_posix() for path in there if path.suffix.lower() not in IMAGES]
    return ImageFiles(files, names, shape, ignored)


def array_in(path: Path) -> tuple[str, Tensor]:
    """Return the samples that an `.npz` holds, and the name of their array (the first of `ARRAYS`)."""
    with opened_npz(path) as file:
        name = next((name for name in ARRAYS if name in file.files), None)
        if name is None:
            raise InputError(
                f"{path} has the arrays {', '.join(sorted(file.files)) or '(none)'}; name the array of the samples x"
            )
        return name, as_tensor(f"{path}: {name}", read_array(path, file, name))


def as_trained(images: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return 8-bit images (N, C, H, W) with the channels, height and width of a shape, and what was done to them.

    Grey becomes colour by three equal channels, colour becomes grey as in Pillow (ITU-R 601).

    >>> as_trained(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), (3, 8, 8))[1]
    ('converted from grey to colour', 'resized to 8×8')
    """
    done: list[str] = []
    channels, height, width = shape
    if images.shape[1] != channels:
        if {images.shape[1], channels} != {1, 3}:
            raise InputError(f"images of {images.shape[1]} channels cannot be converted to {channels}")
        done.append(f"converted from {'grey to colour' if channels == 3 else 'colour to grey'}")
        images = images.expand(-1, 3, -1, -1) if channels == 3 else _grey(images)
    if tuple(images.shape[2:]) != (height, width):
        done.append(f"resized to {height}×{width}")
        images = resize(images, height, width)
    return images, tuple(done)


def decoded(path: Path) -> Tensor:
    """Return the image of a file, (1, H, W) in grey or (3, H, W) in colour.

    Raises:
        InputError: If it cannot be read; the message is a clause.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(" ".join(str(error).split())) from None
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
