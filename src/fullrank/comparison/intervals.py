"""Numbers over seeds: how far they spread, and how sure their mean is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache


def std(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n − 1 in the denominator); None below two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's confidence interval of a mean, for values that are independent; None below two of them.

    >>> [round(end, 4) for end in interval([1.0, 2.0, 3.0])]
    [-0.4841, 4.4841]
    """
    spread = std(values)
    if spread is None:
        return None
    middle = statistics.fmean(values)
    reach = t_quantile(len(values) - 1, confidence) * spread / math.sqrt(len(values))
    return middle - reach, middle + reach


@cache
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """How far from 0, on either side, Student's t with so many degrees of freedom stays with this probability.

    >>> round(t_quantile(4), 4)
    2.7764
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _inside(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(middle)


def _inside(angle: float, degrees: int) -> float:
    """P(|T| < √degrees · tan angle), as the finite sum that whole degrees have (Abramowitz and Stegun 26.7.3 and 4)."""
    odd = degrees % 2
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for number in range(odd + 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
