"""Interpret the cells of a table: which are numbers, categories or missing values, and which cannot be used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fullrank.data.columns import Numbers, Texts
from fullrank.errors import InputError, nearest

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Texts that mean a missing value in a text file, in lower case."""
MOST_CATEGORIES = 1000
FEW = 20
"""The number of categories that a column may always have; more must not exceed half the number of rows."""
ROWS_NAMED = 5
COLUMNS_NAMED = 20

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[0-9]+[.]0*")
_WITH_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_DATE = re.compile(r"(?:[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}([./-])[0-9]{1,2}\1[0-9]{2,4})(?:[T ][0-9:.+Z-]*)?")


@dataclass(frozen=True)
class Table:
    """The cells of a table by column; texts that may be numbers are converted when a column is read."""

    columns: Mapping[str, Numbers | Texts]
    rows: Sequence[int]
    """The number of each row, as a person counts them in the file."""
    exact: Callable[[str], Texts] | None = None
    """Returns the cells of a column as texts, where those of `columns` may be numbers already."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Why columns cannot be features, by name."""
    decimal_comma: bool = False
    """Whether 1,5 is a number, because the columns are not separated by commas."""

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, name: str) -> Texts:
        """Return the cells of a column as texts, with None for a missing value."""
        cells = self.columns[name]
        if self.exact is not None:
            return self.exact(name)
        assert not isinstance(cells, np.ndarray)
        return cells

    def complete(self, name: str) -> list[str]:
        """Return the cells of a column that must have a value in each row, such as that of the labels.

        Args:
            name: The name of the column.

        Raises:
            InputError: If a row has no value.
        """
        cells = self.texts(name)
        empty = [row for row, cell in zip(self.rows, cells, strict=True) if cell is None]
        if empty:
            raise InputError(f'the column "{name}" has no value in {_named(empty)}; fill it in or delete the row')
        return [cell for cell in cells if cell is not None]

    def feature(self, name: str) -> Numbers | Texts:
        """Return the cells of a column as numbers if all are, otherwise as categories.

        Args:
            name: The name of the column.

        Raises:
            InputError: If they are neither: infinite, dates, free text, or numbers in most rows only.
        """
        if name in self.unusable:
            raise InputError(self.unusable[name])
        cells = self.columns[name]
        if isinstance(cells, np.ndarray):
            return self._finite(name, cells)
        values = self._numbers_in(cells)
        numbers = sum(cell in values for cell in cells)
        filled = sum(cell is not None for cell in cells)
        if numbers == filled:
            return self._finite(name, np.array([math.nan if c is None else values[c] for c in cells], np.float64))
        if 2 * numbers >= filled:
            odd = [row for row, c in zip(self.rows, cells, strict=True) if c is not None and c not in values]
            raise InputError(
                f'the column "{name}" has numbers in most rows, but not in {_named(odd)}; write a number in every row, '
                "leave a cell empty where the value is missing, or put a letter in front of each if they are codes"
            )
        self._reject_no_categories(name, cells)
        return cells

    def _numbers_in(self, cells: Texts) -> dict[str, float]:
        """Return the cells that are numbers, with their values."""
        known = {cell for cell in cells if cell is not None}
        values = {cell: float(cell) for cell in known if _NUMBER.fullmatch(cell) or _INFINITE.fullmatch(cell)}
        if self.decimal_comma and not any("." in cell for cell in known):
            values |= {cell: float(cell.replace(",", ".")) for cell in known if _WITH_COMMA.fullmatch(cell)}
        return values

    def _finite(self, name: str, values: Numbers) -> Numbers:
        infinite = [row for row, value in zip(self.rows, values, strict=True) if math.isinf(value)]
        if infinite:
            raise InputError(
                f'the column "{name}" holds infinity in {_named(infinite)}; write a finite number, or leave the cell '
                "empty where the value is missing"
            )
        return values

    def _reject_no_categories(self, name: str, cells: Texts) -> None:
        known = {cell for cell in cells if cell is not None}
        if all(_DATE.fullmatch(cell) for cell in known):
            raise InputError(dates_in(name))
        filled = sum(cell is not None for cell in cells)
        if len(known) > MOST_CATEGORIES or (len(known) > FEW and 2 * len(known) > filled):
            raise InputError(
                f'the column "{name}" has {len(known)} different texts in {filled} rows, which are too many for '
                "categories; if it names images or says what belongs together, name it in data.image, data.client or "
                "data.group, otherwise delete it"
            )


def dates_in(name: str) -> str:
    """Return the error message for a column of dates."""
    return (
        f'the column "{name}" holds dates or times, which are neither numbers nor categories; replace them by a '
        "number, such as days or a year, or delete the column"
    )


def columns_of(names: Sequence[str]) -> str:
    """Join names of columns for a message."""
    return ", ".join(names[:COLUMNS_NAMED]) + (", …" if len(names) > COLUMNS_NAMED else "")


def chosen_column(table: Table, key: str, given: str, usual: Sequence[str]) -> str:
    """Return the column that a key of [data] names.

    Args:
        table: The table.
        key: The name of the key, such as "label".
        given: The value of the key; empty for the first usual column that exists.
        usual: The usual names of the column.

    Returns:
        The name of the column; empty if none was named and no usual one exists.

    Raises:
        InputError: If the named column does not exist.
    """
    if not given:
        return next((name for name in usual if name in table.columns), "")
    if given not in table.columns:
        near = nearest(given, table.columns, f"the columns are {columns_of([*table.columns])}")
        raise InputError(f'data.{key} = "{given}": there is no such column; {near}')
    return given


def is_number(text: str) -> bool:
    """Return whether a text is a number, as in -1.5e3."""
    return _NUMBER.fullmatch(text) is not None


def numbered(cells: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the values of a column in sorted order, numbers by size.

    Args:
        cells: The cells of the column.

    Returns:
        The number of each cell's value, and the values in the order of their numbers.

    >>> numbered(["10", "9", "9.0"])
    (array([1, 0, 0]), ('9', '10'))
    """
    numbers = all(map(is_number, set(cells)))
    names = {cell: _plain(cell) if numbers else cell for cell in set(cells)}
    order = sorted(set(names.values()), key=lambda text: (float(text) if numbers else 0.0, text))
    place = {text: k for k, text in enumerate(order)}
    return np.array([place[names[cell]] for cell in cells], dtype=np.int64), tuple(order)


def classes_in(name: str, cells: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the classes of a column of labels in sorted order.

    Args:
        name: The name of the column, for errors.
        cells: The cells of the column.

    Returns:
        The labels, and the names of the classes.

    Raises:
        InputError: If the labels are measurements rather than classes.
    """
    labels, classes = numbered(cells)
    fractions = all(map(_NUMBER.fullmatch, classes)) and any(not float(text).is_integer() for text in classes)
    if fractions or (len(classes) > FEW and 2 * len(classes) > len(cells)):
        raise InputError(
            f'the labels in the column "{name}" take {len(classes)} different values in {len(cells)} rows'
            f"{', and not all are whole numbers' if fractions else ''}; a classifier needs names or numbers of classes"
        )
    return labels, classes


def _plain(cell: str) -> str:
    """Return a whole number without the point that it has in a column with missing values."""
    return cell.partition(".")[0] if _WHOLE.fullmatch(cell) else cell


def _named(rows: Sequence[int]) -> str:
    """Return the numbers of rows for a message."""
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:ROWS_NAMED]))}{more}"
