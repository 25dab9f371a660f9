"""The style of figures: the width of a paper's column, and colours that colour-blind readers can distinguish."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Width of a column in inches."""
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
"""Markers of classes; with more classes than colours, the colours repeat with the next marker."""
LINE_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
"""Colours of lines; yellow is too faint for a line."""
MORE_LINE_COLOURS = (*LINE_COLOURS, "#882255", "#999933", "#44AA99", "#CC6677", "#661100")
"""Colours of methods: those of lines and five of Tol's muted colours."""
DARK, LIGHT = (0.0, 0.13, 0.30), (0.85, 0.75, 0.35)
"""Ends of a scale from dark blue to sand, for more lines than the palette has colours."""
LOCAL = (0, (3, 1.5))
"""The dashes of clients' lines; the global model's are full."""
UNDATED: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".png": {}, ".svg": {"Date": None}}
"""The formats of figures, with the metadata that leaves out the date, so that the same figure gives the same file."""
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
    "svg.fonttype": "none",
    "svg.hashsalt": "fullrank",
    "mathtext.fontset": "dejavusans",
}


@contextmanager
def drawing(path: str | Path, height: float) -> Iterator[Figure]:
    """Create a figure one column wide to draw on, and write it at the end of the block.

    Args:
        path: The file.
        height: The height of the figure in inches.
    """
    target = figure_file(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = SETTINGS  # Matplotlib types its keys individually
    with matplotlib.rc_context(settings):
        figure = Figure((COLUMN, height), dpi=300, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        save(figure, target)


def figure_file(path: str | Path) -> Path:
    """Return the path of a figure.

    Args:
        path: The file.

    Raises:
        InputError: If its suffix is not that of a figure, or Matplotlib is missing.
    """
    target = Path(path)
    if target.suffix.lower() not in UNDATED:
        raise InputError(f'a figure is written as PDF, PNG or SVG, so "{target}" must end in .pdf, .png or .svg')
    reject_unwritable(target)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("drawing needs matplotlib: pip install 'fullrank[report]'") from error
    return target


def save(figure: Figure, target: Path) -> None:
    """Write a figure, and create its folder if it is missing."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata=UNDATED[target.suffix.lower()])


def reject_unwritable(target: Path) -> None:
    """Check that a file can be written, without writing anything.

    Args:
        target: The file.

    Raises:
        InputError: If it cannot be written.
    """
    with writing(target):
        present = next((place for place in (target, *target.parents) if place.exists()), Path())
        if present == target and target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if present != target and not present.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(present, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def line_colours(number: int) -> list[Any]:
    """Return `number` colours of lines: the palette's, or steps from dark to light if the palette has too few."""
    if number <= len(LINE_COLOURS):
        return list(LINE_COLOURS[:number])
    steps = (place / (number - 1) for place in range(number))
    return [tuple(dark + (light - dark) * step for dark, light in zip(DARK, LIGHT, strict=True)) for step in steps]


def method_colours(number: int) -> list[Any]:
    """Return `number` colours of lines that have no order, unlike clients or rounds."""
    return list(MORE_LINE_COLOURS[:number]) if number <= len(MORE_LINE_COLOURS) else line_colours(number)


def line(colour: Any, **style: Any) -> dict[str, Any]:
    """Return the style of a line, for a legend."""
    return {"color": colour, **style}


def round_ticks(axes: Any) -> None:
    """Put ticks of the x axis at whole numbers only, for rounds and indices are whole."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def class_style(c: int) -> tuple[str, str]:
    """Return the style of a class.

    Args:
        c: The number of the class.

    Returns:
        Its colour and its marker.
    """
    return CLASS_COLOURS[c % len(CLASS_COLOURS)], CLASS_MARKERS[c // len(CLASS_COLOURS) % len(CLASS_MARKERS)]
