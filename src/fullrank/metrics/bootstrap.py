"""Bootstrap intervals of metrics: how far a value would vary with another sample of the same size.

The samples of an evaluation are drawn with replacement, a metric is computed on every draw, and the interval lies
between two percentiles of these values (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §13.3).

Metrics that depend only on predictions are functions of the confusion matrix, whose draws are multinomial, so that no
sample is touched. The other metrics of the library are computed on many draws at a time, a user's on one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.metrics.measures import BINS, among_highest, bin_of
from fullrank.metrics.registry import LEVEL, RESAMPLES, Metric
from fullrank.randomness import generator

AT_ONCE = 1 << 21
"""The largest number of positions, or of counts, that are drawn at a time."""

Floats: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = npt.NDArray[np.int64]
Interval: TypeAlias = tuple[float, float]
"""The lower and the upper end of an interval."""
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
    purpose: Sequence[str | int] = (),
) -> dict[str, Intervals]:
    """Return the percentile bootstrap interval of each metric by its key.

    A draw on which a metric is not defined, for example the recall of a class that it lacks, is left out for this
    metric. The interval of a metric does not depend on which other metrics there are.

    Args:
        metrics: The metrics; those without a function, which are computed from others, are left out.
        scores: The scores (N, C).
        labels: The labels (N,).
        resamples: The number of draws.
        level: The share of the draws whose values lie within the interval.
        seed: The seed of the draws.
        purpose: What the samples are, for example the number of a client and "test". Other purposes have other draws.

    Returns:
        For each key the lower and the upper end of the interval; for a metric with one value for each class a list of
        them; None where the metric is not defined on any draw.

    >>> from fullrank.metrics.registry import find_metrics
    >>> scores = torch.eye(2)[torch.tensor([0] * 80 + [1] * 20)]
    >>> low, high = bootstrap(find_metrics(["accuracy"]), scores, torch.zeros(100, dtype=torch.int64))["accuracy"]
    >>> 0.70 < low < 0.75 < 0.85 < high < 0.90
    True
    """
    scores, labels = scores.detach().cpu(), labels.detach().cpu()
    known = [metric for metric in metrics if metric.function is not None]
    found: dict[str, Floats] = {}
    if of_predictions := [metric.key for metric in known if metric.key in _OF_PREDICTIONS]:
        random = generator(seed, "bootstrap", *purpose, "predictions")
        found |= _on_predictions(of_predictions, scores, labels, resamples, random)
    if others := [metric for metric in known if metric.key not in _OF_PREDICTIONS]:
        random = generator(seed, "bootstrap", *purpose, "samples")
        found |= _on_samples(others, scores, labels, resamples, random)
    if not found:
        return {}
    columns = [values.reshape(resamples, -1) for values in found.values()]
    ends = np.split(_ends(np.concatenate(columns, axis=1), level), np.cumsum([c.shape[1] for c in columns]), axis=1)
    intervals = {key: _listed(own, found[key].ndim > 1) for key, own in zip(found, ends[:-1], strict=True)}
    return {metric.key: intervals[metric.key] for metric in known}


def _ends(values: Floats, level: float) -> Floats:
    """Return the percentiles (2, …) of resampled values (draws, …) that are the ends of the interval, NaN left out.

    It is `np.nanquantile`, which takes ten times as long for as few values.
    """
    ordered = np.sort(values, axis=0)  # NaN last
    place = np.array([(1 - level) / 2, (1 + level) / 2]).reshape(2, *[1] * (values.ndim - 1))
    place = place * (np.maximum((~np.isnan(values)).sum(0), 1) - 1)
    low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
    below, above = np.take_along_axis(ordered, low, 0), np.take_along_axis(ordered, high, 0)
    ends: Floats = below + (above - below) * (place - low)
    return ends


def _listed(ends: Floats, by_class: bool) -> Intervals:
    """Return the interval of ends (2, 1), or those of the classes of ends (2, C)."""
    found = [None if np.isnan(low) else (low, high) for low, high in ends.T.tolist()]
    return found if by_class else found[0]


# Metrics of predictions


@dataclass(frozen=True)
class _Counts:
    """The margins and the diagonal of the confusion matrices of draws, for the classes that occur."""

    given: Floats
    """The number of samples of each class (draws, classes)."""
    taken: Floats
    """The number of samples that are predicted as each class."""
    hits: Floats
    """The number of samples of each class that are predicted as it."""


def _on_predictions(
    keys: Sequence[str], scores: Tensor, labels: Tensor, resamples: int, random: np.random.Generator
) -> dict[str, Floats]:
    """Return the values of metrics on draws of the pairs of a label and a prediction."""
    width = scores.shape[1]
    pairs, times = np.unique((labels * width + scores.argmax(1)).numpy(), return_counts=True)
    classes = np.unique(np.concatenate(np.divmod(pairs, width)))  # of a hundred classes a client may have two
    rows, columns = (np.searchsorted(classes, side) for side in np.divmod(pairs, width))
    values: dict[str, list[Floats]] = {key: [] for key in keys}
    for size in _sizes(resamples, len(pairs)):
        drawn = random.multinomial(len(labels), times / len(labels), size=size).astype(np.float64)
        counts = _counted(drawn, rows, columns, len(classes))
        for key, found in values.items():
            found.append(_OF_PREDICTIONS[key](counts))
    joined = {key: np.concatenate(found) for key, found in values.items()}
    if "per_class" in joined:
        every = np.full((resamples, width), np.nan)
        every[:, classes] = joined["per_class"]
        joined["per_class"] = every
    return joined


def _counted(drawn: Floats, rows: Positions, columns: Positions, classes: int) -> _Counts:
    """Return the counts of draws (draws, pairs) of pairs with these labels and predictions."""
    of_label, of_prediction = np.eye(classes)[rows], np.eye(classes)[columns]
    return _Counts(drawn @ of_label, drawn @ of_prediction, drawn @ (of_label * of_prediction))


def _accuracies(counts: _Counts) -> Floats:
    shares: Floats = counts.hits.sum(1) / counts.given.sum(1)
    return shares


def _recalls(counts: _Counts) -> Floats:
    return _ratio(counts.hits, counts.given)


def _balanced_accuracies(counts: _Counts) -> Floats:
    return _mean_of_defined(_recalls(counts))


def _macro_f1s(counts: _Counts) -> Floats:
    return _mean_of_defined(_ratio(2 * counts.hits, counts.given + counts.taken))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Return part / whole, and NaN where both are 0."""
    found: Floats = np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)
    return found


def _mean_of_defined(values: Floats) -> Floats:
    """Return the mean of the values of each row that are defined, and NaN for a row without such values."""
    return _ratio(np.nansum(values, axis=1), (~np.isnan(values)).sum(1).astype(np.float64))


_OF_PREDICTIONS: Mapping[str, Callable[[_Counts], Floats]] = {
    "accuracy": _accuracies,
    "balanced_accuracy": _balanced_accuracies,
    "macro_f1": _macro_f1s,
    "per_class": _recalls,
}


# Metrics of samples


def _on_samples(
    metrics: Sequence[Metric], scores: Tensor, labels: Tensor, resamples: int, random: np.random.Generator
) -> dict[str, Floats]:
    """Return the values of metrics on draws of the samples, which are the same for all of these metrics."""
    number = len(labels)
    means = {metric.key: _MEANS[metric.key](scores, labels) for metric in metrics if metric.key in _MEANS}
    weighted = {metric.key: _WEIGHTED[metric.key](scores, labels) for metric in metrics if metric.key in _WEIGHTED}
    values: dict[str, list[Floats]] = {metric.key: [] for metric in metrics}
    for size in _sizes(resamples, number):
        draws = random.integers(number, size=(size, number))
        weights = _weights(draws) if weighted else None
        for metric in metrics:
            if metric.key in means:
                found = means[metric.key][draws].mean(1)
            elif metric.key in weighted:
                assert weights is not None
                found = weighted[metric.key](weights)
            else:
                found = np.array([_values(metric, scores[row], labels[row]) for row in torch.from_numpy(draws)])
            values[metric.key].append(found)
    return {key: np.concatenate(found) for key, found in values.items()}


def _sizes(resamples: int, each: int) -> Iterator[int]:
    """Yield the sizes of the blocks in which draws of `each` numbers are held in memory."""
    step = max(1, AT_ONCE // each)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def _values(metric: Metric, scores: Tensor, labels: Tensor) -> Any:
    """Return the value of a user's metric, or its values by class, with NaN for None."""
    assert metric.function is not None
    found = metric.function(scores, labels)
    values = [np.nan if value is None else value for value in (found if isinstance(found, list) else [found])]
    return values if isinstance(found, list) else values[0]


def _weights(draws: Positions) -> Floats:
    """Return how often each draw has each sample (draws, N)."""
    flat = (draws + draws.shape[1] * np.arange(len(draws))[:, None]).ravel()
    return np.bincount(flat, minlength=draws.size).reshape(draws.shape).astype(np.float64)


def _losses(scores: Tensor, labels: Tensor) -> Floats:
    return F.cross_entropy(scores.double(), labels, reduction="none").numpy()


def _hits_top5(scores: Tensor, labels: Tensor) -> Floats:
    return among_highest(5, scores, labels).double().numpy()


_MEANS: Mapping[str, Callable[[Tensor, Tensor], Floats]] = {"loss": _losses, "top5": _hits_top5}
"""The metrics that are means, as functions that return the value of each sample."""


def _areas(scores: Tensor, labels: Tensor) -> Callable[[Floats], Floats]:
    """Return `auroc` as a function of weights (draws, N)."""
    probabilities, truth = scores.double().softmax(1).numpy(), labels.numpy()
    classes = [c for c in np.unique(truth).tolist() if (truth != c).any()]

    def of_class(weights: Floats, c: int) -> Floats:
        order = np.argsort(probabilities[:, c])
        values, own = probabilities[order, c], truth[order] == c
        ties = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        inside, outside = (np.add.reduceat(weights[:, order] * part, ties, axis=1) for part in (own, ~own))
        below = outside.cumsum(1) - outside / 2
        return _ratio((inside * below).sum(1), inside.sum(1) * outside.sum(1))

    def mean(weights: Floats) -> Floats:
        areas = [of_class(weights, c) for c in classes]
        return _mean_of_defined(np.stack(areas, axis=1) if areas else np.empty((len(weights), 0)))

    return mean


def _calibration_errors(scores: Tensor, labels: Tensor) -> Callable[[Floats], Floats]:
    """Return `calibration_error` as a function of weights (draws, N)."""
    confidence, predicted = scores.double().softmax(1).max(1)
    gaps = np.zeros((len(labels), BINS))
    gaps[np.arange(len(labels)), bin_of(confidence).numpy()] = ((predicted == labels).double() - confidence).numpy()
    return lambda weights: np.abs(weights @ gaps).sum(1) / len(gaps)


_WEIGHTED: Mapping[str, Callable[[Tensor, Tensor], Callable[[Floats], Floats]]] = {
    "auroc": _areas,
    "calibration": _calibration_errors,
}
"""The metrics that are functions of how often each sample is drawn."""
