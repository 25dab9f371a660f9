"""Statistics over repeated measurements, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fullrank.errors import InputError


@dataclass(frozen=True)
class Figure:
    """The median and the range of several measurements.

    >>> Figure.of([3.0, 1.0, 2.0]).text()
    '2.00 [1.00, 3.00]'
    """

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Summarise measurements.

        Args:
            values: One or more values.

        Raises:
            InputError: If there is no value.
        """
        if not values:
            raise InputError("a median needs at least one measurement")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 2) -> str:
        """Return the median as text, with least and greatest if there are several values."""
        middle = f"{self.median:.{digits}f}"
        return middle if self.n == 1 else f"{middle} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a dict that JSON can represent."""
        return {"median": self.median, "min": self.low, "max": self.high, "n": self.n}


def ratio(value: Figure, base: Figure) -> float:
    """Return the ratio of two medians.

    >>> ratio(Figure.of([3.0]), Figure.of([2.0]))
    1.5
    """
    return value.median / base.median if base.median else float("inf")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format aligned columns: the first to the left, the others to the right.

    Args:
        headers: The titles of the columns.
        rows: The texts of each row.

    >>> print(table(["a", "bb"], [["x", "1"], ["long", "22"]]))
    a     bb
    x      1
    long  22
    """
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    lines = []
    for row in (headers, *rows):
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
