"""The summary of a run: each metric in a few numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fullrank.local.loop import NO_TERMS
from fullrank.metrics.evaluate import over_clients
from fullrank.metrics.registry import BY_DOMAIN, BY_SITE, METRICS, PREFIXES, Metric, single_numbers


def summarise(
    rows: Sequence[Mapping[str, Any]], ending: Mapping[str, Any], metrics: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Summarise the rows of a run.

    Args:
        rows: The metrics of each round.
        ending: What was computed after the last round.
        metrics: The metrics of the run that are not the library's.

    Returns:
        For each metric the last value, the best over rounds, the mean of the last five and the value in the round with
        the best validation accuracy, also by site and by domain where the rows have it; the totals of the traffic, and
        its elements per client and round; the terms of the loss in training; and the results of clients' own models by
        stage.
    """
    result: dict[str, Any] = {"rounds": rows[-1]["round"] if rows else 0}
    evaluated = [*rows, ending.get("last", {})]
    chosen = max((row for row in evaluated if "validation_accuracy" in row), key=_validated, default=None)
    for measure, metric in measures(metrics).items():
        if found := _in_few_numbers(evaluated, chosen, ending, metric, measure):
            result[measure] = found
        for key in (f"{measure}{BY_DOMAIN}", f"{measure}{BY_SITE}"):
            places = {place: None for row in evaluated for place in row.get(key, {})}
            by_place = {place: _in_few_numbers(evaluated, chosen, ending, metric, key, place) for place in places}
            if any(by_place.values()):
                result[key] = by_place
    for total in ("bytes_up", "bytes_down", "elements_up", "elements_down", "seconds"):
        result[total] = sum(row[total] for row in rows) + ending.get(total, 0)
    if "seconds" in ending:
        result["ending_seconds"] = ending["seconds"]
    if met := sum(len(row.get("clients", ())) + len(row.get("skipped", {})) for row in rows):
        result["elements"] = sum(row["elements_up"] + row["elements_down"] for row in rows) / met
    if terms := _over_rounds([row["terms"] for row in rows if "terms" in row]):
        result["terms"] = terms
    if skipped := sum(len(row.get("skipped", {})) for row in [*rows, ending]):
        result["skipped"] = skipped
    for clients in ("personal", "unseen", "sites"):
        if clients in ending:
            result[clients] = ending[clients]
    if chosen is not None and "round" in chosen:
        result["validated_round"] = chosen["round"]
    result["absent"] = dict(ending.get("absent", {}))
    return result


def _in_few_numbers(
    rows: Sequence[Mapping[str, Any]],
    chosen: Mapping[str, Any] | None,
    ending: Mapping[str, Any],
    metric: Metric,
    *path: str,
) -> dict[str, float]:
    """Return the last value, the best, the mean of the last five, and those of the chosen round and of the end.

    Args:
        rows: The rows of all rounds that were evaluated.
        chosen: The row with the best validation accuracy, if there is one.
        ending: What was computed after the last round.
        metric: The metric.
        path: The keys under which a row has the value.
    """
    values = [value for row in rows if _is_number(value := _at(row, path))]
    if not values:
        return {}
    best = min(values) if metric.lower_is_better else max(values)
    last = values[-5:]
    found: dict[str, float] = {"last": values[-1], "best": best, "last5": sum(last) / len(last)}
    if chosen is not None and (value := _at(chosen, path)) is not None:
        found["validated"] = value
    if (value := _at(ending, path)) is not None:
        found["final"] = value
    return found


def _at(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = row
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def measures(metrics: Sequence[Metric] = ()) -> dict[str, Metric]:
    """Return the metrics of a run that are one number, by their keys in its rows.

    For the clients' own models, only the accuracy has a key here; their other metrics are in `personal`.
    """
    numbers = single_numbers(metrics)
    validated, of_mean, personal = PREFIXES
    found = {f"{prefix}{metric.key}": metric for prefix in ("", validated, of_mean) for metric in numbers}
    return {**found, f"{personal}accuracy": found["accuracy"]}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _validated(row: Mapping[str, Any]) -> float:
    return float(row["validation_accuracy"])


def mean_terms(clients: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each term of the loss over the local epochs of a round and its clients, weighted by samples.

    Args:
        clients: What is recorded of each client of the round.

    >>> epochs = [{"criterion": 2.0, "drift": 0.1}, {"criterion": 1.0, "drift": 0.2}]
    >>> mean_terms([{"samples": 30, "epochs": epochs}, {"samples": 10, "epochs": [{"criterion": 0.5}]}])
    {'criterion': 1.25}
    """
    totals: dict[str, tuple[float, float]] = {}
    for client in clients:
        epochs = client.get("epochs", [])
        for name in {name: None for epoch in epochs for name in epoch if name not in NO_TERMS}:
            values = [epoch[name] for epoch in epochs if name in epoch]
            total, weight = totals.get(name, (0.0, 0.0))
            totals[name] = total + client["samples"] * sum(values) / len(values), weight + client["samples"]
    return {name: total / weight for name, (total, weight) in totals.items()}


def _over_rounds(terms: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the last value of each term, its least, and its mean over the last five rounds."""
    names = {name: None for row in terms for name in row}
    values = {name: [row[name] for row in terms if _is_number(row.get(name))] for name in names}
    return {
        name: {"last": found[-1], "best": min(found), "last5": sum(found[-5:]) / len(found[-5:])}
        for name, found in values.items()
        if found
    }


def over_stages(
    evaluated: Mapping[int, Mapping[str, Mapping[str, Any]]], metrics: Sequence[Metric] = ()
) -> dict[str, dict[str, Any]]:
    """Aggregate the metrics of clients' own models over the clients.

    Args:
        evaluated: For each client and stage (as received, after local training, personalised) the values of metrics.
        metrics: The metrics of the run that are not the library's.

    Returns:
        For each stage the numbers of `over_clients`: those of the accuracy directly, those of other metrics under their
        keys, over the clients for which they are defined. If a method records the course of a personalisation, `course`
        has the mean accuracy at each of its marks, over the clients that reached it.
    """
    others = [metric for metric in single_numbers(metrics) if metric.key != "accuracy"]
    stages: dict[str, dict[str, Any]] = {}
    for stage in ("received", "local", "personalised"):
        scores = [found[stage] for found in evaluated.values() if stage in found]
        if scores:
            found = {metric.key: numbers for metric in others if (numbers := over(scores, metric))}
            stages[stage] = {**over(scores, METRICS.own["accuracy"]), **found}
        if courses := [found["course"] for found in scores if "course" in found]:
            marks = itertools.zip_longest(*([mark["accuracy"] for mark in course] for course in courses))
            reached = ([score for score in mark if score is not None] for mark in marks)
            stages[stage]["course"] = [sum(found) / len(found) for found in reached]
    return stages


def over(scores: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    """Aggregate a metric over the clients for which it is defined; AUROC, for example, needs two classes.

    Args:
        scores: The metrics of each client.
        metric: The metric.

    Returns:
        The numbers of `over_clients`.
    """
    having = [found for found in scores if _is_number(found.get(metric.key))]
    if not having:
        return {}
    samples = [found["samples"] for found in having]
    return over_clients([found[metric.key] for found in having], samples, metric.lower_is_better)
