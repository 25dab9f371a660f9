"""List the images of Office-Caltech10 and DomainNet, the same classes in several domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fullrank.data.dataset import DataSet
from fullrank.data.sources.contained import below
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing, visible
from fullrank.data.sources.places import find_folder
from fullrank.data.sources.stored import read_text
from fullrank.data.split import split_by_class
from fullrank.errors import InputError

OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
OFFICE_CLASSES = {
    "back_pack": ("backpack",),
    "bike": ("touringbike",),
    "calculator": (),
    "headphones": (),
    "keyboard": ("computerkeyboard",),
    "laptop_computer": ("laptop", "laptop101"),
    "monitor": ("computermonitor",),
    "mouse": ("computermouse",),
    "mug": ("coffeemug",),
    "projector": ("videoprojector",),
}
"""The names of the classes, and what other copies and Caltech-256 call their folders."""
DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAINNET_CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
"""The classes that FedBN's experiments use, in their order."""

_OFFICE_TEST = 0.3
_OFFICE_PAGE = "https://github.com/med-air/FedBN"
_DOMAINNET_PAGE = "https://ai.bu.edu/M3SDA/"
_DOMAINNET_LABELS = 345
_PARTS = ("train", "test")
_AUGMENT = ("flip", "rotate:30")  # as in the code of FedBN, which does not normalise


def office_caltech10(
    root: str | Path = "",
    seed: int = 0,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Load Office-Caltech10: ten classes in the four domains amazon, caltech, dslr and webcam.

    Reads `<domain>/<class>/*`, of which 30 % of each domain and class, drawn by `seed`, become the test split, or
    `<domain>/<train|test>/<class>/*`. FedBN and FedDecorr resize the images, which differ in size, to 256×256:
    `size=[256, 256]`.

    Args:
        root: The folder of the images; by default it is searched in the usual places.
        seed: The seed of the test split, unless folders define it.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.

    Raises:
        InputError: If the folders are not there, or have other classes.
    """
    below = f"{'/, '.join(OFFICE_DOMAINS)}/"
    hint = (
        f"expected there: {below}, with a folder of images for each of {', '.join(OFFICE_CLASSES)}; one copy is linked"
    )
    folders = ("office-caltech10", "office_caltech_10", "OfficeCaltech10", "Office-Caltech10")
    folder = find_folder(
        "office-caltech10", root, folders, lambda path: bool(_domain_folders(path)), f"{hint} from {_OFFICE_PAGE}"
    )
    return load_listing(
        "office-caltech10",
        partial(list_office_caltech10, folder, seed),
        root=folder,
        size=size,
        unreadable=unreadable,
        augment=_AUGMENT,
        domains_order=OFFICE_DOMAINS,
        colour=True,
    )


def domainnet(
    root: str | Path = "",
    seed: int = 0,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Load those ten classes of DomainNet that FedBN and FedDecorr use, in its six domains.

    Needs the official lists `<domain>_train.txt` and `<domain>_test.txt`, and the images that they name. Images differ
    in size; the papers resize them to 256×256: `size=[256, 256]`.

    Args:
        root: The folder of the lists; by default it is searched in the usual places.
        seed: The seed, which has no effect, because the lists define the test split.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.

    Raises:
        InputError: If a file is not there, or a list is not as it should be.
    """
    return _domainnet("domainnet", root, size, unreadable, DOMAINNET_CLASSES)


def domainnet345(
    root: str | Path = "",
    seed: int = 0,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Load DomainNet with all of its 345 classes, in the order of their labels in the official lists.

    Arguments and errors are those of :func:`domainnet`, which has ten of the classes.
    """
    return _domainnet("domainnet-345", root, size, unreadable, ())


def list_office_caltech10(root: Path, seed: int = 0) -> Listing:
    """List the images of Office-Caltech10.

    Args:
        root: A folder that has the four domains.
        seed: The seed of the test split, unless folders define it.

    Raises:
        InputError: If a folder is of an unknown class, or a split has no images.
    """
    parts: dict[str, list[ImageFile]] = {part: [] for part in _PARTS}
    drawn = False
    for domain, path in _domain_folders(root).items():
        names, _ = visible(path)
        if names and set(names) <= set(_PARTS):
            found = [_images_by_class(path / part, domain) if part in names else [] for part in _PARTS]
        else:
            found = _drawn(_images_by_class(path, domain), seed)
            drawn = True
        for part, files in zip(_PARTS, found, strict=True):
            if not files:
                raise InputError(f"{path} has no images for the {'training' if part == 'train' else 'test'} split")
            parts[part] += files
    variant = f"seed {seed}" if drawn else ""
    return Listing(parts["train"], parts["test"], tuple(OFFICE_CLASSES), variant=variant)


def list_domainnet(root: Path, classes: Sequence[str] = DOMAINNET_CLASSES) -> Listing:
    """List the images that the official lists of DomainNet name.

    Args:
        root: The folder of the lists.
        classes: The classes whose images are listed; none for all classes.

    Raises:
        InputError: If a list is missing, incomplete, or not of the official form.
    """
    lists = {(domain, part): root / f"{domain}_{part}.txt" for part in _PARTS for domain in DOMAINNET_DOMAINS}
    missing = [path.name for path in lists.values() if not path.is_file()]
    if missing:
        raise InputError(f"{root} lacks {', '.join(missing)} of DomainNet; get the lists from {_DOMAINNET_PAGE}")
    named = {key: list(_lines(path, key[0])) for key, path in lists.items()}
    labels = _label_of(named, lists)
    if not classes:
        classes = sorted(labels, key=labels.__getitem__)
        _reject_gaps(root, [labels[name] for name in classes])
    parts: dict[str, list[ImageFile]] = {part: [] for part in _PARTS}
    seen: set[str] = set()
    for (domain, part), lines in named.items():
        for number, name, class_name, _ in lines:
            if name in seen:
                raise InputError(f"{lists[domain, part]}, line {number}, names {name} a second time")
            seen.add(name)
            if class_name in classes:
                path = below(root, name, f"{lists[domain, part]}, line {number},")
                parts[part].append(ImageFile(path, classes.index(class_name), domain))
    return Listing(parts["train"], parts["test"], tuple(classes), tuple(lists.values()))


def _domainnet(
    name: str, root: str | Path, size: int | Sequence[int], unreadable: Literal["stop", "skip"], classes: Sequence[str]
) -> DataSet:
    first = f"{DOMAINNET_DOMAINS[0]}_train.txt"
    hint = f"expected there: {first}, {DOMAINNET_DOMAINS[0]}_test.txt and so on for {', '.join(DOMAINNET_DOMAINS)}, and"
    hint += f" the images that they name, from {_DOMAINNET_PAGE}"
    folder = find_folder(name, root, ("domainnet", "DomainNet"), lambda path: (path / first).is_file(), hint)
    return load_listing(
        name,
        partial(list_domainnet, folder, classes),
        root=folder,
        size=size,
        unreadable=unreadable,
        augment=_AUGMENT,
        domains_order=DOMAINNET_DOMAINS,
        colour=True,
    )


def _domain_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each domain of Office-Caltech10, or nothing unless all are there."""
    there = {name.lower(): root / name for name in visible(root)[0]}
    names = {domain: (domain, f"{domain}10") for domain in OFFICE_DOMAINS}
    found = {domain: there[name] for domain, known in names.items() for name in known if name in there}
    return found if len(found) == len(OFFICE_DOMAINS) else {}


def _images_by_class(path: Path, domain: str) -> list[ImageFile]:
    """List the images of a folder that has a folder for each class."""
    files = []
    for folder in (path / name for name in visible(path)[0]):
        label = _office_label(folder.name)
        if label is None:
            raise InputError(f"{folder} is of an unknown class; the classes are {', '.join(OFFICE_CLASSES)}")
        files += [ImageFile(folder / name, label, domain) for name in visible(folder)[1]]
    return files


def _office_label(folder: str) -> int | None:
    """Return the class of a folder: numbers before a dot, hyphens and underscores do not matter."""
    number, dot, rest = folder.partition(".")
    plain = (rest if dot and number.isdecimal() else folder).lower().replace("-", "").replace("_", "").replace(" ", "")
    for label, (name, others) in enumerate(OFFICE_CLASSES.items()):
        if plain in (name.replace("_", ""), *others):
            return label
    return None


def _drawn(files: Sequence[ImageFile], seed: int) -> list[list[ImageFile]]:
    """Draw 30 % of every class for the test; return the files for training and those for the test."""
    drawn = split_by_class(np.array([file.label for file in files], np.int64), _OFFICE_TEST, seed)
    return [[files[number] for number in part] for part in drawn]


def _lines(path: Path, domain: str) -> Iterator[tuple[int, str, str, int]]:
    """Yield line number, path, class and label of the lines of a list; empty lines are left out."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().replace("\t", " ").rpartition(" ")
        parts = name.strip().split("/")
        if len(parts) != 3 or not label.isdecimal():
            raise InputError(f"{path}, line {number}, must be as in {domain}/bird/{domain}_029_000001.jpg 29")
        if parts[0] != domain:
            raise InputError(f'{path}, line {number}, names a file of "{parts[0]}"; it must be of {domain}')
        if int(label) >= _DOMAINNET_LABELS:
            raise InputError(f"{path}, line {number}, has the label {label}; it must lie in 0..{_DOMAINNET_LABELS - 1}")
        yield number, name.strip(), parts[1], int(label)


def _label_of(
    named: Mapping[tuple[str, str], Sequence[tuple[int, str, str, int]]], lists: Mapping[tuple[str, str], Path]
) -> dict[str, int]:
    """Return the label of each class, which must be the same in all lists."""
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for key, lines in named.items():
        if not lines:
            raise InputError(f"{lists[key]} names no images")
        for number, _, name, label in lines:
            if labels.setdefault(name, label) != label or names.setdefault(label, name) != name:
                raise InputError(
                    f"{lists[key]}, line {number}, gives the label {label} to {name}; an earlier line says otherwise"
                )
    return labels


def _reject_gaps(root: Path, labels: Sequence[int]) -> None:
    absent = sorted(set(range(len(labels))) - set(labels))
    if absent:
        raise InputError(
            f"the lists of DomainNet in {root} have no image with the label {absent[0]}; they are incomplete"
        )
