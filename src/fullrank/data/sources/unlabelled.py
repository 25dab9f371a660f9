"""Read samples without labels for predictions: image files, folders of images, and arrays in an `.npz` file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fullrank.data.augment.resize import resize
from fullrank.data.sources.decode import Pixels
from fullrank.data.sources.decoders import decoded
from fullrank.data.sources.folder import SUFFIXES
from fullrank.data.sources.images import FEW_FILES, cores, middle, reject_missing_pillow
from fullrank.data.sources.listing import visible
from fullrank.data.sources.memory import as_tensor
from fullrank.data.sources.npz import opened_npz, read_array
from fullrank.data.sources.progress import report
from fullrank.errors import InputError

ARRAYS = ("x", "x_test", "x_train")
"""Names of arrays of samples in an `.npz` file; the first that exists is taken."""
AT_ONCE = 128
"""The number of images that are decoded at a time."""


@dataclass
class ImageFiles:
    """Image files that are decoded in batches to the shape of the images with which a model was trained.

    They are resized as the training data were. Those that then have another shape are resized to the height and width
    of the training images, and grey and colour images are converted into each other; `changed` counts both.
    """

    files: Sequence[Path]
    names: Sequence[str]
    """The path of each file, relative to the folder that was named."""
    shape: tuple[int, ...]
    """Channels, height and width of the model's images."""
    size: int | Sequence[int] = 0
    """The key `data.size` of the training data."""
    ignored: Sequence[str] = ()
    """Names of files in the folders that are not images."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why files could not be read, by their names; complete after all files have been read."""
    changed: dict[str, int] = field(default_factory=dict)
    """The number of images by the change that was made to them."""

    def read(self) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names and images (N, C, H, W) of the files that can be read, some at a time."""
        starts = range(0, len(self.files), AT_ONCE)
        chunks = ([str(file) for file in self.files[start : start + AT_ONCE]] for start in starts)
        processes = 1 if len(self.files) <= FEW_FILES else min(cores(), len(starts))
        for start, found in zip(starts, decoded(chunks, self.size, processes), strict=True):
            names: list[str] = []
            images: list[Tensor] = []
            for name, pixels in zip(self.names[start : start + AT_ONCE], found, strict=True):
                if isinstance(pixels, str):
                    self.unreadable[name] = pixels
                else:
                    names.append(name)
                    images.append(self._fitted(pixels))
            report("decoding images", start + len(found), len(self.files))
            if images:
                yield names, torch.stack(images)

    def _fitted(self, pixels: Pixels) -> Tensor:
        side = self.size
        if isinstance(side, int) and side and tuple(self.shape[1:]) == (side, side):
            pixels = middle(pixels, side)
        fitted, changes = as_trained(torch.from_numpy(pixels.copy())[None], self.shape)
        for change in changes:
            self.changed[change] = self.changed.get(change, 0) + 1
        return fitted[0]


def image_files(given: Sequence[str | Path], shape: tuple[int, ...], size: int | Sequence[int] = 0) -> ImageFiles:
    """Return the image files among files and folders, in order of their names.

    Args:
        given: Image files, and folders that are searched for images at any depth.
        shape: Channels, height and width of the images that are wanted.
        size: The key `data.size` of the training data.

    Raises:
        InputError: If a path does not exist, a folder has no images, or Pillow is missing.
    """
    reject_missing_pillow()
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
        there = list(_files_in(one))
        start = one if len(given) == 1 else Path()
        found = [path for path in there if path.suffix.lower() in SUFFIXES]
        if not found:
            raise InputError(f'the folder "{one}" has no images at any depth ({", ".join(SUFFIXES)})')
        files += found
        names += [path.relative_to(start).as_posix() for path in found]
        ignored += [path.relative_to(start).as_posix() for path in there if path.suffix.lower() not in SUFFIXES]
    return ImageFiles(files, names, shape, size, ignored)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder at any depth, without those that are hidden; links to folders are not followed."""
    folders, files = visible(folder)
    yield from (folder / name for name in files)
    for name in folders:
        if not (folder / name).is_symlink():
            yield from _files_in(folder / name)


def array_in(path: Path) -> tuple[str, Tensor]:
    """Read the samples of an `.npz` file.

    Args:
        path: The file.

    Returns:
        The name of their array, the first of `ARRAYS` that is in the file, and the samples.

    Raises:
        InputError: If the file cannot be read or has no such array.
    """
    with opened_npz(path) as file:
        name = next((name for name in ARRAYS if name in file.files), None)
        if name is None:
            raise InputError(
                f"{path} has the arrays {', '.join(sorted(file.files)) or '(none)'}; name the array of the samples x"
            )
        return name, as_tensor(f"{path}: {name}", read_array(path, file, name))


def as_trained(images: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Convert images to the shape of the images with which a model was trained.

    Grey becomes colour by three equal channels, colour becomes grey as in Pillow (ITU-R 601).

    Args:
        images: 8-bit images of shape (N, C, H, W).
        shape: Channels, height and width of the model's images.

    Returns:
        The converted images, and a phrase for each conversion.

    Raises:
        InputError: If the number of channels cannot be converted.

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


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]
