"""`fullrank figure`: every kind writes a valid file and draws the runs' numbers, lines are named after what differs,
and what cannot be drawn is rejected in one sentence."""

from __future__ import annotations

import builtins
import inspect
import math
import shutil

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

import fullrank
from commands import fullrank as command
from fullrank.cli.figure import figure_command
from fullrank.collapse import classifier_map
from fullrank.collapse.spectra import RELATIVE_ZERO
from fullrank.errors import InputError
from fullrank.report.figures import KINDS, draw_figure
from fullrank.report.heatmaps import NARROWEST
from fullrank.report.labels import grouped, names_of, titles_of
from fullrank.report.losses import decorrelation_floor
from fullrank.report.partition import draw_partition
from fullrank.report.seeds import over_seeds
from fullrank.report.spectra import draw_one_spectrum
from fullrank.report.style import COLUMN, LINE_COLOURS
from pictured import drawing_without_files, legend_in, legend_of

SETTINGS = {
    "data.clients": 3,
    "model.name": "mlp",
    "model.width": 16,
    "train.rounds": 2,
    "train.epochs": 2,
    "train.lr": 0.1,
    "probe.every": 1,
    "engine.name": "serial",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small real runs by name."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {
        "plain": {},
        "decorrelated": {"method.name": "fedavg+feddecorr"},
        "even": {"data.alpha": math.inf},
        "again": {"seed": 1},
        "wide": {"model.width": 24, "train.batch_size": 16, "train.lr": 0.05, "data.clients": 4, "train.momentum": 0.5},
        "unprobed": {"probe.every": 0},
        "single": {"probe.clients": 1, "probe.every": 2},
        "own": {"method.name": "fedproto", "data.holdout": 0.2, "evaluate.personal": "every"},
        "sphere": {"method.name": "fednh"},
        "decorrelated-again": {"method.name": "fedavg+feddecorr", "seed": 1},
        "own-again": {"method.name": "fedproto", "data.holdout": 0.2, "evaluate.personal": "every", "seed": 1},
        "single-again": {"probe.clients": 1, "probe.every": 2, "seed": 1},
        "near": {"method.name": "fedprox", "method.fedprox.mu": 0.1},
        "nearer": {"method.name": "fedprox", "method.fedprox.mu": 1.0, "seed": 1},
        "crowd": {"data.clients": 6, "probe.clients": 6},
        "short": {"train.epochs": 1, "probe.every": 0},
        "short-crowd": {"train.epochs": 1, "probe.every": 0, "data.clients": 9},
        "near-decorrelated": {"method.name": "fedprox+feddecorr", "probe.every": 0},
    }
    for name, table in changes.items():
        fullrank.run({**SETTINGS, **table}, folder / name)
    return folder


def rejected(*arguments, capsys):
    status, _, err = command("figure", *arguments, capsys=capsys)
    assert status == 2
    assert err.count("\n") == 1
    return err


def is_picture(path):
    content = path.read_bytes()
    return len(content) > 2000 and content.startswith(b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["pdf", "png"])
def test_every_kind_writes_a_valid_file(tmp_path, runs, capsys, kind, ending):
    target = tmp_path / "new" / f"{kind}.{ending}"
    names = ["plain", "decorrelated"] if ending == "pdf" else ["decorrelated"]
    names += ["even"] if kind == "ablation" else []
    status, out, err = command("figure", kind, *(runs / name for name in names), "--out", target, capsys=capsys)
    assert (status, err) == (0, "")
    assert out == f"drawn in {target}\n"
    assert is_picture(target)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_figure_is_the_same_file(tmp_path, runs, kind):
    for name in ("one.pdf", "two.pdf"):
        draw_figure(kind, [runs / "plain", *([runs / "even"] if kind == "ablation" else [])], tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_without_a_name_a_figure_lies_in_the_first_run(runs, capsys):
    status, _, _ = command("figure", "accuracy", runs / "even", runs / "plain", capsys=capsys)
    assert status == 0
    assert is_picture(runs / "even" / "figures" / "accuracy.pdf")
    fullrank.run({**SETTINGS, "data.alpha": math.inf}, runs / "even")  # is still a run


def test_without_a_name_a_figure_of_a_folder_of_runs_lies_in_the_folder(runs, capsys):
    status, out, _ = command("figure", "accuracy", runs, capsys=capsys)
    assert status == 0
    assert is_picture(runs / "figures" / "accuracy.pdf")
    assert f"drawn in {runs / 'figures' / 'accuracy.pdf'}" in out


@pytest.mark.parametrize(
    ("kind", "names", "options"),
    [
        ("spectrum", ["plain"], ["--rounds", "1,2"]),
        ("spectrum", ["plain", "even", "again"], ["--rounds", "1", "--top", "5"]),
        ("spectrum", ["plain"], ["--clients", "0"]),
        ("spectrum", ["own"], []),
        ("gap", ["single"], []),
        ("gap", ["plain", "single"], []),
        ("collapse", ["own", "sphere"], []),
        ("collapse", ["single"], ["--clients", "0"]),
        ("classifier", ["plain"], ["--rounds", "1"]),
        ("cka", ["plain", "even", "wide"], []),
        ("losses", ["decorrelated"], ["--term", "criterion", "--rounds", "1,2", "--clients", "0,2"]),
        ("losses", ["plain", "wide"], []),
        ("accuracy", ["own"], []),
        ("accuracy", ["unprobed", "plain"], []),
    ],
)
def test_options_and_odd_runs(tmp_path, runs, capsys, kind, names, options):
    shown = _first_client(runs / names[-1]) if "--clients" in options and kind != "losses" else None
    options = [str(shown) if shown is not None and option == "0" else option for option in options]
    arguments = [kind, *(runs / name for name in names), "--out", tmp_path / "figure.png", *options]
    status, _, err = command("figure", *arguments, capsys=capsys)
    assert (status, err) == (0, "")
    assert is_picture(tmp_path / "figure.png")


def _first_client(path):
    return fullrank.load_run(path).probes[-1]["clients"][0]


def test_a_folder_stands_for_its_runs(tmp_path, capsys):
    values = {"data.clients": 2, "model.name": "mlp", "train.rounds": 1, "probe.every": 1}
    fullrank.compare(values, ["fedavg", "fedprox"], seeds=[0, 1], out=tmp_path / "all", jobs=1)
    arguments = ("spectrum", tmp_path / "all", "--out", tmp_path / "figure.png")
    assert command("figure", *arguments, capsys=capsys)[0] == 0
    assert is_picture(tmp_path / "figure.png")


# Names


def loaded(runs, *names):
    return [fullrank.load_run(runs / name) for name in names]


def test_lines_are_named_after_what_differs(runs):
    assert names_of(loaded(runs, "plain")) == ["fedavg"]
    assert names_of(loaded(runs, "plain", "decorrelated")) == ["fedavg", "fedavg+feddecorr"]
    assert names_of(loaded(runs, "plain", "even")) == ["α = 0.1", "α = ∞"]
    assert names_of(loaded(runs, "plain", "again")) == ["seed 0", "seed 1"]
    assert names_of(loaded(runs, "plain", "near", "nearer")) == ["fedavg", "fedprox, mu = 0.1", "fedprox, mu = 1"]
    assert names_of(loaded(runs, "even", "decorrelated")) == ["fedavg, α = ∞", "fedavg+feddecorr, α = 0.1"]
    assert names_of(loaded(runs, "plain", "unprobed")) == ["plain", "unprobed"]
    assert names_of(loaded(runs, "plain", "wide")) == ["plain", "wide"]  # too much to be said in a legend


def test_runs_that_differ_in_their_seeds_share_a_colour(runs):
    some = loaded(runs, "plain", "decorrelated", "again")
    groups = grouped(some)
    assert [group.runs for group in groups] == [(some[0], some[2]), (some[1],)]
    assert groups[0].colour != groups[1].colour
    assert [group.name for group in groups] == ["fedavg (2 seeds)", "fedavg+feddecorr"]
    assert [group.name for group in grouped(some[::2])] == ["fedavg (2 seeds)"]


def test_a_run_that_is_given_twice_is_not_two_seeds(runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "plain")
    elsewhere = fullrank.load_run(tmp_path / "plain")
    names = names_of([*loaded(runs, "plain"), elsewhere])
    assert names == [f"{runs.name}/plain", f"{tmp_path.name}/plain"]
    assert len(set(names_of(loaded(runs, "plain", "even", "plain")))) == 3
    assert len(grouped(loaded(runs, "plain", "plain"))) == 2


def test_runs_of_one_method_that_differ_in_more_than_the_seed_are_not_seeds(runs):
    some = loaded(runs, "plain", "near", "nearer")  # the first has no mu, by which the others are named
    assert [group.label for group in grouped(some)] == ["fedavg", "fedprox, mu = 0.1", "fedprox, mu = 1"]


def test_panels_of_runs_that_share_a_name_are_told_apart_by_the_seed(runs):
    assert titles_of(loaded(runs, "plain", "again", "even")) == ["α = 0.1, seed 0", "α = 0.1, seed 1", "α = ∞"]
    assert titles_of(loaded(runs, "plain", "again")) == ["seed 0", "seed 1"]


def test_the_floor_of_the_decorrelation_loss():
    assert decorrelation_floor(64, 1280) == pytest.approx(0.936657, abs=1e-6)
    assert decorrelation_floor(64, 256) == pytest.approx(0.745037, abs=1e-6)
    assert decorrelation_floor(64, 63) is None
    assert decorrelation_floor(1, 8) is None


# What is drawn


@pytest.fixture
def draw(runs, tmp_path, monkeypatch):
    """Draws a figure of runs, given by name or loaded, and hands over what would be written."""
    drawn = drawing_without_files(monkeypatch, tmp_path)
    return lambda kind, *some, **options: drawn(
        kind, *(runs / each if isinstance(each, str) else each for each in some), **options
    )


def full_lines(axes):
    """By colour the (n, 2) points of full lines, without the one that marks zero."""
    lines = [each for each in axes.lines if each.get_linestyle() == "-" and each.get_zorder() > 0]
    assert len({each.get_color() for each in lines}) == len(lines)
    return {each.get_color(): each.get_xydata() for each in lines}


def dashed_lines(axes):
    return [each for each in axes.lines if each.get_linestyle() == "--"]


def bands(axes):
    """By place the least and the greatest of each band that can be seen, in the order drawn."""
    found = []
    assert all(isinstance(band, PolyCollection) for band in axes.collections)
    for band in [band for band in axes.collections if band.get_paths()]:
        points = np.concatenate([path.vertices for path in band.get_paths()])
        places = sorted({*points[:, 0]})
        found.append({place: (min(own := points[points[:, 0] == place, 1]), max(own)) for place in places})
    return found


def assert_spread(line, band, values):
    """The line is the mean of values (runs, rounds), the band goes from their least to their greatest."""
    values = np.array(values)
    np.testing.assert_allclose(line[:, 1], values.mean(0))
    assert list(band) == line[:, 0].tolist()
    np.testing.assert_allclose(list(band.values()), np.stack([values.min(0), values.max(0)], 1))
    assert (values.max(0) > values.min(0)).any()


def accuracies(run):
    return [100 * row["accuracy"] for row in run.metrics]


def gaps(run):
    return [np.mean([local["gap"] for local in probe["locals"]]) for probe in run.probes]


def test_seeds_are_a_mean_and_a_band_of_accuracy(runs, draw):
    plain, again, other = loaded(runs, "plain", "again", "decorrelated")
    figure = draw("accuracy", plain, other, again)
    lines = full_lines(figure.axes[0])
    assert list(lines) == list(LINE_COLOURS[:2])
    (band,) = bands(figure.axes[0])
    assert_spread(lines[LINE_COLOURS[0]], band, [accuracies(plain), accuracies(again)])
    np.testing.assert_allclose(lines[LINE_COLOURS[1]], [[1, accuracies(other)[0]], [2, accuracies(other)[1]]])
    assert legend_of(figure) == ["fedavg (2 seeds)", "fedavg+feddecorr", "range over seeds"]


def test_a_band_has_the_colour_of_its_line_and_lets_others_through(draw):
    axes = draw("accuracy", "plain", "decorrelated", "again", "decorrelated-again").axes[0]
    for band, colour in zip(axes.collections, LINE_COLOURS, strict=False):
        *rgb, opacity = band.get_facecolor()[0]
        assert tuple(rgb) == pytest.approx([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        assert opacity < 0.5
        assert band.get_zorder() < min(line.get_zorder() for line in axes.lines)
    assert len(axes.collections) == 2


@pytest.mark.parametrize("kind", ["accuracy", "gap", "collapse", "spectrum"])
def test_without_several_seeds_there_is_no_band(draw, kind):
    figure = draw(kind, "plain", "decorrelated")
    assert not any(axes.collections for axes in figure.axes)
    assert "range over seeds" not in legend_of(figure)


def test_a_seed_that_is_not_done_leaves_the_rounds_that_all_have(runs, draw):
    plain, again = loaded(runs, "plain", "again")
    begun = fullrank.Run(again.experiment, again.metrics[:1], probes=again.probes[:1])
    axes = draw("accuracy", plain, begun).axes[0]
    line = full_lines(axes)[LINE_COLOURS[0]]
    np.testing.assert_allclose(line, [[1, (accuracies(plain)[0] + accuracies(again)[0]) / 2]])
    (post,) = axes.collections
    assert isinstance(post, LineCollection)  # a band over one round would not be seen
    ends = sorted([accuracies(plain)[0], accuracies(again)[0]])
    np.testing.assert_allclose(post.get_segments()[0], [[1, ends[0]], [1, ends[1]]])
    spectrum = full_lines(draw("spectrum", plain, begun).axes[0])[LINE_COLOURS[0]]
    both = [np.log(run.probes[0]["global"]["spectrum"][0].astype(float)) for run in (plain, again)]
    assert spectrum[0, 1] == pytest.approx(np.mean(both))


@pytest.mark.parametrize("kind", ["accuracy", "gap", "collapse", "spectrum"])
def test_seeds_without_a_round_in_common_are_rejected(runs, draw, kind):
    plain, again = loaded(runs, "plain", "again")
    first = fullrank.Run(plain.experiment, plain.metrics[:1], probes=plain.probes[:1])
    second = fullrank.Run(again.experiment, again.metrics[1:], probes=again.probes[1:])
    with pytest.raises(InputError, match='the 2 runs of "fedavg" have no round in common'):
        draw(kind, first, second)


def test_the_gap_of_up_to_two_runs_shows_each_client(runs, draw):
    plain, other = loaded(runs, "plain", "decorrelated")
    figure = draw("gap", plain, other)
    axes = figure.axes[0]
    assert len(dashed_lines(axes)) == len(plain.probes[0]["clients"]) + len(other.probes[0]["clients"])
    assert "each client" in legend_of(figure)
    first = [[probe["locals"][0]["gap"] for probe in run.probes] for run in (plain, other)]
    drawn = [each.get_ydata() for each in dashed_lines(axes)]
    assert all(any(np.allclose(values, each) for each in drawn) for values in first)
    for run, points in zip((plain, other), full_lines(axes).values(), strict=True):
        np.testing.assert_allclose(points[:, 1], gaps(run))


def test_the_gap_of_more_runs_shows_means_only(runs, draw):
    some = loaded(runs, "plain", "decorrelated", "even")
    figure = draw("gap", *some)
    assert not dashed_lines(figure.axes[0])
    assert legend_of(figure)[3:] == ["mean over clients"]
    for run, points in zip(some, full_lines(figure.axes[0]).values(), strict=True):
        np.testing.assert_allclose(points[:, 1], gaps(run))


def test_seeds_are_a_mean_and_a_band_of_the_gap(runs, draw):
    plain, again, other = loaded(runs, "plain", "again", "decorrelated")
    figure = draw("gap", plain, again, other)
    (band,) = bands(figure.axes[0])
    assert_spread(full_lines(figure.axes[0])[LINE_COLOURS[0]], band, [gaps(plain), gaps(again)])
    assert not dashed_lines(figure.axes[0])
    assert legend_of(figure)[2:] == ["mean over clients", "range over seeds"]


def test_seeds_with_one_probe_each_share_a_place(runs, draw):
    single, again = loaded(runs, "single", "single-again")
    axes = draw("gap", single, again).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["fedavg\n(2 seeds)"]
    _, circles, bar = axes.lines
    assert circles.get_ydata().tolist() == [*gaps(single), *gaps(again)]
    assert bar.get_ydata()[0] == pytest.approx(np.mean([*gaps(single), *gaps(again)]))


def test_seeds_are_a_mean_and_a_band_of_neural_collapse(runs, draw):
    some = loaded(runs, "plain", "again")
    panels = draw("collapse", *some).axes
    for axes, name in zip(panels, ["nc1", "nc2", "nc3", "nc4"], strict=True):
        (band,) = bands(axes)
        values = [[probe["global"][name] for probe in run.probes] for run in some]
        assert_spread(full_lines(axes)[LINE_COLOURS[0]], band, values)
        own = [[np.mean([local[name] for local in probe["locals"]]) for probe in run.probes] for run in some]
        (dashed,) = dashed_lines(axes)
        np.testing.assert_allclose(dashed.get_ydata(), np.mean(own, 0))


def test_without_a_global_model_the_band_is_the_clients(runs, draw):
    some = loaded(runs, "own", "own-again")
    figure = draw("collapse", *some)
    (dashed,) = dashed_lines(figure.axes[1])
    (band,) = bands(figure.axes[1])
    own = [[np.mean([local["nc2"] for local in probe["locals"]]) for probe in run.probes] for run in some]
    assert_spread(dashed.get_xydata(), band, own)
    assert "global model" not in legend_of(figure)
    assert legend_of(draw("spectrum", *some)) == ["fedproto (2 seeds)", "clients' models"]


def test_seeds_are_a_mean_and_a_band_of_the_logarithms_of_a_spectrum(runs, draw):
    some = loaded(runs, "plain", "again")
    figure = draw("spectrum", *some, top=12)
    spectra = [run.probes[-1]["global"]["spectrum"][:12].astype(float) for run in some]
    lasting = min(int((values > RELATIVE_ZERO * values[0]).sum()) for values in spectra)
    line = full_lines(figure.axes[0])[LINE_COLOURS[0]]
    assert len(line) == lasting > 2
    (band,) = bands(figure.axes[0])
    assert_spread(line, band, [np.log(values[: len(line)]) for values in spectra])
    mean_gap = np.mean([gaps(run)[-1] for run in some])
    assert legend_of(figure)[0] == f"fedavg (2 seeds): R = {mean_gap:+.2f}".replace("-", "−")
    assert len(dashed_lines(figure.axes[0])) == sum(len(run.probes[-1]["clients"]) for run in some)


def test_places_that_not_all_seeds_have_are_left_out():
    spread = over_seeds([{1: 1.0, 2: 5.0, 4: 0.0}, {4: 2.0, 1: 4.0, 3: 9.0}])
    assert spread.places == [1, 4]
    assert (spread.mean.tolist(), spread.low.tolist(), spread.high.tolist()) == ([2.5, 1], [1, 0], [4, 2])
    assert over_seeds([{1: 1.0}, {2: 1.0}]).places == []
    undefined = over_seeds([{1: math.nan, 2: 1.0}, {1: 3.0, 2: 3.0}])
    np.testing.assert_array_equal(undefined.mean, [math.nan, 2])


def test_cosines_of_several_runs_have_one_range_of_colours(runs, draw):
    some = loaded(runs, "plain", "even")
    least = [float(run.probes[-1]["classifier_cosines"].min()) for run in some]
    assert least[0] != least[1]
    images = [image for axes in draw("classifier", *some).axes for image in axes.images]
    assert [image.get_clim() for image in images] == [(pytest.approx(min(*least, 1 - NARROWEST)), 1)] * 2
    for run, image in zip(some, images, strict=True):
        np.testing.assert_array_equal(image.get_array(), run.probes[-1]["classifier_cosines"])


def test_nearly_equal_cosines_have_nearly_equal_colours(runs, draw):
    (run,) = loaded(runs, "plain")
    close = np.array([[1, 0.9981], [0.9981, 1]], np.float32)
    probes = [{**probe, "classifier_cosines": close} for probe in run.probes]
    axes = draw("classifier", fullrank.Run(run.experiment, run.metrics, probes=probes)).axes[1]
    assert axes.images[0].get_clim() == (pytest.approx(1 - NARROWEST), 1)
    assert NARROWEST >= 0.1
    assert [text.get_text() for text in axes.texts] == ["1", ".998", ".998", "1"]


def test_cosines_without_numbers_have_a_scale(draw):
    assert len(draw("classifier", "crowd").axes) == 3
    assert len(draw("classifier", "plain").axes) == 2


def test_a_map_has_a_point_for_each_client_and_class(draw, runs):
    rows = fullrank.load_run(runs / "crowd").probes[-1]["classifier_directions"]
    points, classes = classifier_map(rows)
    (axes,) = draw("tsne", "crowd").axes
    drawn = axes.collections
    assert len(drawn) == 10
    for c, group in enumerate(drawn):
        np.testing.assert_allclose(group.get_offsets(), points[classes == c], rtol=1e-6)
        assert len(group.get_offsets()) == 6
    assert len({(tuple(g.get_facecolor()[0]), len(g.get_paths()[0].vertices)) for g in drawn}) == 10
    assert axes.get_title().endswith("6 clients")
    two = draw("tsne", "plain", "decorrelated").axes
    assert [panel.get_title() for panel in two] == ["fedavg\n2 clients", "fedavg+feddecorr\n2 clients"]


@pytest.mark.parametrize("top", [3, 12, 20])
def test_the_indices_of_a_spectrum_are_whole(draw, tmp_path, top):
    figure = draw("spectrum", "plain", top=top)
    assert_whole(figure.axes[0].get_xticks())


def test_the_indices_of_one_spectrum_are_whole(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    values = np.linspace(1, 0.1, 19, dtype=np.float32)
    draw_one_spectrum(values, {"effective_rank": 3.0, "significant": 19}, tmp_path / "f.png")
    assert_whole(figures[0].axes[0].get_xticks())


def assert_whole(ticks):
    assert len(ticks) > 1
    assert all(float(tick).is_integer() for tick in ticks)


def test_layers_that_are_called_by_a_number_are_called_layers(runs, draw):
    (run,) = loaded(runs, "plain")
    table = run.probes[-1]["cka"]["z"]
    probes = [{**probe, "cka": dict.fromkeys(["0", "backbone.4", "fc1", "z"], table)} for probe in run.probes]
    figure = draw("cka", fullrank.Run(run.experiment, run.metrics, probes=probes))
    assert [axes.get_title() for axes in figure.axes[:4]] == ["layer 0", "layer 4", "fc1", "features $z$"]


def test_rows_of_losses_show_one_term(runs, draw):
    plain, other = loaded(runs, "plain", "decorrelated")
    figure = draw("losses", plain, other)
    assert [axes.get_ylabel() for axes in figure.axes] == ["criterion", "", "criterion", ""]
    first = next(client for client in other.metrics[0]["clients"] if client["client"] == 0)
    values = [epoch["criterion"] for epoch in first["epochs"]]
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), values)
    both = draw("losses", "decorrelated", "near-decorrelated")
    assert [axes.get_ylabel() for axes in both.axes[::2]] == ["decorrelation loss"] * 2
    assert draw("losses", "decorrelated").axes[0].get_ylabel() == "decorrelation loss"


def test_the_legend_of_losses_shows_what_is_drawn(draw):
    for name, line_style in (("plain", "-"), ("short", "None"), ("short-crowd", "None")):
        figure = draw("losses", name)
        samples, drawn = legend_in(figure).get_lines(), figure.axes[0].lines
        assert {(each.get_linestyle(), each.get_marker()) for each in (*samples, *drawn)} == {(line_style, ".")}
    assert legend_of(figure) == ["one dot per client"]


@pytest.mark.parametrize("kind", ["classifier", "losses"])
def test_long_titles_do_not_run_into_others(draw, kind):
    figure = draw(kind, "decorrelated", "decorrelated-again", "even")
    figure.draw_without_rendering()
    titles = [title for axes in figure.axes for title in (axes.title, axes._left_title) if title.get_text().strip()]
    assert "fedavg+feddecorr, α = 0.1, seed 1" in [title.get_text().strip() for title in titles]
    boxes = [inked(title) for title in titles]
    for place, box in enumerate(boxes):
        assert box.x1 <= COLUMN * figure.dpi
        assert not any(box.overlaps(other) for other in boxes[:place])


def inked(title):
    """The box of a title without the empty line under it."""
    box = title.get_window_extent()
    if title.get_text().endswith("\n"):
        box.y0 = (box.y0 + box.y1) / 2
    return box


# InputErrors


def test_an_unknown_kind_is_rejected_with_a_suggestion(runs, capsys):
    assert 'did you mean "spectrum"?' in rejected("spectrums", runs / "plain", capsys=capsys)


@pytest.mark.parametrize("kind", ["spectrum", "gap", "collapse", "consistency", "classifier", "tsne", "cka"])
def test_a_run_without_probes_is_told_how_to_get_them(tmp_path, runs, capsys, kind):
    err = rejected(kind, runs / "unprobed", "--out", tmp_path / "figure.pdf", capsys=capsys)
    assert "has no probes" in err
    assert "--set probe.every=1" in err
    assert not (tmp_path / "figure.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["spectrum", "plain", "--out", "figure.gif"], ["figure.gif", ".pdf, .png or .svg"]),
        (["spectrum", "plain", "--rounds", "7"], ["no probe of round 7", "it has 1, 2"]),
        (["spectrum", "plain", "even", "--rounds", "1,2"], ["several rounds"]),
        (["spectrum", "plain", "--clients", "77"], ["does not show client 77"]),
        (["spectrum", "plain", "--rounds", "x"], ["--rounds x", "1,5,10"]),
        (["spectrum", "plain", "--top", "0"], ["--top 0"]),
        (["spectrum", "plain", "--term", "criterion"], ['"spectrum" has no option term', "rounds, clients, top"]),
        (["accuracy", "plain", "--rounds", "1"], ['"accuracy" has no option rounds', "it has labels, band"]),
        (["losses", "decorrelated", "--term", "feddecor"], ['did you mean "feddecorr"?']),
        (["losses", "plain", "--rounds", "9"], ["no round 9", "1 to 2"]),
        (["cka", "single"], ["too few clients", "probe.clients = 2"]),
        (["classifier", "sphere"], ["not linear"]),
        (["classifier", "plain", "--rounds", "1,2"], ["one round, not 2"]),
        (["tsne", "sphere"], ["not linear"]),
        (["tsne", "single"], ["too few clients", "probe.clients = 2"]),
        (["gap", "own"], ["has no gap"]),
        (["tsne", *["plain"] * 6], ["room for 5, not for 6", "give fewer runs"]),
        (
            ["accuracy", "plain", "even", "--label", "Ours"],
            ["has 2 to name, in this order:", '"α = 0.1", "α = ∞"; give one', "not 1"],
        ),
        (["accuracy", "plain", "--label", "$\\nothing$ $"], ["not a formula between dollar signs"]),
        (["accuracy", "plain", "even", "--label", "a", "--label", "a"], ["must be a different name"]),
        (["accuracy", "plain", "--band", "stdd"], ['there is no band "stdd"', 'did you mean "std"?']),
        (["course", "plain", "--measure", "los"], ['no measure "los" in its rounds; did you mean "loss"?']),
        (["course", "plain", "--over", "epochs"], ["--over epochs", '"rounds" or "steps"']),
        (["course", "plain", "--over", "steps"], ["no course of a personalisation", "data.holdout"]),
        (["course", "plain", "--over", "steps", "--measure", "loss"], ["personal or unseen"]),
        (["losses", "plain", "--over", "round"], ["--over round:", '"epochs" or "rounds"']),
        (["losses", "plain", "--over", "rounds", "--term", "fedprox"], ['no loss term "fedprox"', "criterion"]),
        (["ablation", "plain", "wide"], ["name the numeric key", "--over train.lr", "they differ in data.clients"]),
        (["ablation", "plain", "even", "--over", "data.alpa"], ["no run has this key", 'did you mean "data.alpha"?']),
        (["ablation", "plain", "even", "--over", "train.lr"], ["all runs have 0.1", "they differ in data.alpha"]),
        (["ablation", "plain", "even", "--over", "model.name"], ["--over model.name: this key is not a number"]),
        (["ablation", "plain", "even", "--measure", "acuracy"], ['no measure "acuracy"', 'did you mean "accuracy"?']),
        (["ablation", "plain", "even", "--value", "validated"], ['no value "validated" of "accuracy"']),
        (["ablation", "plain", "even", "--value", "lst"], ['no value "lst"', 'did you mean "last"?']),
        (["ablation", "plain", "even", "--measure", "personal"], ['no measure "personal": clients have no hold-out']),
        (["cost", "plain", "--over", "byte"], ['there is no cost "byte"; did you mean "bytes"?']),
        (["consistency", "single"], ["no prototypes of two clients", "probe.clients = 2"]),
        (["spectrum", "nowhere"], ["not a run directory"]),
    ],
)
def test_what_cannot_be_drawn_is_rejected_in_one_sentence(tmp_path, runs, capsys, arguments, words):
    kind, *rest = arguments
    names = [name for name in rest[: rest.index("--out")] if "--" not in name] if "--out" in rest else rest
    known = {path.name for path in runs.iterdir()} | {"nowhere"}
    given = [runs / word if word in known else tmp_path / word if word.endswith(".svg") else word for word in rest]
    assert names
    if "--out" not in rest:
        given += ["--out", tmp_path / "figure.pdf"]
    err = rejected(kind, *given, capsys=capsys)
    for word in words:
        assert word in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_written_is_rejected_before_drawing(tmp_path, runs, capsys, monkeypatch, kind):
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: pytest.fail("drawn in vain"))
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    for target, why in (("file/x.png", "Not a directory"), ("folder.png", "Is a directory")):
        err = rejected(kind, runs / "plain", "--out", tmp_path / target, capsys=capsys)
        assert err == f'fullrank: "{tmp_path / target}" cannot be written: {why}\n'


@pytest.mark.parametrize(
    "draw_one",
    [
        lambda path: draw_partition(np.ones((2, 2), dtype=np.int64), path),
        lambda path: draw_one_spectrum(np.ones(3, dtype=np.float32), {"effective_rank": 3.0, "significant": 3}, path),
    ],
)
def test_other_pictures_that_cannot_be_written_are_rejected(tmp_path, monkeypatch, draw_one):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r'file/deep/x.png" cannot be written: Not a directory'):
        draw_one(tmp_path / "file" / "deep" / "x.png")
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        draw_one(tmp_path / f"{'x' * 300}.png")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(InputError, match=r'x.png" cannot be written: No space left on device'):
        draw_one(tmp_path / "x.png")


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, runs, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for kind in KINDS:
        with pytest.raises(InputError, match=r"needs matplotlib: pip install 'fullrank\[report\]'"):
            draw_figure(kind, [runs / "decorrelated"], tmp_path / "figure.pdf")


def test_the_help_page_lists_the_options_of_each_kind(capsys):
    text = " ".join(figure_command.__doc__.split())
    for kind, draw_one in KINDS.items():
        options = [name for name in inspect.signature(draw_one).parameters if name not in ("runs", "path")]
        flags = ["--label" if name == "labels" else f"--{name}" for name in options]
        _, found = text.split(f"- {kind}: ", 1)
        listed = found.split(" - ")[0].rpartition("(")[2].partition(")")[0].split(", ")
        assert sorted(listed) == sorted(flags), kind
    assert command("figure", "--help", capsys=capsys)[0] == 0


def test_a_warning_about_the_legend_is_printed_once(runs, tmp_path, capsys):
    names = [word for k in range(6) for word in ("--label", f"{'a very long name of a line ' * 3}{k}")]
    some = [runs / name for name in ("plain", "decorrelated", "even", "sphere", "near", "own")]
    given = ("figure", "course", *some, "--measure", "seconds", *names, "--out", tmp_path / "f.png")
    status, _, err = command(*given, capsys=capsys)
    assert (status, err.count("fullrank: warning: the legend has no room")) == (0, 1)
    assert err.count("\n") == 1
