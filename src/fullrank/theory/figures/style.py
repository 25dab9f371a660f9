"""How the figures look: one column of a paper wide, colours that colour-blind readers tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import Refusal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Inches."""
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
    target = Path(path)
    if target.suffix.lower() not in (".pdf", ".png"):
        raise Refusal(f'a figure is written as PDF or PNG, so "{target}" must end in .pdf or .png')
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Refusal("drawing needs matplotlib: pip install 'fullrank[report]'") from error
    settings: Any = SETTINGS  # whose keys Matplotlib knows one by one
    with matplotlib.rc_context(settings):
        figure = Figure((COLUMN, height), dpi=300, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        target.parent.mkdir(parents=True, exist_ok=True)
        # without the date, so that the same figure gives the same file
        figure.savefig(target, metadata={"CreationDate": None} if target.suffix.lower() == ".pdf" else None)


def class_style(c: int) -> tuple[str, str]:
    """Colour and marker of a class."""
    return CLASS_COLOURS[c % len(CLASS_COLOURS)], CLASS_MARKERS[c // len(CLASS_COLOURS) % len(CLASS_MARKERS)]
