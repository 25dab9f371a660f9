"""A run in a few numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fullrank.metrics.evaluate import over_clients

LOWER_IS_BETTER = ("loss", "calibration")
MEASURED = ("accuracy", "loss", "balanced_accuracy", "macro_f1", "auroc", "top5", "calibration", "domain_accuracy")
"""Measures of a global model that are one number."""


def summarise(rows: Sequence[Mapping[str, Any]], ending: Mapping[str, Any]) -> dict[str, Any]:
    """Each measure as last, best over rounds (labelled as such), mean of the last five, and at the validation's best.

    Totals of the traffic come with them.
    """
    result: dict[str, Any] = {"rounds": rows[-1]["round"] if rows else 0}
    evaluated = [*rows, ending.get("last", {})]
    chosen = max((row for row in evaluated if "validation_accuracy" in row), key=_validated, default=None)
    for measure in (*MEASURED, *(f"validation_{name}" for name in MEASURED), "personal_accuracy"):
        values = [row[measure] for row in evaluated if row.get(measure) is not None]
        if values:
            best = min(values) if measure.endswith(LOWER_IS_BETTER) else max(values)
            last = values[-5:]
            result[measure] = {"last": values[-1], "best": best, "last5": sum(last) / len(last)}
            if chosen is not None and chosen.get(measure) is not None:
                result[measure]["validated"] = chosen[measure]
            if ending.get(measure) is not None:
                result[measure]["final"] = ending[measure]
    for total in ("bytes_up", "bytes_down", "elements_up", "elements_down", "seconds"):
        result[total] = sum(row[total] for row in rows) + ending.get(total, 0)
    if "seconds" in ending:
        result["ending_seconds"] = ending["seconds"]
    if skipped := sum(len(row.get("skipped", {})) for row in [*rows, ending]):
        result["skipped"] = skipped
    for clients in ("personal", "unseen"):
        if clients in ending:
            result[clients] = ending[clients]
    if chosen is not None and "round" in chosen:
        result["validated_round"] = chosen["round"]
    result["absent"] = dict(ending.get("absent", {}))
    return result


def _validated(row: Mapping[str, Any]) -> float:
    return float(row["validation_accuracy"])


def over_stages(evaluated: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Clients' accuracies on their hold-outs, by stage: as received, after local training, personalised.

    Other measures that were asked for are there under their names, over the clients for which they are defined.

    Where a method notes how a personalisation goes, `course` has the plain mean at each of its marks, over
    those clients that came so far.
    """
    stages: dict[str, dict[str, Any]] = {}
    for stage in ("received", "local", "personalised"):
        scores = [found[stage] for found in evaluated.values() if stage in found]
        if scores:
            others = {name: found for name in MEASURED[1:] if (found := _over(scores, name))}
            stages[stage] = {**_over(scores, "accuracy"), **others}
        if courses := [found["course"] for found in scores if "course" in found]:
            marks = itertools.zip_longest(*([mark["accuracy"] for mark in course] for course in courses))
            reached = ([score for score in mark if score is not None] for mark in marks)
            stages[stage]["course"] = [sum(found) / len(found) for found in reached]
    return stages


def _over(scores: Sequence[Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """A measure over the clients for which it is defined (AUROC is not where all samples are of one class)."""
    having = [found for found in scores if found.get(measure) is not None]
    if not having:
        return {}
    samples = [found["samples"] for found in having]
    return over_clients([found[measure] for found in having], samples, measure in LOWER_IS_BETTER)
