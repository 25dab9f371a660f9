"""The figure of loss terms over local epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.errors import InputError, nearest
from fullrank.report.labels import titles_of
from fullrank.report.probed import few, number
from fullrank.report.style import BLUE, GREY, draw_legend, drawing, legend_height, line, line_colours, round_ticks
from fullrank.runs.result import Run

NO_TERMS = ("grad_norm", "drift")
"""Measurements over local epochs that are not terms of the loss."""
MOST_NAMED = 7
"""The largest number of clients with a colour and a name each."""


def draw_losses(
    runs: Sequence[Run], path: str | Path, *, term: str = "", rounds: Sequence[int] = (), clients: Sequence[int] = ()
) -> None:
    """Draw a term of the loss over local epochs, one line per client, in the first and the last round (ICLR Fig. 11).

    The default of `term` is the method's own term if all runs have it, else the criterion; all rows show the same term,
    so that they can be compared. FedDecorr's is drawn without its factor β and, if a probe has recorded the number of
    features, with the least value that a batch of that size can have while no feature is constant in it.
    """
    titles = titles_of(few(runs))
    term = term or _shared_term(runs)
    lines = [{round: _values(run, round, term, clients) for round in _rounds(run, rounds)} for run in runs]
    all_clients = sorted({client for columns in lines for values in columns.values() for client in values})
    style = _style([course for columns in lines for values in columns.values() for course in values.values()])
    entries, colours = _clients(all_clients, style)
    floors = [_floor(run, term) for run in runs]
    if any(floor is not None for floor in floors):
        entries["floor if no feature is constant"] = line(GREY, linestyle=":", linewidth=0.9)
    with drawing(path, 0.3 + 1.4 * len(runs) + legend_height(list(entries))) as figure:
        panels = figure.subplots(len(runs), max(map(len, lines)), sharex=True, sharey="row", squeeze=False)
        for places, title, columns, floor in zip(panels, titles, lines, floors, strict=True):
            for axes in places[len(columns) :]:
                axes.set_visible(False)
            for axes, (round, values) in zip(places, columns.items(), strict=False):
                for client, course in values.items():
                    axes.plot(range(1, len(course) + 1), course, color=colours[client], **style)
                if floor is not None:
                    axes.axhline(floor, color=GREY, linewidth=0.9, linestyle=":")
                axes.set_title(f"round {round}", fontsize=7)
                round_ticks(axes)
            if len(runs) > 1:
                # above the whole row, because a long name has no room above one panel
                places[0].set_title(f"{title}\n", loc="left")
            places[0].set_ylabel(_title(term))
        figure.supxlabel("local epoch", fontsize=8)
        draw_legend(figure, entries)


def decorrelation_floor(batch: int, width: int) -> float | None:
    """Return the least value of the released code's decorrelation loss, above 0 for fewer samples than columns.

    >>> round(decorrelation_floor(64, 1280), 6)
    0.936657
    """
    if batch < 2 or batch - 1 >= width:
        return None
    return (width / (batch - 1) - 1) / (width - 1) * (batch - 1) ** 2 / batch


def _rounds(run: Run, asked: Sequence[int]) -> list[int]:
    known = [row["round"] for row in run.metrics]
    if not known:
        raise InputError(f'"{run.path}" has no completed round')
    for round in asked:
        if round not in known:
            raise InputError(f'"{run.path}" has no round {round}; it has rounds 1 to {known[-1]}')
    return list(asked) or sorted({known[0], known[-1]})


def _shared_term(runs: Sequence[Run]) -> str:
    """Return a term that all runs have, preferably one of their methods rather than the criterion."""
    shared = [name for name in _names(runs[0]) if all(name in _names(run) for run in runs)]
    return next((name for name in shared if name != "criterion"), "criterion")


def _names(run: Run) -> list[str]:
    epochs = (epoch for row in run.metrics for client in row["clients"] for epoch in client.get("epochs", []))
    return [name for name in {name: None for epoch in epochs for name in epoch} if name not in NO_TERMS]


def _values(run: Run, round: int, term: str, clients: Sequence[int]) -> dict[int, list[float]]:
    """Return a term's means over the local epochs of a round, by client."""
    if term not in _names(run):
        raise InputError(f'"{run.path}" has no loss term "{term}"; {nearest(term, _names(run))}')
    factor = _decorrelation(run, term).get("beta") or 1.0
    row = next(row for row in run.metrics if row["round"] == round)
    found = {
        client["client"]: [number(epoch.get(term)) / factor for epoch in client["epochs"]]
        for client in row["clients"]
        if client.get("epochs")
    }
    for client in clients:
        if client not in found:
            raise InputError(f"client {client} did not train in round {round}; {nearest('', map(str, found))}")
    return {client: found[client] for client in sorted(clients or found)}


def _floor(run: Run, term: str) -> float | None:
    if _decorrelation(run, term).get("scale") != "code" or not run.probes:
        return None
    return decorrelation_floor(run.experiment.train.batch_size, run.probes[0]["features"])


def _decorrelation(run: Run, term: str) -> dict[str, Any]:
    """Return FedDecorr's hyper-parameters if the term is FedDecorr's."""
    found: dict[str, Any] = run.experiment.resolved().method.tables.get(term, {}) if term == "feddecorr" else {}
    return found


def _style(courses: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the style of courses, also for the legend: only dots if none is longer than an epoch."""
    if all(len(course) < 2 for course in courses):
        return {"marker": ".", "markersize": 5, "linestyle": "none"}
    return {"marker": ".", "markersize": 3, "linewidth": 0.9}


def _clients(clients: Sequence[int], style: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the legend's entries for clients, and each client's colour."""
    if len(clients) > MOST_NAMED:
        name = "one dot per client" if style.get("linestyle") == "none" else "one line per client"
        return {name: line(BLUE, **style)}, dict.fromkeys(clients, BLUE)
    colours = dict(zip(clients, line_colours(len(clients)), strict=True))
    return {f"client {client}": line(colour, **style) for client, colour in colours.items()}, colours


def _title(term: str) -> str:
    return {"feddecorr": "decorrelation loss", "criterion": "criterion"}.get(term, f"{term}'s term")
