"""Read text files with a table in them, its columns separated by commas, semicolons, tabs or bars."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fullrank.errors import InputError

DELIMITERS = (",", ";", "\t", "|")
_NAMED = 20


class Delimited:
    """A text file in UTF-8 with a table, whose first row names the columns.

    The delimiter is the one that gives the first row most columns. Cells may be quoted, and line ends may be those of
    any system; a byte order mark, blanks around a cell and empty lines are ignored. Error messages do not name the
    file, so that the caller can also name the key of the experiment that the file comes from.

    Args:
        path: The file.

    Raises:
        InputError: If the file cannot be read, is empty, or names a column twice.
    """

    def __init__(self, path: Path):
        self.path = path
        with self._opened() as file:
            headers = {delimiter: _header(file, delimiter) for delimiter in DELIMITERS}
        self.delimiter = max(DELIMITERS, key=lambda delimiter: len(headers[delimiter]))
        self.columns = headers[self.delimiter]
        """The names of the columns."""
        if not self.columns:
            next(iter(self), None)  # raises an error if the first row cannot be read
            raise InputError("it is empty; its first row must name the columns")
        for name in self.columns:
            if name and self.columns.count(name) > 1:
                raise InputError(f'two columns are called "{name}"; rename one of them')

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the cells of each row below the first, with the number of the row, the first one being row 1.

        Raises:
            InputError: If a row cannot be read, or has more or fewer cells than there are columns.
        """
        with self._opened() as file:
            rows = _rows(file, self.delimiter)
            next(rows, None)
            for number, row in rows:
                if len(row) != len(self.columns):
                    counts = f"row {number} has {len(row)} cells, and the header {len(self.columns)}"
                    raise InputError(f"{counts}; both must be equal")
                yield number, row

    @contextlib.contextmanager
    def _opened(self) -> Iterator[TextIO]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                yield file
        except UnicodeDecodeError:
            raise InputError(f"row {self._undecoded()} is not UTF-8; save the file as UTF-8") from None
        except OSError as error:
            raise InputError(f"it cannot be read: {error.strerror}") from None

    def _undecoded(self) -> int:
        """Return the number of the first line that is not UTF-8; a file is decoded in blocks of many lines."""
        content = self.path.read_bytes()
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            content = content[: error.start]
        return 1 + content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")


@dataclass(frozen=True)
class Row:
    """The values that a row has in some columns, and the number of the row."""

    values: tuple[str, ...]
    number: int


def read_columns(path: Path, columns: Sequence[str], hint: str = "") -> list[Row]:
    """Read some columns of a table; rows in which all cells are empty are left out.

    Args:
        path: The file.
        columns: The names of the columns, in the order of the values that are returned.
        hint: What to do if a column is missing, as the last clause of the error.

    Raises:
        InputError: If the file is not such a table, or lacks a column; the message names the file.
    """
    try:
        table = Delimited(path)
        for name in columns:
            if name not in table.columns:
                there = ", ".join(table.columns[:_NAMED]) + (", …" if len(table.columns) > _NAMED else "")
                raise InputError(f"it has no column {name}; its columns are {there}{hint and f'; {hint}'}")
        places = [table.columns.index(name) for name in columns]
        return [Row(tuple(cells[place] for place in places), number) for number, cells in table if any(cells)]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _header(file: TextIO, delimiter: str) -> tuple[str, ...]:
    """Return the first row with this delimiter; nothing if it cannot be read so, because a name is quoted."""
    file.seek(0)
    try:
        _, header = next(_rows(file, delimiter), (0, []))
    except InputError:
        return ()
    return tuple(header)


def _rows(file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty lines, with their numbers from 1."""
    reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=True)
    number = 0
    while True:
        number += 1
        try:
            row = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"row {number} cannot be read ({error}); quotes around a cell must be closed") from None
        if len(row) > 1 or any(row):
            yield number, row
