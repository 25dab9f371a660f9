"""Lines of runs that differ only in the seed: their mean, and a band from the least to the greatest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullrank.errors import InputError
from fullrank.report.labels import SeedGroup
from fullrank.report.probed import Probe, probe_at, probes_of
from fullrank.report.style import GREY, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Course = Mapping[int, float]
"""A value of one run by round, or by index."""
BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0, "zorder": 1}
POST: dict[str, Any] = {"alpha": 0.3, "linewidth": 4, "zorder": 1}
"""The style of a band over a single round, which would have no width."""


@dataclass(frozen=True)
class Spread:
    """A value of several runs by round, or by index."""

    places: list[int]
    mean: NDArray[np.float64]
    least: NDArray[np.float64]
    greatest: NDArray[np.float64]


def over_seeds(courses: Sequence[Course]) -> Spread:
    """Return mean, least and greatest over runs, for the rounds in which all have a value.

    >>> spread = over_seeds([{1: 2.0, 2: 3.0}, {1: 4.0}])
    >>> spread.places, spread.mean.tolist(), spread.greatest.tolist()
    ([1], [3.0], [4.0])
    """
    places = [place for place in courses[0] if all(place in other for other in courses)]
    table = np.array([[course[place] for course in courses] for place in places], np.float64)
    table = table.reshape(len(places), len(courses))
    return Spread(places, table.mean(1), table.min(1), table.max(1))


def draw_rounds(
    axes: Axes, group: SeedGroup, courses: Sequence[Course], *, band: bool = True, **style: Any
) -> list[float]:
    """Draw a group's line over rounds from its runs' courses; return all values of the line and its band."""
    spread = over_seeds(courses)
    if not spread.places:
        raise _nothing_shared(group)
    banded = band and len(courses) > 1
    draw_spread(axes, spread, group.colour, band=banded, **style)
    reached = (*spread.mean, *spread.least, *spread.greatest) if banded else spread.mean
    return [float(value) for value in reached if np.isfinite(value)]


def draw_spread(axes: Axes, spread: Spread, colour: Any, *, band: bool, **style: Any) -> None:
    """Draw the line of the mean, and the band behind it."""
    axes.plot(spread.places, spread.mean, color=colour, **style)
    if band and len(spread.places) == 1:
        axes.vlines(spread.places, spread.least, spread.greatest, color=colour, **POST)
    elif band:
        axes.fill_between(spread.places, spread.least, spread.greatest, color=colour, **BAND)


def probes_at(group: SeedGroup, round: int | None = None) -> tuple[Probe, ...]:
    """Return the probe of each run after a round, by default the last round in which all were probed."""
    if round is None:
        rounds = set.intersection(*({probe["round"] for probe in probes_of(run)} for run in group.runs))
        if not rounds:
            raise _nothing_shared(group)
        round = max(rounds)
    return tuple(probe_at(run, round) for run in group.runs)


def _nothing_shared(group: SeedGroup) -> InputError:
    return InputError(f'the {len(group.runs)} runs of "{group.label}" have no round in common that could be drawn')


def band_entry(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    """Return the legend's entry for bands; none if no line has several runs."""
    several = any(len(group.runs) > 1 for group in groups)
    return {"range over seeds": line(GREY, linewidth=5, alpha=0.4, solid_capstyle="butt")} if several else {}
