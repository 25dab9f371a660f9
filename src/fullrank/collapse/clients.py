"""Similarity of clients' models: their class prototypes and their classifiers.

The measures of Li, Shang, He, Lin and Wu, *No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
with Synthetic and Fixed Classifier* (ICCV 2023): after local training on unequal data, one class's prototypes point in
different directions at different clients, and so do the rows of their classifiers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fullrank.collapse.arrays import Array, Numbers, matrix, no_samples, plain, raw, wide
from fullrank.errors import InputError

EQUAL_NORMS = 1e-6
"""The range of norms, relative to their mean, below which they differ by rounding only."""


def prototype_consistency(prototypes: Array, held: Array | None = None) -> dict[str, Any]:
    """Compute the mean cosine of clients' class prototypes over pairs of clients, by class.

    Prototypes are class means of a client's own samples under its own model; they are not centred.

    Args:
        prototypes: Prototypes of shape (clients, C, d), with zeros or nan where a client has no samples of a class.
        held: A boolean mask of shape (clients, C), which is False where a client has no samples of a class.

    Returns:
        `mean` over the classes that at least two clients hold, `classes`, the number of those classes, and `by_class`,
        the mean cosine of each class, of shape (C,), which is nan where no two clients hold it.

    Raises:
        InputError: If a shape is wrong, or there is nothing to compare.

    >>> found = prototype_consistency([[[1.0, 0], [0, 1]], [[1, 1], [0, 2]], [[0, 1], [0, 0]]])
    >>> round(found["mean"], 6), found["classes"]
    (0.735702, 2)
    """
    rows, known = _directions(prototypes, "prototypes")
    if held is not None:
        told = raw(held).cpu().numpy().astype(bool)
        if told.shape != known.shape:
            raise InputError(f"held must be boolean of shape (clients, classes), {known.shape}, not {told.shape}")
        known, rows = known & told, rows * told[..., None]
    number = known.sum(0)
    sums = (np.square(rows.sum(0)).sum(-1) - number) / 2  # the sum over pairs of unit vectors' scalar products
    pairs = number * (number - 1) / 2
    by_class = np.full(len(number), np.nan)
    by_class[pairs > 0] = np.clip(sums[pairs > 0] / pairs[pairs > 0], -1, 1)
    found = by_class[pairs > 0]
    return {"mean": float(found.mean()) if len(found) else math.nan, "classes": len(found), "by_class": by_class}


def classifier_cosine(classifiers: Array) -> dict[str, Any]:
    """Compute the mean cosine of the classifiers' rows W_k[c] over pairs of clients, by class.

    Args:
        classifiers: Weights of shape (clients, C, d), without biases. A row of zeros has no direction and is left out.

    Returns:
        `mean`, `classes` and `by_class` as in `prototype_consistency`, and `matrix`, the mean over classes for each
        pair of clients, of shape (clients, clients).

    Raises:
        InputError: If the weights have another shape, or there are none.

    >>> found = classifier_cosine([[[1.0, 0], [0, 1]], [[1, 1], [0, 2]]])
    >>> round(found["mean"], 6), found["matrix"].round(4).tolist()
    (0.853553, [[1.0, 0.8536], [0.8536, 1.0]])
    """
    rows, known = _directions(classifiers, "classifiers")
    shared = np.einsum("kc,lc->kl", known.astype(float), known.astype(float))
    total = np.einsum("kcd,lcd->kl", rows, rows)
    pairwise = np.full(total.shape, np.nan)
    np.divide(total, shared, out=pairwise, where=shared > 0)
    return {**prototype_consistency(classifiers), "matrix": np.clip(pairwise, -1, 1)}


def classifier_norms(classifier: Array, counts: Array | None = None) -> dict[str, Any]:
    """Compute how unequal the norms of a classifier's rows are, and their correlation with class counts.

    Norms that differ by less than a millionth of their mean count as constant: the difference is rounding, as in
    FedETF's fixed frame.

    Args:
        classifier: Weights of shape (C, d).
        counts: The number of training samples of each class, of shape (C,).

    Returns:
        `norms` ‖W_c‖, their `ratio` to the mean, `cv` = std/mean (with the biased standard deviation), and `bias`, the
        Pearson correlation of norms and counts, which is nan without counts, or if either is constant.

    Raises:
        InputError: If the weights are not a matrix, or `counts` has another length.

    >>> found = classifier_norms([[3.0, 4], [0, 1], [2, 0]], counts=[50, 20, 10])
    >>> found["norms"].tolist(), round(found["cv"], 6), round(found["bias"], 6)
    ([5.0, 1.0, 2.0], 0.637377, 0.884615)
    """
    W = wide(matrix(classifier, "classifier"))
    if len(W) == 0:
        raise no_samples("classifier_norms")
    norms = plain(W.norm(dim=1))
    mean = norms.mean()
    usable = bool(np.isfinite(mean) and mean > 0)
    found: dict[str, Any] = {"norms": norms, "ratio": norms / mean if usable else np.full(len(norms), np.nan)}
    found["cv"] = float(norms.std() / mean) if usable else math.nan
    found["bias"] = math.nan if counts is None else _correlation(norms, plain(raw(counts)))
    if usable and np.ptp(norms) < EQUAL_NORMS * mean:
        found["bias"] = math.nan
    return found


def classifier_map(classifiers: Array, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Compute a t-SNE map of the rows of all clients' classifiers, as in FedETF's talk (Fig. 1, fourth column).

    Each row is divided by its norm; rows of zeros stay zero. The perplexity is min(30, (points − 1)/3), and the map
    starts at the principal components, so that the same rows give the same points. scikit-learn is required.

    Args:
        classifiers: Weights of shape (clients, C, d), without biases.
        seed: The seed of t-SNE.

    Returns:
        The points of shape (clients·C, 2), client by client, and their classes.

    Raises:
        InputError: If scikit-learn is missing, the weights have another shape, or there are fewer than four rows.

    >>> points, classes = classifier_map(np.random.default_rng(0).normal(size=(3, 4, 8)))
    >>> points.shape, classes.tolist()[:5]
    ((12, 2), [0.0, 1.0, 2.0, 3.0, 0.0])
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise InputError("a map of classifiers needs scikit-learn: pip install 'fullrank[report]'") from error
    rows, known = _directions(classifiers, "classifiers")
    points = rows.reshape(-1, rows.shape[-1])
    classes = np.tile(np.arange(known.shape[1], dtype=np.float64), known.shape[0])
    if len(points) < 4 or points.shape[1] < 2:
        raise InputError(f"a map needs at least four rows of at least two weights, not {points.shape}")
    t_sne = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", random_state=seed)
    return t_sne.fit_transform(points).astype(np.float64), classes


def _directions(vectors: Array, what: str) -> tuple[Numbers, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return unit vectors (clients, classes, d), zeros where there is none, and a mask of those that exist."""
    found = plain(wide(vectors))
    if found.ndim != 3:
        raise InputError(f"{what} must have the shape (clients, classes, width), not {found.shape}")
    if found.size == 0:
        raise no_samples(what)
    largest = np.abs(found).max(-1)
    known = np.isfinite(largest) & (largest > 0)
    # divided by the largest entry first: squares of tiny or huge entries would vanish or overflow
    scaled = np.where(known[..., None], found, 0) / np.where(known, largest, 1)[..., None]
    length = np.sqrt(np.square(scaled).sum(-1))
    return scaled / np.where(known, length, 1)[..., None], known


def _correlation(a: Numbers, b: Numbers) -> float:
    if a.shape != b.shape:
        raise InputError(f"there are {len(a)} rows, but counts of shape {b.shape}; give one count per class")
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    constant = np.ptp(a) == 0 or np.ptp(b) == 0
    return math.nan if constant or not math.isfinite(size) or size == 0 else float((a * b).sum() / size)
