"""Read the columns of Parquet files and of other tables of Apache Arrow."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fullrank.data.columns import Numbers, Texts
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.cells import Table, dates_in
from fullrank.errors import InputError

_INDEX = re.compile(r"__index_level_[0-9]+__")
"""The name that pandas gives to its index, which is not a column of the data."""


def read_parquet(path: Path) -> Table:
    """Read a Parquet file.

    Raises:
        InputError: If pyarrow is missing, or if the file cannot be read or is not a Parquet file.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "Parquet files are read with pyarrow, which is missing: pip install 'fullrank[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            about = file.metadata
            reject_too_large("the table", about.num_rows * about.num_columns * 8, "store fewer rows or columns")
            read = file.read()
            read.validate(full=True)
            return of_arrow(read)
    except (pyarrow.ArrowException, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"it is not a Parquet file, or is damaged ({why})") from None


def of_arrow(table: Any) -> Table:
    """Convert a `pyarrow.Table`.

    Numbers stay numbers; texts and booleans become texts. Columns of other types cannot be features, but they can name
    clients or groups.

    Args:
        table: The table.

    Raises:
        InputError: If it has no rows, or two columns of the same name.
    """
    names = [name for name in table.column_names if not _INDEX.fullmatch(name)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f'two columns are called "{twice}"; rename one of them')
    if not table.num_rows:
        raise InputError("it has no rows")
    columns: dict[str, Numbers | Texts] = {}
    unusable = {}
    for name in names:
        column = table.column(name)
        problem = _problem_of(name, column.type)
        if problem:
            unusable[name], columns[name] = problem, ()
        else:
            columns[name] = _numbers(column) if _is_numeric(column.type) else _texts(column)
    exact = partial(_texts_of, table)
    return Table(columns, range(1, table.num_rows + 1), exact=exact, unusable=unusable)


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _problem_of(name: str, kind: Any) -> str:
    """Return why a column cannot be a feature, or an empty text."""
    from pyarrow import types

    if types.is_temporal(kind):
        return dates_in(name)
    values = kind.value_type if types.is_dictionary(kind) else kind
    textual = types.is_string(values) or types.is_large_string(values) or types.is_string_view(values)
    if textual or _is_numeric(kind) or types.is_boolean(kind) or types.is_null(kind):
        return ""
    return f'the column "{name}" holds {kind}, which is neither numbers nor texts; delete it'


def _numbers(column: Any) -> Numbers:
    import pyarrow

    values = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def _texts(column: Any) -> Texts:
    import pyarrow

    known: dict[str, str | None] = {}  # each text once, because columns repeat theirs
    cells: list[str | None] = []
    for cell in column.cast(pyarrow.string()).to_pylist():
        if cell is not None and cell not in known:
            known[cell] = cell.strip() or None
        cells.append(None if cell is None else known[cell])
    return cells


def _texts_of(table: Any, name: str) -> Texts:
    """Return the cells of a column as texts, whole numbers with all their digits."""
    from pyarrow import types

    column = table.column(name)
    if types.is_nested(column.type) or types.is_binary(column.type):
        raise InputError(_problem_of(name, column.type))
    cells = _texts(column)
    return [None if cell == "nan" else cell for cell in cells] if types.is_floating(column.type) else cells
