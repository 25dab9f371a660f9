"""Read the columns of text tables: comma-separated files and their relatives."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fullrank.data.sources.stored import read_whole
from fullrank.errors import InputError

_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True)
class Row:
    """A row of a table: the values of the wanted columns and the line in which it ends."""

    values: tuple[str, ...]
    line: int


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read these columns of a table with a header; values are separated by commas, semicolons or tabs.

    A byte order mark, line ends of any system and empty lines are ignored.

    Raises:
        InputError: If the file is not such a table, lacks a column or has no rows.
    """
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path} is empty; it must be a table with the columns {', '.join(columns)}")
    header = [name.strip() for name in text.lstrip("\r\n").splitlines()[0].replace('"', "").split(_separator(text))]
    absent = [name for name in columns if name not in header]
    if absent:
        there = ", ".join(header[:20]) + (", …" if len(header) > 20 else "")
        raise InputError(f"{path} has no column {absent[0]}; its columns are {there}")
    twice = [name for name in columns if header.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns {twice[0]}; it must have one")
    rows = _rows(path, text, len(header), [header.index(name) for name in columns])
    if not rows:
        raise InputError(f"{path} has a header and no rows")
    return rows


def read_text(path: Path) -> str:
    """Return the content of a file in UTF-8, without its byte order mark if it has one."""
    try:
        return read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: {error}") from None


def _separator(text: str) -> str:
    """Return the separator that the first line has most often."""
    first = text.lstrip("\r\n").splitlines()[0]
    return max(_SEPARATORS, key=first.count)


def _rows(path: Path, text: str, width: int, taken: Sequence[int]) -> list[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    rows = []
    try:
        for number, fields in enumerate(fields for fields in reader if any(map(str.strip, fields))):
            if len(fields) != width:
                raise InputError(
                    f"{path}, line {reader.line_num}, has {len(fields)} values; its header names {width} columns"
                )
            if number:
                rows.append(Row(tuple(fields[column].strip() for column in taken), reader.line_num))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}, is damaged ({error})") from None
    return rows


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
