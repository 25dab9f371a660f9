"""The verdict on a cell of a table: how our values compare with what the paper prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fullrank.comparison.intervals import std
from fullrank.comparison.table import ENOUGH_SEEDS
from fullrank.papers.tables import Printed

Kind = Literal[
    "within spread",
    "above",
    "below",
    "fewer seeds",
    "shortened",
    "other settings",
    "nothing printed",
    "no value",
    "failed",
    "not run",
]
COMPARED = ("within spread", "above", "below")
"""The verdicts that follow the rule."""
LONGEST_DETAIL = 32
"""The length up to which a detail is part of a cell."""
REACH = 2.0
"""The number of standard deviations of a difference of two single runs within which a cell is "within spread"."""
RULE = (
    f'A cell is "within spread" if our mean over at least {ENOUGH_SEEDS} seeds differs from the printed value by at '
    f"most {REACH:g}·√(s² + t²), where s is the standard deviation of our seeds and t the printed one, or s where none "
    'is printed; otherwise it is "above" or "below". Runs with fewer seeds, fewer rounds or other settings than the '
    "cell's are not compared."
)
"""The rule of the verdicts, as reports and the documentation have it."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a cell, with the detail that explains it.

    >>> str(Verdict("shortened", "5 of 100 rounds"))
    'shortened: 5 of 100 rounds'
    """

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        """Return the verdict with its detail."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Footnotes:
    """Long texts that cells share: each is replaced in the cells by its number, and printed once below the table.

    >>> below = Footnotes()
    >>> [below.short("not run", text) for text in ("the files of the data set are missing", "1 of 3 rounds")]
    ['not run (1)', 'not run: 1 of 3 rounds']
    >>> below.sentences()
    ['(1) the files of the data set are missing']
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def short(self, start: str, text: str) -> str:
        """Return a cell that starts with some words, followed by a text or its number."""
        if not text:
            return start
        if len(text) <= LONGEST_DETAIL:
            return f"{start}: {text}"
        return f"{start} ({self._numbers.setdefault(text, len(self._numbers) + 1)})"

    def sentences(self) -> list[str]:
        """Return the texts with their numbers."""
        return [f"({number}) {text}" for text, number in self._numbers.items()]


def verdict(
    printed: Printed | None,
    values: Sequence[float],
    *,
    absent: Sequence[str] = (),
    failed: bool = False,
    ran: bool = False,
    rounds: tuple[int, int] = (0, 0),
    changed: Mapping[str, Any] | None = None,
) -> Verdict:
    """Return the verdict on a cell.

    Args:
        printed: What the paper prints.
        values: Our values, one per seed, in the unit of the paper.
        absent: The reasons why there are no values for other seeds.
        failed: Whether one of these reasons is the failure of a run.
        ran: Whether runs are complete, so that it is the measure that they lack.
        rounds: The number of rounds of our runs, and of the cell.
        changed: The keys in which our experiments differ from the cell's, with their values.

    >>> verdict(Printed(64.85, 2.01), [60.0, 62.0, 64.0]).kind
    'within spread'
    """
    if not values:
        kind: Kind = "failed" if failed else "no value" if ran else "not run"
        return Verdict(kind, "; ".join(dict.fromkeys(absent)))
    if changed:
        return Verdict("other settings", ", ".join(f"{key} = {value}" for key, value in changed.items()))
    if rounds[0] < rounds[1]:
        return Verdict("shortened", f"{rounds[0]} of {rounds[1]} rounds")
    if printed is None:
        return Verdict("nothing printed")
    own = std(values)
    if own is None or len(values) < ENOUGH_SEEDS:
        return Verdict("fewer seeds", f"{len(values)} of at least {ENOUGH_SEEDS}")
    difference = statistics.fmean(values) - printed.mean
    if abs(difference) <= limit(own, printed.std):
        return Verdict("within spread")
    return Verdict("above" if difference > 0 else "below")


def limit(own: float, printed: float | None) -> float:
    """Return the largest difference that is within spread.

    Args:
        own: The standard deviation of our seeds.
        printed: The standard deviation that the paper prints, or None.

    >>> limit(3.0, 4.0)
    10.0
    """
    return REACH * math.hypot(own, own if printed is None else printed)
