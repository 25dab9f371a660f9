"""Theorem 1 of FedDecorr's papers: the speed at which a linear network's singular values grow, in the correct form.

The appendix proves (ICLR Eqs. 32 and 44), with σ_k the singular values of Π and L its depth,

    dσ_k/dt = N·L·σ_k^(2−2/L) · √(σ_k^(2/L) + M_k) · (u_{L+1,k}ᵀ G v_k).

The main texts (ICLR Eq. 3, TPAMI Eq. 4) print the last product under the root, which is another number and not always a
real one. A second slip concerns G: ICLR Eqs. 33 and 45 replace (1/N)(Y − Γ)Xᵀ by Σ_c μ_c(e_c − γ̄_c)X̄_cᵀ, which drops
the covariance of γ and x within each class; the two agree only where each class is one repeated point.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fullrank.errors import InputError
from fullrank.randomness import generator
from fullrank.theory.linear import Matrix, Weights, one_hot, orthogonal, probabilities, product, velocity


@dataclass(frozen=True)
class Rates:
    """dσ_k/dt, exact and by the theorem's forms, for each k that both Π and the classifier have."""

    exact: NDArray[np.float64]
    """u_kᵀ (dΠ/dt) v_k (Lemma 1), from the layers' own derivatives."""
    formal: NDArray[np.float64]
    """The appendix's form, the product outside the root."""
    printed: NDArray[np.float64]
    """The main texts' form, the product under the root; nan where that root is not real."""
    M: NDArray[np.float64]
    """The theorem's constants M_k = σ_{L+1,k}² − σ_k^(2/L)."""
    alignment: NDArray[np.float64]
    """|u_kᵀ v_{L+1,k}|, which is 1 under Assumption 2, without which the theorem does not hold."""


def rates(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Rates:
    """Compute the speeds dσ_k/dt of the singular values at given weights, exactly and by the theorem's forms.

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).

    Returns:
        The speeds, the constants M_k, and how well Assumption 2 holds.

    >>> weights, X, Y = aligned_example(depth=2, seed=0)
    >>> found = rates(weights, X, Y)
    >>> bool(np.allclose(found.formal, found.exact)), bool(np.allclose(found.printed, found.exact))
    (True, False)
    """
    depth, (_, N) = len(weights) - 1, X.shape
    u, s, v = np.linalg.svd(product(weights), full_matrices=False)
    head_u, head_s, head_v = np.linalg.svd(weights[-1], full_matrices=False)
    number = min(len(s), len(head_s))
    u, s, v, head_u, head_s, head_v = u[:, :number], s[:number], v[:number], *_cut(head_u, head_s, head_v, number)
    cosine = np.einsum("dk,kd->k", u, head_v)
    G = exact_direction(weights, X, Y)
    # Assumption 2 fixes u_k and v_{L+1,k} up to a sign, which is applied to u_{L+1,k}.
    pull = np.where(cosine < 0, -1, 1) * np.einsum("ck,ci,ki->k", head_u, G, v)
    M = head_s**2 - s ** (2 / depth)
    factor = N * depth * s ** (2 - 2 / depth)
    return Rates(
        exact=np.einsum("dk,di,ki->k", u, product_velocity(weights, X, Y), v),
        formal=factor * head_s * pull,
        printed=factor * _root(s ** (2 / depth) + M * pull),
        M=M,
        alignment=np.abs(cosine),
    )


def exact_direction(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Matrix:
    """Compute G = (1/N)(Y − Γ)Xᵀ, as the proof needs it (ICLR Eq. 44).

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).

    >>> exact_direction([np.eye(2), np.zeros((2, 2))], np.array([[1.0], [0]]), np.array([[1.0], [0]])).tolist()
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    found: Matrix = (Y - probabilities(weights, X)) @ X.T / X.shape[1]
    return found


def printed_direction(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Matrix:
    """Compute G = Σ_c μ_c(e_c − γ̄_c)X̄_cᵀ, as printed (ICLR Eqs. 4 and 33), with class means instead of samples.

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).

    >>> printed_direction([np.eye(2), np.zeros((2, 2))], np.array([[1.0], [0]]), np.array([[1.0], [0]])).tolist()
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    counts = Y.sum(1)
    present = counts > 0
    members = (Y[present] / counts[present, None]).T
    found: Matrix = ((Y - probabilities(weights, X)) @ members) @ (
        (counts[present] / X.shape[1])[:, None] * (X @ members).T
    )
    return found


def dropped_share(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> float:
    """Compute ‖G − G_printed‖_F / ‖G‖_F, the share of G that the printed form lacks.

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).

    Returns:
        The share.

    >>> weights, X, Y = aligned_example(depth=2, seed=0)
    >>> round(dropped_share(weights, X, Y), 1)
    0.9
    """
    G = exact_direction(weights, X, Y)
    return float(np.linalg.norm(G - printed_direction(weights, X, Y)) / np.linalg.norm(G))


def product_velocity(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Matrix:
    """Compute dΠ/dt by the product rule from every layer's derivative, without any assumption.

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).
    """
    moving = velocity(weights, X, Y)
    found = np.zeros_like(product(weights))
    for j in range(len(weights) - 1):
        layers = [*weights[:j], moving[j], *weights[j + 1 :]]
        found = found + product(layers)
    return found


def balanced_velocity(weights: Sequence[Matrix], X: Matrix, Y: Matrix) -> Matrix:
    """Compute dΠ/dt = Σ_j [ΠΠᵀ]^((L−j)/L) · (−∂loss/∂Π) · [ΠᵀΠ]^((j−1)/L) (Lemma 2, ICLR Eq. 15).

    It holds under Assumption 1.

    Args:
        weights: The layers W_1 … W_{L+1}.
        X: Samples as columns, of shape (d_in, N).
        Y: One-hot labels as columns, of shape (C, N).
    """
    depth, P = len(weights) - 1, product(weights)
    direction = weights[-1].T @ (Y - probabilities(weights, X)) @ X.T
    terms = (
        _power(P @ P.T, (depth - j) / depth) @ direction @ _power(P.T @ P, (j - 1) / depth) for j in range(1, depth + 1)
    )
    found: Matrix = np.sum(list(terms), axis=0)
    return found


def aligned_example(
    depth: int, seed: int = 0, *, inputs: int = 8, width: int = 6, classes: int = 4, samples: int = 40
) -> tuple[Weights, Matrix, Matrix]:
    """Draw weights that fulfil both assumptions of the theorem, random samples, and their one-hot labels.

    Layers of Π share their singular values, and the left singular vectors of each layer are the right ones of the next.
    The classifier's right singular vectors are the left ones of Π, in the same order, with its own singular values.

    Args:
        depth: The number L of layers of Π.
        seed: The seed.
        inputs: The number of dimensions of the samples.
        width: The width of the layers.
        classes: The number of classes.
        samples: The number of samples.

    Returns:
        The layers, the samples as columns, and the one-hot labels as columns.

    Raises:
        InputError: If depth ≥ 1 and classes ≤ width ≤ inputs do not hold.

    >>> [W.shape for W in aligned_example(depth=2)[0]]
    [(6, 8), (6, 6), (4, 6)]
    """
    if depth < 1 or not classes <= width <= inputs:
        raise InputError(
            f"depth ≥ 1 and classes ≤ width ≤ inputs must hold, not {depth} and {classes}, {width}, {inputs}"
        )
    rng = generator(seed, "theory", "aligned", depth)
    s = np.sort(rng.uniform(0.4, 1.6, width))[::-1]
    axes = [orthogonal(rng, width, inputs), *(orthogonal(rng, width, width) for _ in range(depth))]
    weights = [after.T @ (s[:, None] * before) for before, after in itertools.pairwise(axes)]
    head = np.sort(rng.uniform(0.4, 3.0, classes))[::-1]
    weights.append(orthogonal(rng, classes, classes).T @ (head[:, None] * axes[-1][:classes]))
    y = rng.integers(0, classes, samples)
    return weights, rng.normal(size=(inputs, samples)), one_hot(y, classes)


def aligned_forever(depth: int, *, first: float = 0.3, head: float = 0.8) -> tuple[Weights, Matrix, Matrix]:
    """Return an example in which Assumption 2 holds at all times: two classes, each a repeated point, opposite each
    other.

    The data only ever add to one direction of the inputs and one of the classes, so singular vectors do not change.

    Args:
        depth: The number L of layers of Π.
        first: The root s of the largest singular value; those of Π are s^L and (s/2)^L.
        head: The largest singular value of the classifier; the other is half of it.

    Returns:
        The layers, the samples as columns, and the one-hot labels as columns.

    >>> rates(*aligned_forever(depth=2)).M.round(6).tolist()
    [0.55, 0.1375]
    """
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    s = np.diag([first, first / 2])
    axis = turn.T  # directions of the inputs; the first row is the points' direction
    weights = [turn @ s @ axis, *(turn @ s @ turn.T for _ in range(depth - 1))]
    opposite = np.array([[1.0, 1], [-1, 1]]) / np.sqrt(2)
    weights.append(opposite @ np.diag([head, head / 2]) @ turn.T)
    point = axis[0]
    X = np.stack([point, point, -point, -point], 1)
    return weights, X, one_hot([0, 0, 1, 1], 2)


def _cut(u: Matrix, s: Matrix, v: Matrix, number: int) -> tuple[Matrix, Matrix, Matrix]:
    return u[:, :number], s[:number], v[:number]


def _root(x: Matrix) -> Matrix:
    return np.sqrt(x, out=np.full_like(x, np.nan), where=x >= 0)


def _power(symmetric: Matrix, exponent: float) -> Matrix:
    """Return a power of a positive semi-definite matrix; the 0-th is the identity."""
    values, vectors = np.linalg.eigh(symmetric)
    values = np.where(values > 1e-12 * values[-1], values, 0)  # a root would enlarge rounding errors
    found: Matrix = (vectors * values**exponent) @ vectors.T
    return found
