"""The base class of data sets in files of an official format, which are found, decoded, cached and verified."""

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
    """A file to download: a data file, or an archive of which only the named members are extracted."""

    url: str
    md5: str
    folder: str = ""
    """The folder of the file, below the root."""
    members: tuple[str, ...] = ()
    """The members of an archive to extract, by path below the root; empty for a file that is no archive."""

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Official:
    """The content of a file in the official copy."""

    records: int
    md5: str
    """The MD5 sum of the content, uncompressed and in the binary format, in whatever form it is stored; empty if no
    official sum is known."""


@dataclass(frozen=True)
class FileFacts:
    """The content of a file, next to that of the official one."""

    path: Path
    records: int
    official: Official
    md5: str

    @property
    def state(self) -> Literal["official", "altered", "another size", "of the official size"]:
        """The state of the file: "official" or, if it differs, what differs: the content or the number of records.

        Of files without a known checksum only the number of records is compared.
        """
        if self.records != self.official.records:
            return "another size"
        if not self.official.md5:
            return "of the official size"
        return "official" if self.md5 == self.official.md5 else "altered"


@dataclass(frozen=True, kw_only=True)
class Stored(ABC):
    """A data set in files; a subclass for each format reads a file and combines the files."""

    name: str
    title: str
    page: str
    """The web page of the data set."""
    layouts: tuple[Layout, ...]
    official: tuple[Official, ...]
    """The official content of each file, in the order that all layouts share."""
    downloads: tuple[tuple[Download, ...], ...] = ()
    """The ways to download the data set, each a tuple of files; the first is preferred."""
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[str, ...] = ()
    elsewhere: tuple[Path, ...] = ()
    """Further folders to search."""
    package: str = ""
    """The Debian package of the data set, if there is one."""

    @abstractmethod
    def read(self, place: Place, number: int) -> Array:
        """Read and check one file.

        Args:
            place: The folder of the data set.
            number: The position of the file in `place.files`.

        Returns:
            Its records, with everything that the official binary format stores.

        Raises:
            InputError: If the file cannot be read or is damaged.
        """

    @abstractmethod
    def join(self, place: Place, arrays: Sequence[Array]) -> tuple[Split, Split]:
        """Combine the records of all files.

        Args:
            place: The folder of the data set.
            arrays: The records of each file, as `read` returns them.

        Returns:
            The training split and the test split.

        Raises:
            InputError: If the files do not belong together.
        """

    def header(self, array: Array) -> bytes:
        """Return the bytes before the records in the official binary format."""
        return b""

    def class_names(self, place: Place) -> tuple[str, ...]:
        """Return the names of the classes: those in the files, or the built-in ones."""
        return self.classes

    def find(self, root: str | Path = "") -> Place:
        """Return the place of the data set.

        Args:
            root: The folder to search, or "" for $FULLRANK_DATA and the usual places.

        Raises:
            InputError: If the data set is not there; it says how to get it.
        """
        return find(self.title, self.layouts, roots(root, self.elsewhere), self.how_to_get())

    def search(self, root: str | Path = "") -> Place | None:
        """Return the first place that has all files, or None."""
        return search(self.layouts, roots(root, self.elsewhere))

    def how_to_get(self) -> str:
        """Return a clause that says how to get the data set."""
        ways = [f'with "fullrank data get {self.name}"'] if self.downloads else []
        ways += [f"as Debian's package {self.package}"] if self.package else []
        where = " or ".join([*ways, f"from {self.page}"])
        return f"get it {where}, and set data.root (--root) or $FULLRANK_DATA if it is elsewhere"

    def __call__(self, root: str | Path = "", seed: int = 0) -> DataSet:
        """Load the data set, as an entry of the registry does; the seed does not change it."""
        return self.load(root)

    def load(self, root: str | Path = "") -> DataSet:
        """Load the data set from the first place that has all its files."""
        place = self.find(root)
        return cached(self.name, place.sources, lambda: self._decode(place), self._complete)

    def inspect(self, place: Place) -> list[FileFacts]:
        """Return the facts about each file.

        Raises:
            InputError: If a file is damaged; it names the file.
        """
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
    """Return the MD5 sum of bytes and arrays one after the other, to detect damage, not attacks."""
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return digest.hexdigest()


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        InputError: If the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without the byte order mark that it may begin with.

    Raises:
        InputError: If the file cannot be read, or is not in UTF-8.
    """
    try:
        return read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None


def reject_labels(path: Path, what: str, labels: npt.NDArray[Any], classes: int, first: int = 0) -> None:
    """Check that labels are in range.

    Args:
        path: The file of the labels, for errors.
        what: The name of the label, for errors.
        labels: The labels of the records.
        classes: The number of classes.
        first: The smallest label.

    Raises:
        InputError: If a label is out of range; it names the record.
    """
    last = first + classes - 1
    outside = np.flatnonzero((labels < first) | (labels > last))
    if len(outside):
        record = int(outside[0])
        raise InputError(
            f"{path} is damaged: record {record} has the {what} {int(labels[record])}; it must lie in {first}..{last}"
        )
