"""What can be said of a classifier's scores (N, C) beside accuracy: also for classes of very unequal size.

Pure functions of scores and labels, on any device. Formulas follow scikit-learn's where it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BINS = 15
"""Of the expected calibration error, as in Guo et al. 2017."""


def confusion(scores: Tensor, y: Tensor) -> Tensor:
    """How many samples of each class (rows) were taken for each class (columns).

    >>> confusion(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    return counted_pairs(y, scores.argmax(1), scores.shape[1])


def counted_pairs(rows: Tensor, columns: Tensor, classes: int) -> Tensor:
    """How often each pair of classes occurs."""
    return torch.bincount(rows * classes + columns, minlength=classes * classes).view(classes, classes)


def recalls(scores: Tensor, y: Tensor) -> list[float | None]:
    """The share of each class's samples that was recognised; None for a class without samples."""
    table = confusion(scores, y)
    counts, right = table.sum(1).tolist(), table.diagonal().tolist()
    return [hit / count if count else None for hit, count in zip(right, counts, strict=True)]


def balanced_accuracy(scores: Tensor, y: Tensor) -> float:
    """The mean recall over the classes that occur.

    >>> balanced_accuracy(torch.eye(3)[[0, 0, 0, 1, 1, 1, 2]], torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    0.9166666666666666
    """
    found = [recall for recall in recalls(scores, y) if recall is not None]
    return sum(found) / len(found)


def macro_f1(scores: Tensor, y: Tensor) -> float:
    """The mean of 2TP / (2TP + FP + FN) over the classes that occur among labels or predictions."""
    table = confusion(scores, y).double()
    hits, given, taken = table.diagonal(), table.sum(1), table.sum(0)
    occurs = (given + taken) > 0
    return float((2 * hits[occurs] / (given + taken)[occurs]).mean())


def auroc(scores: Tensor, y: Tensor) -> float | None:
    """One against the rest: how likely a sample of a class scores higher for it than one of the others, ties half.

    On softmax probabilities, as a mean over the classes with samples on both sides; None where there is no such class.
    """
    probabilities = scores.double().softmax(1)
    found = [_area(probabilities[:, c], y == c) for c in range(scores.shape[1])]
    areas = [area for area in found if area is not None]
    return sum(areas) / len(areas) if areas else None


def _area(score: Tensor, positive: Tensor) -> float | None:
    """By ranks (Mann and Whitney): equal scores share the mean of their ranks."""
    count = int(positive.sum())
    if count in (0, len(score)):
        return None
    _, place, ties = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0).double() - (ties - 1) / 2)[place]
    above = float(rank[positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(score) - count))


def top(k: int, scores: Tensor, y: Tensor) -> float:
    """The share of samples whose class is among the k highest scores; of equal scores the lower class comes first."""
    own = scores.gather(1, y[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < y[:, None]
    ahead = (scores > own) | ((scores == own) & lower)
    return float((ahead.sum(1) < k).double().mean())


def calibration_error(scores: Tensor, y: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy − confidence| by bins of the highest probability, weighted by samples."""
    confidence, predicted = scores.double().softmax(1).max(1)
    return binned_error(confidence, (predicted == y).double(), bins)


def binned_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Σ n_b/N · |accuracy − mean confidence| over the bins (j/M, (j+1)/M].

    >>> round(binned_error(torch.tensor([0.95, 0.92, 0.65, 0.62, 0.55]), torch.tensor([1.0, 1, 1, 0, 0])), 6)
    0.19
    """
    which = ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, which, right.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))


MEASURES: dict[str, tuple[str, Callable[[Tensor, Tensor], Any]]] = {
    "balanced-accuracy": ("balanced_accuracy", balanced_accuracy),
    "macro-f1": ("macro_f1", macro_f1),
    "auroc": ("auroc", auroc),
    "top5": ("top5", lambda scores, y: top(5, scores, y)),
    "calibration": ("calibration", calibration_error),
    "per-class": ("per_class", recalls),
}
"""What `evaluate.metrics` may ask for beside accuracy and loss: the name in a row, and the function."""
