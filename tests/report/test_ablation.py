"""Ablations and costs: points are the means over seeds of what summaries have, at the values of a key or a cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pictured import drawing_without_files, legend_in, legend_of, made


@pytest.fixture
def draw(monkeypatch, tmp_path):
    return drawing_without_files(monkeypatch, tmp_path)


def ended(accuracy, method="fedavg", seed=0, **keys):
    """A run of one round with this accuracy."""
    row = {name: keys.pop(name) for name in ("bytes_up", "bytes_down", "seconds") if name in keys}
    return made([{"accuracy": accuracy, **row}], method, seed=seed, **keys)


def ticks(axes):
    return [text.get_text() for text in axes.get_xticklabels()]


def test_a_line_per_method_over_a_key_on_a_logarithmic_axis(draw):
    table = {0.1: (0.5, 0.7, 0.6), 0.01: (0.2, 0.3, 0.1), 1.0: (0.4, 0.5, 0.9)}
    runs = [ended(x, seed=seed, train__lr=lr) for lr, own in table.items() for seed, x in enumerate(own)]
    runs += [ended(lr / 2, "fedprox", train__lr=lr) for lr in table]
    figure = draw("ablation", *runs, band="ci")
    (axes,) = figure.axes
    places = sorted(table)
    values = 100 * np.array([table[lr] for lr in places])
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.stack([places, values.mean(1)], 1))
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[0.01, 0.5], [0.1, 5], [1, 50]])
    assert legend_of(figure) == ["fedavg (3 seeds)", "fedprox", "95 % interval over seeds"]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "learning rate", "test accuracy (%)")
    assert ticks(axes) == ["0.01", "0.1", "1"]
    (band,) = axes.collections
    corners = {tuple(point) for path in band.get_paths() for point in path.vertices.round(6).tolist()}
    ends = stats.t.interval(0.95, 2, loc=values.mean(1), scale=values.std(1, ddof=1) / math.sqrt(3))
    assert {(lr, round(end, 6)) for own in ends for lr, end in zip(places, own, strict=True)} <= corners


def test_an_axis_within_a_decade_is_linear(draw):
    (axes,) = draw("ablation", *(ended(0.5, data__clients=k) for k in (5, 10, 20)), over="data.clients").axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "clients")


def test_zero_and_infinity_lie_one_step_outside_the_other_values(draw):
    runs = [ended(0.5, "fedprox", method__fedprox__mu=mu) for mu in (0.0, 0.01, 0.1, 1.0)]
    (axes,) = draw("ablation", *runs).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.001, 0.01, 0.1, 1])
    assert ticks(axes) == ["0", "0.01", "0.1", "1"]
    assert axes.get_xlabel() == "μ of fedprox"
    (axes,) = draw("ablation", *(ended(0.5, data__alpha=alpha) for alpha in (0.1, 0.5, math.inf))).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.1, 0.5, 2.5])
    assert ticks(axes) == ["0.1", "0.5", "∞"]


def test_tick_labels_without_room_are_left_out(draw):
    runs = [ended(0.5, train__lr=lr) for lr in (0.001, 0.0101, 0.0102, 0.0103, 1.0)]
    assert ticks(draw("ablation", *runs).axes[0]) == ["0.001", "0.0101", "1"]


def test_a_method_without_the_key_is_a_level(draw):
    runs = [ended(x, seed=seed) for seed, x in enumerate((0.25, 0.5))]
    runs += [ended(0.4 + mu, "fedprox", method__fedprox__mu=mu) for mu in (0.01, 0.1)]
    figure = draw("ablation", *runs, over="method.fedprox.mu")
    level, line = figure.axes[0].lines
    np.testing.assert_allclose(level.get_ydata(), [37.5, 37.5])
    np.testing.assert_allclose(line.get_xydata(), [[0.01, 41], [0.1, 50]])
    assert legend_of(figure) == ["fedavg (2 seeds)", "fedprox", "range over seeds"]


def test_another_measure_and_value(draw):
    def run(lr, *losses):
        return made([{"loss": loss} for loss in losses], train__lr=lr)

    runs = [run(0.1, 3.0, 1.0, 2.0), run(0.2, 1.0, 4.0, 4.0)]
    (axes,) = draw("ablation", *runs, measure="loss", value="best").axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[0.1, 1], [0.2, 1]])
    (axes,) = draw("ablation", *runs, measure="loss").axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[0.1, 2], [0.2, 3]])


def costly():
    runs = [ended(x, seed=seed, bytes_up=1e6, bytes_down=3e6, seconds=30.0) for seed, x in enumerate((0.5, 0.7))]
    return [*runs, ended(0.9, "scaffold", bytes_up=2e6, bytes_down=6e6, seconds=120.0)]


def test_cost_is_a_point_per_method_with_its_name(draw):
    figure = draw("cost", *costly())
    (axes,) = figure.axes
    np.testing.assert_allclose([line.get_xydata()[0] for line in axes.lines], [[4, 60], [8, 90]])
    assert [text.get_text() for text in axes.texts] == ["fedavg (2 seeds)", "scaffold"]
    assert legend_of(figure) == ["range over seeds"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("sent by and to clients (MB)", "test accuracy (%)")


def test_cost_in_seconds_has_the_unit_that_fits(draw):
    (axes,) = draw("cost", *costly(), over="seconds").axes
    np.testing.assert_allclose([line.get_xydata()[0] for line in axes.lines], [[0.5, 60], [2, 90]])
    assert axes.get_xlabel() == "time (min)"


def test_names_of_points_cover_nothing_and_are_in_the_legend_otherwise(draw):
    apart = [ended(k / 10, data__alpha=float(k), bytes_up=1e6 * k) for k in range(1, 7)]
    figure = draw("cost", *apart)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 6
    assert not any(box.overlaps(other) for place, box in enumerate(boxes) for other in boxes[:place])
    dots = np.concatenate([line.get_transform().transform(line.get_xydata()) for line in axes.lines])
    assert not any(box.count_contains(dots) for box in boxes)
    close = [ended(0.5, data__alpha=float(k), bytes_up=1e6) for k in range(1, 9)]
    figure = draw("cost", *close)
    assert not figure.axes[0].texts
    assert legend_of(figure) == [f"α = {k}" for k in range(1, 9)]
    assert {line.get_marker() for line in legend_in(figure).get_lines()} == {"o", "^", "s", "D"}
