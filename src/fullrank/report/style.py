"""How the figures look: one column of a paper wide, colours that colour-blind readers tell apart."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.errors import InputError, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Inches."""
LETTER, LEGEND_LINE, LEGEND_HANDLE = 0.058, 0.142, 0.36
"""A letter's width, a line's height and the room for a line's sample in a legend, in inches."""
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
"""Okabe and Ito's palette."""
GREY = "#999999"
CLASS_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, BLACK, YELLOW)
CLASS_MARKERS = ("o", "^", "s", "D")
"""Where there are more classes than colours, the next marker starts over."""
LINE_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
"""Of lines that mean different things; yellow is too faint for one."""
DARK, LIGHT = (0.0, 0.13, 0.30), (0.85, 0.75, 0.35)
"""Ends of a scale from dark blue to sand, for lines that are too many for the palette, in their order."""
LOCAL = (0, (3, 1.5))
"""The dashes of what belongs to clients, beside the global model's full lines."""
SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "mathtext.fontset": "dejavusans",
}


@contextmanager
def drawing(path: str | Path, height: float) -> Iterator[Figure]:
    """A figure one column wide to draw on; it is written when all went well."""
    target = figure_file(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = SETTINGS  # whose keys Matplotlib knows one by one
    with matplotlib.rc_context(settings):
        figure = Figure((COLUMN, height), dpi=300, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        save(figure, target)


def figure_file(path: str | Path) -> Path:
    """Where a figure goes; rejected at once where none could be written or drawn."""
    target = Path(path)
    if target.suffix.lower() not in (".pdf", ".png"):
        raise InputError(f'a figure is written as PDF or PNG, so "{target}" must end in .pdf or .png')
    reject_unwritable(target)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("drawing needs matplotlib: pip install 'fullrank[report]'") from error
    return target


def save(figure: Figure, target: Path) -> None:
    """Write a figure, in a folder that is made where it is missing."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # without the date, so that the same figure gives the same file
        figure.savefig(target, metadata={"CreationDate": None} if target.suffix.lower() == ".pdf" else None)


def reject_unwritable(target: Path) -> None:
    """Reject a file that could not be written, without writing anything."""
    with writing(target):
        present = next((place for place in (target, *target.parents) if place.exists()), Path())
        if present == target and target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if present != target and not present.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(present, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def line_colours(number: int) -> list[Any]:
    """So many colours of lines: the palette's, or, where these are too few, steps from dark to light."""
    if number <= len(LINE_COLOURS):
        return list(LINE_COLOURS[:number])
    dark, light = np.array(DARK), np.array(LIGHT)
    return [tuple(dark + (light - dark) * place / (number - 1)) for place in range(number)]


def line(colour: Any, **style: Any) -> dict[str, Any]:
    """How a line looks, for a legend."""
    return {"color": colour, **style}


def draw_legend(figure: Any, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """A legend above everything, of lines by name, in as many columns as the names leave room for."""
    from matplotlib.lines import Line2D

    samples = [Line2D([], [], **style) for style in entries.values()]
    spacing = {"columnspacing": 1.0, "handlelength": 1.8, "handletextpad": 0.6, "labelspacing": 0.3, "borderpad": 0.1}
    columns = _columns(list(entries))
    figure.legend(samples, entries.keys(), loc="outside upper left", ncols=columns, **spacing)


def legend_height(names: Sequence[str]) -> float:
    """What such a legend takes of a figure's height, in inches."""
    return 0.1 + LEGEND_LINE * -(-len(names) // _columns(names))


def _columns(names: Sequence[str]) -> int:
    """The most columns that fit, filled one after the other as Matplotlib fills them."""
    for columns in range(min(4, len(names)), 1, -1):
        filled = [[len(names[k]) for k in part] for part in np.array_split(range(len(names)), columns)]
        if sum(LEGEND_HANDLE + LETTER * max(letters) for letters in filled) <= COLUMN:
            return columns
    return 1


def round_ticks(axes: Any) -> None:
    """Whole numbers alone along the x axis: there is neither half a round nor half an index."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def class_style(c: int) -> tuple[str, str]:
    """Colour and marker of a class."""
    return CLASS_COLOURS[c % len(CLASS_COLOURS)], CLASS_MARKERS[c // len(CLASS_COLOURS) % len(CLASS_MARKERS)]
