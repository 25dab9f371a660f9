"""Standard deviations over seeds, and their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache


def std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n − 1 in the denominator); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean of independent values; None for fewer than two values.

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
    """Return t such that Student's distribution is in [−t, t] with the given probability.

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
    """Return P(|T| < √degrees · tan angle), a finite sum for integer degrees (Abramowitz and Stegun 26.7.3 and 4)."""
    odd = degrees % 2
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for number in range(odd + 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
