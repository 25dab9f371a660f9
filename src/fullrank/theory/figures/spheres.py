"""Figures of representations on a sphere, coloured by class and seen from the side where most points are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullrank.report.style import class_style, drawing
from fullrank.theory.panels import Sphere
from fullrank.theory.sphere_study import UnitSphere

if TYPE_CHECKING:
    from matplotlib.axes import Axes

View = tuple[float, float]
"""The elevation and the azimuth from which a sphere is seen, in radians."""
OBLIQUE: View = (float(np.radians(25)), float(np.radians(35)))
"""The view from which points are drawn that are spread over all sides."""
ONE_SIDED = 0.1
"""The smallest length of the mean point for which the points count as being on one side."""


def draw_toy_sphere(panels: Sequence[Sphere], path: str | Path) -> None:
    """Draw FedMR Fig. 1(c), with two panels per row.

    Args:
        panels: The panels, as `toy_sphere` returns them.
        path: The file, whose suffix is the format.
    """
    rows = -(-len(panels) // 2)
    with drawing(path, 0.25 + 1.85 * rows) as figure:
        places = figure.subplots(rows, 2, squeeze=False)
        for axes in places.flat:
            axes.set_axis_off()
        for axes, panel in zip(places.flat, panels, strict=False):
            angle = f"{panel.smallest_angle:.0f}°"
            draw_sphere(axes, panel, f"{panel.name}\neffective rank {panel.effective_rank:.2f}, {angle}")
        _legend(figure, int(panels[0].classes.max()) + 1, "class (angle: between the two nearest class means)")


def draw_unit_sphere(found: UnitSphere, path: str | Path) -> None:
    """Draw FedDecorr's Fig. 1: the clients' classes, and the three global models.

    Args:
        found: The numbers, as `unit_sphere` returns them.
        path: The file, whose suffix is the format.
    """
    with drawing(path, 4.1) as figure:
        places = figure.subplots(2, 2)
        _draw_counts(places[0, 0], found.counts)
        for axes, panel, letter in zip(places.flat[1:], found.panels, "bcd", strict=True):
            axes.set_axis_off()
            draw_sphere(axes, panel, f"({letter}) {panel.name}\neffective rank {panel.effective_rank:.2f}")
        _legend(figure, found.counts.shape[1])


def draw_sphere(axes: Axes, panel: Sphere, title: str) -> None:
    """Draw points on a sphere, which is turned so that their mean is in front; points at the back are faint.

    Args:
        axes: Where the sphere is drawn.
        panel: The points and their classes.
        title: The title.
    """
    view = view_of(panel.points)
    _draw_wires(axes, view)
    across, up, depth = seen(panel.points, view)
    rng = np.random.default_rng(0)  # in a random order, so that the last class does not cover the others
    for behind in (True, False):
        for c in np.unique(panel.classes):
            colour, marker = class_style(int(c))
            own = (panel.classes == c) & ((depth < 0) == behind)
            shown: dict[str, Any] = {"s": 2.5, "marker": marker, "linewidths": 0, "alpha": 0.2 if behind else 0.75}
            axes.scatter(across[own], up[own], color=colour, zorder=(1 if behind else 3) + 0.5 * rng.random(), **shown)
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), aspect="equal")
    axes.set_title(title, pad=3)


def _draw_wires(axes: Axes, view: View) -> None:
    turn = np.linspace(0, 2 * np.pi, 121)
    circles = [
        np.stack([np.cos(turn) * np.cos(a), np.cos(turn) * np.sin(a), np.sin(turn)], 1)
        for a in np.arange(6) * np.pi / 6
    ]
    for latitude in np.radians([-60, -30, 0, 30, 60]):
        flat = np.cos(latitude)
        circles.append(np.stack([flat * np.cos(turn), flat * np.sin(turn), np.full_like(turn, np.sin(latitude))], 1))
    for circle in circles:
        across, up, depth = seen(circle, view)
        for front, shade in ((False, "#EBEBEB"), (True, "#C4C4C4")):
            hidden = (depth >= 0) != front
            axes.plot(
                np.where(hidden, np.nan, across),
                np.where(hidden, np.nan, up),
                color=shade,
                linewidth=0.4,
                zorder=2 * front,
            )
    axes.plot(np.cos(turn), np.sin(turn), color="#888888", linewidth=0.6, zorder=2)


def view_of(points: NDArray[np.float64]) -> View:
    """Return the view from straight above the mean of the points, if they are on one side.

    Each sphere has its own view, because the axes of different networks are not comparable.

    >>> np.degrees(view_of(np.array([[0.0, 1, 0]]))).tolist(), view_of(np.array([[1.0, 0, 0], [-1, 0, 0]])) == OBLIQUE
    ([0.0, 90.0], True)
    """
    x, y, z = points.mean(0)
    length = float(np.linalg.norm((x, y, z)))
    if length < ONE_SIDED:
        return OBLIQUE
    return float(np.arcsin(np.clip(z / length, -1, 1))), float(np.arctan2(y, x))


def seen(
    points: NDArray[np.float64], view: View
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the coordinates of points from the viewer's position.

    Args:
        points: Points of shape (N, 3).
        view: The view.

    Returns:
        The coordinates to the right, upwards, and towards the viewer.
    """
    x, y, z = points.T
    (sine, sideways), (cosine, forward) = np.sin(view), np.cos(view)
    ahead = forward * x + sideways * y
    across = -sideways * x + forward * y
    return across, cosine * z - sine * ahead, cosine * ahead + sine * z


def _draw_counts(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw a disc for every client and class, with an area proportional to the number of samples."""
    clients, classes = counts.shape
    for c in range(classes):
        colour, marker = class_style(c)
        own = counts[:, c].nonzero()[0]
        sizes = 38 * counts[own, c] / counts.max() + 0.5
        axes.scatter(own, np.full(len(own), c), s=sizes, color=colour, marker=marker, linewidths=0)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2))
    axes.set_xticks(range(0, clients, max(1, clients // 5)))
    axes.set_yticks(range(0, classes, max(1, classes // 5)))
    axes.set_title("(a) samples per client\n(area: their number)", pad=3)


def _legend(figure: Any, classes: int, title: str = "class") -> None:
    from matplotlib.lines import Line2D

    handles = []
    for c in range(classes):
        colour, marker = class_style(c)
        handles.append(Line2D([], [], linestyle="", marker=marker, markersize=3.5, color=colour, label=str(c)))
    spacing = {"handletextpad": 0.0, "columnspacing": 0.45, "borderpad": 0.0, "handlelength": 1.3, "title_fontsize": 7}
    figure.legend(handles=handles, title=title, loc="outside lower center", ncols=min(classes, 10), **spacing)
