"""Standard deviations over seeds, confidence intervals, and tests of differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache


def std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n − 1 in the denominator); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean of independent values.

    Args:
        values: The values.
        confidence: The confidence level.

    Returns:
        The lower and the upper end; None for fewer than two values.

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


def p_value(values: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Student's t-test that the mean of independent values is 0.

    With paired differences as values it is the paired t-test. It is None for fewer than two values, and for values
    without any spread, for which the test is not defined.

    >>> round(p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    spread = std(values)
    if not spread:
        return None
    t = abs(statistics.fmean(values)) / (spread / math.sqrt(len(values)))
    degrees = len(values) - 1
    return max(0.0, 1 - _inside(math.atan(t / math.sqrt(degrees)), degrees))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for the number of comparisons (Holm 1979), in the same order.

    >>> [round(p, 4) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
