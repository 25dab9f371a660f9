"""Figures of singular values: spectra, and the gap R between local and global spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullrank.collapse.spectra import RELATIVE_ZERO, THRESHOLD
from fullrank.errors import InputError
from fullrank.report.labels import SeedGroup, chosen, grouped
from fullrank.report.legend import draw_legend
from fullrank.report.probed import Probe, locals_of, mean, number, probe_at, probes_of
from fullrank.report.seeds import band_entry, draw_rounds, draw_spread, over_seeds, probes_at
from fullrank.report.style import (
    BLACK,
    GREY,
    LOCAL,
    drawing,
    line,
    line_colours,
    round_ticks,
)
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOP = 100
"""The number of leading singular values that are drawn, as in the papers."""
GLOBAL, CLIENTS = "global model", "clients' models"
MOST_WITH_CLIENTS = 2
"""The largest number of lines of means with which each client's own line is still legible."""


@dataclass(frozen=True)
class Shown:
    """The part of a figure of spectra in one colour: one round of a run, or of runs of several seeds."""

    name: str
    colour: Any
    probes: tuple[Probe, ...]


def draw_spectrum(
    runs: Sequence[Run],
    path: str | Path,
    *,
    rounds: Sequence[int] = (),
    clients: Sequence[int] = (),
    top: int = TOP,
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw log λ_k of the test set's representation: of the global model in full lines, of clients dashed.

    Each run has a colour and is drawn after its last round; or each of several rounds of one run has a colour. Runs
    that differ only in the seed are drawn as the mean of the global models' log λ_k with a band around it, up to the
    first k at which one of them has vanished. R is the mean over the clients that are shown (TPAMI Eq. 1).

    Args:
        runs: The runs.
        path: The file.
        rounds: The rounds that are drawn; by default the last one.
        clients: The clients that are drawn; by default all that are probed.
        top: The number of leading singular values.
        labels: Names of the runs.
        band: What the band shows: "range", "std", "ci" or "none".
    """
    groups = grouped(runs, () if len(rounds) > 1 else labels)
    shown = _shown(groups, rounds, labels)
    thin = 0.9 if len(groups) == len(runs) else 0.45  # because the clients of all seeds would hide the band
    lines = {_with_gap(each, clients): line(each.colour) for each in shown}
    entries: dict[str, Any] = {}
    probes = [probe for each in shown for probe in each.probes]
    if has_global := any("global" in probe for probe in probes):
        entries[GLOBAL] = line(BLACK)
    if any(locals_of(probe, clients) for probe in probes):
        entries[CLIENTS] = line(BLACK, linestyle=LOCAL, linewidth=thin)
    if has_global:
        entries |= band_entry(groups, band)
    with drawing(path, 1.95) as figure:
        axes = figure.subplots()
        for each in shown:
            for local in [local for probe in each.probes for local in locals_of(probe, clients)]:
                axes.plot(*_curve(local["spectrum"], top), color=each.colour, linestyle=LOCAL, linewidth=thin)
        for each in shown:
            _draw_global(axes, each, top, band)
        axes.set(xlabel="index $k$ of the singular value", ylabel=r"$\log\,\lambda_k$")
        axes.set_xlim(left=0)
        round_ticks(axes)
        draw_legend(figure, lines, entries)


def _draw_global(axes: Axes, shown: Shown, top: int, band: str) -> None:
    spectra = [probe["global"]["spectrum"] for probe in shown.probes if "global" in probe]
    if spectra:
        curves = [[part.tolist() for part in _curve(spectrum, top)] for spectrum in spectra]
        spread = over_seeds([dict(zip(places, values, strict=True)) for places, values in curves], band)
        draw_spread(axes, spread, shown.colour, band=len(spectra) > 1 and band != "none")


def _shown(groups: Sequence[SeedGroup], rounds: Sequence[int], labels: Sequence[str]) -> list[Shown]:
    runs = [run for group in groups for run in group.runs]
    if len(runs) > 1 and len(rounds) > 1:
        raise InputError(
            "a figure shows several rounds of one run or one round of several runs; give fewer rounds or fewer runs"
        )
    if len(rounds) > 1:
        colours = line_colours(len(rounds))
        names = chosen(labels, [f"round {round}" for round in rounds])
        return [
            Shown(name, colour, (probe_at(runs[0], round),))
            for name, colour, round in zip(names, colours, rounds, strict=True)
        ]
    round = rounds[0] if rounds else None
    return [Shown(each.name, each.colour, probes_at(each, round)) for each in groups]


def _with_gap(shown: Shown, clients: Sequence[int]) -> str:
    """Return the name in the legend, with the mean gap if there is one."""
    gap = mean([_mean_gap(probe, clients) for probe in shown.probes])
    if not np.isfinite(gap):
        return shown.name
    signed = f"{gap:+.2f}".replace("-0.00", "+0.00").replace("-", "−")
    return f"{shown.name}: R = {signed}"


def _mean_gap(probe: Probe, clients: Sequence[int]) -> float:
    return mean([local.get("gap") for local in locals_of(probe, clients)])


def draw_gap(
    runs: Sequence[Run],
    path: str | Path,
    *,
    clients: Sequence[int] = (),
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw R of clients' spectra against the global model's, over rounds, or by run if each has one probe.

    Over rounds, full lines show the mean over clients, and dashed lines each client if there are at most two lines of
    one seed each; more would hide the means. Runs that differ only in the seed are drawn as the mean of their means,
    with a band around it.

    Args:
        runs: The runs.
        path: The file.
        clients: The clients that are drawn; by default all that are probed.
        labels: Names of the runs.
        band: What the band shows: "range", "std", "ci" or "none".

    Raises:
        InputError: If a run has no gap.
    """
    groups = grouped(runs, labels)
    for run in runs:
        if not any(local.get("gap") is not None for probe in probes_of(run) for local in probe["locals"]):
            raise InputError(f'"{run.path}" has no gap: it needs a global model and probed clients (probe.clients)')
    if all(len(probes_of(run)) == 1 for run in runs):
        _draw_last_gaps(groups, path, clients)
        return
    each_client = len(runs) == len(groups) <= MOST_WITH_CLIENTS
    lines = {group.name: line(group.colour) for group in groups}
    entries = {"mean over clients": line(BLACK, marker=".", markersize=4)}
    if each_client:
        entries["each client"] = line(BLACK, linestyle=LOCAL, linewidth=0.6)
    entries |= band_entry(groups, band)
    with drawing(path, 2.0) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=BLACK, linewidth=0.6, zorder=0)
        for group in groups:
            if each_client:
                _draw_clients(axes, group, clients)
            courses = [{probe["round"]: _mean_gap(probe, clients) for probe in probes_of(run)} for run in group.runs]
            draw_rounds(axes, group, courses, band=band, marker=".", markersize=4)
        axes.set(xlabel="round", ylabel="gap $R$ to the global model")
        round_ticks(axes)
        draw_legend(figure, lines, entries)


def _draw_clients(axes: Axes, group: SeedGroup, clients: Sequence[int]) -> None:
    """Draw a thin dashed line for each client of a run, over the rounds in which it was probed."""
    course: dict[int, dict[int, float]] = {}
    for probe in probes_of(group.runs[0]):
        for local in locals_of(probe, clients):
            course.setdefault(local["client"], {})[probe["round"]] = number(local.get("gap"))
    for values in course.values():
        axes.plot(list(values), list(values.values()), color=group.colour, linestyle=LOCAL, linewidth=0.6)


def _draw_last_gaps(groups: Sequence[SeedGroup], path: str | Path, clients: Sequence[int]) -> None:
    with drawing(path, 2.1) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=BLACK, linewidth=0.6, zorder=0)
        for place, group in enumerate(groups):
            probes = probes_at(group)
            gaps = [number(local.get("gap")) for probe in probes for local in locals_of(probe, clients)]
            axes.plot([place] * len(gaps), gaps, "o", color=group.colour, markersize=4, fillstyle="none")
            middle = mean([_mean_gap(probe, clients) for probe in probes])
            axes.plot([place], [middle], "_", color=group.colour, markersize=14)
        axes.set_ylabel("gap $R$ to the global model")
        axes.set_xlim(-0.6, len(groups) - 0.4)
        names = [_lines(group.name) for group in groups]
        upright = len(groups) > 4 or any(len(part) > 44 / len(groups) for parts in names for part in parts)
        axes.set_xticks(range(len(groups)), ["\n".join(parts) for parts in names], rotation=90 if upright else 0)
        axes.set_title("circles: clients, bars: their mean", loc="left", fontsize=7)


def _lines(name: str) -> list[str]:
    return name.replace("+", ", +").replace(" (", ", (").split(", ")


def _curve(spectrum: NDArray[np.float32], top: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return index and logarithm of the leading values, without rounding errors."""
    values = spectrum[:top].astype(np.float64)
    kept = values > RELATIVE_ZERO * max(values[0], 0)
    return np.arange(1, len(values) + 1)[kept], np.log(values[kept])


def draw_one_spectrum(spectrum: NDArray[np.float32], numbers: Mapping[str, Any], path: str | Path) -> None:
    """Draw the whole spectrum of one model, with the threshold of significance.

    Args:
        spectrum: The singular values.
        numbers: The numbers of the inspection, of which the title shows some.
        path: The file.
    """
    with drawing(path, 2.1) as figure:
        axes = figure.subplots()
        axes.plot(*_curve(spectrum, len(spectrum)), color=line_colours(1)[0])
        axes.axhline(math.log(THRESHOLD), color=GREY, linewidth=0.6, linestyle=":")
        axes.set(xlabel="index $k$ of the singular value", ylabel=r"$\log\,\lambda_k$", xlim=(0, len(spectrum) + 1))
        round_ticks(axes)
        rank, above = numbers["effective_rank"], numbers["significant"]
        axes.set_title(f"effective rank {rank:.1f}; {above} of {len(spectrum)} above the dotted line", fontsize=7)
