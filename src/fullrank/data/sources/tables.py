"""Read the columns of text tables: comma-separated files and their relatives."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fullrank.data.sources.stored import read_whole
from fullrank.errors import InputError

_SEPARATORS = (",", ";", "\t")
_NAMED = 20


@dataclass(frozen=True)
class Row:
    """A row of a table: the values of the wanted columns and the line in which it ends."""

    values: tuple[str, ...]
    line: int


def read_table(path: Path, columns: Sequence[str], hint: str = "") -> list[Row]:
    """Read these columns of a table with a header; values are separated by commas, semicolons or tabs.

    A byte order mark, line ends of any system and empty lines are ignored.

    Args:
        path: The file.
        columns: The names of the columns, in the order of the values that are returned.
        hint: What to do if a column is missing, as the last clause of the error.

    Raises:
        InputError: If the file is not such a table, lacks a column or has no rows.
    """
    rows = _rows(path, read_text(path))
    _, header = next(rows, (0, []))
    if not header:
        raise InputError(f"{path} is empty; it must be a table with the columns {', '.join(columns)}")
    for name in columns:
        if name not in header:
            there = ", ".join(header[:_NAMED]) + (", …" if len(header) > _NAMED else "")
            raise InputError(f"{path} has no column {name}; its columns are {there}{hint and f'; {hint}'}")
        if header.count(name) > 1:
            raise InputError(f"{path} has two columns {name}; it must have one")
    taken = [header.index(name) for name in columns]
    found = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise InputError(f"{path}, line {line}, has {len(cells)} values; its header names {len(header)} columns")
        found.append(Row(tuple(cells[column] for column in taken), line))
    if not found:
        raise InputError(f"{path} has a header and no rows")
    return found


def read_text(path: Path) -> str:
    """Return the content of a file in UTF-8, without its byte order mark if it has one."""
    try:
        return read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: {error}") from None


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each with the line in which it ends."""
    header = text.lstrip("\r\n").partition("\n")[0]
    separator = max(_SEPARATORS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}, is damaged ({error})") from None


def by_id(path: Path, rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return the other values of each row by its first one, the id, which must be there and differ."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        name, *rest = row.values
        if not name:
            raise InputError(f"{path}, line {row.line}, has no id in its first column")
        if name in found:
            raise InputError(f"{path}, line {row.line}, has the id {name} a second time; every id must be there once")
        found[name] = tuple(rest)
    return found
