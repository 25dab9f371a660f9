"""The legend of a figure: inside the axes if it covers nothing there, else below; at most a fifth of the height."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.transforms import Bbox

SHARE = 0.2
"""The largest share of a figure's height that its legend takes."""
FONTS = (7.0, 6.0, 5.0)
"""The sizes of letters that are tried, in points."""
MOST_INSIDE = 4
"""The largest number of entries of a legend inside the axes."""
MOST_COLUMNS = 6
CORNERS: tuple[Any, ...] = ("upper right", "upper left", "lower right", "lower left", "center right")
"""Places for a legend inside the axes, in the order in which they are tried."""
EDGE = 0.04
"""The room around a legend below the axes, in inches."""
SPACING: dict[str, Any] = {
    "columnspacing": 1.0,
    "handlelength": 1.8,
    "handletextpad": 0.6,
    "labelspacing": 0.3,
    "borderpad": 0.1,
}


def draw_legend(
    figure: Figure, lines: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Draw a legend of a figure that is complete otherwise, and make the figure higher if the legend is below it.

    If the names of the lines leave no room at the smallest size of letters, the legend numbers the lines, and a warning
    gives their names.

    Args:
        figure: The figure.
        lines: The style of each line, by its name.
        others: Entries that explain the style of all lines, such as the global model's.
    """
    styles = [*lines.values(), *(others or {}).values()]
    names, numbers, explained = list(lines), [str(place) for place in range(1, len(lines) + 1)], list(others or {})
    if not styles or _drawn_inside(figure, styles, [*names, *explained]):
        return
    if not _drawn_below(figure, styles, [*names, *explained]):
        _drawn_below(figure, styles, [*numbers, *explained], always=True)
        meaning = "; ".join(f'{number} is "{name}"' for number, name in zip(numbers, names, strict=True))
        warnings.warn(
            f"the legend has no room for all names, so it numbers the lines; give shorter names with --label "
            f"(labels=[…] in Python): {meaning}",
            stacklevel=2,
        )


def _drawn_below(figure: Figure, styles: Sequence[Any], names: Sequence[str], always: bool = False) -> bool:
    """Draw a legend below the axes in the largest letters that fit, and return whether any do.

    If it is drawn always, in the smallest letters, the figure becomes five times as high as the legend.
    """
    body = figure.get_figheight()
    for font in FONTS:
        legend, fits = _below(figure, styles, names, font)
        height = legend.get_window_extent().height / figure.dpi + 2 * EDGE
        if (fits and height <= SHARE * (body + height)) or (always and font == FONTS[-1]):
            whole = max(body + height, height / SHARE)
            figure.set_figheight(whole)
            figure.set_layout_engine("constrained", rect=(0, height / whole, 1, 1 - height / whole))
            return True
        legend.remove()
    return False


def _below(figure: Figure, styles: Sequence[Any], names: Sequence[str], font: float) -> tuple[Legend, bool]:
    """Return a legend with as many columns as the figure has room for, and whether they have room.

    The search starts at the fewest columns with which the legend can be low enough.
    """
    lines = int(SHARE / (1 - SHARE) * figure.get_figheight() * 72 / font)
    fewest = min(-(-len(names) // max(lines, 1)), MOST_COLUMNS)
    best, fits = _with_columns(figure, styles, names, font, fewest)
    for columns in range(fewest + 1, min(MOST_COLUMNS, len(names)) + 1 if fits else 0):
        legend, wider = _with_columns(figure, styles, names, font, columns)
        if not wider:
            legend.remove()
            break
        best.remove()
        best = legend
    return best, fits


def _with_columns(
    figure: Figure, styles: Sequence[Any], names: Sequence[str], font: float, columns: int
) -> tuple[Legend, bool]:
    place: dict[str, Any] = {"loc": "lower center", "borderaxespad": EDGE * 72 / font}
    legend = figure.legend(_samples(styles), names, ncols=columns, fontsize=font, **place, **SPACING)
    return legend, legend.get_window_extent().width <= (figure.get_figwidth() - 2 * EDGE) * figure.dpi


def _drawn_inside(figure: Figure, styles: Sequence[Any], names: Sequence[str]) -> bool:
    """Draw a legend of few entries where it covers nothing inside the only axes, and return whether there is room."""
    if len(figure.axes) != 1 or len(names) > MOST_INSIDE:
        return False
    (axes,) = figure.axes
    figure.draw_without_rendering()  # the place of the axes is known only then
    room = axes.get_window_extent()
    for columns in range(1, len(names) + 1):
        for corner in CORNERS:
            legend = axes.legend(_samples(styles), names, loc=corner, ncols=columns, fontsize=FONTS[0], **SPACING)
            box = legend.get_window_extent()
            fits = box.width <= 0.96 * room.width and box.height <= SHARE * figure.bbox.height
            if fits and not is_covered(axes, box.padded(0.02 * figure.dpi)):
                return True
            legend.remove()
    return False


def _samples(styles: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **style) for style in styles]


def is_covered(axes: Axes, box: Bbox) -> bool:
    """Return whether a box, in pixels, has a part of a line, a band, a marker or a text in it."""
    shapes = [(each.get_transform().transform_path(each.get_path()), False) for each in axes.lines]
    points = [path.vertices for path, _ in shapes]
    for band in axes.collections:
        points.append(band.get_offset_transform().transform(band.get_offsets()))
        shapes += [(band.get_transform().transform_path(path), True) for path in band.get_paths()]
    return (
        any(path.intersects_bbox(box, filled=filled) for path, filled in shapes)
        or any(box.count_contains(each) for each in points)
        or any(text.get_window_extent().overlaps(box) for text in axes.texts if text.get_visible())
    )
