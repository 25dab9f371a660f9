"""The columns of a table, as features of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fullrank.errors import InputError

Numbers = npt.NDArray[np.float64]
"""The cells of a numeric column, with NaN for missing values."""
Texts = Sequence[str | None]
"""The cells of a categorical column, with None for missing values."""


@dataclass(frozen=True)
class Column:
    """A column of a table and the features that it becomes.

    A numeric column is one feature, its value; NaN stands for a missing value. A categorical column is one feature per
    category, of which one is 1 and the others are 0.

    >>> Column("sex", ("f", "m"), missing=True).width
    3
    """

    name: str
    categories: tuple[str, ...] | None = None
    """The categories in sorted order; None for a numeric column."""
    missing: bool = False
    """Whether a further feature is 1 where the value is missing, and 0 elsewhere."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Column:
        """Restore a column from the dict that `dataclasses.asdict` returned, which may have been stored as JSON."""
        known = facts["categories"]
        return cls(facts["name"], None if known is None else tuple(known), facts["missing"])

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.categories is None

    @property
    def width(self) -> int:
        """The number of features."""
        return (1 if self.categories is None else len(self.categories)) + self.missing

    def encode(self, cells: Numbers | Texts) -> Numbers:
        """Return the features of a column's cells, of shape (N, width).

        Args:
            cells: The cells of each row. A category that is not known gives zeros.

        Raises:
            InputError: If the column is numeric and the cells are not, or the other way round.

        >>> Column("sex", ("f", "m")).encode(["m", "x"])
        array([[0., 1.],
               [0., 0.]])
        """
        if self.categories is None:
            if not isinstance(cells, np.ndarray):
                raise InputError(f'the column "{self.name}" must hold numbers')
            found = cells[:, None]
            absent = np.isnan(cells)
        else:
            if isinstance(cells, np.ndarray):
                raise InputError(f'the column "{self.name}" must hold categories, and its cells are numbers')
            place = {category: k for k, category in enumerate(self.categories)}
            codes = np.array([-1 if cell is None else place.get(cell, -1) for cell in cells], dtype=np.int64)
            found = (codes[:, None] == np.arange(len(place))).astype(np.float64)
            absent = np.array([cell is None for cell in cells], dtype=bool)
        return np.hstack([found, absent[:, None]]) if self.missing else found


def described(name: str, cells: Numbers | Texts) -> Column | None:
    """Describe a column as features.

    Args:
        name: The name of the column.
        cells: Its cells in the training part.

    Returns:
        The column, or None if no cell has a value.
    """
    if isinstance(cells, np.ndarray):
        absent = np.isnan(cells)
        return None if absent.all() else Column(name, None, bool(absent.any()))
    known = {cell for cell in cells if cell is not None}
    return Column(name, tuple(sorted(known)), None in cells) if known else None
