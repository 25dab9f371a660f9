"""The legend takes at most a fifth of the figure, covers nothing, and is not cut off, however many names it has."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import fullrank
from fullrank.config.experiment import Experiment, nested
from fullrank.report.figures import KINDS
from fullrank.report.legend import FONTS, draw_legend
from fullrank.report.style import COLUMN, drawing, line
from pictured import drawing_without_files, legend_in, legend_of, made

FIFTH = 0.2
PANELS = ("classifier", "tsne", "cka")
"""Kinds with a panel per run, which have room for five."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small real run with everything that any figure shows."""
    values = {
        "data.clients": 3,
        "data.holdout": 0.2,
        "data.partition": "iid",
        "model.name": "mlp",
        "model.width": 8,
        "method.name": "fedetf",
        "method.fedetf.repeats": 2,
        "train.rounds": 2,
        "probe.every": 1,
        "probe.clients": 3,
        "engine.name": "serial",
    }
    return fullrank.run(values, tmp_path_factory.mktemp("run") / "whole")


@pytest.fixture
def draw(monkeypatch, tmp_path):
    return drawing_without_files(monkeypatch, tmp_path)


def but(run, **keys):
    """The same numbers with another experiment."""
    changes = {key.replace("__", "."): value for key, value in keys.items()}
    values = nested({**run.experiment.flat(), **changes})
    return fullrank.Run(Experiment(**values), run.metrics, ending=run._ending, probes=run.probes)


def names(number, letters):
    return [("fedavg+feddecorr, α = 0.05, " * 3)[: letters - 2] + f"{place:02}" for place in range(number)]


def assert_in_its_place(figure, share=FIFTH):
    figure.draw_without_rendering()
    legend = legend_in(figure).get_window_extent()
    assert legend.height <= share * figure.bbox.height + 1e-6
    assert legend.x0 >= 0
    assert legend.x1 <= COLUMN * figure.dpi
    assert legend.y0 >= 0
    if figure.legends:
        for axes in filter(lambda axes: axes.get_visible(), figure.axes):
            assert axes.get_tightbbox().y0 >= legend.y1 - 1
            assert axes.get_window_extent().height > 0.3 * figure.dpi
        return
    (axes,) = figure.axes
    room = axes.get_window_extent()
    assert (room.x0 <= legend.x0, legend.x1 <= room.x1, room.y0 <= legend.y0, legend.y1 <= room.y1) == (True,) * 4
    for each in axes.lines:
        assert not legend.count_contains(densely(each.get_transform().transform(each.get_xydata())))


def densely(points):
    places = np.linspace(0, len(points) - 1, 50 * len(points))
    return np.stack([np.interp(places, range(len(points)), column) for column in points.T], 1)


@pytest.mark.parametrize("letters", [4, 60])
@pytest.mark.parametrize("number", range(1, 13))
def test_a_legend_takes_at_most_a_fifth(monkeypatch, tmp_path, number, letters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with drawing(tmp_path / "legend.png", 1.9) as figure:
            axes = figure.subplots()
            axes.plot([1, 2, 3], [1, 3, 2])
            axes.set(xlabel="round", ylabel="accuracy")
            draw_legend(figure, {name: line("black") for name in names(number, letters)}, {"global model": line("red")})
            assert_in_its_place(figure)
    assert figure.get_figheight() <= 1.9 / (1 - FIFTH) + 1e-6
    assert len(legend_of(figure)) == number + 1


# The first has a colour bar in place of a legend, and the second is of any of the kinds.
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"cka", "chart"}))
@pytest.mark.parametrize(("number", "letters"), [(3, 60), (12, 5)])
def test_the_legend_of_every_kind_takes_at_most_a_fifth(whole, draw, kind, number, letters):
    number = min(number, 5) if kind in PANELS else number
    runs = [but(whole, train__momentum=place / 20) for place in range(number)]
    options = {"labels": names(number, letters)}
    if kind == "ablation":
        runs = [but(run, train__lr=lr, seed=seed) for run in runs for lr, seed in ((0.1, 0), (1.0, 0), (1.0, 1))]
        options["over"] = "train.lr"
    elif kind not in PANELS:
        runs += [but(run, seed=1) for run in runs]
    if kind == "losses":
        options["band"] = "std"  # so that two seeds are one line
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = draw(kind, *runs, **options)
    if kind == "cost" and not figure.legends and not figure.axes[0].get_legend():
        return
    assert_in_its_place(figure)


def only_a_legend(path, height, lines, others):
    with drawing(path, height) as figure:
        figure.subplots().plot([1, 2])
        draw_legend(figure, lines, others)
    return figure


def test_names_without_room_become_numbers_and_a_warning_says_which(tmp_path):
    long = names(12, 60)
    lines, others = {name: line("black") for name in long}, {"range over seeds": line("grey")}
    with pytest.warns(UserWarning, match="numbers the lines; give shorter names with --label") as said:
        figure = only_a_legend(tmp_path / "legend.png", 1.9, lines, others)
    assert legend_of(figure) == [*map(str, range(1, 13)), "range over seeds"]
    assert all(f'{number} is "{name}"' in str(said[0].message) for number, name in enumerate(long, 1))


def test_a_figure_grows_if_there_are_too_many_numbers_for_it(tmp_path):
    lines = {f"the method number {place}": line("black") for place in range(60)}
    with pytest.warns(UserWarning, match="numbers the lines"):
        figure = only_a_legend(tmp_path / "legend.png", 1.0, lines, {})
    assert_in_its_place(figure)
    assert figure.get_figheight() > 1.25


def test_letters_shrink_before_names_are_given_up(tmp_path):
    sizes = []
    for letters in (8, 22, 30):
        with drawing(tmp_path / "legend.png", 1.9) as figure:
            figure.subplots(1, 2)
            draw_legend(figure, {name: line("black") for name in names(6, letters)})
        sizes.append(legend_in(figure).get_texts()[0].get_fontsize())
        assert legend_of(figure) == names(6, letters)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == FONTS[0] > sizes[-1]


def test_a_few_names_lie_inside_the_axes_where_nothing_is(draw):
    rising = made([{"accuracy": 0.1 * round} for round in range(1, 9)])
    figure = draw("accuracy", rising)
    assert not figure.legends
    assert_in_its_place(figure)
    assert figure.get_figheight() == pytest.approx(1.9)


def test_axes_that_are_full_have_the_legend_below(tmp_path):
    with drawing(tmp_path / "legend.png", 1.9) as figure:
        axes = figure.subplots()
        axes.fill_between([0, 1], [0, 0], [1, 1])
        draw_legend(figure, {"fedavg": line("black")})
        assert_in_its_place(figure)
    assert len(figure.legends) == 1


def test_a_few_names_in_several_panels_lie_below(draw):
    rows = [{"clients": [{"client": 0, "epochs": [{"criterion": 1.0, "fedprox": 0.5}]}]}] * 3
    figure = draw("losses", made(rows), over="rounds")
    assert len(figure.legends) == 1
    assert_in_its_place(figure)
