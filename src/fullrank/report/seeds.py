"""Lines of runs that differ only in the seed: their mean, and a band around it that shows how they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullrank.comparison.intervals import t_quantile
from fullrank.errors import InputError, nearest
from fullrank.report.labels import SeedGroup
from fullrank.report.probed import Probe, probe_at, probes_of
from fullrank.report.style import GREY, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Course = Mapping[Any, float]
"""A value of one run by round, or by index."""
BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0, "zorder": 1}
POST: dict[str, Any] = {"alpha": 0.3, "linewidth": 4, "zorder": 1}
"""The style of a band over a single round, which would have no width."""
BANDS = {
    "range": "range over seeds",
    "std": "± 1 std over seeds",
    "ci": "95 % interval over seeds",
    "none": "",
}
"""The meanings of bands, with their entries in the legend: from the least to the greatest value, the mean ± one
sample standard deviation, or Student's confidence interval of the mean."""


@dataclass(frozen=True)
class Spread:
    """A value of several runs by round, by index or by a setting: its mean, and the ends of the band around it."""

    places: list[Any]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def over_seeds(courses: Sequence[Course], band: str = "range") -> Spread:
    """Return the mean of several runs and the band around it, for the rounds in which all have a value.

    Args:
        courses: The values of each run by round.
        band: What the band shows.

    >>> spread = over_seeds([{1: 2.0, 2: 3.0}, {1: 4.0}])
    >>> spread.places, spread.mean.tolist(), spread.high.tolist()
    ([1], [3.0], [4.0])
    """
    places = [place for place in courses[0] if all(place in other for other in courses)]
    return spread_of({place: [course[place] for course in courses] for place in places}, band)


def spread_of(values: Mapping[float, Sequence[float]], band: str = "range") -> Spread:
    """Return the mean of the values at each place and the band around it, which has no width for a single value.

    Args:
        values: The values by place.
        band: What the band shows.

    >>> spread = spread_of({1: [2.0, 4.0], 5: [3.0]}, "std")
    >>> spread.mean.tolist(), spread.high.round(3).tolist()
    ([3.0, 3.0], [4.414, 3.0])
    """
    ends = [(float(np.mean(found)), *_ends(np.asarray(found, np.float64), band)) for found in values.values()]
    mean, low, high = np.array(ends, np.float64).reshape(-1, 3).T
    return Spread(list(values), mean, low, high)


def _ends(values: NDArray[np.float64], band: str) -> tuple[float, float]:
    middle = float(values.mean())
    if len(values) < 2 or band == "none":
        return middle, middle
    if band == "range":
        return float(values.min()), float(values.max())
    reach = float(values.std(ddof=1))
    if band == "ci":
        reach *= t_quantile(len(values) - 1) / math.sqrt(len(values))
    return middle - reach, middle + reach


def draw_rounds(
    axes: Axes, group: SeedGroup, courses: Sequence[Course], *, band: str = "range", **style: Any
) -> list[float]:
    """Draw the line of a group of runs over rounds, with its band.

    Ends of a band below zero are left out if the mean is above, because a standard deviation can be larger than it.

    Args:
        axes: Where the line is drawn.
        group: The runs, with their colour.
        courses: The values of each run by round.
        band: What the band shows.
        **style: The style of the line.

    Returns:
        All values of the line and its band.

    Raises:
        InputError: If the runs have no round in common.
    """
    spread = over_seeds(courses, band)
    if not spread.places:
        raise _nothing_shared(group)
    banded = band != "none" and len(courses) > 1
    draw_spread(axes, spread, group.colour, band=banded, **style)
    low = np.where((spread.mean > 0) & (spread.low <= 0), spread.mean, spread.low)
    reached = (*spread.mean, *low, *spread.high) if banded else spread.mean
    return [float(value) for value in reached if np.isfinite(value)]


def draw_spread(axes: Axes, spread: Spread, colour: Any, *, band: bool, **style: Any) -> None:
    """Draw the line of the mean, and the band behind it.

    Args:
        axes: Where the line is drawn.
        spread: The mean and the ends of the band.
        colour: The colour of both.
        band: Whether the band is drawn.
        **style: The style of the line.
    """
    axes.plot(spread.places, spread.mean, color=colour, **style)
    if band and len(spread.places) == 1:
        axes.vlines(spread.places, spread.low, spread.high, color=colour, **POST)
    elif band:
        axes.fill_between(spread.places, spread.low, spread.high, color=colour, **BAND)


def probes_at(group: SeedGroup, round: int | None = None) -> tuple[Probe, ...]:
    """Return the probe of each run of a group after a round.

    Args:
        group: The runs.
        round: The round; by default the last one in which all runs were probed.

    Raises:
        InputError: If there is no such round.
    """
    if round is None:
        rounds = set.intersection(*({probe["round"] for probe in probes_of(run)} for run in group.runs))
        if not rounds:
            raise _nothing_shared(group)
        round = max(rounds)
    return tuple(probe_at(run, round) for run in group.runs)


def _nothing_shared(group: SeedGroup) -> InputError:
    return InputError(f'the {len(group.runs)} runs of "{group.label}" have no round in common that could be drawn')


def band_entry(groups: Sequence[SeedGroup], band: str = "range") -> dict[str, Any]:
    """Return the legend's entry for bands; none if no line has several runs, or bands are not wanted."""
    several = any(len(group.runs) > 1 for group in groups) and band != "none"
    return {BANDS[band]: line(GREY, linewidth=5, alpha=0.4, solid_capstyle="butt")} if several else {}


def limit_shares(axes: Axes, label: str) -> None:
    """End an axis of per cent at 0 and 100, where values end but a standard deviation may not."""
    if "(%)" in label:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -1), min(high, 101))


def check_band(band: str) -> None:
    """Check that bands can show something.

    Args:
        band: The name of what a band shows.

    Raises:
        InputError: If there is no such name.
    """
    if band not in BANDS:
        raise InputError(f'there is no band "{band}"; {nearest(band, BANDS)}')
