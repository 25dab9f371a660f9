"""Measures of runs that figures draw: how they are found by name, and the labels and units of their axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fullrank.comparison.measured import OF_CLIENTS, check_value, is_share, measured, measures
from fullrank.errors import InputError, nearest
from fullrank.metrics.registry import Metric
from fullrank.report.probed import name_of, number
from fullrank.report.seeds import Course
from fullrank.runs.directory import RunDirectory
from fullrank.runs.result import Run
from fullrank.runs.summary import measures as metrics_by_key

NAMES = {
    "accuracy": "test accuracy",
    "loss": "test loss",
    "personal_accuracy": "clients' accuracy",
    "bytes_up": "sent by clients",
    "bytes_down": "sent to clients",
    "elements_up": "elements sent by clients",
    "elements_down": "elements sent to clients",
    "seconds": "time",
    "training_seconds": "training time",
    "parameters": "trained parameters",
    "bytes": "sent by and to clients",
}
"""The words on an axis for a measure; others are called by their names."""
UNITS: dict[str, dict[str, float]] = {
    "bytes": {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "elements": {"": 1, "thousands": 1e3, "millions": 1e6, "billions": 1e9},
    "parameters": {"": 1, "thousands": 1e3, "millions": 1e6, "billions": 1e9},
    "memory": {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "seconds": {"ms": 1e-3, "s": 1, "min": 60, "h": 3600},
}
"""The units of measures by a word in their names: each with its size."""


@dataclass(frozen=True)
class Quantity:
    """The quantity of an axis: its name, further words in a second line, and the sizes of its units."""

    name: str
    details: str
    units: Mapping[str, float]

    def scaled(self, values: Sequence[float]) -> tuple[float, str]:
        """Choose the unit for values.

        Args:
            values: The values.

        Returns:
            The size of the unit in which they are drawn, and the label of their axis.
        """
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        unit = max((unit for unit in self.units if self.units[unit] <= largest), key=self.units.__getitem__, default="")
        unit = unit or min(self.units, key=self.units.__getitem__)
        label = self.name + (f" ({unit})" if unit else "")
        return self.units[unit], f"{label}\n{self.details}" if self.details else label


def quantity(measure: str, asked: Sequence[Metric], *, per_round: bool = False) -> Quantity:
    """Return the name and the units of a measure; shares are shown in per cent.

    Args:
        measure: The measure.
        asked: The metrics of the runs.
        per_round: Whether the values are those of single rounds.

    >>> quantity("personal.local.mean", ()).scaled([0.5])[1].splitlines()
    ["clients' accuracy (%)", 'local, mean']
    """
    first, *rest = measure.split(".")
    metrics = metrics_by_key(asked)
    name = NAMES.get(first, first.replace("_", " "))
    if first in OF_CLIENTS:
        metric = next((step for step in rest if step in metrics), "accuracy")
        whose = "clients'" if first == "personal" else "unseen clients'"
        name = f"{whose} {metric.replace('_', ' ')}"
        rest = [step for step in rest if step != metric]
    units = next((UNITS[word] for word in UNITS if word in first.split("_")), {"": 1.0})
    if is_share(measure, asked):
        units = {"%": 0.01}
    elif per_round and units != {"": 1.0}:
        rest = ["per round"]
    return Quantity(name, ", ".join(rest).replace("_", " "), units)


def results_of(runs: Sequence[Run], measure: str, value: str) -> tuple[dict[int, float], str]:
    """Return a measure of complete runs in the unit of an axis.

    Args:
        runs: The runs.
        measure: The measure.
        value: The value of a run, for example "last5".

    Returns:
        The results by the identity (`id`) of the run, and the label of the axis with the unit.
    """
    found = {id(run): in_summary(run, measure, value) for run in runs}
    size, label = quantity(measure, runs[0].asked).scaled(list(found.values()))
    return {run: result / size for run, result in found.items()}, label


def over_rounds(run: Run, measure: str) -> dict[int, float]:
    """Return a measure of the rows of `metrics.jsonl` by round; nan where it is not defined.

    Args:
        run: The run.
        measure: The name of the measure, with dots for one inside others.

    Raises:
        InputError: If no row has it as a number.
    """
    found = {row["round"]: dict(_numbers(row)) for row in run.metrics}
    course = {round: values[measure] for round, values in found.items() if measure in values}
    if not course:
        if not found:
            raise InputError(f"{name_of(run)} has no completed round")
        known = {name for values in found.values() for name in values}
        raise InputError(f'{name_of(run)} has no measure "{measure}" in its rounds; {nearest(measure, known)}')
    return course


def _numbers(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the names and the values of all numbers in a row; a measure that is not defined is nan."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{key}.")
        elif (value is None or isinstance(value, (int, float))) and not isinstance(value, bool) and key != "round":
            yield f"{above}{key}", number(value)


def over_steps(run: Run, measure: str) -> Course:
    """Return the clients' mean accuracy at each step of their personalisation after the last round.

    Args:
        run: The run.
        measure: "personal" or "unseen".

    Raises:
        InputError: If the run has no such course.
    """
    if measure not in OF_CLIENTS:
        raise InputError(f"--measure {measure}: over steps it is {' or '.join(OF_CLIENTS)}, an accuracy of clients")
    stages = [stage for stage in run.summary().get(measure, {}).values() if isinstance(stage, Mapping)]
    course = next((stage["course"] for stage in stages if "course" in stage), None)
    if course is None:
        raise InputError(
            f"{name_of(run)} has no course of a personalisation; methods such as fedetf have one, if clients have a "
            "hold-out (data.holdout) and the run is complete"
        )
    return dict(enumerate(map(number, course)))


def in_summary(run: Run, measure: str, value: str) -> float:
    """Return a measure of a complete run.

    Args:
        run: The run.
        measure: The measure, as `fullrank compare` names it; "bytes" is the sum of both directions.
        value: The value of the measure, as `fullrank compare` names it.

    Raises:
        InputError: If the run is not complete or does not have the measure.
    """
    check_value(value)
    if run.path is not None:
        RunDirectory(run.path).check("compare", run.experiment.train.rounds)
    summary = run.summary()
    if measure == "bytes":
        return float(summary["bytes_up"] + summary["bytes_down"])
    found, reason = measured(run, measure, value)
    if found is None:
        known = [name for name in measures(run.asked) if measured(run, name, "last")[0] is not None]
        if measure in known:
            raise InputError(f'{name_of(run)} has no value "{value}" of "{measure}"; choose another --value')
        brief = "known: " + ", ".join(name for name in known if "." not in name)
        because = f"{reason}; {nearest(measure, known, brief)}" if measure not in summary["absent"] else reason
        raise InputError(f'{name_of(run)} has no measure "{measure}": {because}')
    return found
