"""The metrics: functions of a classifier's scores (N, C) and labels (N,).

They are pure and work on any device. Formulas follow scikit-learn's where it has them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
"""Number of bins of the expected calibration error, as in Guo et al. 2017."""


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class has the highest score; of equal scores that of the lower class counts.

    >>> accuracy(torch.eye(2)[[0, 1, 1]], torch.tensor([0, 1, 0]))
    0.6666666666666666
    """
    return int((scores.argmax(1) == labels).sum()) / len(labels)


def loss(scores: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy.

    >>> round(loss(torch.zeros(2, 4), torch.tensor([0, 3])), 4)
    1.3863
    """
    return float(F.cross_entropy(scores, labels, reduction="sum").double()) / len(labels)


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """Count the samples of each class (rows) that are predicted as each class (columns).

    >>> confusion(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    return counted_pairs(labels, scores.argmax(1), scores.shape[1])


def counted_pairs(rows: Tensor, columns: Tensor, classes: int) -> Tensor:
    """Count how often each pair of classes occurs.

    Args:
        rows: The first class of each pair.
        columns: The second class of each pair.
        classes: The number of classes.

    Returns:
        The counts, of shape (classes, classes).
    """
    return torch.bincount(rows * classes + columns, minlength=classes * classes).view(classes, classes)


def recalls(scores: Tensor, labels: Tensor) -> list[float | None]:
    """Return the recall of each class; None for a class without samples.

    >>> recalls(torch.eye(3)[[0, 1]], torch.tensor([0, 0]))
    [0.5, None, None]
    """
    table = confusion(scores, labels)
    counts, right = table.sum(1).tolist(), table.diagonal().tolist()
    return [hit / count if count else None for hit, count in zip(right, counts, strict=True)]


def balanced_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the mean recall over the classes that occur.

    >>> balanced_accuracy(torch.eye(3)[[0, 0, 0, 1, 1, 1, 2]], torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    0.9166666666666666
    """
    found = [recall for recall in recalls(scores, labels) if recall is not None]
    return sum(found) / len(found)


def macro_f1(scores: Tensor, labels: Tensor) -> float:
    """Return the mean of 2TP / (2TP + FP + FN) over the classes that occur among labels or predictions."""
    table = confusion(scores, labels).double()
    hits, given, taken = table.diagonal(), table.sum(1), table.sum(0)
    occurs = (given + taken) > 0
    return float((2 * hits[occurs] / (given + taken)[occurs]).mean())


def auroc(scores: Tensor, labels: Tensor) -> float | None:
    """Return the mean area under the ROC curve of each class against the rest, on softmax probabilities.

    The area is the probability that a sample of the class has a higher probability of it than a sample of another
    class; ties count half. The mean is over the classes that some samples have and others do not; without such a class
    it is None.
    """
    probabilities = scores.double().softmax(1)
    found = [_area(probabilities[:, c], labels == c) for c in range(scores.shape[1])]
    areas = [area for area in found if area is not None]
    return sum(areas) / len(areas) if areas else None


def _area(score: Tensor, positive: Tensor) -> float | None:
    """Compute the area from ranks (Mann and Whitney); equal scores have the mean of their ranks."""
    count = int(positive.sum())
    if count in (0, len(score)):
        return None
    _, place, ties = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0).double() - (ties - 1) / 2)[place]
    above = float(rank[positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(score) - count))


def top(k: int, scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class is among the k highest scores; ties are resolved as by `accuracy`.

    Args:
        k: The number of scores.
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
    """
    return float(among_highest(k, scores, labels).double().mean())


def among_highest(k: int, scores: Tensor, labels: Tensor) -> Tensor:
    """Return for each sample whether its class is among the k highest scores.

    Args:
        k: The number of scores.
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
    """
    own = scores.gather(1, labels[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & lower)
    return ahead.sum(1) < k


def top5(scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class is among the 5 highest scores."""
    return top(5, scores, labels)


def calibration_error(scores: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error.

    It is the mean of |accuracy − confidence| over bins of the highest probability, weighted by their samples.

    Args:
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
        bins: The number of bins.
    """
    confidence, predicted = scores.double().softmax(1).max(1)
    return binned_error(confidence, (predicted == labels).double(), bins)


def binned_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Return Σ n_b/N · |accuracy − mean confidence| over the bins (j/M, (j+1)/M].

    Args:
        confidence: The highest probability of each sample.
        right: 1 for a sample whose prediction is right, 0 for another.
        bins: The number of bins M.

    >>> round(binned_error(torch.tensor([0.95, 0.92, 0.65, 0.62, 0.55]), torch.tensor([1.0, 1, 1, 0, 0])), 6)
    0.19
    """
    which = bin_of(confidence, bins)
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, which, right.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))


def bin_of(confidence: Tensor, bins: int = BINS) -> Tensor:
    """Return the number of each confidence's bin (j/M, (j+1)/M]."""
    return ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)
