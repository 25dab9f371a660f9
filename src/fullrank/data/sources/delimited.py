"""Read a text file with a table in it, its columns separated by commas, semicolons, tabs or bars."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from fullrank.data.sources.cells import MISSING, Table, is_number
from fullrank.errors import InputError

DELIMITERS = (",", ";", "\t", "|")


def read_delimited(path: Path) -> Table:
    """Read a table in UTF-8 whose first row names the columns.

    The delimiter is the one that gives the header most columns. Cells may be quoted; blanks around a cell and empty
    lines are ignored.

    Raises:
        InputError: If the file cannot be read, or is not such a table.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file)
            file.seek(0)
            return _table(_rows(file, delimiter), decimal_comma=delimiter != ",")
    except UnicodeDecodeError as error:
        raise InputError(f"it is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}") from None


def _delimiter(file: TextIO) -> str:
    widths = {}
    for delimiter in DELIMITERS:
        file.seek(0)
        try:
            _, header = next(_rows(file, delimiter), (0, []))
        except InputError:  # after a quoted name the right delimiter must follow
            header = []
        widths[delimiter] = len(header)
    return max(DELIMITERS, key=widths.__getitem__)


def _rows(file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty with their numbers, the header as row 1."""
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    number = 0
    while True:
        number += 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"row {number} cannot be read ({error}); quotes around a cell must be closed") from None
        if row:
            yield number, [cell.strip() for cell in row]


def _table(rows: Iterator[tuple[int, list[str]]], decimal_comma: bool) -> Table:
    _, header = next(rows, (0, []))
    _reject_no_header(header)
    columns: list[list[str | None]] = [[] for _ in header]
    known: list[dict[str, str | None]] = [{} for _ in header]  # each text once, because columns repeat theirs
    numbers = []
    for number, row in rows:
        if len(row) != len(header):
            raise InputError(f"row {number} has {len(row)} cells, and the header {len(header)}; both must be equal")
        numbers.append(number)
        for column, texts, cell in zip(columns, known, row, strict=True):
            if cell not in texts:
                texts[cell] = None if cell.lower() in MISSING else cell
            column.append(texts[cell])
    if not numbers:
        raise InputError("it has a header and no rows")
    return Table(dict(zip(header, columns, strict=True)), numbers, decimal_comma=decimal_comma)


def _reject_no_header(header: Sequence[str]) -> None:
    if not header:
        raise InputError("it is empty; its first row must name the columns")
    if len(header) == 1:
        raise InputError("it has one column only; separate columns by a comma, semicolon, tab or bar (|)")
    for place, name in enumerate(header):
        if not name:
            index = "; pandas writes its index so, unless index=False" if place == 0 else ""
            raise InputError(f"column {place + 1} has no name{index}; the first row must name all columns")
        if header.count(name) > 1:
            raise InputError(f'two columns are called "{name}"; rename one of them')
    if all(map(is_number, header)) and [*header] != [str(k) for k in range(len(header))]:
        raise InputError("its first row holds numbers; it must name the columns")
