"""Figures that compare clients: norms and directions of their classifiers, and CKA by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullrank.errors import InputError
from fullrank.probe.layers import REPRESENTATION, evenly
from fullrank.report.labels import titles_of
from fullrank.report.legend import draw_legend
from fullrank.report.probed import MOST_RUNS, Probe, between_clients, one, probe_at
from fullrank.report.similarity import draw_cka_means, draw_classifier_means
from fullrank.report.style import (
    BLACK,
    COLUMN,
    LOCAL,
    drawing,
    line,
    line_colours,
    round_ticks,
)
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS, LAYERS = "clients", "layers"
MOST_COLUMNS = 4
MOST_WRITTEN = 4
"""The largest number of clients for which every cell has room for its number."""
MOST_NAMED = 7
NARROWEST = 0.2
"""The least range of cosines that colours show; over a smaller one, similar values would seem very different."""
LINE = 13
"""The number of letters for which there is room above a small map."""
MOST_MARKED = 20
"""The largest number of classes with a marker each."""
BESIDE_MAPS, ABOVE_A_MAP, BELOW_A_MAP = 0.85, 0.38, 0.35
"""Inches around heat maps: for a colour bar and client numbers; a title and numbers; a horizontal colour bar."""


def draw_classifier(
    runs: Sequence[Run],
    path: str | Path,
    *,
    rounds: Sequence[int] = (),
    labels: Sequence[str] = (),
    band: str = "",
) -> None:
    """Draw norms of the classifier's rows by class, and the cosine between clients' rows, mean over classes.

    Up to five runs have a row each and share the scale of colours. More runs, or any if `band` is given, are drawn as
    means over the clients and over the runs that differ only in the seed.

    Args:
        runs: The runs.
        path: The file.
        rounds: The round whose probes are drawn; by default the last.
        labels: Titles of the rows.
        band: What the band around a mean shows: "range", "std", "ci" or "none".
    """
    if band or len(runs) > MOST_RUNS:
        draw_classifier_means(runs, path, one(rounds), labels, band or "range")
        return
    titles, round = titles_of(runs, labels), one(rounds)
    tables = [between_clients(run, round, "classifier_cosines") for run in runs]
    probes = [probe_at(run, round) for run in runs]
    entries = _entries(probes)
    low = float(min(np.nanmin(table) for table in tables))
    scaled = any(len(probe["clients"]) > MOST_WRITTEN for probe in probes)
    height = (1.5 if len(runs) > 1 else 1.4) * len(runs) + (BELOW_A_MAP if scaled else 0)
    with drawing(path, 0.35 + height) as figure:
        panels = figure.subplots(len(runs), 2, width_ratios=[1.5, 1], squeeze=False)
        for (left, right), title, probe, cosines in zip(panels, titles, probes, tables, strict=True):
            _draw_norms(left, probe)
            image = _draw_cells(right, cosines, probe["clients"], min(low, 1 - NARROWEST), 2 if low < 0.99 else 3)
            right.set_title(f"cosine, mean {probe['classifier_cosine']:.3f}", fontsize=7)
            left.set_ylabel(r"norm $\|W_c\|$")
            if len(runs) > 1:
                left.set_title(f"{title}\n", loc="left")  # above the other panel's title: a long name reaches over it
        panels[-1, 0].set_xlabel("class $c$")
        panels[-1, 1].set_xlabel("client")
        if scaled:
            _draw_scale(figure, image, panels[-1, 1], location="bottom", aspect=12)
        draw_legend(figure, {}, entries)


def _draw_scale(figure: Any, image: Any, axes: Any, **where: Any) -> None:
    """Draw the colour bar of heat maps."""
    scale = figure.colorbar(image, ax=axes, pad=0.02, **where)
    scale.outline.set_linewidth(0.6)


def _entries(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the legend of norms: client numbers if all panels show the same few clients, else one common entry."""
    entries: dict[str, Any] = {}
    shown = {tuple(probe["clients"]) for probe in probes}
    clients = probes[0]["clients"]
    if len(shown) == 1 and len(clients) <= MOST_NAMED:
        for client, colour in zip(clients, line_colours(len(clients)), strict=True):
            entries[f"client {client}"] = line(colour, linestyle=LOCAL, linewidth=0.9)
    else:
        entries["clients"] = line(line_colours(1)[0], linestyle=LOCAL, linewidth=0.9)
    if any("global" in probe for probe in probes):
        entries["global model"] = line(BLACK)
    return entries


def _draw_norms(axes: Axes, probe: Probe) -> None:
    curves: list[tuple[Probe, Any, Any, float]]
    curves = [(local, colour, LOCAL, 0.9) for local, colour in zip(probe["locals"], _colours(probe), strict=True)]
    if "global" in probe:
        curves.append((probe["global"], BLACK, "-", 1.2))
    for model, colour, style, width in curves:
        norms = model["classifier_norms"]
        marked: dict[str, Any] = {"marker": ".", "markersize": 3} if len(norms) <= MOST_MARKED else {}
        axes.plot(range(len(norms)), norms, color=colour, linestyle=style, linewidth=width, **marked)
    round_ticks(axes)


def _colours(probe: Probe) -> list[Any]:
    return line_colours(len(probe["clients"]))


def draw_cka(
    runs: Sequence[Run],
    path: str | Path,
    *,
    over: str = CLIENTS,
    rounds: Sequence[int] = (),
    labels: Sequence[str] = (),
    band: str = "",
) -> None:
    """Draw linear CKA between clients, layer by layer.

    Args:
        runs: The runs. Up to five have a row of heat maps each; more are drawn over the layers.
        path: The file.
        over: "clients", a heat map for each layer; or "layers", the mean over pairs of clients by layer, a line for all
            runs that differ only in the seed.
        rounds: The round that is shown, by default the last.
        labels: Names of the rows, or of the lines.
        band: What the band around a line shows, "range", "std", "ci" or "none"; it implies `over="layers"`.

    Raises:
        InputError: If `over` has another value, or a run has no probes of clients.
    """
    if over not in (CLIENTS, LAYERS):
        raise InputError(f'--over {over}: CKA is drawn over "clients" or "layers"')
    if over == LAYERS or band or len(runs) > MOST_RUNS:
        draw_cka_means(runs, path, one(rounds), labels, band or "range")
        return
    titles, round = titles_of(runs, labels), one(rounds)
    tables = [between_clients(run, round, "cka") for run in runs]
    rows = [[*table.items()] for table in tables]
    if len(runs) == 1:
        rows = [rows[0][start : start + MOST_COLUMNS] for start in range(0, len(rows[0]), MOST_COLUMNS)]
    else:
        rows = [[(layer, table[layer]) for layer in evenly(list(table), MOST_COLUMNS)] for table in tables]
    columns = max(map(len, rows))
    side = min(1.2, (COLUMN - BESIDE_MAPS - (0.3 if len(runs) > 1 else 0)) / columns)
    lines = max(_titled(layer).count("\n") for row in rows for layer, _ in row)
    with drawing(path, 0.2 + (side + ABOVE_A_MAP + 0.1 * lines) * len(rows)) as figure:
        panels = figure.subplots(len(rows), columns, squeeze=False)
        for number, (places, row) in enumerate(zip(panels, rows, strict=True)):
            clients = probe_at(runs[number if len(runs) > 1 else 0], round)["clients"]
            for axes in places[len(row) :]:
                axes.set_visible(False)
            for place, (axes, (layer, table)) in enumerate(zip(places, row, strict=False)):
                image = _draw_cells(axes, table, clients, 0.0, 2)
                axes.set_title(_titled(layer), fontsize=6, pad=3)
                if place:
                    axes.set_yticklabels([])
            if len(runs) > 1:
                places[0].set_ylabel(titles[number].replace(", ", "\n").replace("+", "\n+"), fontsize=7)
        _draw_scale(figure, image, panels, label="linear CKA", aspect=25)
        figure.supxlabel("client", fontsize=8)


def _draw_cells(axes: Axes, table: NDArray[np.float32], clients: Sequence[int], low: float, digits: int) -> Any:
    image = axes.imshow(table, cmap="cividis", vmin=low, vmax=1)
    shown = range(0, len(clients), -(-len(clients) // 6))
    axes.set_xticks(shown, [str(clients[k]) for k in shown])
    axes.set_yticks(shown, [str(clients[k]) for k in shown])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if len(clients) <= MOST_WRITTEN:
        for (k, m), value in np.ndenumerate(table):
            light = (value - low) / max(1 - low, 1e-9) > 0.55
            text = "1" if k == m else _written(float(value), digits)
            axes.text(m, k, text, ha="center", va="center", fontsize=6, color="black" if light else "white")
    return image


def _written(value: float, digits: int) -> str:
    """Format a number in the few letters that a cell has room for.

    >>> _written(0.876, 2), _written(0.9996, 2)
    ('.88', '1.0')
    """
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text[: digits + 1]


def _titled(layer: str) -> str:
    r"""Return a layer's title above a small map: without the prefix that all have, and a long name in two lines.

    A bare number, as in a sequence of layers, could be mistaken for a client's, so "layer" is added.

    >>> _titled("backbone.layer1.1.conv2.0"), _titled("backbone.4"), _titled("z")
    ('layer1.1\nconv2.0', 'layer 4', 'features $z$')
    """
    if layer == REPRESENTATION:
        return "features $z$"
    name = layer.removeprefix("backbone.")
    if name[:1].isdigit():
        name = f"layer {name}"
    if len(name) <= LINE:
        return name
    dots = [place for place, letter in enumerate(name) if letter == "."] or [len(name)]
    middle = min(dots, key=lambda place: abs(place - len(name) / 2))
    lines = [line for line in (name[:middle], name[middle + 1 :]) if line]
    return "\n".join(line if len(line) <= LINE else f"…{line[1 - LINE :]}" for line in lines)
