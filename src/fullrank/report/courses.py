"""Figures over rounds: accuracy, and the measures of neural collapse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.errors import InputError
from fullrank.report.labels import SeedGroup, grouped
from fullrank.report.probed import locals_of, mean, number, probes_of
from fullrank.report.seeds import band_entry, draw_rounds
from fullrank.report.style import BLACK, GREY, LOCAL, draw_legend, drawing, legend_height, line, round_ticks
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NC = {
    "nc1": "NC1: within / between",
    "nc2": "NC2: from a simplex",
    "nc3": "NC3: from duality",
    "nc4": "NC4: not nearest mean",
}
FULL: dict[str, Any] = {"marker": ".", "markersize": 4}
DASHED: dict[str, Any] = {"marker": "o", "markersize": 2.5, "fillstyle": "none", "linestyle": LOCAL, "linewidth": 0.9}
WIDE_RANGE = 8
"""The ratio of largest to smallest value from which an axis is logarithmic."""


def draw_accuracy(runs: Sequence[Run], path: str | Path) -> None:
    """Draw test accuracy over rounds; the clients' own models' accuracy if there is no global model.

    Runs that differ only in the seed are drawn as their mean, with a band from the least to the greatest.
    """
    groups = grouped(runs)
    keys = {_accuracy_key(run) for run in runs}
    entries = _entries(groups) | band_entry(groups)
    with drawing(path, 1.9 + legend_height(list(entries))) as figure:
        axes = figure.subplots()
        for group in groups:
            courses = [_accuracies(run) for run in group.runs]
            few = min(map(len, courses)) < 3
            draw_rounds(axes, group, courses, marker="." if few else "")
        personal = keys == {"personal_accuracy"}
        axes.set(xlabel="round", ylabel="clients' accuracy (%)" if personal else "test accuracy (%)")
        round_ticks(axes)
        draw_legend(figure, entries)


def _accuracies(run: Run) -> dict[int, float]:
    key = _accuracy_key(run)
    return {row["round"]: 100 * row[key] for row in run.metrics if row.get(key) is not None}


def _accuracy_key(run: Run) -> str:
    for key in ("accuracy", "personal_accuracy"):
        if any(row.get(key) is not None for row in run.metrics):
            return key
    raise InputError(f'"{run.path}" has no accuracy in its metrics')


def draw_collapse(runs: Sequence[Run], path: str | Path, *, clients: Sequence[int] = ()) -> None:
    """Draw NC1 to NC4 over rounds: of the global model in full lines, the mean of clients dashed.

    Runs that differ only in the seed are drawn as their means, with a band from the least to the greatest global model;
    only if there is no global model, the band is around the clients' means, so that two bands of a colour never
    overlap.
    """
    groups = grouped(runs)
    entries = _entries(groups)
    probes = [probe for run in runs for probe in probes_of(run)]
    if any("global" in probe for probe in probes):
        entries["global model"] = line(BLACK, **FULL)
    if any(locals_of(probe, clients) for probe in probes):
        entries["mean of clients"] = line(BLACK, **DASHED)
    entries |= band_entry(groups)
    with drawing(path, 2.7 + legend_height(list(entries))) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (name, title) in zip(panels.flat, NC.items(), strict=True):
            drawn: list[float] = []
            for group in groups:
                whole = draw_rounds(axes, group, [_of_global(run, name) for run in group.runs], **FULL)
                of_clients = [_of_clients(run, name, clients) for run in group.runs]
                own = draw_rounds(axes, group, of_clients, band=not whole, **DASHED)
                drawn += whole + own
            axes.set_title(title, loc="left", fontsize=7)
            _scale(axes, drawn)
            round_ticks(axes)
        figure.supxlabel("round", fontsize=8)
        draw_legend(figure, entries)


def _of_global(run: Run, name: str) -> dict[int, float]:
    return {probe["round"]: number(probe.get("global", {}).get(name)) for probe in probes_of(run)}


def _of_clients(run: Run, name: str, clients: Sequence[int]) -> dict[int, float]:
    return {probe["round"]: mean([local.get(name) for local in locals_of(probe, clients)]) for probe in probes_of(run)}


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Choose a scale on which the values are distinguishable and the tick labels are legible."""
    if not values:
        axes.text(0.5, 0.5, "not defined", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_yticks([])
    elif min(values) > 0 and max(values) > WIDE_RANGE * min(values):
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes.set_yscale("log")
        decades = np.log10(max(values) / min(values))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _entries(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    return {group.name: line(group.colour) for group in groups}
