"""Checks that any method must pass, the library's and your own: `fullrank.testing.check(MyMethod())`.

A method is run on a small federation (the embedded digits, a small network with BatchNorm, in float64), and the first
property that does not hold is reported in one sentence.
"""

from fullrank.testing.checks import check
from fullrank.testing.results import Checked, CheckFailed

__all__ = ["CheckFailed", "Checked", "check"]
