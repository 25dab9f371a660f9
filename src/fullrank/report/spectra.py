"""Figures of singular values: the spectra themselves, and the gap R between local and global ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullrank.collapse.spectra import RELATIVE_ZERO, THRESHOLD
from fullrank.errors import Refusal
from fullrank.result import Run

from .labels import labelled, legend_names
from .probed import Probe, locals_of, mean, number, probe_at, probes_of
from .style import BLACK, GREY, LOCAL, draw_legend, drawing, legend_height, line, line_colours, round_ticks

TOP = 100
"""Leading singular values that are drawn, as in the papers."""
GLOBAL, CLIENTS = "global model", "clients' models"


def draw_spectrum(
    runs: Sequence[Run],
    path: str | Path,
    *,
    rounds: Sequence[int] = (),
    clients: Sequence[int] = (),
    top: int = TOP,
) -> None:
    """log λ_k of the test set's representation: the global model's in full lines, clients' dashed.

    A colour for each run after its last round, or for each of several rounds of one run. R is the mean over the clients
    that are shown (TPAMI Eq. 1).
    """
    shown = _shown(runs, rounds)
    names = _with_gap(shown, clients)
    entries = {name: line(colour) for name, (_, colour) in names.items()} | {GLOBAL: line(BLACK)}
    if any(locals_of(probe, clients) for _, probe, _ in shown):
        entries[CLIENTS] = line(BLACK, linestyle=LOCAL, linewidth=0.9)
    with drawing(path, 1.95 + legend_height(list(entries))) as figure:
        axes = figure.subplots()
        for _, probe, colour in shown:
            for local in locals_of(probe, clients):
                axes.plot(*_curve(local["spectrum"], top), color=colour, linestyle=LOCAL, linewidth=0.9)
        for _, probe, colour in shown:
            if "global" in probe:
                axes.plot(*_curve(probe["global"]["spectrum"], top), color=colour)
        axes.set(xlabel="index $k$ of the singular value", ylabel=r"$\log\,\lambda_k$")
        axes.set_xlim(left=0)
        draw_legend(figure, entries)


def _shown(runs: Sequence[Run], rounds: Sequence[int]) -> list[tuple[str, Probe, Any]]:
    """What has a colour of its own: its name, the probe, the colour."""
    if len(runs) > 1 and len(rounds) > 1:
        raise Refusal("several rounds can be drawn of one run, or one round of several runs; not both")
    if len(rounds) > 1:
        colours = line_colours(len(rounds))
        return [(f"round {r}", probe_at(runs[0], r), colour) for r, colour in zip(rounds, colours, strict=True)]
    series = labelled(runs)
    names = legend_names(series)
    return [(names[s.label], probe_at(s.run, rounds[0] if rounds else None), s.colour) for s in series]


def _with_gap(shown: Sequence[tuple[str, Probe, Any]], clients: Sequence[int]) -> dict[str, tuple[float, Any]]:
    """By name in the legend, which has the mean gap in it: that gap, and the colour."""
    found: dict[str, tuple[float, Any]] = {}
    for name in dict.fromkeys(name for name, _, _ in shown):
        own = [(probe, colour) for other, probe, colour in shown if other == name]
        gap = mean([local.get("gap") for probe, _ in own for local in locals_of(probe, clients)])
        label = f"{name}: R = {gap:+.2f}".replace("-0.00", "+0.00").replace("-", "−") if np.isfinite(gap) else name
        found[label] = gap, own[0][1]
    return found


def draw_gap(runs: Sequence[Run], path: str | Path, *, clients: Sequence[int] = ()) -> None:
    """R of clients' spectra against the global model's: over rounds, or run by run where each has one probe."""
    series = labelled(runs)
    for each in series:
        if not any(local.get("gap") is not None for probe in probes_of(each.run) for local in probe["locals"]):
            raise Refusal(
                f'"{each.run.path}" has no gap: it needs a global model and clients beside it (probe.clients)'
            )
    if all(len(probes_of(each.run)) == 1 for each in series):
        _draw_last_gaps(series, path, clients)
        return
    entries = {name: line(_colour(series, label)) for label, name in legend_names(series).items()}
    entries["mean over clients"] = line(BLACK, marker=".", markersize=4)
    entries["each client"] = line(BLACK, linestyle=LOCAL, linewidth=0.6)
    with drawing(path, 1.8 + legend_height(list(entries))) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=BLACK, linewidth=0.6, zorder=0)
        for each in series:
            course: dict[int, dict[int, float]] = {}
            for probe in probes_of(each.run):
                for local in locals_of(probe, clients):
                    course.setdefault(local["client"], {})[probe["round"]] = number(local.get("gap"))
            for values in course.values():
                axes.plot(list(values), list(values.values()), color=each.colour, linestyle=LOCAL, linewidth=0.6)
            rounds = sorted({round for values in course.values() for round in values})
            means = [mean([values.get(round) for values in course.values()]) for round in rounds]
            axes.plot(rounds, means, color=each.colour, marker=".", markersize=4)
        axes.set(xlabel="round", ylabel="gap $R$ to the global model")
        round_ticks(axes)
        draw_legend(figure, entries)


def _draw_last_gaps(series: Sequence[Any], path: str | Path, clients: Sequence[int]) -> None:
    with drawing(path, 2.1) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=BLACK, linewidth=0.6, zorder=0)
        for place, each in enumerate(series):
            gaps = [number(local.get("gap")) for local in locals_of(probe_at(each.run), clients)]
            axes.plot([place] * len(gaps), gaps, "o", color=each.colour, markersize=4, fillstyle="none")
            axes.plot([place], [mean(gaps)], "_", color=each.colour, markersize=14)
        axes.set_ylabel("gap $R$ to the global model")
        axes.set_xlim(-0.6, len(series) - 0.4)
        upright = len(series) > 4 or any(len(part) > 44 / len(series) for s in series for part in _lines(s.label))
        names = ["\n".join(_lines(each.label)) for each in series]
        axes.set_xticks(range(len(series)), names, rotation=90 if upright else 0)
        axes.set_title("circles: clients, bars: their mean", loc="left", fontsize=7)


def _lines(label: str) -> list[str]:
    return label.replace("+", ", +").split(", ")


def _colour(series: Sequence[Any], label: str) -> Any:
    return next(each.colour for each in series if each.label == label)


def _curve(spectrum: NDArray[np.float32], top: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Index and logarithm of the leading values, without those that are rounding."""
    values = spectrum[:top].astype(np.float64)
    kept = values > RELATIVE_ZERO * max(values[0], 0)
    return np.arange(1, len(values) + 1)[kept], np.log(values[kept])


def draw_one_spectrum(spectrum: NDArray[np.float32], numbers: Mapping[str, Any], path: str | Path) -> None:
    """The whole spectrum of one model, with the threshold of significance."""
    with drawing(path, 2.1) as figure:
        axes = figure.subplots()
        axes.plot(*_curve(spectrum, len(spectrum)), color=line_colours(1)[0])
        axes.axhline(math.log(THRESHOLD), color=GREY, linewidth=0.6, linestyle=":")
        axes.set(xlabel="index $k$ of the singular value", ylabel=r"$\log\,\lambda_k$", xlim=(0, len(spectrum) + 1))
        rank, above = numbers["effective_rank"], numbers["significant"]
        axes.set_title(f"effective rank {rank:.1f}; {above} of {len(spectrum)} above the dotted line", fontsize=7)
