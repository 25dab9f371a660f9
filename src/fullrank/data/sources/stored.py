"""A data set that lies in files of an official format: found, decoded, kept decoded when large, and looked at."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fullrank.data.dataset import DataSet, Split
from fullrank.data.sources.cache import Content, cached
from fullrank.data.sources.places import Layout, Place, find, roots, search
from fullrank.errors import InputError

Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Download:
    """A file to fetch: a data file, or an archive of which only the named members are taken."""

    url: str
    md5: str
    folder: str = ""
    """Where it goes, below the root."""
    members: tuple[str, ...] = ()
    """What to take out of an archive, by path below the root; the file itself is no archive without any."""

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Official:
    """What a file holds in the official copy."""

    records: int
    md5: str
    """Of the content, uncompressed and in the binary format whatever form it is stored in."""


@dataclass(frozen=True)
class FileFacts:
    """What a file holds."""

    path: Path
    records: int
    official: Official
    md5: str

    @property
    def state(self) -> Literal["official", "altered", "another size"]:
        """Whether it is the official one, has as many records but other content, or another number of records."""
        if self.records != self.official.records:
            return "another size"
        return "official" if self.md5 == self.official.md5 else "altered"


@dataclass(frozen=True, kw_only=True)
class Stored(ABC):
    """What is known about such a data set; the format says how a file is read and what the files make together."""

    name: str
    title: str
    page: str
    """Where a person reads about it and gets it."""
    layouts: tuple[Layout, ...]
    official: tuple[Official, ...]
    """By file, in the order that all layouts share."""
    downloads: tuple[tuple[Download, ...], ...] = ()
    """Ways to get it: each a set of files, the first is preferred."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: tuple[str, ...] = ()
    elsewhere: tuple[Path, ...] = ()
    """Further usual places."""
    package: str = ""
    """A Debian package that has it."""

    @abstractmethod
    def read(self, place: Place, number: int) -> Array:
        """One file's records, checked, with all that the official binary format stores of them."""

    @abstractmethod
    def join(self, place: Place, arrays: Sequence[Array]) -> tuple[Split, Split]:
        """Training and test split from the records of all files."""

    def header(self, array: Array) -> bytes:
        """What stands before the records in the official binary format."""
        return b""

    def class_names(self, place: Place) -> tuple[str, ...]:
        """Names of the classes: those of the files, or those built in."""
        return self.classes

    def find(self, root: str | Path = "") -> Place:
        """Where it lies; a error says where it was looked for and how one gets it."""
        return find(self.title, self.layouts, roots(root, self.elsewhere), self.how_to_get())

    def search(self, root: str | Path = "") -> Place | None:
        """Where it lies, if it is there whole."""
        return search(self.layouts, roots(root, self.elsewhere))

    def how_to_get(self) -> str:
        """A clause on where one gets it."""
        ways = [f'with "fullrank data get {self.name}"'] if self.downloads else []
        ways += [f"as Debian's package {self.package}"] if self.package else []
        where = " or ".join([*ways, f"from {self.page}"])
        return f"get it {where}, and say by data.root (--root) or $FULLRANK_DATA where it lies if that is elsewhere"

    def __call__(self, root: str | Path = "", seed: int = 0) -> DataSet:
        """Load the data set, as an entry of the registry does; the seed does not change it."""
        return self.load(root)

    def load(self, root: str | Path = "") -> DataSet:
        """Load the data set from the first place that has all its files."""
        place = self.find(root)
        return cached(self.name, place.sources, lambda: self._decode(place), self._complete)

    def look(self, place: Place) -> list[FileFacts]:
        """What each file holds; a damaged one is rejected by name."""
        facts = []
        for number, (path, official) in enumerate(zip(place.files, self.official, strict=True)):
            array = self.read(place, number)
            facts.append(FileFacts(path, len(array), official, content_md5(self.header(array), array)))
        return facts

    def _decode(self, place: Place) -> Content:
        arrays = [self.read(place, number) for number in range(len(place.files))]
        train, test = self.join(place, arrays)
        return Content(train, test, self.class_names(place))

    def _complete(self, content: Content) -> DataSet:
        return DataSet(
            self.name,
            content.train,
            content.test,
            content.classes,
            mean=self.mean,
            std=self.std,
            augment=self.augment,
        )


def content_md5(*parts: Any) -> str:
    """MD5 of bytes and arrays one after the other: against damage, not against malice."""
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return digest.hexdigest()


def read_whole(path: Path) -> bytes:
    """The bytes of a file, or a error that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def reject_labels(path: Path, what: str, labels: npt.NDArray[Any], classes: int) -> None:
    """Reject labels that no class has, by file and record."""
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        first = int(outside[0])
        raise InputError(
            f"{path} is damaged: record {first} has the {what} {int(labels[first])}; it must lie in 0..{classes - 1}"
        )
