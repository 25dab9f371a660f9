"""Read a data set's table from a text file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fullrank.data.delimited import Delimited
from fullrank.data.sources.cells import MISSING, Table, is_number
from fullrank.errors import InputError


def read_delimited(path: Path) -> Table:
    """Read a table from a text file, as :class:`~fullrank.data.delimited.Delimited` does.

    Args:
        path: The file.

    Returns:
        The table; 1,5 is a number in it if the columns are not separated by commas.

    Raises:
        InputError: If the file cannot be read, or is not such a table.
    """
    file = Delimited(path)
    _reject_no_header(file.columns)
    columns: list[list[str | None]] = [[] for _ in file.columns]
    known: list[dict[str, str | None]] = [{} for _ in columns]  # each text once, because columns repeat theirs
    numbers = []
    for number, row in file:
        numbers.append(number)
        for column, texts, cell in zip(columns, known, row, strict=True):
            if cell not in texts:
                texts[cell] = None if cell.lower() in MISSING else cell
            column.append(texts[cell])
    if not numbers:
        raise InputError("it has a header and no rows")
    return Table(dict(zip(file.columns, columns, strict=True)), numbers, decimal_comma=file.delimiter != ",")


def _reject_no_header(header: Sequence[str]) -> None:
    if len(header) == 1:
        raise InputError("it has one column only; separate columns by a comma, semicolon, tab or bar (|)")
    for place, name in enumerate(header):
        if not name:
            index = "; pandas writes its index so, unless index=False" if place == 0 else ""
            raise InputError(f"column {place + 1} has no name{index}; the first row must name all columns")
    if all(map(is_number, header)) and [*header] != [str(k) for k in range(len(header))]:
        raise InputError("its first row holds numbers; it must name the columns")
