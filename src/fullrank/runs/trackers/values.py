"""The parts of a run that a tracker receives: numbers, distributions over clients, and sentences; never a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.runs.display import problems_of

COUNTED = ("skipped", "idle")
"""Keys of a row whose number of clients is sent."""
NOT_A_MEASURE = ("round", "clients", "cautions", "far_client", "contact", *COUNTED)


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row of metrics.jsonl by name; the names of nested numbers are joined by slashes.

    Values that are not finite are left out.

    >>> scalars({"round": 1, "accuracy": 0.5, "terms": {"criterion": 2.0}, "skipped": {"3": "it failed"}})
    {'accuracy': 0.5, 'terms/criterion': 2.0, 'clients_skipped': 1.0}
    """
    found = dict(_numbers({key: value for key, value in row.items() if key not in NOT_A_MEASURE}))
    return found | {f"clients_{key}": float(len(row[key])) for key in COUNTED if row.get(key)}


def distributions(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the values that a row has of several clients or classes, by name.

    Of what a client measured in each local epoch, the value of the last epoch counts.

    >>> distributions({"clients": [{"client": 0, "epochs": [{"drift": 1.0}, {"drift": 2.0}]}], "recalls": [0.5, None]})
    {'clients/drift': [2.0], 'recalls': [0.5]}
    """
    found: dict[str, list[float]] = {}
    for client in row.get("clients", []):
        facts = {key: value for key, value in client.items() if key not in ("client", "epochs")}
        facts |= (client.get("epochs") or [{}])[-1]
        for name, value in _numbers(facts):
            found.setdefault(f"clients/{name}", []).append(value)
    for key, value in row.items():
        if key not in NOT_A_MEASURE and isinstance(value, list):
            numbers = [float(each) for each in value if _is_finite(each)]
            if numbers:
                found[key] = numbers
    return found


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run's summary by name.

    >>> results({"rounds": 2, "accuracy": {"last": 0.5}, "absent": {"personal": "no hold-out"}})
    {'summary/rounds': 2.0, 'summary/accuracy/last': 0.5}
    """
    return {f"summary/{name}": value for name, value in _numbers(summary)}


def settings(experiment: Experiment) -> dict[str, Any]:
    """Return the keys of an experiment, as in "train.lr", with values that every tracker can store."""
    flat = experiment.flat()
    return {key: value if isinstance(value, (bool, int, float, str)) else str(value) for key, value in flat.items()}


def labels(experiment: Experiment) -> dict[str, str]:
    """Return the words by which runs are found in a tracker."""
    return {"method": experiment.method_label, "data": experiment.data_label, "seed": str(experiment.seed)}


def problems(row: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a round, without the messages of clients' exceptions, which can quote data.

    >>> problems({"round": 2, "skipped": {"3": "ValueError: the patient of sample 17"}})
    ['round 2: client 3 was left out: log.txt has the reason']
    """
    reasons = dict.fromkeys(row.get("skipped", {}), "log.txt has the reason")
    return [*row.get("cautions", []), *problems_of({**row, "skipped": reasons})]


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif _is_finite(value):
            yield f"{prefix}{key}", float(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
