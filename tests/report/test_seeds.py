"""Bands over seeds: minimum to maximum, ± one standard deviation, Student's interval, or none; and names of lines."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from scipy import stats

from pictured import drawing_without_files, legend_of, made

ACCURACIES = np.array([[0.1, 0.5, 0.7], [0.3, 0.4, 0.8], [0.2, 0.9, 0.75]])


@pytest.fixture
def draw(monkeypatch, tmp_path):
    return drawing_without_files(monkeypatch, tmp_path)


@pytest.fixture
def seeds():
    """One method with three seeds, and another with one."""
    several = [made([{"accuracy": x} for x in own], seed=seed) for seed, own in enumerate(ACCURACIES)]
    return [*several, made([{"accuracy": x} for x in (0.2, 0.3, 0.4)], "fedprox")]


def ends_of(axes):
    """Lower and upper end at each place of the only band."""
    (band,) = axes.collections
    assert isinstance(band, PolyCollection)
    points = np.concatenate([path.vertices for path in band.get_paths()])
    places = sorted({*points[:, 0]})
    return np.array([[function(points[points[:, 0] == place, 1]) for place in places] for function in (min, max)])


def expected(band):
    values = 100 * ACCURACIES
    if band == "range":
        return values.min(0), values.max(0)
    middle, error = values.mean(0), values.std(0, ddof=1)
    if band == "std":
        return middle - error, middle + error
    return stats.t.interval(0.95, len(values) - 1, loc=middle, scale=error / np.sqrt(len(values)))


@pytest.mark.parametrize(
    ("band", "name"),
    [("range", "range over seeds"), ("std", "± 1 std over seeds"), ("ci", "95 % interval over seeds")],
)
def test_a_band_is_what_the_legend_says(draw, seeds, band, name):
    figure = draw("accuracy", *seeds, band=band)
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * ACCURACIES.mean(0))
    np.testing.assert_allclose(ends_of(axes), expected(band), rtol=1e-9)
    assert legend_of(figure) == ["fedavg (3 seeds)", "fedprox", name]


def test_without_a_band_there_is_none_in_the_legend(draw, seeds):
    figure = draw("accuracy", *seeds, band="none")
    assert not figure.axes[0].collections
    assert legend_of(figure) == ["fedavg (3 seeds)", "fedprox"]


def test_a_band_of_shares_does_not_stretch_the_axis_beyond_100_per_cent(draw, seeds):
    assert expected("ci")[1].max() > 110
    low, high = draw("accuracy", *seeds, band="ci").axes[0].get_ylim()
    assert (low, high) == (-1, 101)


def test_labels_name_the_lines_in_the_order_of_the_legend(draw, seeds):
    assert legend_of(draw("accuracy", *seeds, labels=["Ours ($\\beta$ = 0.1)", "FedProx"])) == [
        "Ours ($\\beta$ = 0.1)",
        "FedProx",
        "range over seeds",
    ]


def test_a_label_may_be_what_the_legend_says_of_all_lines(draw, seeds):
    assert legend_of(draw("accuracy", *seeds, labels=["range over seeds", "FedProx"])) == [
        "range over seeds",
        "FedProx",
        "range over seeds",
    ]


def test_a_hyphen_in_a_label_is_no_minus_sign(draw):
    probe = {"round": 1, "clients": [0], "locals": [{"client": 0, "spectrum": np.ones(3, np.float32), "gap": -0.5}]}
    figure = draw("spectrum", made([{}], probes=[probe]), labels=["Fed-Avg"])
    assert legend_of(figure)[0] == "Fed-Avg: R = −0.50"
