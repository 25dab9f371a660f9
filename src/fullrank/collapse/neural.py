"""Neural collapse: Papyan, Han and Donoho, *Prevalence of neural collapse during the terminal phase of deep learning
training* (PNAS 2020), as FedETF measures it.

All classes have the same weight, regardless of their number of samples, so that an exact simplex gives 0 on any test
set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fullrank.collapse.arrays import Array, Features, labelled, matrix, wide
from fullrank.collapse.moments import Moments, moments_of
from fullrank.errors import InputError

RELATIVE_ZERO = 1e-10
"""The share of the largest eigenvalue of Σ_B up to which others count as 0."""
ROUNDING = 1e-14
"""The share of the features' spread up to which a distance of class means from their mean counts as 0."""


def neural_collapse(
    features: Features | Moments,
    labels: Array | None = None,
    classifier: Array | None = None,
    bias: Array | None = None,
    *,
    logits: Array | None = None,
    again: Features | None = None,
) -> dict[str, float]:
    """Compute NC1 to NC4 of features and, if given, of a classifier.

    With h_c the class means, D the rows h_c − h_G (h_G their unweighted mean), K the number of classes with samples:

    - `nc1` = tr(Σ_W Σ_B⁺)/K, Σ_B = DᵀD/K: the spread within classes relative to that between them;
    - `nc2` = ‖DDᵀ/‖DDᵀ‖_F − (I − 11ᵀ/K)/√(K−1)‖_F: the distance of the means from a simplex ETF; its parts `nc2_norm`,
      std/mean of ‖D_c‖, and `nc2_angle`, the mean of |cos(D_c, D_c') + 1/(K−1)| over c ≠ c';
    - `nc3` = ‖W/‖W‖_F − D/‖D‖_F‖_F: the distance of the classifier from the means, 0 … 2;
    - `nc4`: the share of samples that argmax zWᵀ + b (or argmax of `logits`) gives to another class than the nearest
      mean does, among the K classes.

    NC4 needs a second pass over the samples when the means are known, so it is nan for a stream that can be read only
    once, and for `Moments`, unless `again` is given.

    Args:
        features: Features of shape (N, d), a stream of batches in the order of the labels, a stream of pairs (features,
            labels), or `Moments` by class.
        labels: Labels of shape (N,), unless the features come with theirs.
        classifier: Weights of shape (C, d); without them `nc3` is nan, and `nc4` needs `logits`.
        bias: The classifier's bias, of shape (C,).
        logits: Logits of shape (N, C), which replace the classifier's in `nc4`.
        again: The same samples once more, as a stream of pairs (features, labels), for `nc4`.

    Returns:
        The measures by name. Undefined values are nan; with fewer than two classes all are.

    Raises:
        InputError: If there are no samples, or the shapes do not match.

    >>> z = [[2.0, 0], [4, 0], [0, 1], [0, 3], [-1, -1], [-3, -1]]
    >>> found = neural_collapse(z, [0, 0, 1, 1, 2, 2], [[1.0, 0], [0, 1], [-1, -1]])
    >>> {name: round(value, 6) for name, value in found.items()}
    {'nc1': 0.130178, 'nc2': 0.459506, 'nc2_norm': 0.197453, 'nc2_angle': 0.222515, 'nc3': 0.280111, 'nc4': 0.0}
    """
    moments = moments_of(features, labels, by_class=True)
    found = dict.fromkeys(("nc1", "nc2", "nc2_norm", "nc2_angle", "nc3", "nc4"), math.nan)
    classes, spread = moments.classes, moments.covariance.diagonal().sum()
    head = None if classifier is None else _rows(classifier, moments)
    if len(classes) < 2 or not spread.isfinite():
        return found
    D = moments.deviations
    if float(D.norm()) > ROUNDING * float(spread.sqrt()):
        found |= {"nc1": _nc1(moments.within, D), **_nc2(D)}
        if head is not None:
            found["nc3"] = _nc3(head, D)
    if again is not None:
        found["nc4"] = _nc4(again, None, moments, head, bias, logits)
    elif not isinstance(features, (Moments, Iterator)):
        found["nc4"] = _nc4(features, labels, moments, head, bias, logits)
    return found


def nc_error(features: Features | Moments, labels: Array | None = None) -> float:
    """Compute the mean deviation of the angles between class means from those of a simplex, as in FedETF's figure.

    It is `nc2_angle` of `neural_collapse`.

    Args:
        features: Features of shape (N, d), a stream of batches, or `Moments` by class.
        labels: Labels of shape (N,), unless the features come with theirs.

    Returns:
        The mean deviation; nan with fewer than two classes.

    Raises:
        InputError: If there are no samples, or the number of labels is not theirs.

    >>> nc_error([[1.0, 0], [-1, 0]], [0, 1])
    0.0
    """
    return neural_collapse(features, labels)["nc2_angle"]


def _rows(classifier: Array, moments: Moments) -> Tensor:
    """Return the rows W_c of the classes that have samples."""
    W = wide(matrix(classifier, "classifier")).to(moments.mean.device)
    if W.shape[1] != moments.width:
        raise InputError(f"the classifier takes {W.shape[1]} features, but the features have width {moments.width}")
    last = int(moments.classes.max())
    if last >= len(W):
        raise InputError(f"the classifier has {len(W)} rows, but class {last} has samples")
    return W[moments.classes]


def _nc1(within: Tensor, D: Tensor) -> float:
    # The eigenvectors of Σ_B = DᵀD/K, of which there are at most K − 1, without forming it.
    _, s, axes = torch.linalg.svd(D / len(D) ** 0.5, full_matrices=False)
    between = s.square()
    kept = between > RELATIVE_ZERO * between[0]
    spread = ((axes[kept] @ within) * axes[kept]).sum(1)
    return float((spread / between[kept]).sum()) / len(D)


def _nc2(D: Tensor) -> dict[str, float]:
    K, gram = len(D), D @ D.mT
    norms = D.norm(dim=1)
    simplex = torch.eye(K, dtype=D.dtype, device=D.device) - 1 / K
    found = {
        "nc2": float((gram / gram.norm() - simplex / (K - 1) ** 0.5).norm()),
        "nc2_norm": float(norms.std(correction=0) / norms.mean()),
    }
    if float(norms.min()) > ROUNDING * float(norms.max()):  # a mean at the centre of all means has no direction
        cosine = gram / torch.outer(norms, norms)
        different = ~torch.eye(K, dtype=torch.bool, device=D.device)
        found["nc2_angle"] = float((cosine[different] + 1 / (K - 1)).abs().mean())
    return found


def _nc3(head: Tensor, D: Tensor) -> float:
    size = head.norm()
    return float((head / size - D / D.norm()).norm()) if float(size) > 0 else math.nan


def _nc4(
    features: Features,
    labels: Array | None,
    moments: Moments,
    head: Tensor | None,
    bias: Array | None,
    logits: Array | None,
) -> float:
    if head is None and logits is None:
        return math.nan
    classes, means = moments.classes, moments.class_means
    offset = 0.0 if bias is None else wide(bias).to(means.device)[classes]
    scores = None if logits is None else matrix(logits, "logits")
    if scores is not None and scores.shape[0] != moments.samples:
        raise InputError(f"there are {moments.samples} samples, but logits of {scores.shape[0]}")
    differ = start = 0
    for z, _ in labelled(features, labels):
        z = wide(z).to(means.device)
        if scores is not None:
            given = wide(scores[start : start + len(z)]).to(means.device)[:, classes]
        else:
            assert head is not None
            given = z @ head.mT + offset
        # Distances are not computed from scalar products, so that a sample half-way between two means is a tie.
        nearest = torch.cdist(z, means, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        differ += int((given.argmax(1) != nearest).sum())
        start += len(z)
    return differ / start
