"""Read a folder of images that are sorted into folders of classes, as in `root/class` or `root/site/train/class`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fullrank.data.dataset import DataSet
from fullrank.data.delimited import read_columns
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing, visible
from fullrank.data.split import split_by_class
from fullrank.errors import InputError

SPLITS = {"train": "train", "test": "test", "val": "val", "validation": "val"}
"""The folders that hold a part of the images, by their names in lower case."""
TEST_SHARE = 0.3
"""The share of the images of every domain and class that becomes the test part of a folder without one."""
GROUPS = "groups.csv"
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k"),
)
"""The endings of names of image files, which decide at which depth the folders of classes are."""
LAYOUTS = "class/*, split/class/*, domain/class/* or domain/split/class/* (a split is named train, test or val)"
_NAMED = 3
_DEEPEST = 3


def folder(
    root: str | Path = "", seed: int = 0, size: int | Sequence[int] = 0, unreadable: Literal["stop", "skip"] = "stop"
) -> DataSet:
    """Load a folder of images, as :func:`list_folder` lists them.

    Args:
        root: The folder.
        seed: The seed of the test part, for a folder without one.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.

    Raises:
        InputError: If no folder is given, or it is not of the form that `list_folder` describes.
    """
    if not str(root):
        raise InputError('data.name = "folder" needs data.root, the folder of the images')
    path = Path(root).expanduser().absolute()
    return load_listing(
        path.name or "folder", lambda: list_folder(path, seed), root=path, size=size, unreadable=unreadable
    )


def list_folder(root: Path, seed: int = 0) -> Listing:
    """List the images below a folder.

    All images are at one depth. The folder of an image is its class. The folders above, if there are any, are the parts
    of the data set if all of them are named train, test, val or validation, otherwise domains, such as hospitals; a
    domain may have its own parts. Classes are the sorted union over all domains and parts, so that a domain may lack
    some, and images are in the order of domain, class and file name.

    In a domain without a test part, val takes its place; otherwise val is left out. Without either anywhere, 30 % of
    the images of each domain and class, drawn by the seed, become the test part.

    `groups.csv` in the folder, with the columns path and group, names images that must not be separated. It must list
    every image; an image with an empty group belongs to no other.

    Args:
        root: The folder.
        seed: The seed of the test part, for a folder without one.

    Raises:
        InputError: If the tree or `groups.csv` is not of this form, or a group is in both training and test.
    """
    found = _classes(root)
    names = tuple(sorted({place.name for place in found}))
    number = {name: k for k, name in enumerate(names)}
    groups = _read_groups(root)
    parts: dict[str, list[ImageFile]] = {"": [], "train": [], "test": [], "val": []}
    tested = {place.domain for place in found if place.split == "test" and place.files}
    for place in sorted(found, key=lambda place: (place.domain, place.name, place.split)):
        split = "test" if place.split == "val" and place.domain not in tested else place.split
        parts[split] += place.images(number[place.name], groups or {})
    remarks = []
    if groups is not None:
        remarks += _check_groups(root, found, groups)
    if parts["val"]:
        remarks.append(
            f"the {len(parts['val'])} images of the validation part in {root} are not used, because there is a test "
            "part too; data.validation takes a share of the training images"
        )
    train, test = parts["train"], parts["test"]
    by_seed = not test
    if by_seed:
        train, test = _split_off(root, parts[""] or train, seed)
    if not train:
        raise InputError(f"{root} has a test part and no training part; name its folder train")
    _reject_split_groups(root, train, test)
    described_by = (root / GROUPS,) if groups is not None else ()
    return Listing(train, test, names, described_by, tuple(remarks), f"seed {seed}" if by_seed else "")


@dataclass(frozen=True)
class _Class:
    """A folder with images of one class."""

    domain: str
    split: str
    name: str
    folder: Path
    below: str
    """The path of the folder below the root, with slashes."""
    files: Sequence[str]

    def images(self, label: int, groups: Mapping[str, str]) -> Iterator[ImageFile]:
        """Yield its images, with the groups that paths below the root have."""
        folder = str(self.folder)
        for file in self.files:
            group = groups.get(f"{self.below}/{file}", "") if groups else ""
            yield ImageFile(os.path.join(folder, file), label, self.domain, group)


@dataclass(frozen=True)
class _Folder:
    """A folder of the tree, with the names of the folders that lead to it and of its files."""

    way: tuple[str, ...]
    files: Sequence[str]

    @property
    def image(self) -> str:
        """The first file whose name is that of an image, with its way; empty if there is none."""
        first = next((name for name in self.files if name.lower().endswith(SUFFIXES)), "")
        return "/".join((*self.way, first)) if first else ""


def _classes(root: Path) -> list[_Class]:
    """Return the folders of classes."""
    tree = [*_walk(root, ())]
    depth = _depth(root, tree)
    of_classes = [found for found in tree if len(found.way) == depth]
    filled = {found.way[0] for found in of_classes if found.files}
    empty = sorted({found.way[0] for found in tree if found.way} - filled)
    if depth > 1 and empty:
        raise InputError(f"{root / empty[0]} has no images; put some in, or remove the folder")
    above = _above(root, depth, of_classes)
    classes = []
    for found in of_classes:
        place = dict(zip((*above, "class"), found.way, strict=True))
        split = SPLITS[place["split"].lower()] if "split" in place else ""
        below = root.joinpath(*found.way), "/".join(found.way)
        classes.append(_Class(place.get("domain", ""), split, place["class"], *below, found.files))
    return classes


def _walk(path: Path, way: tuple[str, ...]) -> Iterator[_Folder]:
    """Yield the folder and those below it, sorted by name, without what is hidden."""
    folders, files = visible(path)
    yield _Folder(way, files)
    if len(way) <= _DEEPEST:
        for name in folders:
            yield from _walk(path / name, (*way, name))


def _depth(root: Path, tree: Sequence[_Folder]) -> int:
    """Return the depth at which the folders of classes are: that of all images."""
    examples: dict[int, str] = {}
    for found in tree:
        if found.image:
            examples.setdefault(len(found.way), found.image)
    if not examples:
        raise InputError(f"{root} has no images; they must be below it as {LAYOUTS}")
    if len(examples) > 1:
        shallow, deep = examples[min(examples)], examples[max(examples)]
        raise InputError(
            f"in {root}, images are at different depths: {shallow} and {deep}; all of them must be below it as one of "
            f"{LAYOUTS}"
        )
    [(depth, example)] = examples.items()
    if not 1 <= depth <= _DEEPEST:
        raise InputError(f"{root} has images such as {example}; they must be below it as {LAYOUTS}")
    return depth


def _above(root: Path, depth: int, of_classes: Sequence[_Folder]) -> tuple[str, ...]:
    """Return the kinds of the folders above those of classes."""
    if depth == 1:
        names = {found.way[0] for found in of_classes}
        if all(name.lower() in SPLITS for name in names):
            raise InputError(
                f"the images in {root / min(names)} have no classes; put them in folders of classes below it"
            )
        return ()
    last = {found.way[depth - 2] for found in of_classes}
    splits = {name for name in last if name.lower() in SPLITS}
    if splits and splits != last:
        raise InputError(
            f"in {root}, {min(splits)} is the name of a part of the data and {min(last - splits)} is not; the folders "
            "above those of classes must be either all parts (train, test, val) or all domains"
        )
    if depth == 2:
        return ("split",) if splits else ("domain",)
    if not splits:
        raise InputError(
            f"in {root}, the folders of classes are below {min(last)}, which is not the name of a part (train, test, "
            f"val); images must be below it as {LAYOUTS}"
        )
    return "domain", "split"


def _read_groups(root: Path) -> dict[str, str] | None:
    """Return the group of each image by its path below the root; None if there is no file of groups."""
    path = root / GROUPS
    if not path.is_file():
        return None
    groups: dict[str, str] = {}
    for row in read_columns(path, ("path", "group")):
        name, group = row.values[0].replace("\\", "/").removeprefix("./"), row.values[1]
        if groups.setdefault(name, group) != group:
            raise InputError(
                f"{path}: row {row.number} gives {name} another group than a row above; an image has one group"
            )
    return groups


def _check_groups(root: Path, found: Sequence[_Class], groups: Mapping[str, str]) -> list[str]:
    """Reject groups that lack images; return a remark on those that name others."""
    names = [f"{place.below}/{file}" for place in found for file in place.files]
    missing = [name for name in names if name not in groups]
    if missing:
        raise InputError(
            f"{root / GROUPS} lacks {len(missing)} of {len(names)} images, such as {', '.join(missing[:_NAMED])}; it "
            "must list all of them by their paths below its folder, with an empty group for those that belong to none"
        )
    beyond = len(groups) - len(names)
    are = "path is" if beyond == 1 else "paths are"
    return [f"{beyond} {are} in {root / GROUPS} and no image of the folder; fullrank ignores that"] if beyond else []


def _split_off(root: Path, files: Sequence[ImageFile], seed: int) -> tuple[list[ImageFile], list[ImageFile]]:
    """Split a share of each domain and class off as the test part; images of a group stay together.

    A group counts for the domain and class of its first image.
    """
    groups = [file.group or str(number) for number, file in enumerate(files)]
    own = [not file.group for file in files]
    units = {unit: k for k, unit in enumerate(dict.fromkeys(zip(own, groups, strict=True)))}
    unit_of = np.array([units[unit] for unit in zip(own, groups, strict=True)], np.int64)
    _, first = np.unique(unit_of, return_index=True)
    domains = {domain: k for k, domain in enumerate(sorted({file.domain for file in files}))}
    stratum = [files[k].label * len(domains) + domains[files[k].domain] for k in first]
    _, taken = split_by_class(torch.tensor(stratum, dtype=torch.int64), TEST_SHARE, seed)
    if not len(taken):
        raise InputError(f"{root} has too few images to split a test part off; put some in a folder named test")
    in_test = np.isin(unit_of, taken)
    train = [file for file, apart in zip(files, in_test, strict=True) if not apart]
    return train, [file for file, apart in zip(files, in_test, strict=True) if apart]


def _reject_split_groups(root: Path, train: Sequence[ImageFile], test: Sequence[ImageFile]) -> None:
    """Reject groups that have images in both parts."""
    trained = {file.group: file for file in train if file.group}
    for file in test:
        if file.group in trained:
            one, other = (os.path.relpath(at.path, root) for at in (trained[file.group], file))
            raise InputError(
                f"{root / GROUPS}: group {file.group} is in both training and test, with {one} and {other}; move all "
                "images of a group to one side"
            )
