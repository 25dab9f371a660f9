"""Linear networks under gradient flow, as ICLR §3.3 and Appendix A of FedDecorr's paper study them.

Weights are W_1 … W_{L+1}; Π = W_L ⋯ W_1 gives the representation z = Πx, and W_{L+1} classifies it. Samples are columns
of X (d_in, N), labels one-hot columns of Y (C, N), as in the papers. The loss is the sum of the cross-entropies, and
time is that of dW/dt = −∂loss/∂W.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fullrank.errors import InputError
from fullrank.randomness import generator

Matrix: TypeAlias = NDArray[np.floating]
Weights: TypeAlias = list[Matrix]


def product(weights: Sequence[Matrix]) -> Matrix:
    """Compute Π = W_L ⋯ W_1, the product of all layers except the classifier.

    Args:
        weights: The layers W_1 … W_{L+1}.

    Returns:
        The product, of shape (d, d_in).

    >>> product([np.array([[1.0, 2]]), np.array([[3.0]]), np.array([[5.0]])]).tolist()
    [[3.0, 6.0]]
    """
    found = weights[0]
    for W in weights[1:-1]:
        found = W @ found
    return found


def probabilities(weights: Sequence[Matrix], X: Matrix) -> Matrix:
    """Compute Γ = softmax(W_{L+1}ΠX), one column per sample (ICLR Eq. 2).

    >>> probabilities([np.eye(2), np.eye(2)], np.zeros((2, 1))).tolist()
    [[0.5], [0.5]]
    """
    scores = weights[-1] @ (product(weights) @ X)
    scores = np.exp(scores - scores.max(0))
    found: Matrix = scores / scores.sum(0)
    return found


def one_hot(y: Sequence[int] | NDArray[np.integer], classes: int) -> Matrix:
    """Return the one-hot columns e_c of labels.

    >>> one_hot([1, 0], 3).tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    found: Matrix = np.eye(classes)[np.asarray(y)].T
    return found


def velocity(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Weights:
    """Compute dW_j/dt = −∂loss/∂W_j of every layer (ICLR Eqs. 1, 16, 36 and 37).

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).

    Returns:
        The derivative of each layer.

    >>> [v.tolist() for v in velocity([np.eye(2), np.zeros((2, 2))], np.array([[1.0], [0]]), np.array([[1.0], [0]]))]
    [[[0.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [-0.5, 0.0]]]
    """
    forward = [X]
    for W in weights:
        forward.append(W @ forward[-1])
    scores = np.exp(forward[-1] - forward[-1].max(0))
    backward = Y - scores / scores.sum(0)
    found: Weights = []
    for W, x in zip(reversed(weights), reversed(forward[:-1]), strict=True):
        found.append(backward @ x.T)
        backward = W.T @ backward
    return found[::-1]


def flow(weights: Sequence[Matrix], X: Matrix, Y: Matrix, time: float, steps: int) -> list[Weights]:
    """Integrate the gradient flow by the classical Runge–Kutta method.

    Args:
        weights: The layers W_1 … W_{L+1} at time 0.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).
        time: The end of the flow.
        steps: The number of steps.

    Returns:
        The layers at `steps` + 1 equally spaced times from 0 to `time`.

    Raises:
        InputError: If there is no step.

    >>> start = [np.eye(2), np.eye(2)]
    >>> [round(float(W[0][0, 0]), 3) for W in flow(start, np.eye(2), np.eye(2), 1.0, 2)]
    [1.0, 1.123, 1.217]
    """
    if steps < 1:
        raise InputError(f"a flow needs at least one step, not {steps}")
    h = time / steps
    found = [[np.array(W) for W in weights]]
    for _ in range(steps):
        w = found[-1]
        a = velocity(w, X, Y)
        b = velocity(_moved(w, a, h / 2), X, Y)
        c = velocity(_moved(w, b, h / 2), X, Y)
        d = velocity(_moved(w, c, h), X, Y)
        found.append([W + h / 6 * (p + 2 * q + 2 * r + s) for W, p, q, r, s in zip(w, a, b, c, d, strict=True)])
    return found


def imbalance(weights: Sequence[Matrix]) -> list[Matrix]:
    """Compute W_{j+1}ᵀW_{j+1} − W_jW_jᵀ of neighbouring layers, which are constant along the flow (ICLR Eq. 20).

    Assumption 1 is that they are zero for the layers of Π. For the classifier the difference is constant as well, but
    need not be 0.

    Args:
        weights: The layers W_1 … W_{L+1}.

    Returns:
        The difference for each pair of neighbouring layers.

    >>> [gap.round(12).tolist() for gap in imbalance([np.eye(2), np.eye(2), np.diag([2.0, 1])])]
    [[[0.0, 0.0], [0.0, 0.0]], [[3.0, 0.0], [0.0, 0.0]]]
    """
    return [above.T @ above - below @ below.T for below, above in itertools.pairwise(weights)]


def balanced_start(widths: Sequence[int], scale: float = 0.3, seed: int = 0) -> Weights:
    """Draw weights that fulfil Assumption 1, each `scale` times a matrix of orthonormal rows.

    They are W_1 = s·QA, W_j = s·BQᵀ …, and the classifier s·R, with Q, B orthogonal and the rows of A and R
    orthonormal.

    Args:
        widths: d_in, the hidden widths (all equal), and the number of classes.
        scale: The scale s.
        seed: The seed.

    Returns:
        The layers W_1 … W_{L+1}.

    Raises:
        InputError: If the hidden widths differ, or are not between the number of classes and d_in.

    >>> [W.shape for W in balanced_start([6, 4, 4, 3])]
    [(4, 6), (4, 4), (3, 4)]
    """
    if len(widths) < 3 or len(set(widths[1:-1])) != 1 or widths[0] < widths[1] or widths[-1] > widths[1]:
        raise InputError(f"widths must be d_in ≥ d = … = d ≥ classes, not {list(widths)}")
    rng = generator(seed, "theory", "linear")
    d = widths[1]
    turns = [orthogonal(rng, d, d) for _ in widths[1:-1]]
    weights = [scale * turns[0] @ orthogonal(rng, d, widths[0])]
    weights += [scale * above @ below.T for below, above in itertools.pairwise(turns)]
    return [*weights, scale * orthogonal(rng, widths[-1], d)]


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Draw a random matrix of orthonormal rows.

    Args:
        rng: The generator.
        rows: The number of rows.
        columns: The number of columns, at least that of the rows.
    """
    q, r = np.linalg.qr(rng.normal(size=(columns, rows)))
    return (q * np.sign(np.diag(r))).T


def _moved(weights: Weights, direction: Weights, step: float) -> Weights:
    return [W + step * v for W, v in zip(weights, direction, strict=True)]
