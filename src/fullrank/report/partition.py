"""The figure of a partition: the number of samples by client and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fullrank.data.heterogeneity import CountArray, class_labels, client_labels
from fullrank.report.style import figure_file, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

# in inches, at the font size of the tick labels
FONT_SIZE = 9
LINE_HEIGHT = 0.19
LETTER_WIDTH = 0.085
SIDES, ENDS, BARS, SCALE_WIDTH = 1.8, 1.2, 1.5, 0.18
MAX_SIZES_WRITTEN = 40
_TICK_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_partition(
    counts: CountArray,
    path: str | Path,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> None:
    """Draw a partition as a heat map, with a bar of each client's size on its right.

    Cells without samples stay white, so that classes that a client lacks are visible at once.

    Args:
        counts: The number of samples by client and class, of shape (clients, classes).
        path: The file.
        class_names: The names of the classes; numbers by default.
        client_names: The names of the clients, used for up to 40 clients.
    """
    target = figure_file(path)
    labels = class_labels(counts, class_names)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    map_width = float(np.clip(0.42 * classes, 3.0, 10.0))
    map_height = float(np.clip(0.3 * clients, 1.8, 9.0))
    figure = Figure((map_width + BARS + SIDES, map_height + ENDS), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    cells, bars = figure.subplots(1, 2, sharey=True, width_ratios=[map_width, BARS])
    mesh = _draw_cells(cells, counts)
    _name_classes(cells, labels, map_width / classes)
    _label_clients(cells, client_labels(counts, client_names), map_height / clients)
    _draw_sizes(bars, counts.sum(axis=1))
    scale = figure.colorbar(
        mesh,
        ax=[cells, bars],
        label="samples of the class (white: none)",
        pad=0.02,
        aspect=map_height / SCALE_WIDTH,
    )
    scale.ax.locator_params(axis="y", integer=True)
    save(figure, target)


def _draw_cells(axes: Axes, counts: CountArray) -> QuadMesh:
    """Draw the heat map; colours follow the square root, so that one large cell does not hide other differences."""
    from matplotlib.colors import PowerNorm

    seam = 0.5 if max(counts.shape) <= MAX_SIZES_WRITTEN else 0.0
    mesh = axes.pcolormesh(
        np.ma.masked_equal(counts, 0),
        cmap="cividis_r",
        norm=PowerNorm(0.5, vmin=0, vmax=max(1, counts.max(initial=0))),
        edgecolors="white" if seam else "none",
        linewidth=seam,
    )
    axes.invert_yaxis()
    axes.set(xlabel="class", ylabel="client")
    return mesh


def _name_classes(axes: Axes, labels: Sequence[str], column: float) -> None:
    """Label the classes: names wider than their column are rotated; of numbers, some are left out instead."""
    longest = max(map(len, labels)) * LETTER_WIDTH
    upright = longest > column and not all(label.isdigit() for label in labels)
    step = _tick_step(LINE_HEIGHT if upright else longest + LETTER_WIDTH, column)
    shown = range(0, len(labels), step)
    axes.set_xticks([i + 0.5 for i in shown], [labels[i] for i in shown], fontsize=FONT_SIZE)
    axes.tick_params(axis="x", labelrotation=90 if upright else 0)


def _label_clients(axes: Axes, labels: Sequence[str], row: float) -> None:
    shown = range(0, len(labels), _tick_step(LINE_HEIGHT, row))
    axes.set_yticks([i + 0.5 for i in shown], [labels[i] for i in shown], fontsize=FONT_SIZE)


def _tick_step(needed: float, spacing: float) -> int:
    """Return a step between labels, 1, 2, 5, 10, …, at which neighbouring labels do not overlap."""
    return next((step for step in _TICK_STEPS if step * spacing >= needed), _TICK_STEPS[-1])


def _draw_sizes(axes: Axes, sizes: CountArray) -> None:
    bars = axes.barh(np.arange(len(sizes)) + 0.5, sizes, height=0.75, color="#4a5f7f")
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.tick_params(axis="x", labelsize=FONT_SIZE)
    axes.locator_params(axis="x", nbins=2, integer=True)
    axes.set_xlabel("all samples")
    axes.spines[["top", "right"]].set_visible(False)
    if len(sizes) <= MAX_SIZES_WRITTEN:
        axes.bar_label(bars, [f"{size:,}" for size in sizes], padding=2, fontsize=FONT_SIZE - 1)
        axes.set_xlim(0, 1.6 * max(1, sizes.max(initial=0)))
