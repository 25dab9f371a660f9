"""Percentile bootstrap intervals of metrics, over the samples of a test set.

A resample draws as many samples as there are, with replacement. Metrics that depend only on predictions are functions
of the confusion matrix, whose resamples are multinomial, so that no sample is touched; the mean of a value per sample
is resampled sample by sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fullrank.metrics.measures import BINS, top5
from fullrank.randomness import generator

RESAMPLES = 1000
LEVEL = 0.95
AT_ONCE = 1 << 21
"""Number of draws that are held in memory at the same time."""
MOST_RANKED = 20_000
"""Number of samples times classes up to which the area under the ROC curve has an interval."""

Interval: TypeAlias = list[float]
"""The lower and the upper end of an interval."""


def intervals(
    scores: Tensor, labels: Tensor, keys: Collection[str], seed: int, *purpose: str | int
) -> tuple[dict[str, Interval], list[Interval | None]]:
    """Return the intervals of metrics of predictions, and those of the recall of each class.

    Args:
        scores: The scores of a model (N, C).
        labels: The labels (N,).
        keys: The keys of the metrics; those for which no interval is known have none.
        seed: The seed of the resamples.
        purpose: What the intervals are of; other purposes have other resamples.

    Returns:
        The intervals by key, and for each class that of its recall, None for a class without samples. A resample in
        which a class does not occur does not count for its recall.

    >>> import torch
    >>> known, by_class = intervals(torch.eye(2).repeat(50, 1), torch.tensor([0, 1] * 50), ["accuracy"], 0)
    >>> import torch
    >>> known, by_class
    ({'accuracy': [1.0, 1.0]}, [[1.0, 1.0], [1.0, 1.0]])
    """
    scores, labels = scores.cpu(), labels.cpu()
    classes = scores.shape[1]
    random = generator(seed, "bootstrap", *purpose)
    table = np.bincount((labels * classes + scores.argmax(1)).numpy(), minlength=classes**2).reshape(classes, classes)
    found, by_class = of_confusion(table, random)
    if "loss" in keys:
        found["loss"] = of_mean(F.cross_entropy(scores.double(), labels, reduction="none").numpy(), random)
    if "top5" in keys:
        found["top5"] = of_share(round(top5(scores, labels) * len(labels)), len(labels), random)
    if "calibration" in keys:
        found["calibration"] = _of_calibration(scores, labels, random)
    if "auroc" in keys and (area := _of_auroc(scores, labels, random)):
        found["auroc"] = area
    return {key: found[key] for key in keys if key in found}, by_class


def of_confusion(
    table: np.ndarray, random: np.random.Generator, resamples: int = RESAMPLES
) -> tuple[dict[str, Interval], list[Interval | None]]:
    """Return the intervals of the metrics that are functions of a confusion matrix, and of the recall of each class.

    Args:
        table: The number of samples by label (rows) and prediction (columns).
        random: The source of the resamples.
        resamples: The number of resamples.
    """
    rows, columns = np.nonzero(table)
    samples = int(table.sum())
    drawn = random.multinomial(samples, table[rows, columns] / samples, size=resamples).astype(np.float64)
    classes = np.unique(np.concatenate([rows, columns]))  # of a hundred classes a client may have two
    labels, predictions = np.searchsorted(classes, rows), np.searchsorted(classes, columns)
    of_label, of_prediction = np.eye(len(classes))[labels], np.eye(len(classes))[predictions]
    given, taken = drawn @ of_label, drawn @ of_prediction
    hits = drawn @ (of_label * of_prediction)
    there, seen = given > 0, given + taken > 0
    recall = np.divide(hits, given, out=np.full_like(hits, np.nan), where=there)
    f1 = np.divide(2 * hits, given + taken, out=np.zeros_like(hits), where=seen)
    measured = np.stack([hits.sum(1) / samples, np.nanmean(recall, 1), f1.sum(1) / seen.sum(1)], 1)
    ends = _ends(np.concatenate([measured, recall], 1)).T.tolist()
    by_class: list[Interval | None] = [None] * len(table)
    for name, end in zip(classes.tolist(), ends[3:], strict=True):
        if table[name].any():
            by_class[name] = end
    return dict(zip(("accuracy", "balanced_accuracy", "macro_f1"), ends[:3], strict=True)), by_class


def of_share(hits: int, samples: int, random: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """Return the interval of the share of samples that are right."""
    return _listed(_ends(random.binomial(samples, hits / samples, resamples) / samples))


def of_mean(values: np.ndarray, random: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """Return the interval of the mean of a value per sample."""
    return _listed(_ends(np.concatenate([values[drawn].mean(1) for drawn in _draws(len(values), random, resamples)])))


def _draws(samples: int, random: np.random.Generator, resamples: int) -> Iterator[np.ndarray]:
    """Yield the positions of the samples of resamples (resamples, samples), some resamples at a time."""
    step = max(1, AT_ONCE // samples)
    for start in range(0, resamples, step):
        yield random.integers(samples, size=(min(step, resamples - start), samples))


def _counts(samples: int, random: np.random.Generator, resamples: int) -> Iterator[np.ndarray]:
    """Yield how often each sample is in each resample (resamples, samples), some resamples at a time."""
    for drawn in _draws(samples, random, resamples):
        flat = (drawn + samples * np.arange(len(drawn))[:, None]).ravel()
        yield np.bincount(flat, minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def _of_calibration(scores: Tensor, labels: Tensor, random: np.random.Generator) -> Interval:
    """Return the interval of the expected calibration error, Σ |Σ (right − confidence)| / N over its bins."""
    confidence, predicted = scores.double().softmax(1).max(1)
    which = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1).numpy()
    gap = ((predicted == labels).double() - confidence).numpy()
    by_bin = np.eye(BINS)[which] * gap[:, None]
    found = [np.abs(counts @ by_bin).sum(1) / len(gap) for counts in _counts(len(gap), random, RESAMPLES)]
    return _listed(_ends(np.concatenate(found)))


def _of_auroc(scores: Tensor, labels: Tensor, random: np.random.Generator) -> Interval | None:
    """Return the interval of the mean area under the ROC curve of each class against the rest.

    None where no class can be told from others, and where samples times classes are more than `MOST_RANKED`.
    """
    probabilities, truth = scores.double().softmax(1).numpy(), labels.numpy()
    classes = [c for c in np.unique(truth).tolist() if (truth != c).any()]
    if not classes or len(classes) * len(truth) > MOST_RANKED:
        return None
    found = []
    for counts in _counts(len(truth), random, RESAMPLES):
        areas = np.stack([_areas(counts, probabilities[:, c], truth == c) for c in classes], 1)
        defined = ~np.isnan(areas)
        found.append(areas[defined.any(1)])
    return _listed(_ends(np.nanmean(np.concatenate(found), 1)))


def _areas(counts: np.ndarray, score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Return the area of each resample, NaN in resamples in which all samples or none are positive."""
    values, place = np.unique(score, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(values)))
    above, below = (np.add.reduceat((counts * side)[:, order], starts, axis=1) for side in (positive, ~positive))
    pairs = above.sum(1) * below.sum(1)
    ahead = (above * (below.cumsum(1) - below / 2)).sum(1)
    areas: np.ndarray = np.divide(ahead, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas


def _ends(values: np.ndarray) -> np.ndarray:
    """Return the percentiles of resampled values (resamples, …) that are the ends of the interval, NaN left out.

    It is `np.nanquantile`, which takes ten times as long for as few values.
    """
    ordered = np.sort(values, axis=0)  # NaN last
    place = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).reshape(2, *[1] * (values.ndim - 1))
    place = place * (np.maximum((~np.isnan(values)).sum(0), 1) - 1)
    low = np.floor(place).astype(np.int64)
    high = np.ceil(place).astype(np.int64)
    below, above = np.take_along_axis(ordered, low, 0), np.take_along_axis(ordered, high, 0)
    ends: np.ndarray = below + (above - below) * (place - low)
    return ends


def _listed(ends: np.ndarray) -> Interval:
    found: Interval = ends.tolist()
    return found
