"""A run in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .evaluate import over_clients

LOWER_IS_BETTER = ("loss",)


def summarise(rows: Sequence[Mapping[str, Any]], ending: Mapping[str, Any]) -> dict[str, Any]:
    """Each measure as last, best over rounds (labelled as such) and mean of the last five; totals of the traffic."""
    result: dict[str, Any] = {"rounds": rows[-1]["round"] if rows else 0}
    for measure in ("accuracy", "loss", "validation_accuracy", "validation_loss"):
        values = [row[measure] for row in [*rows, ending.get("last", {})] if row.get(measure) is not None]
        if values:
            best = min(values) if measure.endswith(LOWER_IS_BETTER) else max(values)
            last = values[-5:]
            result[measure] = {"last": values[-1], "best": best, "last5": sum(last) / len(last)}
            if ending.get(measure) is not None:
                result[measure]["final"] = ending[measure]
    for total in ("bytes_up", "bytes_down", "elements_up", "elements_down", "seconds"):
        result[total] = sum(row[total] for row in rows) + ending.get(total, 0)
    if skipped := sum(len(row.get("skipped", {})) for row in [*rows, ending]):
        result["skipped"] = skipped
    if "personal" in ending:
        result["personal"] = ending["personal"]
    result["absent"] = dict(ending.get("absent", {}))
    return result


def over_stages(judged: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """Clients' accuracies on their hold-outs, by stage: as received, after local training, personalised."""
    stages: dict[str, dict[str, Any]] = {}
    for stage in ("received", "local", "personalised"):
        scores = [found[stage] for found in judged.values() if stage in found]
        if scores:
            stages[stage] = over_clients([s["accuracy"] for s in scores], [int(s["samples"]) for s in scores])
    return stages
