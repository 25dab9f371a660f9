"""List the images of HAM10000 and ISIC 2019, dermatoscopic images of skin lesions, by the site they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fullrank.data.dataset import DataSet
from fullrank.data.delimited import read_columns
from fullrank.data.sources.contained import images_by_name
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing
from fullrank.data.sources.places import find_folder
from fullrank.data.split import TEST_SHARE, split_by_class
from fullrank.errors import InputError

HAM_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HAM_SITES = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
ISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ISIC_SITES = ("BCN", "vidir_molemax", "vidir_modern", "rosendahl", "MSK", "vienna_dias")
"""The centres of FLamby's Fed-ISIC2019, in its order."""

_HAM_TABLES = ("HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab")
_HAM_PAGE = "https://doi.org/10.7910/DVN/DBW86T"
_OTHER_COPY = f"copies elsewhere lack columns, and the file on {_HAM_PAGE} has all"
_ISIC_LABELS = "ISIC_2019_Training_GroundTruth.csv"
_ISIC_LESIONS = "ISIC_2019_Training_Metadata.csv"
_ISIC_SPLITS = ("train_test_split", "train_test_split.csv")
_ISIC_PAGE = "https://challenge.isic-archive.com/data/#2019"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in FLamby


def ham10000(
    root: str | Path = "",
    seed: int = 0,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Load HAM10000 (Tschandl et al. 2018): seven classes, and the four sites of its column `dataset` as domains.

    Needs `HAM10000_metadata`, with or without `.csv`, and the images, in the same folder or any below it. HAM10000 has
    no test split: 20 % of the lesions of each site, drawn by `seed`, become the test split. All images of a lesion are
    a group. Images are 600×450 pixels; `size` is usually given.

    Args:
        root: The folder of the files; by default it is searched in the usual places.
        seed: The seed of the test split.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.

    Raises:
        InputError: If the files are not there, or are not those of HAM10000.
    """
    hint = f"expected there: {_HAM_TABLES[1]} and images, as on {_HAM_PAGE}"
    hint += ' (a folder of sites with a folder for each class is read as data.name = "folder")'
    folder = find_folder("ham10000", root, ("ham10000", "HAM10000"), lambda path: _table(path) is not None, hint)
    listed = partial(list_ham10000, folder, seed)
    return _load("ham10000", listed, folder, size, unreadable, HAM_SITES)


def isic2019(
    root: str | Path = "",
    seed: int = 0,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Load ISIC 2019 (training part) by the six centres of FLamby's Fed-ISIC2019: eight classes, centres as domains.

    Needs `ISIC_2019_Training_GroundTruth.csv`, `ISIC_2019_Training_Metadata.csv` and `HAM10000_metadata`, which names
    the sites of HAM10000's images, and the images, in the same folder or any below it. Images
    without a lesion are left out.

    FLamby's file `train_test_split` is used if it is there. It has images of one lesion on both sides, so the data
    set then has no groups. Without the file, 20 % of the lesions of each centre, drawn by `seed`, become the test
    split, and all images of a lesion are a group.

    Args:
        root: The folder of the files; by default it is searched in the usual places.
        seed: The seed of the test split, unless FLamby's file is used.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.

    Raises:
        InputError: If the files are not there, or are not those of ISIC 2019.
    """
    hint = f"expected there: {_ISIC_LABELS}, {_ISIC_LESIONS} and images, as on {_ISIC_PAGE}, and {_HAM_TABLES[1]} of"
    hint += f" {_HAM_PAGE}"
    folders = ("isic2019", "ISIC2019", "fed_isic2019")
    folder = find_folder("isic2019", root, folders, lambda path: (path / _ISIC_LABELS).is_file(), hint)
    listed = partial(list_isic2019, folder, seed)
    return _load("isic2019", listed, folder, size, unreadable, ISIC_SITES)


def list_ham10000(root: Path, seed: int = 0) -> Listing:
    """List the images of HAM10000.

    Args:
        root: A folder that has its table.
        seed: The seed of the test split.

    Raises:
        InputError: If the table is not as it should be, or an image is missing.
    """
    path = _ham_table(root)
    rows = _by_id(path, ("image_id", "lesion_id", "dx", "dataset"), _OTHER_COPY)
    there = images_by_name(root)
    _reject_absent(path, root, rows, there)
    files = []
    for image, (lesion, dx, site) in rows.items():
        _reject_unknown(path, image, "dx", dx, HAM_CLASSES)
        _reject_unknown(path, image, "dataset", site, HAM_SITES)
        if not lesion:
            raise InputError(f"{path}: the image {image} has no lesion_id")
        files.append(ImageFile(there[image], HAM_CLASSES.index(dx), site, lesion))
    return Listing(*split_lesions(files, HAM_SITES, seed), HAM_CLASSES, (path,), variant=f"seed {seed}")


def list_isic2019(root: Path, seed: int = 0) -> Listing:
    """List the images of ISIC 2019 that have a lesion.

    Args:
        root: A folder that has the tables of ISIC 2019, and that of HAM10000.
        seed: The seed of the test split, unless FLamby's file is used.

    Raises:
        InputError: If a table is missing or not as it should be, or an image is missing.
    """
    labels, lesions = root / _ISIC_LABELS, root / _ISIC_LESIONS
    if not lesions.is_file():
        raise InputError(
            f"{root} lacks {_ISIC_LESIONS}, which names the lesion of each image; get it from {_ISIC_PAGE}"
        )
    rows = _by_id(lesions, ("image", "lesion_id"))
    used = {name: lesion for name, (lesion,) in rows.items() if lesion}
    if not used:
        raise InputError(f"{lesions} has no image with a lesion_id")
    label_of = _one_hot(labels, used)
    there = images_by_name(root)
    _reject_absent(lesions, root, used, there)
    site_of = _centres(root, lesions, used)
    described_by = [labels, lesions, *([_ham_table(root)] if _table(root) else [])]
    split = next((root / name for name in _ISIC_SPLITS if (root / name).is_file()), None)
    if split is None:
        files = [ImageFile(there[name], label_of[name], site_of[name], lesion) for name, lesion in used.items()]
        parts = split_lesions(files, ISIC_SITES, seed)
        return Listing(*parts, ISIC_CLASSES, tuple(described_by), variant=f"seed {seed}")
    in_test = _flamby_split(split, site_of)
    parts = ([], [])
    for name in used:
        parts[in_test[name]].append(ImageFile(there[name], label_of[name], site_of[name]))
    remark = f"the split is that of {split}, which has images of one lesion in training and test; groups are left out"
    return Listing(*parts, ISIC_CLASSES, (*described_by, split), (remark,))


def split_lesions(
    files: Sequence[ImageFile], sites: Iterable[str], seed: int
) -> tuple[list[ImageFile], list[ImageFile]]:
    """Draw 20 % of the lesions of each site, rounded up, for the test.

    All images of a lesion are on one side. A lesion that several sites have counts for the site of its first image.

    Args:
        files: The images, with the lesion as the group and the site as the domain.
        sites: The sites.
        seed: The seed of the draw.

    Returns:
        The images for training, and those for the test.
    """
    site_of: dict[str, str] = {}
    for file in files:
        site_of.setdefault(file.group, file.domain)
    in_test: set[str] = set()
    for site in sites:
        lesions = sorted(lesion for lesion, where in site_of.items() if where == site)
        if lesions:
            _, drawn = split_by_class(np.zeros(len(lesions), np.int64), TEST_SHARE, seed)
            in_test.update(lesions[number] for number in drawn)
    return [f for f in files if f.group not in in_test], [f for f in files if f.group in in_test]


def _load(
    name: str,
    list_files: Callable[[], Listing],
    folder: Path,
    size: int | Sequence[int],
    unreadable: Literal["stop", "skip"],
    sites: Sequence[str],
) -> DataSet:
    return load_listing(
        name,
        list_files,
        root=folder,
        size=size,
        unreadable=unreadable,
        mean=_MEAN,
        std=_STD,
        augment=("flip",),
        domains_order=sites,
        colour=True,
    )


def _by_id(path: Path, columns: Sequence[str], hint: str = "") -> dict[str, tuple[str, ...]]:
    """Read columns of a table by the id in the first of them; each row must have an id that no other row has."""
    found: dict[str, tuple[str, ...]] = {}
    for row in read_columns(path, columns, hint):
        name, *rest = row.values
        if not name:
            raise InputError(f"{path}: row {row.number} has no {columns[0]}")
        if name in found:
            raise InputError(f"{path}: row {row.number} has the {columns[0]} {name} a second time; list it once")
        found[name] = tuple(rest)
    if not found:
        raise InputError(f"{path} has a header and no rows")
    return found


def _table(root: Path) -> Path | None:
    return next((root / name for name in _HAM_TABLES if (root / name).is_file()), None)


def _ham_table(root: Path) -> Path:
    path = _table(root)
    if path is None:
        raise InputError(
            f"{root} lacks {_HAM_TABLES[1]}, which names the sites of the images of HAM10000; get it from {_HAM_PAGE}"
        )
    return path


def _reject_absent(table: Path, root: Path, named: Iterable[str], there: Mapping[str, Path]) -> None:
    absent = [name for name in named if name not in there]
    if absent:
        which = f"{absent[0]}.jpg, which is" if len(absent) == 1 else f"{len(absent)} images that are"
        first = "" if len(absent) == 1 else f", such as {absent[0]}.jpg"
        raise InputError(f"{table} names {which} not in {root} or any folder below{first}")


def _reject_unknown(table: Path, image: str, column: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f'{table}: the image {image} has {column} "{value}"; it must be one of {", ".join(known)}')


def _one_hot(path: Path, images: Iterable[str]) -> dict[str, int]:
    """Return the class of each of these images: the only column that has 1."""
    rows = _by_id(path, ("image", *ISIC_CLASSES))
    found = {}
    for name in images:
        if name not in rows:
            raise InputError(f"{path} lacks the image {name}")
        try:
            numbers = [float(value) for value in rows[name]]
        except ValueError:
            numbers = []
        if sorted(numbers) != [0.0] * (len(ISIC_CLASSES) - 1) + [1.0]:
            raise InputError(
                f"{path}: the image {name} must have 1 in one of {', '.join(ISIC_CLASSES)}, and 0 elsewhere"
            )
        found[name] = numbers.index(1.0)
    return found


def _centres(root: Path, lesions: Path, lesion_of: Mapping[str, str]) -> dict[str, str]:
    """Return the centre of each image: the first letters of its lesion, and for HAM10000 the site in its own table."""
    of_ham = [name for name, lesion in lesion_of.items() if lesion.startswith("HAM_")]
    ham: dict[str, str] = {}
    if of_ham:
        path = _ham_table(root)
        ham = {name: site for name, (site,) in _by_id(path, ("image_id", "dataset"), _OTHER_COPY).items()}
        for name in of_ham:
            if name not in ham:
                raise InputError(f"{path} lacks the image {name}, whose lesion is of HAM10000")
            _reject_unknown(path, name, "dataset", ham[name], HAM_SITES)
    prefixes = {"BCN_": "BCN", "MSK4": "MSK"}
    centres = {}
    for name, lesion in lesion_of.items():
        centre = ham[name] if lesion.startswith("HAM_") else prefixes.get(lesion[:4])
        if centre is None:
            raise InputError(f"{lesions}: the lesion_id of {name} must begin with BCN_, HAM_ or MSK4")
        centres[name] = centre
    return centres


def _flamby_split(path: Path, site_of: Mapping[str, str]) -> dict[str, bool]:
    """Return whether each image is in FLamby's test part; FLamby's centres must be those of the tables."""
    rows = _by_id(path, ("image", "center", "fold"))
    found = {}
    for name, site in site_of.items():
        if name not in rows:
            raise InputError(f"{path} lacks the image {name}")
        centre, fold = rows[name]
        _reject_unknown(path, name, "fold", fold, ("train", "test"))
        if centre != str(ISIC_SITES.index(site)):
            raise InputError(
                f"{path}: the image {name} has center {centre}; by its lesion it is {ISIC_SITES.index(site)} ({site})"
            )
        found[name] = fold == "test"
    return found
