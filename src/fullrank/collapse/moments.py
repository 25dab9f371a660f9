"""Means and covariances of a stream of features, in one pass and O(d²) memory."""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.collapse.arrays import Array, Features, labelled, matrix, no_samples, pieces, whole_numbers, wide
from fullrank.errors import InputError


class Moments:
    """Running moments of features, merged batch by batch; with labels also the moments of each class.

    After n_a samples, a batch of n_b turns S = Σ(z − z̄)(z − z̄)ᵀ into S_a + S_b + δδᵀ·n_a n_b/(n_a + n_b), where δ is
    the difference of the two means (Chan, Golub and LeVeque 1979). No large numbers are subtracted; the order and size
    of the batches do not matter. Sums are in float64, on the device of the first batch.

    The covariance within classes gives all classes equal weight, so the weight of a sample depends on the size of its
    class. With the class sizes given beforehand, memory is O(d² + C·d); without them every class has its own d×d
    matrix.

    Args:
        counts: The number of samples of each class, of shape (C,).

    >>> moments = Moments()
    >>> for z in ([[2.0, 1], [2, -1]], [[-2.0, 1]], [[-2.0, -1]]):
    ...     moments.add(z)
    >>> moments.samples, moments.covariance.round(decimals=9).tolist()
    (4, [[4.0, 0.0], [0.0, 1.0]])
    """

    def __init__(self, counts: Array | None = None):
        self.samples = 0
        """The number of samples added."""
        self.announced = None if counts is None else wide(counts)
        self._labelled: bool | None = None

    def add(self, z: Array, y: Array | None = None) -> None:
        """Add a batch.

        Args:
            z: Features of shape (n, d).
            y: Labels of shape (n,). Either all batches have labels or none.

        Raises:
            InputError: If the width differs from that of earlier batches, or labels are missing or of another number.
        """
        z = wide(matrix(z))
        if not self.samples:
            if len(z) == 0:
                return
            self._begin(z)
        if z.shape[1] != len(self._origin):
            raise InputError(f"this batch has {z.shape[1]} features per sample, earlier ones had {len(self._origin)}")
        z = z.to(self._origin.device) - self._origin
        if y is not None:
            labels = whole_numbers(y).to(z.device)
            if len(labels) != len(z):
                raise InputError(f"a batch of {len(z)} samples came with {len(labels)} labels")
        if len(z) == 0:
            return
        if self._labelled not in (None, y is not None):
            raise InputError("either all batches need labels or none")
        self._labelled = y is not None
        self._add_to_all(z)
        if y is not None:
            self._add_to_classes(z, labels)

    def merge(self, other: Moments) -> None:
        """Add the samples of another object, as if its batches had been added here.

        Args:
            other: Moments of other samples of the same features.

        Raises:
            InputError: If only one of the two has labels, or their widths or class counts differ.
        """
        if not other.samples:
            return
        if not self.samples:
            self._begin(other._origin[None])
            self._labelled = other._labelled
        if other.width != len(self._origin) or other._labelled != self._labelled:
            raise InputError("moments of different widths, or with and without labels, cannot be merged")
        if not _same(self.announced, other.announced):
            raise InputError("moments can be merged only if both have the same class counts or both have none")
        device = self._origin.device
        moved = other._origin.to(device) - self._origin
        self._join(other.samples, other._mean.to(device) + moved, other._scatter.to(device))
        if self._labelled:
            self._make_room(len(other._counts))
            room = (0, 0, 0, len(self._counts) - len(other._counts))
            means = torch.nn.functional.pad(other._means.to(device) + moved, room)
            counts = torch.nn.functional.pad(other._counts.to(device), room[2:])
            for c, scatter in other._scatters.items():
                self._scatters[c] = self._scatters.get(c, 0) + scatter.to(device)
            self._within += other._within.to(device)
            self._join_classes(counts, means)

    # Results

    @property
    def width(self) -> int:
        """The number of features, d."""
        self._need_samples()
        return len(self._origin)

    @property
    def mean(self) -> Tensor:
        """The mean z̄ of the features (d,)."""
        self._need_samples()
        return self._origin + self._mean

    @property
    def covariance(self) -> Tensor:
        """The biased covariance Σ = (1/N)Σ(z − z̄)(z − z̄)ᵀ of the features (d, d)."""
        self._need_samples()
        return self._scatter / self.samples

    @property
    def classes(self) -> Tensor:
        """The classes that have samples, in ascending order (K,)."""
        self._need_labels()
        return self._counts.nonzero().flatten()

    @property
    def class_counts(self) -> Tensor:
        """The sizes of the classes that have samples (K,)."""
        return self._counts[self.classes]

    @property
    def class_means(self) -> Tensor:
        """The means h_c of the classes that have samples (K, d)."""
        return self._origin + self._means[self.classes]

    @property
    def deviations(self) -> Tensor:
        """The deviations D of the class means from their unweighted mean h_G (K, d)."""
        means = self._means[self.classes]
        return means - means.mean(0)

    @property
    def within(self) -> Tensor:
        """The covariance Σ_W within classes, the mean of the classes' biased covariances (d, d).

        Raises:
            InputError: If the sizes of classes are not those that were given beforehand.
        """
        classes = self.classes
        if self.announced is None:
            return sum((self._scatters[int(c)] / self._counts[c] for c in classes), self._within) / len(classes)
        told = self.announced.to(self._counts.device)
        told = torch.nn.functional.pad(told, (0, max(0, len(self._counts) - len(told))))
        if not torch.equal(told[: len(self._counts)], self._counts) or told[len(self._counts) :].any():
            raise InputError("labels and counts disagree about the sizes of classes; correct the counts")
        return self._within / len(classes)

    # The first sample is subtracted from all, so that deviations of constant features are exactly 0

    def _begin(self, z: Tensor) -> None:
        d = z.shape[1]
        self._origin = z[0].clone()
        self._mean, self._scatter = z.new_zeros(d), z.new_zeros(d, d)
        self._counts, self._means = z.new_zeros(0), z.new_zeros(0, d)
        self._within = z.new_zeros(d, d)
        self._scatters: dict[int, Tensor] = {}

    def _add_to_all(self, z: Tensor) -> None:
        mean = z.mean(0)
        centred = z - mean
        self._join(len(z), mean, centred.mT @ centred)

    def _join(self, n: int, mean: Tensor, scatter: Tensor) -> None:
        together = self.samples + n
        step = mean - self._mean
        self._scatter += scatter + torch.outer(step, step) * (self.samples * n / together)
        self._mean = self._mean + step * (n / together)
        self.samples = together

    def _add_to_classes(self, z: Tensor, y: Tensor) -> None:
        self._make_room(int(y.max()) + 1)
        member = (y[:, None] == torch.arange(len(self._counts), device=y.device)).to(z.dtype)
        counts = member.sum(0)
        means = member.mT @ z / counts.clamp(min=1)[:, None]
        centred = z - means[y]
        if self.announced is None:
            for c in counts.nonzero().flatten().tolist():
                own = centred[y == c]
                self._scatters[c] = self._scatters.get(c, 0) + own.mT @ own
        else:
            self._within += (centred * self._weight()[y][:, None]).mT @ centred
        self._join_classes(counts, means)

    def _join_classes(self, counts: Tensor, means: Tensor) -> None:
        """Merge counts and means of a batch's classes, and add the scatter between the old and the new means."""
        before, together = self._counts, self._counts + counts
        step = (means - self._means) * (counts > 0)[:, None]
        factor = before * counts / together.clamp(min=1)
        if self.announced is None:
            for c in factor.nonzero().flatten().tolist():
                self._scatters[c] = self._scatters[c] + torch.outer(step[c], step[c]) * factor[c]
        else:
            self._within += (step * (factor * self._weight())[:, None]).mT @ step
        self._means = self._means + step * (counts / together.clamp(min=1))[:, None]
        self._counts = together

    def _weight(self) -> Tensor:
        """Return 1/n_c of every class in the tables; 0 for a class whose given count is 0."""
        assert self.announced is not None
        told = self.announced.to(self._counts.device)[: len(self._counts)]
        told = torch.nn.functional.pad(told, (0, len(self._counts) - len(told)))
        return torch.where(told > 0, 1 / told.clamp(min=1), 0.0)

    def _make_room(self, classes: int) -> None:
        more = classes - len(self._counts)
        if more > 0:
            self._counts = torch.nn.functional.pad(self._counts, (0, more))
            self._means = torch.nn.functional.pad(self._means, (0, 0, 0, more))

    def _need_samples(self) -> None:
        if not self.samples:
            raise no_samples("moments")

    def _need_labels(self) -> None:
        self._need_samples()
        if not self._labelled:
            raise InputError("these moments have no classes; add every batch with its labels")


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a.cpu(), b.cpu())


def moments_of(features: Features | Moments, labels: Array | None = None, by_class: bool = False) -> Moments:
    """Return the moments of features in any form.

    Args:
        features: Features in one piece, a stream of batches, or moments, which are returned as they are.
        labels: The labels of all samples; without them, batches are pairs (features, labels) if `by_class` is true.
        by_class: Whether the moments of each class are needed.

    Raises:
        InputError: If there are no samples, or the labels do not fit.
    """
    if isinstance(features, Moments):
        return features
    if not by_class:
        found = Moments()
        for z in pieces(features):
            found.add(z)
    else:
        found = Moments(None if labels is None else torch.bincount(whole_numbers(labels)))
        for z, y in labelled(features, labels):
            found.add(z, y)
    if not found.samples:
        raise no_samples("features")
    return found
