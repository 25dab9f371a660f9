"""FedMR §3.2: three classes, three clients with two of them each, and the average of their classifiers.

The paper's optimal weights have their components swapped: as printed they do not separate the classes, and the paper's
"about 45°" between them and the average is measured from them. From weights that do separate, it is 15°.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROOT3 = math.sqrt(3)
RADIUS = 0.5
CENTRES = np.array([[1.0, 0], [0, ROOT3], [0, -ROOT3]])
"""Centres of the three discs on which the classes are uniform."""
OPTIMAL = np.array([[1.0, 0], [-0.5, ROOT3 / 2], [-0.5, -ROOT3 / 2]])
"""The optimal weights w* of a client with all classes, one row per class, with the right components."""
PRINTED = np.array([[1.0, 0], [-ROOT3 / 2, 0.5], [-ROOT3 / 2, -0.5]])
"""The optimal weights w* as the paper prints them."""


@dataclass(frozen=True)
class DisjointExample:
    """The weights, angles and errors of the example in FedMR's §3.2."""

    local: NDArray[np.float64]
    """Weights (clients, classes, 2) of the clients with classes (1, 2), (1, 3) and (2, 3)."""
    averaged: NDArray[np.float64]
    """The mean ŵ of the clients' weights."""
    angle: float
    """Degrees between ŵ and w* for class 2, the effect of averaging."""
    printed_angle: float
    """The same angle from the paper's printed w*."""
    distances: dict[str, NDArray[np.float64]]
    """Distance of each class's centre from its nearest boundary, by weights (optimal, printed, averaged)."""
    misclassified: dict[str, NDArray[np.float64]]
    """Share of each class's disc on the wrong side of a boundary, by weights."""


def disjoint_example() -> DisjointExample:
    """Compute the numbers of FedMR's §3.2, as printed and corrected.

    Returns:
        The weights of the clients and their average, the angles, and the share of each class that is misclassified.

    >>> found = disjoint_example()
    >>> round(found.angle, 6), round(found.printed_angle, 6)
    (15.0, 45.0)
    >>> {name: [round(100 * float(x), 2) for x in share] for name, share in found.misclassified.items()}
    {'optimal': [0.0, 0.0, 0.0], 'printed': [0.0, 1.97, 1.97], 'averaged': [0.0, 0.0, 0.0]}
    """
    pairs = [(0, 1), (0, 2), (1, 2)]
    local = np.zeros((3, 3, 2))
    for client, (i, j) in enumerate(pairs):
        between = CENTRES[i] - CENTRES[j]
        normal = between / np.linalg.norm(between)
        local[client, i], local[client, j] = normal, -normal
    averaged = local.mean(0)
    weights = {"optimal": OPTIMAL, "printed": PRINTED, "averaged": averaged}
    return DisjointExample(
        local=local,
        averaged=averaged,
        angle=angle(OPTIMAL[1], averaged[1]),
        printed_angle=angle(PRINTED[1], averaged[1]),
        distances={name: _distances(W).min(1) for name, W in weights.items()},
        misclassified={name: np.array([_outside(row) for row in _distances(W)]) for name, W in weights.items()},
    )


def angle(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the degrees between two vectors.

    >>> round(angle(np.array([1.0, 0]), np.array([1.0, 1])), 9)
    45.0
    """
    cross, dot = a[0] * b[1] - a[1] * b[0], a @ b
    return math.degrees(math.atan2(abs(cross), dot))


def _distances(W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute distances of each class's centre to its boundary with each other class, negative on the wrong side."""
    found = np.full((3, 3), np.inf)
    for c in range(3):
        for other in range(3):
            if other != c:
                normal = W[c] - W[other]
                found[c, other] = CENTRES[c] @ normal / np.linalg.norm(normal)
    return found


def _outside(distances: NDArray[np.float64]) -> float:
    """Return the share of a disc beyond its boundaries, which in this example cut off separate parts."""
    beyond = 0.0
    for h in distances[np.isfinite(distances)] / RADIUS:
        if h < 1:
            beyond += (math.acos(max(h, -1)) - h * math.sqrt(max(0.0, 1 - h * h))) / math.pi
    return beyond
