"""Courses over rounds and steps, and the consistency of clients: what is drawn is what the run recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pictured import drawing_without_files, legend_of, made


@pytest.fixture
def draw(monkeypatch, tmp_path):
    return drawing_without_files(monkeypatch, tmp_path)


def points(axes, number=0):
    return axes.lines[number].get_xydata().tolist()


def test_a_course_is_a_measure_inside_others_in_per_cent(draw):
    rows = [{"personal": {"local": {"mean": value, "clients": 4}}} for value in (0.25, 0.5)]
    (axes,) = draw("course", made(rows), measure="personal.local.mean").axes
    np.testing.assert_allclose(points(axes), [[1, 25], [2, 50]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "clients' accuracy (%)\nlocal, mean")
    (axes,) = draw("course", made(rows), measure="personal.local.clients").axes
    np.testing.assert_allclose(points(axes), [[1, 4], [2, 4]])


def test_a_course_of_bytes_has_the_unit_that_fits(draw):
    (axes,) = draw("course", made([{"bytes_up": 1_500_000}, {"bytes_up": 3_000_000}]), measure="bytes_up").axes
    np.testing.assert_allclose(points(axes), [[1, 1.5], [2, 3]])
    assert axes.get_ylabel() == "sent by clients (MB)\nper round"


def test_a_course_of_another_metric_has_no_unit(draw):
    (axes,) = draw("course", made([{"loss": 2.0}, {"loss": 1.5}]), measure="loss").axes
    np.testing.assert_allclose(points(axes), [[1, 2], [2, 1.5]])
    assert axes.get_ylabel() == "test loss"


def test_rounds_without_an_evaluation_are_left_out_and_undefined_values_are_gaps(draw):
    rows = [{"accuracy": 0.5}, {}, {"accuracy": None}, {"accuracy": 0.75}]
    (axes,) = draw("course", made(rows)).axes
    drawn = axes.lines[0].get_xydata()
    assert drawn[:, 0].tolist() == [1, 3, 4]
    np.testing.assert_allclose(drawn[:, 1], [50, math.nan, 75])
    assert axes.lines[0].get_marker() == "."  # without dots, values next to a gap would not be seen


def test_the_course_of_a_personalisation_starts_before_its_first_step(draw):
    ending = {"personal": {"received": {"mean": 0.4}, "personalised": {"mean": 0.75, "course": [0.5, 0.625, 0.75]}}}
    other = {"personal": {"personalised": {"mean": 0.75, "course": [0.25, 0.5, 0.75]}}}
    runs = [made([{}], "fedetf", seed=seed, ending=own) for seed, own in enumerate((ending, other))]
    figure = draw("course", *runs, over="steps")
    (axes,) = figure.axes
    np.testing.assert_allclose(points(axes), [[0, 37.5], [1, 56.25], [2, 75]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("fine-tuning step", "clients' accuracy (%)")
    assert legend_of(figure) == ["fedetf (2 seeds)", "range over seeds"]


def probe(round, cosine, error):
    found = {"round": round, "clients": [0, 1], "locals": [{"client": 0}, {"client": 1}]}
    found["prototype_consistency"] = cosine
    return found | ({} if error is None else {"global": {"nc2_angle": error}})


def test_consistency_is_the_cosine_of_prototypes_next_to_the_nc_error(draw):
    runs = [
        made([{}, {}], probes=[probe(1, 0.5, 0.4), probe(2, 0.75, 0.2)]),
        made([{}, {}], seed=1, probes=[probe(1, 0.25, 0.2), probe(2, 0.5, 0.3)]),
    ]
    cosines, errors = draw("consistency", *runs, band="none").axes
    np.testing.assert_allclose(points(cosines), [[1, 0.375], [2, 0.625]])
    np.testing.assert_allclose(points(errors), [[1, 0.3], [2, 0.25]])
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in (cosines, errors)] == [
        "cosine between clients' prototypes",
        "NC error of the global model",
    ]


def test_consistency_without_a_global_model_or_shared_classes(draw):
    (axes,) = draw("consistency", made([{}], "fedproto", probes=[probe(1, None, None)])).axes
    assert [text.get_text() for text in axes.texts] == ["not defined"]


def epochs(*values, **others):
    return [{"criterion": value, **others, "grad_norm": 1.0, "drift": 2.0} for value in values]


def trained(*clients):
    return {"clients": [{"client": number, "epochs": own} for number, own in enumerate(clients)]}


def test_losses_over_rounds_are_means_over_epochs_clients_and_seeds(draw):
    first = made([trained(epochs(4, 2), epochs(1, 1)), trained(epochs(1, 1), epochs(1, 1))])
    second = made([trained(epochs(2, 2), epochs(2, 2)), trained(epochs(0, 0), epochs(0, 0))], seed=1)
    (axes,) = draw("losses", first, second, over="rounds").axes
    np.testing.assert_allclose(points(axes), [[1, (2 + 2) / 2], [2, 0.5]])
    assert axes.get_ylabel() == "criterion, mean of clients"
    (axes,) = draw("losses", first, second, over="rounds", clients=[0]).axes
    np.testing.assert_allclose(points(axes), [[1, 2.5], [2, 0.5]])


def test_losses_over_rounds_have_a_panel_for_each_term_and_lines_of_the_runs_that_have_it(draw):
    plain = made([trained(epochs(2, 1))] * 3)
    other = made([trained(epochs(2, 1, feddecorr=0.5))] * 3, "fedavg+feddecorr", method__feddecorr__beta=0.1)
    criterion, decorrelation = draw("losses", plain, other, over="rounds").axes
    assert (len(criterion.lines), len(decorrelation.lines)) == (2, 1)
    np.testing.assert_allclose(points(decorrelation), [[1, 5], [2, 5], [3, 5]])  # without its factor β
    assert decorrelation.get_title(loc="left") == "decorrelation loss"
    (only,) = draw("losses", plain, other, over="rounds", term="criterion").axes
    assert only.get_ylabel() == "criterion, mean of clients"


def test_losses_of_many_runs_are_means_over_clients_and_seeds(draw):
    rows = [[trained(epochs(4 + seed, 2), epochs(2 + seed, 1)), trained(epochs(seed, 0))] for seed in range(3)]
    runs = [made(own, method, seed=seed) for method in ("fedavg", "fedprox") for seed, own in enumerate(rows)]
    figure = draw("losses", *runs)
    first, last = figure.axes
    np.testing.assert_allclose(points(first), [[1, 4], [2, 1.5]])
    np.testing.assert_allclose(points(last), [[1, 1], [2, 0]])
    assert [axes.get_title() for axes in (first, last)] == ["round 1", "round 2"]
    assert legend_of(figure) == ["fedavg (3 seeds)", "fedprox (3 seeds)", "range over seeds"]
    assert first.get_ylabel() == "criterion, mean of clients"


def test_a_band_makes_means_of_few_runs_too(draw):
    runs = [made([trained(epochs(4 + seed, 2))], seed=seed) for seed in range(2)]
    (axes,) = draw("losses", *runs, band="std").axes
    np.testing.assert_allclose(points(axes), [[1, 4.5], [2, 2]])
    assert len(draw("losses", *runs).axes) == 2
