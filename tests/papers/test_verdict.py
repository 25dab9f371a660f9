"""Verdicts on cells, with numbers worked out by hand."""

import math

import pytest

from fullrank.papers import Printed
from fullrank.papers.verdict import limit, verdict


def test_the_limit_is_twice_the_root_of_both_variances():
    assert limit(3.0, 4.0) == pytest.approx(10.0)
    # Where no deviation is printed ours stands for it: 2 * sqrt(1 + 1).
    assert limit(1.0, None) == pytest.approx(2 * math.sqrt(2))
    assert limit(0.0, None) == 0.0


# The values 60, 62 and 64 have the mean 62 and the standard deviation 2; with a printed one of 1.5 the limit is 5.
@pytest.mark.parametrize(
    ("printed", "kind"),
    [(66.9, "within spread"), (67.1, "below"), (57.1, "within spread"), (56.9, "above")],
)
def test_a_difference_is_compared_with_the_limit(printed, kind):
    assert verdict(Printed(printed, 1.5), [60.0, 62.0, 64.0]).kind == kind


def test_without_a_printed_deviation_ours_counts_twice():
    # 2 * sqrt(4 + 4) = 5.657
    assert verdict(Printed(67.6), [60.0, 62.0, 64.0]).kind == "within spread"
    assert verdict(Printed(67.7), [60.0, 62.0, 64.0]).kind == "below"


def test_runs_that_are_not_the_cells_are_not_compared():
    values, printed = [60.0, 62.0, 64.0], Printed(62.0, 1.0)
    assert str(verdict(printed, values[:2])) == "fewer seeds: 2 of at least 3"
    assert str(verdict(printed, values, rounds=(5, 100))) == "shortened: 5 of 100 rounds"
    assert str(verdict(printed, values, changed={"train.lr": 0.1})) == "other settings: train.lr = 0.1"
    assert str(verdict(printed, values, rounds=(5, 100), changed={"train.lr": 0.1})).startswith("other settings")
    assert str(verdict(None, values)) == "nothing printed"
    assert str(verdict(printed, [], absent=["no files", "no files"])) == "not run: no files"
    assert str(verdict(printed, [], absent=["it diverged"], failed=True)) == "failed: it diverged"
    assert str(verdict(printed, [], absent=["no such measure"], ran=True)) == "no value: no such measure"
    assert str(verdict(printed, [], absent=[""])) == "not run"
