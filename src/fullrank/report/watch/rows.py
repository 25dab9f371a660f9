"""Reads the rows of a run while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fullrank.metrics.registry import label_of
from fullrank.runs.display import problems_of
from fullrank.runs.summary import measures

RECENT = 5
"""The number of last rounds whose mean duration is the pace."""


@dataclass
class Row:
    """The part of a row that is kept, however many clients it has."""

    round: int
    seconds: float
    values: dict[str, float]
    skipped: int
    warnings: list[str]


@dataclass
class Rows:
    """The complete rows of metrics.jsonl so far; only what is new is read.

    A line without its end is left until it is complete. If the file was replaced, as when a run that was killed is
    resumed, it is read from its start.
    """

    file: Path
    rows: list[Row] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """The numbers of lines that cannot be read."""
    changed: float = 0.0
    """When the file was last changed, in seconds since 1970; 0 if there is none."""
    _identity: tuple[int, int] = (0, 0)
    _read: int = 0
    _lines: int = 0

    def update(self) -> None:
        """Read what has been written since the last call."""
        try:
            with self.file.open("rb") as file:
                self._take(file)
        except OSError:
            self._start_again()
            self._identity, self.changed = (0, 0), 0.0

    def _take(self, file: Any) -> None:
        facts = os.fstat(file.fileno())
        identity = (facts.st_dev, facts.st_ino)
        if identity != self._identity or facts.st_size < self._read:
            self._start_again()
        self._identity, self.changed = identity, facts.st_mtime
        file.seek(self._read)
        content = file.read(max(0, facts.st_size - self._read))
        whole = content.rfind(b"\n") + 1
        self._read += whole
        for line in content[:whole].splitlines():
            self._lines += 1
            try:
                self._add(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                self.damaged.append(self._lines)

    def _start_again(self) -> None:
        self.rows, self.damaged = [], []
        self._read = self._lines = 0

    def _add(self, row: Mapping[str, Any]) -> None:
        values = {key: float(value) for key, value in row.items() if key in KNOWN and _is_number(value)}
        warnings = [str(text) for text in (*row.get("cautions", []), *problems_of(row))]
        seconds = float(row.get("seconds") or 0.0)
        self.rows.append(Row(int(row["round"]), seconds, values, len(row.get("skipped", {})), warnings))

    @property
    def done(self) -> int:
        """The number of rounds that are complete."""
        return self.rows[-1].round if self.rows else 0

    @property
    def pace(self) -> float | None:
        """The mean duration of the last rounds in seconds; None before the first round."""
        last = self.rows[-RECENT:]
        return sum(row.seconds for row in last) / len(last) if last else None

    def course(self, measure: str) -> list[tuple[int, float]]:
        """Return the values of a measure by round."""
        return [(row.round, row.values[measure]) for row in self.rows if measure in row.values]

    def measured(self) -> list[str]:
        """Return the measures that occur, in the order of the library."""
        found = {key for row in self.rows for key in row.values}
        return [key for key in KNOWN if key in found]


KNOWN = measures()
"""The measures that are followed, by their keys in a row."""


def newest_and_best(rows: Rows, measure: str) -> dict[str, Any] | None:
    """Return the newest value of a measure and the best so far, as texts, with the rounds in which they were measured.

    Args:
        rows: The rows of a run.
        measure: The key of the measure.
    """
    course = rows.course(measure)
    if not course:
        return None
    metric = KNOWN[measure]
    best = (min if metric.lower_is_better else max)(course, key=lambda pair: pair[1])
    return {
        "key": measure,
        "label": label_of(measure),
        "newest": metric.shown(course[-1][1]),
        "newest_round": course[-1][0],
        "best": metric.shown(best[1]),
        "best_round": best[0],
        "is_share": metric.is_share,
    }


def thinned(course: list[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return at most a number of points of a course, evenly spread, with its last one.

    >>> thinned([(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)], 2)
    [(1, 0.1), (4, 0.4)]
    """
    if len(course) <= most:
        return course
    step = (len(course) - 1) / (most - 1)
    return [course[round(place * step)] for place in range(most)]


def without_test(keys: list[str]) -> list[str]:
    """Leave out the measures of the test set that were also made on validation data, as in a sweep.

    >>> without_test(["accuracy", "loss", "validation_accuracy"])
    ['loss', 'validation_accuracy']
    """
    return [key for key in keys if f"validation_{key}" not in keys]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
