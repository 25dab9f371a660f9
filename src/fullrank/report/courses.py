"""Figures over rounds: accuracy and any other measure, the measures of neural collapse, and how far clients agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.errors import InputError
from fullrank.report.labels import SeedGroup, grouped
from fullrank.report.legend import draw_legend
from fullrank.report.probed import locals_of, mean, name_of, number, probes_of
from fullrank.report.quantities import Quantity, over_rounds, over_steps, quantity
from fullrank.report.seeds import Course, band_entry, draw_rounds, limit_shares
from fullrank.report.style import BLACK, GREY, LOCAL, drawing, line, round_ticks
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NC = {
    "nc1": "NC1: within / between",
    "nc2": "NC2: from a simplex",
    "nc3": "NC3: from duality",
    "nc4": "NC4: not nearest mean",
}
FULL: dict[str, Any] = {"marker": ".", "markersize": 4}
DASHED: dict[str, Any] = {"marker": "o", "markersize": 2.5, "fillstyle": "none", "linestyle": LOCAL, "linewidth": 0.9}
WIDE_RANGE = 8
"""The ratio of largest to smallest value from which an axis is logarithmic."""
ROUNDS, STEPS = "rounds", "steps"
MOST_DOTTED = 30
"""The largest number of rounds of which each has a dot where a value is missing in between."""


def draw_accuracy(runs: Sequence[Run], path: str | Path, *, labels: Sequence[str] = (), band: str = "range") -> None:
    """Draw test accuracy over rounds; the clients' own models' accuracy if there is no global model.

    Runs that differ only in the seed are drawn as their mean, with a band around it.

    Args:
        runs: The runs.
        path: The file.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".
    """
    measures = {_accuracy_key(run) for run in runs}
    shown = quantity("personal_accuracy" if measures == {"personal_accuracy"} else "accuracy", runs[0].asked)
    _draw_over(runs, path, [over_rounds(run, _accuracy_key(run)) for run in runs], shown, "round", labels, band)


def _accuracy_key(run: Run) -> str:
    for key in ("accuracy", "personal_accuracy"):
        if any(row.get(key) is not None for row in run.metrics):
            return key
    raise InputError(f'"{run.path}" has no accuracy in its metrics')


def draw_course(
    runs: Sequence[Run],
    path: str | Path,
    *,
    measure: str = "",
    over: str = ROUNDS,
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw a measure of `metrics.jsonl` over rounds, or the clients' accuracy over the steps of their personalisation.

    Runs that differ only in the seed are drawn as their mean, with a band around it.

    Args:
        runs: The runs.
        path: The file.
        measure: The name of a measure in the rows of `metrics.jsonl`, with dots for those inside others, as in
            `personal.local.mean`; by default the accuracy. Over steps "personal" (the default) or "unseen".
        over: "rounds" or "steps". Step 0 is before the first fine-tuning.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".

    Raises:
        InputError: If a run does not have the measure, or `over` is neither "rounds" nor "steps".
    """
    if over not in (ROUNDS, STEPS):
        raise InputError(f'--over {over}: a course is drawn over "rounds" or "steps"')
    if over == ROUNDS:
        measure = measure or "accuracy"
        courses: list[Course] = [over_rounds(run, measure) for run in runs]
        _draw_over(runs, path, courses, quantity(measure, runs[0].asked, per_round=True), "round", labels, band)
        return
    measure = measure or "personal"
    courses = [over_steps(run, measure) for run in runs]
    _draw_over(runs, path, courses, quantity(measure, runs[0].asked), "fine-tuning step", labels, band)


def _draw_over(
    runs: Sequence[Run],
    path: str | Path,
    courses: Sequence[Course],
    shown: Quantity,
    xlabel: str,
    labels: Sequence[str],
    band: str,
) -> None:
    """Draw a course of each run, on one axes."""
    groups = grouped(runs, labels)
    course_of = {id(run): course for run, course in zip(runs, courses, strict=True)}
    factor, label = shown.scaled([value for course in courses for value in course.values()])
    with drawing(path, 1.9) as figure:
        axes = figure.subplots()
        for group in groups:
            own = [{place: value / factor for place, value in course_of[id(run)].items()} for run in group.runs]
            draw_rounds(axes, group, own, band=band, marker="." if _needs_dots(own) else "")
        axes.set(xlabel=xlabel, ylabel=label)
        limit_shares(axes, label)
        round_ticks(axes)
        draw_legend(figure, _entries(groups), band_entry(groups, band))


def _needs_dots(courses: Sequence[Course]) -> bool:
    """Return whether a line would be invisible, or nearly, without dots: of few rounds, or with gaps."""
    values = [[course[place] for place in course] for course in courses]
    gaps = any(not np.isfinite(value) for course in values for value in course)
    return min(map(len, values)) < 3 or (gaps and min(map(len, values)) <= MOST_DOTTED)


def draw_collapse(
    runs: Sequence[Run],
    path: str | Path,
    *,
    clients: Sequence[int] = (),
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw NC1 to NC4 over rounds: of the global model in full lines, the mean of clients dashed.

    Runs that differ only in the seed are drawn as their means, with a band around the global models'; only if there is
    no global model, the band is around the clients' means, so that two bands of a colour never overlap.

    Args:
        runs: The runs.
        path: The file.
        clients: The clients that are averaged; by default all that are probed.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".
    """
    groups = grouped(runs, labels)
    entries: dict[str, Any] = {}
    probes = [probe for run in runs for probe in probes_of(run)]
    if any("global" in probe for probe in probes):
        entries["global model"] = line(BLACK, **FULL)
    if any(locals_of(probe, clients) for probe in probes):
        entries["mean of clients"] = line(BLACK, **DASHED)
    entries |= band_entry(groups, band)
    with drawing(path, 2.7) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (name, title) in zip(panels.flat, NC.items(), strict=True):
            drawn: list[float] = []
            for group in groups:
                whole = draw_rounds(axes, group, [_of_global(run, name) for run in group.runs], band=band, **FULL)
                of_clients = [_of_clients(run, name, clients) for run in group.runs]
                own = draw_rounds(axes, group, of_clients, band="none" if whole else band, **DASHED)
                drawn += whole + own
            axes.set_title(title, loc="left", fontsize=7)
            _scale(axes, drawn)
            round_ticks(axes)
        for axes in panels[-1]:
            axes.set_xlabel("round")
        draw_legend(figure, _entries(groups), entries)


def draw_consistency(runs: Sequence[Run], path: str | Path, *, labels: Sequence[str] = (), band: str = "range") -> None:
    """Draw how far clients agree, over rounds: the cosine between their prototypes, and the NC error.

    The first is the mean cosine between the class means of the probed clients' own samples under their own models, over
    pairs of clients and the classes that two of them hold. The NC error of the global model is the mean deviation of
    the cosines between its class means from a simplex's, −1/(C − 1). Runs without a global model have only the first.
    Runs that differ only in the seed are drawn as their mean, with a band around it.

    Args:
        runs: The runs.
        path: The file.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".

    Raises:
        InputError: If a run has no prototypes of two clients.
    """
    groups = grouped(runs, labels)
    for run in runs:
        if not any("prototype_consistency" in probe for probe in probes_of(run)):
            raise InputError(
                f"{name_of(run)} has no prototypes of two clients to compare; run with probe.clients = 2 or more"
            )
    has_global = any("global" in probe for run in runs for probe in probes_of(run))
    shown: dict[str, Callable[[Run], Course]] = {"cosine between clients' prototypes": _consistency}
    if has_global:
        shown["NC error of the global model"] = _nc_error
    with drawing(path, 1.9) as figure:
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, (title, course) in zip(panels, shown.items(), strict=True):
            drawn = [
                value
                for group in groups
                for value in draw_rounds(axes, group, [course(run) for run in group.runs], band=band, **FULL)
            ]
            if not drawn:
                _say_undefined(axes)
            axes.set_title(title.replace(" of ", "\nof ").replace(" clients'", "\nclients'"), loc="left", fontsize=7)
            axes.set_xlabel("round")
            round_ticks(axes)
        draw_legend(figure, _entries(groups), band_entry(groups, band))


def _consistency(run: Run) -> Course:
    return {probe["round"]: number(probe.get("prototype_consistency")) for probe in probes_of(run)}


def _nc_error(run: Run) -> Course:
    return _of_global(run, "nc2_angle")


def _of_global(run: Run, name: str) -> dict[int, float]:
    return {probe["round"]: number(probe.get("global", {}).get(name)) for probe in probes_of(run)}


def _of_clients(run: Run, name: str, clients: Sequence[int]) -> dict[int, float]:
    return {probe["round"]: mean([local.get(name) for local in locals_of(probe, clients)]) for probe in probes_of(run)}


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Choose a scale on which the values are distinguishable and the tick labels are legible."""
    if not values:
        _say_undefined(axes)
    elif min(values) > 0 and max(values) > WIDE_RANGE * min(values):
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes.set_yscale("log")
        decades = np.log10(max(values) / min(values))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _say_undefined(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not defined", transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_yticks([])


def _entries(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    return {group.name: line(group.colour) for group in groups}
