"""Read CIFAR-10 and CIFAR-100, in the binary and in the Python version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.data.dataset import Split
from fullrank.data.sources.places import Layout, Place
from fullrank.data.sources.stored import Array, Download, Official, Stored, read_whole, reject_labels
from fullrank.data.sources.unpickle import read_pickle, text
from fullrank.errors import InputError

_PIXELS = 3 * 32 * 32
_BINARY = "binary version"
_PYTHON = "Python version"
_SITE = "https://www.cs.toronto.edu/~kriz/"
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""


@dataclass(frozen=True, kw_only=True)
class Cifar(Stored):
    """Files of records with labels and pixels; the last file is the test set, and the last label is the class."""

    labels: tuple[tuple[str, int], ...]
    """The labels of a record by the names of the Python version, with the number of classes of each."""

    def read(self, place: Place, number: int) -> Array:
        """Return the records (n, labels + pixels) as in the binary version."""
        path = place.files[number]
        return self._unpickled(path) if place.layout.form == _PYTHON else self._records(path)

    def join(self, place: Place, arrays: Sequence[Array]) -> tuple[Split, Split]:
        """Take all files but the last for training, and the last one for the test."""
        return self._split(arrays[:-1]), self._split(arrays[-1:])

    def class_names(self, place: Place) -> tuple[str, ...]:
        """Return the names in the file of names, or the built-in ones if there is no such file.

        Raises:
            InputError: If the file names another number of classes.
        """
        path = place.class_names
        if path is None:
            return self.classes
        names = self._pickled_names(path) if place.layout.form == _PYTHON else _lines(path)
        if len(names) != len(self.classes):
            raise InputError(f"{path} names {len(names)} classes; it must name {len(self.classes)}")
        return tuple(names)

    def _records(self, path: Path) -> Array:
        raw, size = read_whole(path), len(self.labels) + _PIXELS
        if not raw or len(raw) % size:
            raise InputError(
                f"{path} is truncated or damaged: it holds {len(raw)} bytes, which is no whole number of records of"
                f" {size} bytes ({len(self.labels)} for the label and {_PIXELS} for the pixels)"
            )
        records = np.frombuffer(raw, np.uint8).reshape(-1, size)
        for column, (what, classes) in enumerate(self.labels):
            reject_labels(path, _singular(what), records[:, column], classes)
        return records

    def _unpickled(self, path: Path) -> Array:
        batch = read_pickle(path)
        pixels = batch.get("data")
        if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)):
            raise InputError(f'{path} has no "data" of bytes with {_PIXELS} columns; it is not of {self.title}')
        if not len(pixels):
            raise InputError(f"{path} holds no records")
        records = np.zeros((len(pixels), len(self.labels) + _PIXELS), np.uint8)
        records[:, len(self.labels) :] = pixels
        for column, (what, classes) in enumerate(self.labels):
            if what not in batch and what != self.labels[-1][0]:
                continue  # a label that is not used
            labels = _whole_numbers(path, what, batch.get(what), len(pixels))
            reject_labels(path, _singular(what), labels, classes)
            records[:, column] = labels
        return records

    def _pickled_names(self, path: Path) -> list[str]:
        key = self.labels[-1][0].replace("labels", "label_names")
        names = read_pickle(path).get(key)
        if not isinstance(names, list):
            raise InputError(f'{path} has no list "{key}"; it must name the classes')
        return [text(name) for name in names]

    def _split(self, arrays: Sequence[Array]) -> Split:
        count = len(self.labels)
        x = np.concatenate([records[:, count:] for records in arrays]).reshape(-1, 3, 32, 32)
        y = np.concatenate([records[:, count - 1] for records in arrays])
        return Split(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in text(read_whole(path)).splitlines() if line.strip()]


def _singular(labels: str) -> str:
    return labels.removesuffix("s").replace("_", " ")


def _whole_numbers(path: Path, what: str, values: Any, count: int) -> Any:
    if isinstance(values, list) and all(type(value) is int for value in values):
        values = np.array(values, dtype=object)  # of any size, until they are known to be in range
    if not isinstance(values, np.ndarray) or values.shape != (count,):
        raise InputError(f'{path} must have {count} whole numbers as "{what}", one for each record of "data"')
    return values


def _layouts(
    binary: Sequence[str], pickled: Sequence[str], folders: Sequence[str], names: Sequence[str]
) -> tuple[Layout, Layout]:
    return (
        Layout(_BINARY, (folders[0],), tuple((name,) for name in binary), names[0]),
        Layout(_PYTHON, (folders[1],), tuple((name,) for name in pickled), names[1]),
    )


def _archives(layouts: Sequence[Layout], archives: Sequence[tuple[str, str]]) -> tuple[tuple[Download, ...], ...]:
    ways = []
    for layout, (name, md5) in zip(layouts, archives, strict=True):
        files = [*(names[0] for names in layout.files), layout.class_names]
        ways.append((Download(_SITE + name, md5, members=tuple(f"{layout.folders[0]}/{file}" for file in files)),))
    return tuple(ways)


_LAYOUTS_10 = _layouts(
    [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"],
    [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"],
    ["cifar-10-batches-bin", "cifar-10-batches-py"],
    ["batches.meta.txt", "batches.meta"],
)
_LAYOUTS_100 = _layouts(
    ["train.bin", "test.bin"],
    ["train", "test"],
    ["cifar-100-binary", "cifar-100-python"],
    ["fine_label_names.txt", "meta"],
)

CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    page=f"{_SITE}cifar.html",
    layouts=_LAYOUTS_10,
    official=(
        Official(10000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
        Official(10000, "5ea93a67294ea407fff1d09f752e9692"),
        Official(10000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
        Official(10000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
        Official(10000, "53f37980c15c3d472c316c40844f3f0d"),
        Official(10000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
    downloads=_archives(
        _LAYOUTS_10,
        [
            ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
            ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ],
    ),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    augment=("crop", "flip"),
    labels=(("labels", 10),),
)

CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    page=f"{_SITE}cifar.html",
    layouts=_LAYOUTS_100,
    official=(
        Official(50000, "6172c7755cfe09b2fe270c85cebc1b15"),
        Official(10000, "4499cfba6c016c1be1438163640a0898"),
    ),
    downloads=_archives(
        _LAYOUTS_100,
        [
            ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
            ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ],
    ),
    classes=tuple(_FINE.split()),
    mean=(0.50708, 0.48655, 0.44092),
    std=(0.26733, 0.25644, 0.27615),
    augment=("crop", "flip"),
    labels=(("coarse_labels", 20), ("fine_labels", 100)),
)
