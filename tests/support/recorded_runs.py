"""Runs as their records describe them, without any training: for pages about runs that are rare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank import Run
from fullrank.config.experiment import Experiment
from fullrank.files import write_json
from fullrank.report.page.subject import COMPLETE, Member, Subject, cohorts_of

CLASSES, CLIENTS, SAMPLES = 10, 4, 10_000
HEALTHY = [0.50, 0.60, 0.70, 0.78, 0.84, 0.87, 0.88, 0.88, 0.88, 0.88, 0.88, 0.88, 0.88, 0.88, 0.88, 0.88]
"""Accuracies of a run that learns and then stays where it is."""


def row(round: int, accuracy: float | None, **changes: Any) -> dict[str, Any]:
    """A row of a healthy round, with changes."""
    clients = [
        {
            "client": k,
            "samples": 64,
            "steps": 4,
            "epochs": [{"criterion": 0.5, "grad_norm": 0.5, "drift": 1.0 + 0.1 * k}],
        }
        for k in range(CLIENTS)
    ]
    loss = None if accuracy is None else -math.log(max(accuracy, 1e-9))
    scores = {"accuracy": accuracy, "loss": loss, "dead_features": 0.0}
    traffic = {"bytes_up": 1000, "bytes_down": 1000, "elements_up": 250, "elements_down": 250}
    times = {"seconds": 1.0, "training_seconds": 0.9}
    found = {"round": round, **scores, **traffic, **times, "clients": clients, "terms": {"criterion": 0.5}}
    return {**found, **changes}


def rows(accuracies: Sequence[float | None] = HEALTHY, changes: Mapping[int, Mapping[str, Any]] | None = None) -> Any:
    """The rows of a run with these accuracies, and changes by round."""
    return [row(r, a, **(changes or {}).get(r, {})) for r, a in enumerate(accuracies, 1)]


def whole(confusion: Sequence[Sequence[int]] | None = None, **changes: Any) -> dict[str, Any]:
    """The row of the global model on the whole test set: by default 88 of 100 samples of each class are recognised."""
    each = SAMPLES // CLASSES
    right = [[k, k, round(0.88 * each)] for k in range(CLASSES)]
    wrong = [[k, (k + m) % CLASSES, each // 75] for k in range(CLASSES) for m in range(1, CLASSES)]
    found = [*right, *wrong] if confusion is None else [list(cell) for cell in confusion]
    sums = [sum(n for label, _, n in found if label == k) for k in range(CLASSES)]
    hits = [sum(n for label, guess, n in found if label == guess == k) for k in range(CLASSES)]
    recall = [hit / total if total else None for hit, total in zip(hits, sums, strict=True)]
    return {
        "client": None,
        "site": None,
        "stage": "global",
        "set": "test",
        "samples": sum(sums),
        "metrics": {"accuracy": 0.88, "loss": 0.3},
        "intervals": {"accuracy": [0.874, 0.886]},
        "recall": recall,
        "recall_intervals": [None] * CLASSES,
        "confusion": found,
        "calibration": {"counts": [0, SAMPLES], "confidence": [None, 0.89], "accuracy": [None, 0.88]},
        **changes,
    }


def own(client: int, stage: str, accuracy: float) -> dict[str, Any]:
    """The row of a client's own model on its hold-out."""
    found = whole([[0, 0, 10]], client=client, stage=stage, set="holdout", samples=10)
    found.pop("calibration")
    return {**found, "metrics": {"accuracy": accuracy}, "intervals": {"accuracy": [accuracy, accuracy]}}


def probe(round: int, rank: float = 9.0, gap: float = 0.0, cka: float = 0.9) -> dict[str, Any]:
    """A probe with an effective rank, a gap and a CKA of classifiers, and without arrays."""
    local = {"client": 0, "effective_rank": rank, "gap": gap}
    found = {"round": round, "clients": [0, 1], "global": {"effective_rank": rank}, "locals": [local]}
    return {**found, "cka_by_layer": {"classifier": cka}}


def member(
    seed: int = 0,
    path: Path | None = None,
    *,
    metrics: Any = None,
    table: Any = None,
    ending: Any = None,
    probes: Any = None,
    state: str = COMPLETE,
    reason: str = "",
    partition: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Member:
    """A run that is healthy in every respect that is not given."""
    experiment = Experiment.of({"train.rounds": len(HEALTHY), "seed": seed, **keys})
    facts = {
        "data": {"classes": [f"class {k}" for k in range(CLASSES)], "fingerprint": "f" * 64},
        "hash": f"{seed:064d}",
        "sizes": [64] * CLIENTS,
        "samples": 64 * CLIENTS,
        "size": {"min": 64, "median": 64, "max": 64},
        "classes_per_client": 10.0,
        "emd": {"mean": 0.1},
        **(partition or {}),
    }
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "partition.json", facts)
    found = Run(
        experiment,
        rows() if metrics is None else metrics,
        path,
        ending={"personal": {}, **(ending or {})},
        probes=[] if probes is None else probes,
        table=[whole()] if table is None else table,
    )
    return Member(found, "fedavg", state, reason, facts, environment or {})


def subject(*members: Member, failed: Mapping[str, str] | None = None) -> Subject:
    """The subject of a page about these runs."""
    return Subject(cohorts_of(members), failed=failed or {}, paths=("runs",))


def seeds(number: int = 3, **changes: Any) -> Subject:
    """Runs of several seeds that are alike."""
    return subject(*(member(seed, **changes) for seed in range(number)))
