"""Two identities of the FedDecorr papers, of which both sides are computed: the covariance of representations, and
Proposition 1.
"""

from __future__ import annotations

import numpy as np

from fullrank import collapse
from fullrank.errors import InputError
from fullrank.theory.linear import Matrix


def representation_covariance(P: Matrix, X: Matrix) -> tuple[Matrix, Matrix]:
    """Compute the covariance Σ of z = Πx over the samples, and Π Cov(x) Πᵀ, which are equal (ICLR Eq. 5, TPAMI Eq. 6).

    Therefore rank Σ ≤ rank Π: if the weights of a linear network collapse, so does the representation.

    Args:
        P: The product Π of a linear network's layers, of shape (d, d_in).
        X: Samples as columns, of shape (d_in, N).

    Returns:
        Both biased covariances, of shape (d, d).

    Raises:
        InputError: If X is not a matrix of at least one sample.

    >>> X = np.array([[1.0, 0, 1, 2], [0, 1, 1, 0]])
    >>> of_samples, of_weights = representation_covariance(np.array([[1.0, 2], [0, 1], [1, 0]]), X)
    >>> of_weights.tolist(), bool(np.allclose(of_samples, of_weights))
    ([[0.5, 0.25, 0.0], [0.25, 0.25, -0.25], [0.0, -0.25, 0.5]], True)
    """
    if X.ndim != 2 or X.shape[1] == 0:
        raise InputError(f"samples are the columns of X, so its shape must be (d_in, N) with N ≥ 1, not {X.shape}")
    return _covariance(P @ X), P @ _covariance(X) @ P.T


def proposition_1(K: Matrix) -> tuple[float, float]:
    """Compute Σ(λ_i − λ̄)² and ‖K‖_F² − d of a correlation matrix K, which are equal (ICLR Eq. 7, TPAMI Eq. 8).

    ICLR's Appendix B proves it; it holds because the diagonal is 1. FedMR's Lemma 1 is the same for a matrix whose
    diagonal is N/(N − 1).

    Args:
        K: A correlation matrix of shape (d, d).

    Returns:
        Both sides of the identity.

    >>> [round(side, 6) for side in proposition_1(np.array([[1.0, 0.5], [0.5, 1]]))]
    [0.5, 0.5]
    """
    values = np.linalg.svd(K, compute_uv=False)
    return float(np.square(values - values.mean()).sum()), float(np.square(K).sum() - len(K))


def spread_of_eigenvalues(M: Matrix) -> tuple[float, float]:
    """Compute Σ(λ_i − λ̄)² and ‖M‖_F² − (tr M)²/d of a symmetric matrix M, from which both propositions follow.

    Args:
        M: A symmetric matrix of shape (d, d).

    Returns:
        Both sides of the identity.

    >>> [round(side, 6) for side in spread_of_eigenvalues(np.array([[2.0, 1], [1, 4]]))]
    [4.0, 4.0]
    """
    values = np.linalg.eigvalsh(M)
    return float(np.square(values - values.mean()).sum()), float(np.square(M).sum() - np.trace(M) ** 2 / len(M))


def effective_ranks(P: Matrix, X: Matrix) -> tuple[float, float]:
    """Compute the effective ranks of z = Πx and of x, the output and the input of a linear network.

    Args:
        P: The product Π of the network's layers, of shape (d, d_in).
        X: Samples as columns, of shape (d_in, N).

    Returns:
        The effective rank of z and that of x.

    >>> X = np.array([[1.0, -1, 0, 0], [0, 0, 1, -1]])
    >>> [round(rank, 3) for rank in effective_ranks(np.array([[1.0, 0], [0, 0]]), X)]
    [1.0, 2.0]
    """
    return collapse.effective_rank((P @ X).T), collapse.effective_rank(X.T)


def _covariance(X: Matrix) -> Matrix:
    centred = X - X.mean(1, keepdims=True)
    found: Matrix = centred @ centred.T / X.shape[1]
    return found
