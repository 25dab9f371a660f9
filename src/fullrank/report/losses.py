"""The figure of loss terms over local epochs or rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.errors import InputError, nearest
from fullrank.report.labels import grouped, titles_of
from fullrank.report.legend import draw_legend
from fullrank.report.probed import MOST_RUNS, mean, name_of, number
from fullrank.report.seeds import band_entry, draw_rounds
from fullrank.report.style import BLUE, GREY, drawing, line, line_colours, round_ticks
from fullrank.runs.result import Run

NO_TERMS = ("grad_norm", "drift")
"""Measurements over local epochs that are not terms of the loss."""
MOST_NAMED = 7
"""The largest number of clients with a colour and a name each."""


EPOCHS, ROUNDS = "epochs", "rounds"


def draw_losses(
    runs: Sequence[Run],
    path: str | Path,
    *,
    term: str = "",
    over: str = EPOCHS,
    rounds: Sequence[int] = (),
    clients: Sequence[int] = (),
    labels: Sequence[str] = (),
    band: str = "",
) -> None:
    """Draw terms of the loss over local epochs (ICLR Fig. 11), or over rounds.

    Up to five runs have a row each, with one line per client. More runs, or any if `band` is given, are drawn as means
    over the clients: a line for all runs that differ only in the seed, with a band around it. FedDecorr's term is drawn
    without its factor β and, if a probe has recorded the number of features, with the least value that a batch of that
    size can have while no feature is constant in it.

    Args:
        runs: The runs.
        path: The file.
        term: The name of a term. By default, over epochs, the method's own if all runs have it, else the criterion, so
            that all lines show the same; over rounds, all terms.
        over: "epochs", in the first and the last of the rounds that all runs have; or "rounds", each value being a mean
            over the local epochs of a round.
        rounds: The rounds that are shown.
        clients: The clients that are shown or averaged; by default all.
        labels: Names of the lines, or of the rows.
        band: What the band shows: "range", "std", "ci" or "none".

    Raises:
        InputError: If a run does not have the term, the round or the client.
    """
    if over not in (EPOCHS, ROUNDS):
        raise InputError(f'--over {over}: losses are drawn over "epochs" or "rounds"')
    if over == ROUNDS:
        _draw_over_rounds(runs, path, term, rounds, clients, labels, band or "range")
    elif band or len(runs) > MOST_RUNS:
        _draw_means(runs, path, term or _shared_term(runs), rounds, clients, labels, band or "range")
    else:
        _draw_clients(runs, path, term or _shared_term(runs), rounds, clients, labels)


def _draw_clients(
    runs: Sequence[Run],
    path: str | Path,
    term: str,
    rounds: Sequence[int],
    clients: Sequence[int],
    labels: Sequence[str],
) -> None:
    """Draw a term over local epochs, one line per client; a row for each run, a column for each round."""
    titles = titles_of(runs, labels)
    lines = [{round: _values(run, round, term, clients) for round in _rounds(run, rounds)} for run in runs]
    all_clients = sorted({client for columns in lines for values in columns.values() for client in values})
    style = _style([course for columns in lines for values in columns.values() for course in values.values()])
    entries, colours = _clients(all_clients, style)
    floors = [_floor(run, term) for run in runs]
    entries |= _floor_entry(floors)
    with drawing(path, 0.3 + 1.4 * len(runs)) as figure:
        panels = figure.subplots(len(runs), max(map(len, lines)), sharex=True, sharey="row", squeeze=False)
        for places, title, columns, floor in zip(panels, titles, lines, floors, strict=True):
            for axes in places[len(columns) :]:
                axes.set_visible(False)
            for axes, (round, values) in zip(places, columns.items(), strict=False):
                for client, course in values.items():
                    axes.plot(range(1, len(course) + 1), course, color=colours[client], **style)
                _draw_floors(axes, [floor])
                axes.set_title(f"round {round}", fontsize=7)
                round_ticks(axes)
            if len(runs) > 1:
                # above the whole row, because a long name has no room above one panel
                places[0].set_title(f"{title}\n", loc="left")
            places[0].set_ylabel(_title(term))
        for axes in panels[-1]:
            axes.set_xlabel("local epoch")
        draw_legend(figure, {}, entries)


def _draw_means(
    runs: Sequence[Run],
    path: str | Path,
    term: str,
    rounds: Sequence[int],
    clients: Sequence[int],
    labels: Sequence[str],
    band: str,
) -> None:
    """Draw the means of a term over clients and seeds over local epochs; a column for each round."""
    groups = grouped(runs, labels)
    known = [_rounds(run, rounds) for run in runs]
    both = [round for round in known[0] if all(round in own for own in known)]
    if not rounds:
        everywhere = set.intersection(*({row["round"] for row in run.metrics} for run in runs))
        both = sorted({min(everywhere), max(everywhere)})
    floors = [_floor(run, term) for run in runs]
    with drawing(path, 1.9) as figure:
        panels = figure.subplots(1, len(both), sharex=True, sharey=True, squeeze=False)[0]
        for axes, round in zip(panels, both, strict=True):
            for group in groups:
                courses = [_over_epochs(_values(run, round, term, clients)) for run in group.runs]
                draw_rounds(axes, group, courses, band=band, marker=".", markersize=3)
            _draw_floors(axes, floors)
            axes.set_title(f"round {round}", fontsize=7)
            axes.set_xlabel("local epoch")
            round_ticks(axes)
        panels[0].set_ylabel(f"{_title(term)}, mean of clients")
        entries = {group.name: line(group.colour) for group in groups}
        draw_legend(figure, entries, band_entry(groups, band) | _floor_entry(floors))


def _over_epochs(values: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean over clients by local epoch."""
    longest = max(map(len, values.values()))
    return {
        epoch + 1: mean([course[epoch] for course in values.values() if epoch < len(course)])
        for epoch in range(longest)
    }


def _draw_over_rounds(
    runs: Sequence[Run],
    path: str | Path,
    term: str,
    rounds: Sequence[int],
    clients: Sequence[int],
    labels: Sequence[str],
    band: str,
) -> None:
    """Draw the means of terms over clients, local epochs and seeds over rounds; a panel for each term."""
    groups = grouped(runs, labels)
    terms = [term] if term else list(dict.fromkeys(name for run in runs for name in _names(run)))
    if not terms:
        raise InputError(f"{name_of(runs[0])} has no loss terms in its metrics")
    floors = {name: [_floor(run, name) for run in runs] for name in terms}
    columns = min(2, len(terms))
    rows = -(-len(terms) // columns)
    with drawing(path, 0.4 + (1.5 if columns == 1 else 1.2) * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in panels[len(terms) :]:
            axes.set_visible(False)
        for axes, name in zip(panels, terms, strict=False):
            for group in groups:
                having = [run for run in group.runs if term or name in _names(run)]
                if courses := [_means(run, name, rounds, clients) for run in having]:
                    few = min(map(len, courses)) < 3
                    draw_rounds(axes, group, courses, band=band, marker="." if few else "")
            _draw_floors(axes, floors[name])
            if columns == 1:
                axes.set_ylabel(f"{_title(name)}, mean of clients")
            else:
                axes.set_title(_title(name), loc="left", fontsize=7)
            axes.set_xlabel("round")
            round_ticks(axes)
        entries = {group.name: line(group.colour) for group in groups}
        floor_entry = _floor_entry([floor for own in floors.values() for floor in own])
        draw_legend(figure, entries, band_entry(groups, band) | floor_entry)


def _means(run: Run, term: str, rounds: Sequence[int], clients: Sequence[int]) -> dict[int, float]:
    """Return the mean of a term over clients and local epochs by round."""
    shown = _rounds(run, rounds) if rounds else [row["round"] for row in run.metrics]
    return {round: mean([mean(course) for course in _values(run, round, term, clients).values()]) for round in shown}


def _floor_entry(floors: Sequence[float | None]) -> dict[str, Any]:
    if all(floor is None for floor in floors):
        return {}
    return {"floor if no feature is constant": line(GREY, linestyle=":", linewidth=0.9)}


def _draw_floors(axes: Any, floors: Sequence[float | None]) -> None:
    for floor in dict.fromkeys(floors):
        if floor is not None:
            axes.axhline(floor, color=GREY, linewidth=0.9, linestyle=":")


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
