"""`fullrank figure`: every kind writes a valid file, names lines after what differs, refuses in one sentence."""

from __future__ import annotations

import builtins
import math

import pytest

import fullrank
from commands import fullrank as command
from fullrank.errors import Refusal
from fullrank.report.figures import KINDS, draw_figure
from fullrank.report.labels import labelled, legend_names, names_of
from fullrank.report.losses import decorrelation_floor
from fullrank.report.style import COLUMN, draw_legend, drawing, legend_height, line

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
        "alone": {"probe.clients": 1, "probe.every": 2},
        "own": {"method.name": "fedproto", "data.holdout": 0.2, "evaluate.personal": "every"},
        "sphere": {"method.name": "fednh"},
    }
    for name, table in changes.items():
        fullrank.run({**SETTINGS, **table}, folder / name)
    return folder


def refused(*arguments, capsys):
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
    status, out, err = command("figure", kind, *(runs / name for name in names), "--out", target, capsys=capsys)
    assert (status, err) == (0, "")
    assert out == f"drawn in {target}\n"
    assert is_picture(target)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_figure_is_the_same_file(tmp_path, runs, kind):
    for name in ("one.pdf", "two.pdf"):
        draw_figure(kind, [runs / "plain"], tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_without_a_name_a_figure_lies_in_the_first_run(runs, capsys):
    status, _, _ = command("figure", "accuracy", runs / "even", runs / "plain", capsys=capsys)
    assert status == 0
    assert is_picture(runs / "even" / "figures" / "accuracy.pdf")
    fullrank.run({**SETTINGS, "data.alpha": math.inf}, runs / "even")  # is still a run


@pytest.mark.parametrize(
    ("kind", "names", "options"),
    [
        ("spectrum", ["plain"], ["--rounds", "1,2"]),
        ("spectrum", ["plain", "even", "again"], ["--rounds", "1", "--top", "5"]),
        ("spectrum", ["plain"], ["--clients", "0"]),
        ("spectrum", ["own"], []),
        ("gap", ["alone"], []),
        ("gap", ["plain", "alone"], []),
        ("collapse", ["own", "sphere"], []),
        ("collapse", ["alone"], ["--clients", "0"]),
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
    assert names_of(loaded(runs, "even", "decorrelated")) == ["fedavg, α = ∞", "fedavg+feddecorr, α = 0.1"]
    assert names_of(loaded(runs, "plain", "unprobed")) == ["plain", "unprobed"]
    assert names_of(loaded(runs, "plain", "wide")) == ["plain", "wide"]  # too much to be said in a legend


def test_runs_that_differ_in_their_seeds_share_a_colour(runs):
    series = labelled(loaded(runs, "plain", "again", "decorrelated"))
    assert [each.label for each in series] == ["fedavg", "fedavg", "fedavg+feddecorr"]
    assert series[0].colour == series[1].colour != series[2].colour
    assert legend_names(series) == {"fedavg": "fedavg (2 seeds)", "fedavg+feddecorr": "fedavg+feddecorr"}


@pytest.mark.parametrize("letters", [3, 12, 20, 40])
@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_legend_stays_inside_its_figure(tmp_path, letters, number):
    entries = {("fedavg+α=0" * 5)[: letters - 1] + str(k): line("black") for k in range(number)}
    with drawing(tmp_path / "legend.png", 1.5 + legend_height(list(entries))) as figure:
        axes = figure.subplots()
        draw_legend(figure, entries)
        figure.draw_without_rendering()
        box, body = figure.legends[0].get_window_extent(), axes.get_window_extent()
        assert box.x1 <= COLUMN * figure.dpi + 1
        assert box.y0 >= body.y1 - 1
        assert body.height > figure.dpi


def test_the_floor_of_the_decorrelation_loss():
    assert decorrelation_floor(64, 1280) == pytest.approx(0.936657, abs=1e-6)
    assert decorrelation_floor(64, 256) == pytest.approx(0.745037, abs=1e-6)
    assert decorrelation_floor(64, 63) is None
    assert decorrelation_floor(1, 8) is None


# Refusals


def test_an_unknown_kind_is_refused_with_a_suggestion(runs, capsys):
    assert 'did you mean "spectrum"?' in refused("spectrums", runs / "plain", capsys=capsys)


@pytest.mark.parametrize("kind", ["spectrum", "gap", "collapse", "classifier", "cka"])
def test_a_run_without_probes_is_told_how_to_get_them(tmp_path, runs, capsys, kind):
    err = refused(kind, runs / "unprobed", "--out", tmp_path / "figure.pdf", capsys=capsys)
    assert "has no probes" in err
    assert "--set probe.every=1" in err
    assert not (tmp_path / "figure.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["spectrum", "plain", "--out", "figure.svg"], ["figure.svg", ".pdf or .png"]),
        (["spectrum", "plain", "--rounds", "7"], ["no probe of round 7", "it has 1, 2"]),
        (["spectrum", "plain", "even", "--rounds", "1,2"], ["several rounds"]),
        (["spectrum", "plain", "--clients", "77"], ["does not show client 77"]),
        (["spectrum", "plain", "--rounds", "x"], ["--rounds x", "1,5,10"]),
        (["spectrum", "plain", "--top", "0"], ["--top 0"]),
        (["spectrum", "plain", "--term", "criterion"], ['"spectrum" has no option term', "rounds, clients, top"]),
        (["accuracy", "plain", "--rounds", "1"], ['"accuracy" has no option rounds', "it has none"]),
        (["losses", "decorrelated", "--term", "feddecor"], ['did you mean "feddecorr"?']),
        (["losses", "plain", "--rounds", "9"], ["no round 9", "1 to 2"]),
        (["cka", "alone"], ["too few clients", "probe.clients = 2"]),
        (["classifier", "sphere"], ["not linear"]),
        (["classifier", "plain", "--rounds", "1,2"], ["one round, not 2"]),
        (["gap", "own"], ["has no gap"]),
        (["cka", *["plain"] * 6], ["room for 5"]),
        (["spectrum", "nowhere"], ["not a run directory"]),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(tmp_path, runs, capsys, arguments, words):
    kind, *rest = arguments
    names = [name for name in rest[: rest.index("--out")] if "--" not in name] if "--out" in rest else rest
    known = {path.name for path in runs.iterdir()} | {"nowhere"}
    given = [runs / word if word in known else tmp_path / word if word.endswith(".svg") else word for word in rest]
    assert names
    if "--out" not in rest:
        given += ["--out", tmp_path / "figure.pdf"]
    err = refused(kind, *given, capsys=capsys)
    for word in words:
        assert word in err
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, runs, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for kind in KINDS:
        with pytest.raises(Refusal, match=r"needs matplotlib: pip install 'fullrank\[report\]'"):
            draw_figure(kind, [runs / "decorrelated"], tmp_path / "figure.pdf")
