"""Describe one model on one set of samples: its metrics with intervals, recalls, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fullrank.metrics.bootstrap import Interval, bootstrap
from fullrank.metrics.measures import BINS, bin_of, confusion, recalls
from fullrank.metrics.registry import METRICS, Metric

MOST_RANKED = 20_000
"""Number of samples times classes up to which the area under the ROC curve has an interval."""


def with_balanced(metrics: Sequence[Metric]) -> list[Metric]:
    """Return metrics with balanced accuracy, which details always have."""
    balanced = METRICS.own["balanced-accuracy"]
    return [*metrics] if balanced in metrics else [*metrics, balanced]


def details(
    scores: Sequence[Tensor], labels: Tensor, found: Mapping[str, Any], seed: int, *purpose: str | int
) -> dict[str, Any]:
    """Describe one model on one set of samples, in plain values without anything about a single sample.

    Args:
        scores: The scores of the model, batch by batch.
        labels: The labels of all samples.
        found: The metrics of the model on the samples, by key; lists by class are left out.
        seed: The seed of the run.
        *purpose: What the samples are, for example the client's number and "test".

    Returns:
        `samples`, their number; `metrics` by key; `intervals`, for some of these the ends of the 95 % interval;
        `recall` and `recall_intervals` by class; `confusion`, triples of a label, a prediction and the number of
        samples with both.
    """
    joined = torch.cat(list(scores))
    metrics = {key: value for key, value in found.items() if value is None or isinstance(value, (int, float))}
    ends = bootstrap(_with_interval(metrics, labels), joined, labels, seed=seed, purpose=purpose)
    by_class = cast(list[Interval | None], ends.pop("per_class"))
    table = confusion(joined, labels).cpu().numpy()
    return {
        "samples": len(labels),
        "metrics": metrics,
        "intervals": {key: [*cast(Interval, interval)] for key, interval in ends.items() if interval is not None},
        "recall": recalls(joined, labels),
        "recall_intervals": [None if interval is None else [*interval] for interval in by_class],
        "confusion": [[int(row), int(column), int(table[row, column])] for row, column in np.argwhere(table)],
    }


def _with_interval(keys: Iterable[str], labels: Tensor) -> list[Metric]:
    """Return those of the metrics whose intervals are computed fast enough for every client, and the recalls."""
    ranked = len(labels) * len(torch.unique(labels)) <= MOST_RANKED
    known = {metric.key: metric for metric in METRICS.own.values() if ranked or metric.key != "auroc"}
    return [*(known[key] for key in keys if key in known), known["per_class"]]


def calibration(scores: Sequence[Tensor], labels: Tensor, bins: int = BINS) -> dict[str, list[Any]]:
    """Return the numbers behind the expected calibration error, for a reliability diagram.

    Args:
        scores: The scores of the model, batch by batch.
        labels: The labels of all samples.
        bins: The number M of bins (j/M, (j+1)/M] of the highest probability.

    Returns:
        For each bin `counts`, the number of its samples, and `confidence` and `accuracy`, the means of their highest
        probability and of whether the prediction is right; None for an empty bin.

    >>> one = torch.tensor([[0.8, 0.2], [0.1, 0.9]]).log()
    >>> calibration([one], torch.tensor([1, 1]), bins=4)["counts"]
    [0, 0, 0, 2]
    """
    confidence, predicted = torch.cat(list(scores)).double().softmax(1).max(1)
    which, right = bin_of(confidence, bins), (predicted == labels.to(predicted.device)).double()
    counts = torch.bincount(which, minlength=bins)
    sums = (torch.bincount(which, values, bins) for values in (confidence, right))
    means = ((total / counts).tolist() for total in sums)
    kept = ([value if n else None for value, n in zip(mean, counts.tolist(), strict=True)] for mean in means)
    return {"counts": counts.tolist(), **dict(zip(("confidence", "accuracy"), kept, strict=True))}


def dense(confusion: Iterable[Sequence[int]], classes: int) -> np.ndarray:
    """Return the confusion matrix (labels × predictions) of the triples of `details`; those of several models add up.

    Args:
        confusion: Triples of a label, a prediction and a number of samples.
        classes: The number of classes.

    >>> dense([[0, 0, 3], [1, 0, 2]], 2).tolist()
    [[3, 0], [2, 0]]
    """
    table = np.zeros((classes, classes), dtype=np.int64)
    for label, prediction, count in confusion:
        table[label, prediction] += count
    return table
