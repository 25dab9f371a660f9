"""Texts and tables in terminals of any width: lines are broken at spaces, and no number is cut."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

WIDE = 10_000
"""The width of a table that is not printed to a terminal: lines in a file can have any length."""
GAP = 2
"""The number of spaces between two columns."""
NAME = 24
"""The width of a column of names that may be broken anywhere, if there is no room for whole names."""


def say(text: str = "", hang: int = 0, file: IO[str] | None = None) -> None:
    """Print a text. In a terminal its lines are broken at spaces, so that no word or number is.

    Args:
        text: The text. A word that is longer than a line, such as a path, is not broken.
        hang: The number of spaces before the second line and those after it.
        file: Where it is printed; by default the standard output.
    """
    stream = file if file is not None else sys.stdout
    if stream.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns, hang)
    print(text, file=stream)


def wrapped(text: str, width: int, hang: int = 0) -> str:
    r"""Break the lines of a text at spaces.

    Args:
        text: The text.
        width: The width of a line.
        hang: The number of spaces before continuation lines.

    >>> wrapped("accuracy  95.71 % of 4 clients", 20, hang=10)
    'accuracy  95.71 % of\n          4 clients'
    """
    lines = (
        textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * min(hang, width // 2),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        for line in text.split("\n")
    )
    return "\n".join("\n".join(broken) for broken in lines)


def print_above(console: Console, text: str, style: str | None = None) -> None:
    """Print a text above progress bars.

    Args:
        console: The console of the progress bars.
        text: The text. A path that is longer than a line is left whole, so that it can be copied.
        style: The style of the text.
    """
    console.print(wrapped(text, console.width), style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table to the standard output, in a terminal in as many parts as its width needs."""
    console = Console(highlight=False)
    if not console.is_terminal:
        Console(highlight=False, width=WIDE).print(table)
        return
    for number, part in enumerate(fitting(table, console)):
        if number:
            console.print()
        console.print(part)


def fitting(table: Table, console: Console) -> list[Table]:
    """Return a table in as many parts as the width of the console needs, each with some of the columns.

    Each part has the first column. Cells are broken at spaces only, so that no number is cut.
    """
    columns = table.columns
    least = [GAP + _least(column, console) for column in columns]
    room = console.width + GAP - least[0]
    groups: list[list[Column]] = [[]]
    used = 0
    for column, width in zip(columns[1:], least[1:], strict=True):
        if groups[-1] and used + width > room:
            groups.append([])
            used = 0
        groups[-1].append(column)
        used += width
    return [table] if len(groups) == 1 else [_with_columns([columns[0], *group]) for group in groups]


def _least(column: Column, console: Console) -> int:
    """Return the width of a column below which a cell would be cut, or a word of it."""
    found = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
    least = max(each.maximum if column.no_wrap else each.minimum for each in found)
    return min(least, NAME) if column.overflow == "fold" else least


def _with_columns(columns: Sequence[Column]) -> Table:
    part = Table(box=None, pad_edge=False)
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*cells)
    return part
