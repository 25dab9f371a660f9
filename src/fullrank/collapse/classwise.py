"""Accuracy of each class, and the confusion of classes, from a model's predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fullrank.collapse.arrays import Array, Numbers, no_samples, raw, whole_numbers
from fullrank.errors import InputError
from fullrank.metrics.measures import counted_pairs


def confusion(predicted: Array, labels: Array, num_classes: int | None = None) -> NDArray[np.int64]:
    """Count the samples of each class (rows) by predicted class (columns).

    Tables of parts of the data add up to that of the whole.

    Args:
        predicted: Scores of shape (N, C), whose largest value is the prediction (the first of equal ones), or predicted
            classes of shape (N,).
        labels: Labels of shape (N,).
        num_classes: The number of classes; by default as many as scores and labels show.

    Returns:
        The counts, of shape (C, C).

    Raises:
        InputError: If there are no samples, the lengths differ, or a class is not below `num_classes`.

    >>> confusion([[2.0, 1], [0, 1], [3, 0]], [0, 1, 1]).tolist()
    [[1, 0], [1, 1]]
    """
    given, y = raw(predicted), whole_numbers(labels)
    taken = _taken(given).to(y.device)
    if len(taken) != len(y):
        raise InputError(f"there are {len(taken)} predictions, but {len(y)} labels")
    if len(y) == 0:
        raise no_samples("confusion")
    seen = max(int(y.max()), int(taken.max())) + 1
    classes = num_classes or max(seen, given.shape[1] if given.dim() == 2 else 0)
    if seen > classes:
        raise InputError(f"there are {classes} classes, numbered from 0, but class {seen - 1} occurs")
    table: NDArray[np.int64] = counted_pairs(y, taken, classes).cpu().numpy()
    return table


def class_accuracy(predicted: Array, labels: Array, num_classes: int | None = None) -> Numbers:
    """Compute the share of each class's samples that is classified correctly.

    Args:
        predicted: Scores of shape (N, C) or predicted classes of shape (N,).
        labels: Labels of shape (N,).
        num_classes: The number of classes; by default as many as scores and labels show.

    Returns:
        The accuracies, of shape (C,); nan for a class without samples.

    Raises:
        InputError: As `confusion`.

    >>> class_accuracy([0, 0, 1, 2], [0, 0, 0, 2]).round(4).tolist()
    [0.6667, nan, 1.0]
    """
    return recall(confusion(predicted, labels, num_classes))


def recall(table: Array) -> Numbers:
    """Compute the accuracy of each class from a confusion table.

    Args:
        table: Counts of shape (C, C) as `confusion` returns them, or their sum over parts of the data.

    Returns:
        The accuracies, of shape (C,); nan for a class without samples.

    >>> recall([[3, 1], [0, 2]]).tolist()
    [0.75, 1.0]
    """
    counts = raw(table).cpu().numpy().astype(np.float64)
    found = np.full(len(counts), np.nan)
    np.divide(counts.diagonal(), counts.sum(1), out=found, where=counts.sum(1) > 0)
    return found


def _taken(given: Tensor) -> Tensor:
    if given.dim() == 2 and given.shape[1]:
        return given.argmax(1)
    return whole_numbers(given)
