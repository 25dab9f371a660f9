"""Load data sets of image files, which are decoded once and kept in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fullrank.data.dataset import DataSet, Split
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.cache import LIMIT, Content, cached_as
from fullrank.data.sources.cells import numbered
from fullrank.data.sources.decode import Pixels
from fullrank.data.sources.decoders import decoded
from fullrank.data.sources.listing import ImageFile, Listing
from fullrank.data.sources.progress import report
from fullrank.errors import InputError

FILES_NAMED = 5
CHUNK_FILES = 128
CHUNK_BYTES = 2**22
"""The largest number of files, and of their bytes, that a process is given at once."""
FEW_FILES = 256
"""The number of files that are decoded before other processes would have started."""
LEAST_KEPT = LIMIT // 64
"""Images of at least this many bytes are cached; files take longer to decode than the bytes of a binary format."""
_DECODING = "1"  # changes when the same files give other pixels


def load_listing(
    name: str,
    list_files: Callable[[], Listing],
    *,
    root: Path,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: tuple[str, ...] = (),
    domains_order: Sequence[str] | None = None,
    colour: bool = False,
) -> DataSet:
    """Load the images that a listing names, from the cache if they are there.

    Images become 8-bit grey, or red, green and blue if any of them has colour. With a number for `size` they are
    resized to that short side in proportion; unless all then have one shape, the square in the middle is cut out.

    Args:
        name: The name of the data set.
        list_files: Returns the list of the files; it is called whenever the data set is loaded.
        root: The folder of the data set, which must contain all files.
        size: Length of the short side of the images, or their height and width; 0 keeps the stored size.
        unreadable: Whether a file that cannot be read stops the run or is left out.
        mean: The usual mean of the images, per channel.
        std: Their usual standard deviation.
        augment: The usual augmentation.
        domains_order: The names of the domains in the order of their numbers; by default sorted.
        colour: Whether images have three channels even if none of them has colour.

    Raises:
        InputError: If a file is outside the folder, if files cannot be read, or if the images differ in shape.
    """
    listing = list_files()
    for part, files in (("training", listing.train), ("test", listing.test)):
        if not files:
            raise InputError(f"{name} in {root} has no {part} images")
    found = _survey(listing, root)
    images = _Images(name, found, size, unreadable, colour)

    def complete(content: Content) -> DataSet:
        return DataSet(
            name,
            content.train,
            content.test,
            content.classes,
            domains=content.domains,
            clients=content.clients,
            mean=mean,
            std=std,
            augment=augment,
            unreadable=content.unreadable,
            remarks=listing.remarks,
        )

    place = json.dumps([os.path.realpath(root), size, unreadable, colour, listing.variant])
    return cached_as(name, place, found.state, lambda: images.content(listing, domains_order), complete, LEAST_KEPT)


@dataclass(frozen=True)
class _Survey:
    """The files of a listing and their state, in the order of training and test."""

    paths: list[str]
    names: list[str]
    """The paths below the folder of the data set."""
    sizes: list[int]
    """The sizes in bytes, 0 for a file that does not exist."""
    state: str
    """A hash that changes with the list and with every file."""


def _survey(listing: Listing, root: Path) -> _Survey:
    inside = _Inside(root)
    digest = hashlib.sha256(json.dumps([_DECODING, len(listing.train), listing.classes]).encode())
    prefix = f"{root}{os.sep}"
    paths, names, sizes = [], [], []
    for file in (*listing.train, *listing.test):
        path = str(file.path)
        name = path.removeprefix(prefix)
        state = inside.state_of(path)
        digest.update(repr((name, file[1:], state)).encode(errors="surrogatepass"))
        paths.append(path)
        names.append(name)
        sizes.append(state[0])
    for path in map(str, listing.described_by):
        digest.update(repr((path.removeprefix(prefix), inside.state_of(path))).encode(errors="surrogatepass"))
    return _Survey(paths, names, sizes, digest.hexdigest())


class _Inside:
    """Finds the state of files, and rejects links that lead out of a folder."""

    def __init__(self, root: Path):
        self.root = os.path.realpath(root)
        self._folders: set[str] = set()

    def state_of(self, path: str) -> tuple[int, ...]:
        """Return size, times and inode of a file; zeros for one that does not exist."""
        folder = path[: path.rfind(os.sep) + 1]
        if folder not in self._folders:
            self._reject_outside(folder)
            self._folders.add(folder)
        try:
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                self._reject_outside(path)
                state = os.stat(path)
        except OSError:
            return (0,)
        # unlike the modification time, the time of the last change cannot be set
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino

    def _reject_outside(self, path: str) -> None:
        real = os.path.realpath(path)
        if real != self.root and not real.startswith(os.path.join(self.root, "")):
            raise InputError(
                f"{path} leads out of the data set's folder, to {real}; copy the file into {self.root}, or give "
                "the folder that has all of it as data.root"
            )


@dataclass(frozen=True)
class _Images:
    """The images of a data set, to be decoded."""

    name: str
    found: _Survey
    size: int | Sequence[int]
    unreadable: Literal["stop", "skip"]
    colour: bool

    def content(self, listing: Listing, domains_order: Sequence[str] | None) -> Content:
        """Return the images with their labels, domains, groups and clients."""
        reject_missing_pillow()
        x, problems = self._decode()
        self._reject_unreadable(problems)
        files = [*listing.train, *listing.test]
        keep = np.array([number for number in range(len(files)) if number not in problems])
        middle = int(np.searchsorted(keep, len(listing.train)))
        for part, count in (("training", middle), ("test", len(keep) - middle)):
            if not count:
                raise InputError(f"no {part} image of {self.name} can be read: {self._listed(problems)}")
        if problems:
            x = x[keep]
        domains, columns = _columns(files, domains_order)
        clients = _number_clients(files, columns)
        whole: dict[str, Any] = {name: column[torch.from_numpy(keep)] for name, column in columns.items()}
        pixels = torch.from_numpy(x)
        train, test = (
            Split(pixels[part], **{name: column[part] for name, column in whole.items()})
            for part in (slice(middle), slice(middle, None))
        )
        left_out = tuple(f"{self.found.names[number]}: {why}" for number, why in problems.items())
        return Content(train, test, listing.classes, domains, clients, left_out)

    def _decode(self) -> tuple[Pixels, dict[int, str]]:
        """Return the images, of which those that cannot be read are arbitrary, and why these cannot."""
        total, what = len(self.found.paths), f"decoding {self.name}"
        canvas = Canvas(total, self.size, self.colour)
        problems: dict[int, str] = {}
        processes = 1 if total <= FEW_FILES else min(cores(), math.ceil(total / CHUNK_FILES))
        number = 0
        for images in decoded(self._chunks(), self.size, processes):
            for image in images:
                if isinstance(image, str):
                    problems[number] = image
                else:
                    canvas.put(number, image, self.found.names[number])
                number += 1
            report(what, number, total)
        return canvas.x, problems

    def _chunks(self) -> Iterator[list[str]]:
        paths: list[str] = []
        weight = 0
        for path, size in zip(self.found.paths, self.found.sizes, strict=True):
            if paths and (len(paths) == CHUNK_FILES or weight + size > CHUNK_BYTES):
                yield paths
                paths, weight = [], 0
            paths.append(path)
            weight += size
        yield paths

    def _reject_unreadable(self, problems: dict[int, str]) -> None:
        if problems and self.unreadable == "stop":
            raise InputError(
                f"{len(problems)} of {len(self.found.paths)} image files of {self.name} cannot be read: "
                f'{self._listed(problems)}; repair or remove them, or set data.unreadable = "skip" to leave them out'
            )

    def _listed(self, problems: dict[int, str]) -> str:
        first = [f"{self.found.paths[number]} ({why})" for number, why in [*problems.items()][:FILES_NAMED]]
        return ", ".join(first) + (", …" if len(problems) > FILES_NAMED else "")


class Canvas:
    """An array of decoded images, which gets more channels, or is cropped, if an image needs it.

    Args:
        count: The number of images.
        size: Length of the short side of the images, or their height and width; 0 keeps the stored size.
        colour: Whether images have three channels even if none of them has colour.
    """

    def __init__(self, count: int, size: int | Sequence[int], colour: bool):
        self.size, self.colour = size, colour
        self.x: Pixels = np.empty((count, 0, 0, 0), np.uint8)
        self.first = ""

    def put(self, position: int, image: Pixels, name: str) -> None:
        """Store an image.

        Args:
            position: The position of the image in the array.
            image: The pixels (channels, height, width).
            name: The name of the image, for errors.

        Raises:
            InputError: If the image has another shape than the first one, and no size is given.
        """
        if not self.first:
            self.first = name
            self.x = self._empty(3 if self.colour else len(image), *image.shape[1:])
        if image.shape[1:] != self.x.shape[2:]:
            image = self._cut_all(image, name)
        if len(image) > self.x.shape[1]:
            grey, self.x = self.x, self._empty(3, *self.x.shape[2:])
            self.x[:] = grey
        self.x[position] = image

    def _cut_all(self, image: Pixels, name: str) -> Pixels:
        """Return the square in the middle of an image, after all images before it have been cut in the same way."""
        if not isinstance(self.size, int) or not self.size:
            here, before = ("×".join(map(str, shape)) for shape in (image.shape[1:], self.x.shape[2:]))
            raise InputError(
                f"images have different shapes: {name} has {here} pixels and {self.first} {before}; set data.size, "
                f"as in data.size = {min(*image.shape[1:], *self.x.shape[2:])}, to resize all of them on loading"
            )
        self.x = middle(self.x, self.size)
        return middle(image, self.size)

    def _empty(self, *shape: int) -> Pixels:
        count = len(self.x)
        what = f"{count} images of {'×'.join(map(str, shape))}"
        reject_too_large(what, count * math.prod(shape), "set data.size to make them smaller")
        return np.empty((count, *shape), np.uint8)


def middle(images: Pixels, side: int) -> Pixels:
    """Crop images to the square in the middle.

    Args:
        images: Images of shape (..., height, width).
        side: The side of the square.
    """
    top, left = ((length - side) // 2 for length in images.shape[-2:])
    return np.ascontiguousarray(images[..., top : top + side, left : left + side])


def _columns(
    files: Sequence[ImageFile], domains_order: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return the names of the domains, and the columns of a split: labels, domains and groups."""
    columns = {"y": torch.tensor([file.label for file in files])}
    domains = tuple(domains_order or sorted({file.domain for file in files}))
    if domains == ("",):
        domains = ()
    else:
        number = {domain: k for k, domain in enumerate(domains)}
        columns["domain"] = torch.tensor([number[file.domain] for file in files])
    groups = {group: k for k, group in enumerate(sorted({file.group for file in files} - {""}))}
    if groups:
        # each file without a group becomes another group
        columns["group"] = torch.tensor(
            [groups[file.group] if file.group else len(groups) + k for k, file in enumerate(files)]
        )
    return domains, columns


def _number_clients(files: Sequence[ImageFile], columns: dict[str, Tensor]) -> tuple[str, ...]:
    """Add the column of natural clients, and return their names."""
    names = [file.client for file in files]
    if not any(names):
        return ()
    numbers, clients = numbered(names)
    columns["client"] = torch.from_numpy(numbers)
    return clients


def reject_missing_pillow() -> None:
    """Check that image files can be decoded.

    Raises:
        InputError: If Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise InputError("reading image files needs Pillow: pip install 'fullrank[images]'")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
