"""The bound of FedMR's Theorem 1, which is the solution of a recursion."""

from __future__ import annotations

import math

from fullrank.errors import InputError

CASES = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.5, 0.1), (0.75, 0.0), (0.75, 0.1))
"""The values of p̂ and δ that are drawn and printed."""


def bound_cases(p: float) -> list[tuple[float, float]]:
    """Return the cases that are possible if the share p is kept.

    >>> bound_cases(0.6)
    [(0.0, 0.0), (0.25, 0.0)]
    """
    return [(p_hat, delta) for p_hat, delta in CASES if p + p_hat <= 1]


def fedmr_bound(p: float, p_hat: float, t: float, G: float = 1.0, delta: float = 0.0) -> float:
    """Compute the bound of FedMR's Theorem 1 in round t, 2(1 − p̂Γ)G + δΓ with Γ = (1 − p^t)/(1 − p).

    It bounds how far a representation may be from the best one, and solves e_t = p·e_{t−1} + 2G(1 − p − p̂) + δ, e_0 =
    2G: a prototype keeps the share p of the client's old error and is exact on the share p̂; δ, the greatest margin
    that the inter-class loss leaves, is added in every round. Γ grows with t and the bound falls (for δ = 0), contrary
    to the paper's third remark. In the limit it is (2G(1 − p − p̂) + δ)/(1 − p); the paper's fourth remark leaves out
    δ.

    Args:
        p: The share p of the old error that is kept.
        p_hat: The share p̂ on which a prototype is exact, at most 1 − p.
        t: The round, or `math.inf`.
        G: The bound on the norm of a representation.
        delta: The greatest margin δ that the inter-class loss leaves.

    Returns:
        The bound.

    Raises:
        InputError: If the shares are impossible, or another number is negative.

    >>> [fedmr_bound(0.25, 0.5, t) for t in (1, 4)], round(fedmr_bound(0.25, 0.5, math.inf), 6)
    ([1.0, 0.671875], 0.666667)
    """
    if not (0 <= p <= 1 and 0 <= p_hat <= 1 - p + 1e-12):
        raise InputError(f"p and p_hat are shares with p + p_hat ≤ 1, not {p} and {p_hat}")
    if t < 0 or G < 0 or delta < 0 or math.isnan(t):
        raise InputError(f"t, G and delta must not be negative, but they are {t}, {G} and {delta}")
    grown = (1 - p**t) / (1 - p) if p < 1 else t
    lost = 0.0 if p_hat == 0 else p_hat * grown
    return 2 * (1 - lost) * G + (0.0 if delta == 0 else delta * grown)


def fedmr_recursion(p: float, p_hat: float, t: int, G: float = 1.0, delta: float = 0.0) -> float:
    """Compute the bound of FedMR's Theorem 1 step by step from its recursion.

    Args:
        p: The share p of the old error that is kept.
        p_hat: The share p̂ on which a prototype is exact.
        t: The round.
        G: The bound on the norm of a representation.
        delta: The greatest margin δ that the inter-class loss leaves.

    Returns:
        The bound, which `fedmr_bound` gives in closed form.

    >>> fedmr_recursion(0.25, 0.5, 4)
    0.671875
    """
    error = 2 * G
    for _ in range(t):
        error = p * error + 2 * G * (1 - p - p_hat) + delta
    return error
