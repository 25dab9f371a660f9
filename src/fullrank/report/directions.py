"""The figure of the directions of clients' classifiers, by class, on a t-SNE map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fullrank.collapse import classifier_map
from fullrank.report.labels import titles_of
from fullrank.report.legend import draw_legend
from fullrank.report.probed import directions_of, few, one, probe_at
from fullrank.report.style import class_style, drawing
from fullrank.runs.result import Run

MOST_NAMED = 20
"""The largest number of classes that a legend names."""


def draw_tsne(runs: Sequence[Run], path: str | Path, *, rounds: Sequence[int] = (), labels: Sequence[str] = ()) -> None:
    """Draw the t-SNE map of all clients' classifier rows, each divided by its norm: a point for each client and class.

    As in FedETF's talk (Fig. 1, fourth column), the points of a class lie together if clients agree. Each row of the
    figure has two runs; distances cannot be compared between panels. scikit-learn is required.

    Args:
        runs: The runs.
        path: The file.
        rounds: The round whose probes are drawn; by default the last.
        labels: Titles of the panels.
    """
    titles, round = titles_of(few(runs), labels), one(rounds)
    maps = [classifier_map(directions_of(run, round)) for run in runs]
    classes = max(int(found.max()) for _, found in maps) + 1
    entries = {f"class {c}": _marker(c) for c in range(classes if classes <= MOST_NAMED else 0)}
    columns = min(2, len(runs))
    rows = -(-len(runs) // columns)
    height = rows * (2.3 if columns == 1 else 1.75)
    with drawing(path, height) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in panels[len(runs) :]:
            axes.set_visible(False)
        for axes, title, run, (points, classes_of) in zip(panels, titles, runs, maps, strict=False):
            for c in np.unique(classes_of).astype(int):
                colour, marker = class_style(c)
                own = points[classes_of == c]
                axes.scatter(own[:, 0], own[:, 1], s=9, color=colour, marker=marker, linewidths=0)
            number = len(probe_at(run, round)["clients"])
            axes.set_title(f"{title}\n{number} clients", fontsize=7)
            axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
            axes.spines[["top", "right"]].set_visible(True)
        draw_legend(figure, {}, entries)


def _marker(c: int) -> dict[str, object]:
    colour, marker = class_style(c)
    return {"color": colour, "marker": marker, "markersize": 3, "linestyle": "none"}
