"""The figure of a measure over the values of a key of the experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError, nearest
from fullrank.report.labels import NO_MATTER, SeedGroup, grouped
from fullrank.report.legend import draw_legend
from fullrank.report.quantities import results_of
from fullrank.report.seeds import BAND, band_entry, draw_spread, limit_shares, spread_of
from fullrank.report.style import COLUMN, LOCAL, drawing, line
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10
"""The ratio of greatest to least positive value from which the axis is logarithmic."""
LETTER, PLOT = 0.07, 0.75 * COLUMN
"""The width of a letter of tick labels, and about that of the axes, in inches."""
WORDS = {
    "data.alpha": "α",
    "data.clients": "clients",
    "train.lr": "learning rate",
    "train.epochs": "local epochs",
    "train.rounds": "rounds",
    "train.batch_size": "batch size",
}
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "mu": "μ", "lambda": "λ", "rho": "ρ", "tau": "τ", "eta": "η"}


def draw_ablation(
    runs: Sequence[Run],
    path: str | Path,
    *,
    over: str = "",
    measure: str = "accuracy",
    value: str = "last5",
    labels: Sequence[str] = (),
    band: str = "range",
) -> None:
    """Draw a measure of complete runs over the values of a numeric key, one line per method.

    Runs that differ only in the seed are a mean with a band around it. Runs whose method does not have the key are a
    dashed line over the whole width. The axis is logarithmic if the values span a factor of ten or more.

    Args:
        runs: The runs.
        path: The file.
        over: The key, such as `train.lr` or `method.feddecorr.beta`; may be omitted if the runs differ in one only.
        measure: The measure, as `fullrank compare` names it.
        value: The value of a run, as `fullrank compare` names it.
        labels: Names of the lines.
        band: What the band shows: "range", "std", "ci" or "none".
    """
    tables = [_settings(run) for run in runs]
    key = _key(tables, over, runs)
    groups = grouped(runs, labels, axis=key)
    results, ylabel = results_of(runs, measure, value)
    settings = {id(run): float(table[key]) for run, table in zip(runs, tables, strict=True) if key in table}
    values = sorted({*settings.values()})
    logarithmic = _is_logarithmic(values)
    places = _places(values) if logarithmic else {setting: setting for setting in values}
    with drawing(path, 1.9) as figure:
        axes = figure.subplots()
        entries: dict[str, Any] = {}
        for group in groups:
            if not any(id(run) in settings for run in group.runs):
                _draw_level(axes, group, [results[id(run)] for run in group.runs], band)
                entries[group.name] = line(group.colour, linestyle=LOCAL)
                continue
            found: dict[float, list[float]] = {}
            for run in sorted(group.runs, key=lambda run: settings[id(run)]):
                found.setdefault(places[settings[id(run)]], []).append(results[id(run)])
            draw_spread(axes, spread_of(found, band), group.colour, band=_has_seeds(found, band), marker="o", ms=3)
            entries[group.name] = line(group.colour, marker="o", markersize=3)
        axes.set(xlabel=_words(key), ylabel=ylabel)
        limit_shares(axes, ylabel)
        if logarithmic:
            _write_ticks(axes, places)
        draw_legend(figure, entries, band_entry([group for group in groups if _repeated(group, settings)], band))


def _draw_level(axes: Axes, group: SeedGroup, values: Sequence[float], band: str) -> None:
    """Draw the mean of runs without the key as a line over the whole width."""
    spread = spread_of({0: values}, band)
    axes.axhline(float(spread.mean[0]), color=group.colour, linestyle=LOCAL)
    if len(values) > 1 and band != "none":
        axes.axhspan(float(spread.low[0]), float(spread.high[0]), color=group.colour, **BAND)


def _has_seeds(found: Mapping[Any, Sequence[float]], band: str) -> bool:
    return band != "none" and any(len(values) > 1 for values in found.values())


def _repeated(group: SeedGroup, settings: Mapping[int, float]) -> bool:
    """Return whether a line has several seeds at a value."""
    values = [settings.get(id(run)) for run in group.runs]
    return len(set(values)) < len(values)


def _key(tables: Sequence[Mapping[str, float]], over: str, runs: Sequence[Run]) -> str:
    """Return the key of the axis, and check that the runs have several numbers there."""
    known = {key for table in tables for key in table}
    varied = sorted(key for key in known if len({table[key] for table in tables if key in table}) > 1)
    telling = [key for key in varied if key != "seed" and not key.startswith(NO_MATTER)]
    if not over:
        if len(telling) == 1:
            return telling[0]
        which = f"they differ in {', '.join(telling)}" if telling else "they differ in none"
        raise InputError(f"name the numeric key in which the runs differ, as in --over train.lr; {which}")
    if over not in known:
        exists = any(over in run.experiment.resolved().flat() for run in runs)
        reason = "this key is not a number" if exists else f"no run has this key as a number; {nearest(over, known)}"
        raise InputError(f"--over {over}: {reason}")
    if over not in varied:
        only = next(table[over] for table in tables if over in table)
        differ = f"; they differ in {', '.join(telling)}" if telling else ""
        raise InputError(f"--over {over}: all runs have {only:g} there, but an axis needs two values or more{differ}")
    return over


def _settings(run: Run) -> dict[str, float]:
    """Return the numeric keys of a run's experiment."""
    return {
        key: value
        for key, value in run.experiment.resolved().flat().items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _is_logarithmic(values: Sequence[float]) -> bool:
    """Return whether values, in their order, are shown on a logarithmic axis.

    >>> _is_logarithmic([0.01, 0.1]), _is_logarithmic([5, 10, 20]), _is_logarithmic([0.05, math.inf])
    (True, False, True)
    """
    positive = [value for value in values if 0 < value < math.inf]
    spans = bool(positive) and (positive[-1] >= DECADE * positive[0] or values[-1] == math.inf)
    return spans and values[0] >= 0


def _places(values: Sequence[float]) -> dict[float, float]:
    """Return the places of values on a logarithmic axis: 0 and ∞ lie one step before and after the others.

    >>> _places([0, 1, 10, 100, math.inf])
    {0: 0.1, 1: 1, 10: 10, 100: 100, inf: 1000.0}
    """
    positive = [value for value in values if 0 < value < math.inf]
    step = (positive[-1] / positive[0]) ** (1 / (len(positive) - 1)) if len(positive) > 1 else DECADE
    ends = {0: positive[0] / step, math.inf: positive[-1] * step}
    return {value: ends.get(value, value) for value in values}


def _write_ticks(axes: Axes, places: Mapping[float, float]) -> None:
    """Label a logarithmic axis with the values themselves, as many as have room."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    low, high = math.log10(min(places.values())), math.log10(max(places.values()))
    end = -math.inf
    shown: dict[float, str] = {}
    for value, place in places.items():
        text = "∞" if value == math.inf else f"{value:g}"
        middle, half = PLOT * (math.log10(place) - low) / (high - low), LETTER * len(text) / 2
        if middle - half > end:
            shown[place], end = text, middle + half
    axes.set_xticks(list(shown), list(shown.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def _words(key: str) -> str:
    """Return the words on the axis of a key.

    >>> _words("train.lr"), _words("method.feddecorr.beta"), _words("model.width")
    ('learning rate', 'β of feddecorr', 'model.width')
    """
    table, _, name = key.rpartition(".")
    if table.startswith("method."):
        return f"{GREEK.get(name, name)} of {table.removeprefix('method.')}"
    return WORDS.get(key, key)
