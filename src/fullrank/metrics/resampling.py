"""Bootstrap intervals of metrics: how far a value would vary with another sample of the same size.

The samples of an evaluation are drawn with replacement, a metric is computed on every draw, and the interval lies
between two percentiles of these values (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §13.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.metrics.measures import BINS, Metric, among_highest, bin_of

RESAMPLES = 1000
LEVEL = 0.95
_CHUNK = 1 << 22
"""The largest number of positions that are drawn at a time, and of entries of their confusion matrices."""

Floats: TypeAlias = npt.NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]
Intervals: TypeAlias = Interval | list[Interval | None] | None
"""An interval, one for each class, or None where the metric is not defined."""


def bootstrap(
    metrics: Sequence[Metric],
    scores: Tensor,
    labels: Tensor,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, Intervals]:
    """Return the percentile bootstrap interval of each metric by its key.

    All metrics are computed on the same draws. A draw on which a metric is not defined, for example the recall of a
    class that it lacks, is left out for this metric.

    Args:
        metrics: The metrics; those without a function, which are computed from others, are left out.
        scores: The scores (N, C).
        labels: The labels (N,).
        resamples: The number of draws.
        level: The share of the draws whose values lie within the interval.
        seed: The seed of the draws.

    >>> from fullrank.metrics.measures import find_metrics
    >>> scores = torch.eye(2)[torch.tensor([0] * 80 + [1] * 20)]
    >>> low, high = bootstrap(find_metrics(["accuracy"]), scores, torch.zeros(100, dtype=torch.int64))["accuracy"]
    >>> 0.70 < low < 0.75 < 0.85 < high < 0.90
    True
    """
    scores, labels = scores.detach().cpu(), labels.detach().cpu()
    known = [metric for metric in metrics if metric.function is not None]
    computed = [(metric, _on_draws(metric, scores, labels)) for metric in known]
    values: dict[str, list[Floats]] = {metric.key: [] for metric in known}
    at_once = max(1, _CHUNK // max(len(labels), scores.shape[1] ** 2))
    for draws in _draws(len(labels), resamples, seed, at_once):
        for metric, compute in computed:
            values[metric.key].append(compute(draws))
    return {key: _intervals(np.concatenate(found), level) for key, found in values.items()}


def _draws(number: int, resamples: int, seed: int, at_once: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of samples drawn with replacement, some draws at a time, each a row."""
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, at_once):
        yield generator.integers(number, size=(min(at_once, resamples - start), number))


def _intervals(values: Floats, level: float) -> Intervals:
    """Return the interval of the values (draws,), or one for each class of (draws, C)."""
    if values.ndim == 2:
        return [_interval(column, level) for column in values.T]
    return _interval(values, level)


def _interval(values: Floats, level: float) -> Interval | None:
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    outside = (1 - level) / 2
    low, high = np.quantile(values, (outside, 1 - outside))
    return float(low), float(high)


# Metrics on many draws at a time


Compute: TypeAlias = Callable[[npt.NDArray[np.int64]], Floats]
"""A function from draws (B, N) to values (B,), or (B, C) for a metric with a value for each class."""


def _on_draws(metric: Metric, scores: Tensor, labels: Tensor) -> Compute:
    """Return the metric as a function of draws: vectorised for the library's, otherwise draw by draw."""
    if metric.key in _MEANS:
        each = _MEANS[metric.key](scores, labels)
        return lambda draws: each[draws].mean(1)
    if metric.key in _OF_WEIGHTS:
        of_weights, number = _OF_WEIGHTS[metric.key](scores, labels), len(labels)
        return lambda draws: of_weights(_weights(draws, number))
    if metric.key in _OF_TABLES:
        of_tables, classes = _OF_TABLES[metric.key], scores.shape[1]
        pairs = (labels * classes + scores.argmax(1)).numpy()
        return lambda draws: of_tables(_tables(pairs, draws, classes))
    return lambda draws: np.array([_number(metric, scores[row], labels[row]) for row in torch.from_numpy(draws)])


def _number(metric: Metric, scores: Tensor, labels: Tensor) -> Any:
    assert metric.function is not None
    found = metric.function(scores, labels)
    values = [np.nan if value is None else value for value in (found if isinstance(found, list) else [found])]
    return values if isinstance(found, list) else values[0]


def _hits(scores: Tensor, labels: Tensor) -> Floats:
    return (scores.argmax(1) == labels).double().numpy()


def _losses(scores: Tensor, labels: Tensor) -> Floats:
    return F.cross_entropy(scores, labels, reduction="none").double().numpy()


def _hits_top5(scores: Tensor, labels: Tensor) -> Floats:
    return among_highest(5, scores, labels).double().numpy()


def _weights(draws: npt.NDArray[np.int64], number: int) -> Floats:
    """Return how often each draw has each sample, (B, N)."""
    offset = np.arange(len(draws))[:, None] * number
    counts = np.bincount((draws + offset).ravel(), minlength=len(draws) * number)
    return counts.reshape(len(draws), number).astype(np.float64)


def _areas(scores: Tensor, labels: Tensor) -> Callable[[Floats], Floats]:
    """Return `auroc` as a function of weights (B, N)."""
    probabilities, truth = scores.double().softmax(1).numpy(), labels.numpy()

    def of_class(weights: Floats, c: int) -> Floats:
        order = np.argsort(probabilities[:, c])
        values, own = probabilities[order, c], truth[order] == c
        ties = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        inside, outside = (np.add.reduceat(weights[:, order] * part, ties, axis=1) for part in (own, ~own))
        below = outside.cumsum(1) - outside / 2
        pairs = inside.sum(1) * outside.sum(1)
        area: Floats = np.divide((inside * below).sum(1), pairs, out=np.full_like(pairs, np.nan), where=pairs > 0)
        return area

    return lambda weights: _mean_of_defined(np.stack([of_class(weights, c) for c in range(scores.shape[1])], axis=1))


def _mean_of_defined(values: Floats) -> Floats:
    """Return the mean of each row over what is defined in it, and NaN for a row without."""
    defined = ~np.isnan(values)
    number = defined.sum(1)
    mean: Floats = np.divide(np.nansum(values, axis=1), number, out=np.full(len(values), np.nan), where=number > 0)
    return mean


def _calibration_errors(scores: Tensor, labels: Tensor) -> Callable[[Floats], Floats]:
    """Return `calibration_error` as a function of weights (B, N)."""
    confidence, predicted = scores.double().softmax(1).max(1)
    gaps = np.zeros((len(labels), BINS))
    gaps[np.arange(len(labels)), bin_of(confidence).numpy()] = ((predicted == labels).double() - confidence).numpy()
    return lambda weights: np.abs(weights @ gaps).sum(1) / len(gaps)


def _tables(pairs: npt.NDArray[np.int64], draws: npt.NDArray[np.int64], classes: int) -> Floats:
    """Return the confusion matrix of each draw, (B, C, C) with the true classes as rows."""
    occurring, place = np.unique(pairs, return_inverse=True)
    offset = np.arange(len(draws))[:, None] * len(occurring)
    counts = np.bincount((place[draws] + offset).ravel(), minlength=len(draws) * len(occurring))
    tables = np.zeros((len(draws), classes * classes))
    tables[:, occurring] = counts.reshape(len(draws), -1)
    return tables.reshape(-1, classes, classes)


def _recalls(tables: Floats) -> Floats:
    given = tables.sum(2)
    hits = np.diagonal(tables, axis1=1, axis2=2)
    shares: Floats = np.divide(hits, given, out=np.full_like(given, np.nan), where=given > 0)
    return shares


def _balanced_accuracy(tables: Floats) -> Floats:
    return _mean_of_defined(_recalls(tables))


def _macro_f1(tables: Floats) -> Floats:
    both = tables.sum(2) + tables.sum(1)
    hits = 2 * np.diagonal(tables, axis1=1, axis2=2)
    return _mean_of_defined(np.divide(hits, both, out=np.full_like(both, np.nan), where=both > 0))


_MEANS: dict[str, Callable[[Tensor, Tensor], Floats]] = {"accuracy": _hits, "loss": _losses, "top5": _hits_top5}
_OF_WEIGHTS: dict[str, Callable[[Tensor, Tensor], Callable[[Floats], Floats]]] = {
    "auroc": _areas,
    "calibration": _calibration_errors,
}
_OF_TABLES: dict[str, Callable[[Floats], Floats]] = {
    "per_class": _recalls,
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
}
