"""Runs made of given numbers, and figures of them as they would be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import fullrank
from fullrank.config.experiment import Experiment, nested
from fullrank.report.figures import draw_figure

Draw = Callable[..., Figure]


def made(
    rows: list[dict[str, Any]],
    method: str = "fedavg",
    seed: int = 0,
    ending: dict[str, Any] | None = None,
    probes: list[dict[str, Any]] | None = None,
    **keys: Any,
) -> fullrank.Run:
    """Make a run with these rows; keys of the experiment have two underscores for a dot."""
    values = {"method.name": method, "seed": seed, "train.rounds": len(rows)}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    traffic = {"bytes_up": 0, "bytes_down": 0, "elements_up": 0, "elements_down": 0, "seconds": 0.0, "clients": []}
    numbered = [{"round": round, **traffic, **row} for round, row in enumerate(rows, 1)]
    return fullrank.Run(Experiment(**nested(values)), numbered, ending=ending, probes=probes)


def drawing_without_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Draw:
    """Return a function that draws a figure and returns it in place of writing it."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(kind: str, *runs: Any, **options: Any) -> Figure:
        draw_figure(kind, runs, folder / "figure.png", **options)
        return figures[-1]

    return draw


def legend_in(figure: Figure) -> Any:
    """Return the legend of a figure, below the axes or inside."""
    (legend,) = (*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend()))
    return legend


def legend_of(figure: Figure) -> list[str]:
    """Return the names in the legend of a figure."""
    return [text.get_text() for text in legend_in(figure).get_texts()]
