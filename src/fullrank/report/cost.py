"""The figure of a measure against what it costs: bytes, elements, seconds, memory or parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.comparison.derived import derived
from fullrank.errors import InputError, nearest
from fullrank.report.labels import SeedGroup, grouped
from fullrank.report.legend import draw_legend, is_covered
from fullrank.report.quantities import results_of
from fullrank.report.seeds import BANDS, spread_of
from fullrank.report.style import CLASS_MARKERS, GREY, drawing, line
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

COSTS = ("bytes", "bytes_up", "bytes_down", "elements_up", "elements_down", "seconds", "peak_memory", "parameters")
DECADE = 10
"""The ratio of greatest to least cost from which the axis is logarithmic."""
SIDES = ((6, 0, "left", "center"), (-6, 0, "right", "center"), (0, 5, "center", "bottom"), (0, -5, "center", "top"))
"""The places of a name next to its point: an offset in points of the typesetter, and alignments."""


def draw_cost(
    runs: Sequence[Run],
    path: str | Path,
    *,
    over: str = "bytes",
    measure: str = "accuracy",
    value: str = "last5",
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw a measure of complete runs against their cost, a point per method, with its name where there is room.

    Runs that differ only in the seed are one point, their mean, with bars that show how they differ.

    Args:
        runs: The runs.
        path: The file.
        over: The cost: "bytes" (up and down), "bytes_up", "bytes_down", "elements_up", "elements_down", "seconds",
            "peak_memory" or "parameters" (those that are trained), each of the whole run.
        measure: The measure, as `fullrank compare` names it.
        value: The value of a run, as `fullrank compare` names it.
        labels: Names of the points.
        band: What the bars show: "range", "std", "ci" or "none".

    Raises:
        InputError: If there is no such cost, or a run is not complete or does not have the measure.
    """
    if over not in COSTS:
        raise InputError(f'there is no cost "{over}"; {nearest(over, COSTS)}')
    groups = grouped(runs, labels)
    costs, xlabel = results_of(runs, over, "last5")
    results, ylabel = results_of(runs, measure, value)
    if kinds := _kinds(runs, over):
        xlabel = f"{xlabel}\n{kinds}"
    with drawing(path, 2.1) as figure:
        axes = figure.subplots()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        points = []
        for group in groups:
            across = spread_of({0: [costs[id(run)] for run in group.runs]}, band)
            up = spread_of({0: [results[id(run)] for run in group.runs]}, band)
            points.append((float(across.mean[0]), float(up.mean[0])))
            if len(group.runs) > 1 and band != "none":
                axes.hlines(up.mean, across.low, across.high, color=group.colour, linewidth=0.8)
                axes.vlines(across.mean, up.low, up.high, color=group.colour, linewidth=0.8)
        styles = [_style(group, number) for number, group in enumerate(groups)]
        for point, style in zip(points, styles, strict=True):
            axes.plot(*point, **style)
        if all(x > 0 for x, _ in points) and max(points)[0] >= DECADE * min(points)[0]:
            axes.set_xscale("log")
        axes.margins(0.15)
        bars = _bar_entry(groups, band)
        if _named(axes, groups, points):
            draw_legend(figure, {}, bars)
        else:
            draw_legend(figure, {group.name: style for group, style in zip(groups, styles, strict=True)}, bars)


def _kinds(runs: Sequence[Run], cost: str) -> str:
    """Return the words for what the runs measured, for a cost that differs between machines; else an empty text."""
    found = derived(cost)
    return " or ".join(dict.fromkeys(filter(None, map(found.kind, runs)))) if found is not None else ""


def _style(group: SeedGroup, number: int) -> dict[str, Any]:
    marker = CLASS_MARKERS[number % len(CLASS_MARKERS)]
    return line(group.colour, marker=marker, markersize=4, linestyle="none")


def _bar_entry(groups: Sequence[SeedGroup], band: str) -> dict[str, Any]:
    several = any(len(group.runs) > 1 for group in groups) and band != "none"
    return {BANDS[band]: line(GREY, linewidth=0.8)} if several else {}


def _named(axes: Axes, groups: Sequence[SeedGroup], points: Sequence[tuple[float, float]]) -> bool:
    """Write the name of each point next to it, or none if one of them would cover something or be cut off."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    room = axes.get_window_extent()
    written: list[Annotation] = []
    for group, point in zip(groups, points, strict=True):
        for x, y, across, up in SIDES:
            text = axes.annotate(
                group.name,
                point,
                (x, y),
                textcoords="offset points",
                ha=across,
                va=up,
                fontsize=7,
                color=group.colour,
            )
            box = text.get_window_extent()
            text.set_visible(False)
            inside = room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1
            if inside and not is_covered(axes, box):
                written.append(text)
                text.set_visible(True)
                break
            text.remove()
        else:
            for old in written:
                old.remove()
            return False
    return True
