"""Figures of how alike clients are, as means over the clients and over seeds: CKA by layer, and their classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.probe.layers import CLASSIFIER, REPRESENTATION
from fullrank.report.labels import SeedGroup, grouped
from fullrank.report.legend import draw_legend
from fullrank.report.probed import Probe, between_clients
from fullrank.report.seeds import band_entry, draw_rounds, draw_spread, probes_at, spread_of
from fullrank.report.style import drawing, line, round_ticks
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 16
"""The number of letters of a layer's name for which there is room below an axis."""
MOST_MARKED = 20
"""The largest number of classes with a marker each."""


def draw_cka_means(
    runs: Sequence[Run], path: str | Path, round: int | None, labels: Sequence[str] = (), band: str = "range"
) -> None:
    """Draw linear CKA by layer, the mean over pairs of clients; a line for all runs that differ only in the seed.

    The features and the classifier's scores come after the layers.

    Args:
        runs: The runs.
        path: The file.
        round: The round of the probes, by default the last that all seeds of a line have.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".
    """
    groups = grouped(runs, labels)
    means = {group.label: [_by_layer(run, probe) for run, probe in _probes(group, round)] for group in groups}
    layers = _in_order([layer for found in means.values() for by_layer in found for layer in by_layer])
    with drawing(path, 2.3) as figure:
        axes = figure.subplots()
        for group in groups:
            found = means[group.label]
            courses = [{layers.index(layer): value for layer, value in one.items()} for one in found]
            draw_rounds(axes, group, courses, band=band, marker="o", markersize=3)
        axes.set(ylabel="linear CKA between clients", ylim=(min(0.0, axes.get_ylim()[0]), 1.02))
        axes.set_xticks(range(len(layers)), [_short(layer) for layer in layers], rotation=40, ha="right", fontsize=6)
        draw_legend(
            figure,
            {group.name: line(group.colour, marker="o", markersize=3) for group in groups},
            band_entry(groups, band),
        )


def _in_order(layers: Sequence[str]) -> list[str]:
    """Return the names of layers once each; the representation and the classifier come last."""
    ends = (REPRESENTATION, CLASSIFIER)
    once = list(dict.fromkeys(layers))
    return [*(layer for layer in once if layer not in ends), *(layer for layer in ends if layer in once)]


def _by_layer(run: Run, probe: Probe) -> dict[str, float]:
    tables = between_clients(run, probe["round"], "cka")
    return {layer: float(table[np.triu_indices(len(table), 1)].mean()) for layer, table in tables.items()}


def _short(layer: str) -> str:
    """Return the name of a layer below an axis.

    >>> _short("backbone.layer1.1.conv2.0"), _short("backbone.4"), _short("z")
    ('layer1.1.conv2.0', 'layer 4', 'features z')
    """
    if layer == REPRESENTATION:
        return "features z"
    name = layer.removeprefix("backbone.")
    name = f"layer {name}" if name[:1].isdigit() else name
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def draw_classifier_means(
    runs: Sequence[Run], path: str | Path, round: int | None, labels: Sequence[str] = (), band: str = "range"
) -> None:
    """Draw the norms of the classifier's rows by class, and the cosine between clients' rows, as means.

    Norms are means over the clients, cosines over pairs of clients and classes; runs that differ only in the seed are a
    line, and a point.

    Args:
        runs: The runs.
        path: The file.
        round: The round of the probes, by default the last that all seeds of a line have.
        labels: Names of the lines.
        band: What the band and the bars show: "range", "std", "ci" or "none".
    """
    groups = grouped(runs, labels)
    probes = {group.label: _probes(group, round) for group in groups}
    with drawing(path, 2.1) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
        for place, group in enumerate(groups):
            norms = [_norms(run, probe) for run, probe in probes[group.label]]
            marked: dict[str, Any] = {"marker": ".", "markersize": 3} if len(norms[0]) <= MOST_MARKED else {}
            draw_rounds(left, group, norms, band=band, **marked)
            cosines = [probe["classifier_cosine"] for _, probe in probes[group.label]]
            _draw_point(right, group, place, cosines, band)
        left.set(xlabel="class $c$", ylabel=r"norm $\|W_c\|$, mean of clients")
        right.set(xticks=[], xlim=(-0.5, len(groups) - 0.5), ylabel="cosine between clients")
        round_ticks(left)
        draw_legend(
            figure,
            {group.name: line(group.colour, marker="o", markersize=3) for group in groups},
            band_entry(groups, band),
        )


def _norms(run: Run, probe: Probe) -> dict[int, float]:
    between_clients(run, probe["round"], "classifier_cosines")  # says what is missing
    norms = np.mean([local["classifier_norms"] for local in probe["locals"]], axis=0)
    return dict(enumerate(norms.tolist()))


def _draw_point(axes: Axes, group: SeedGroup, place: int, values: Sequence[float], band: str) -> None:
    spread = spread_of({place: values}, band)
    draw_spread(axes, spread, group.colour, band=band != "none" and len(values) > 1, marker="o", markersize=4)


def _probes(group: SeedGroup, round: int | None) -> list[tuple[Run, Probe]]:
    return list(zip(group.runs, probes_at(group, round), strict=True))
