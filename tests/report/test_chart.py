"""Charts of reports as figures for papers: the values are those of the page."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import fullrank
from commands import fullrank as command
from fullrank.comparison.directories import runs_in
from fullrank.errors import InputError
from fullrank.report import chart as charts
from fullrank.report.chart import draw_chart
from fullrank.report.page.build import page_of
from fullrank.report.page.subject import subject_of

FEW = {
    "data.clients": 3,
    "data.share": 0.3,
    "data.holdout": 0.2,
    "model.name": "mlp",
    "train.rounds": 2,
    "train.epochs": 1,
    "evaluate.metrics": ["calibration"],
    "probe.every": 1,
    "probe.clients": 2,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    fullrank.compare(FEW, ["fedavg", "fedprox"], [0], folder, jobs=1)
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    found = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (found.append(self), original(self, *a, **k)))
    return found


def figures_of(folder):
    page = page_of(subject_of([folder]))
    return [block for part in page["sections"] for block in part["blocks"] if block["type"] == "figure"]


def test_every_chart_of_a_page_is_drawn_by_the_command_next_to_it(compared, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = figures_of(compared)
    own = [block for block in found if " figure chart " in block["command"]]
    assert {"confusion", "calibration", "drift", "clients-holdout", "partition"} <= {block["id"] for block in own}
    assert all(block["command"] for block in found)
    for block in own:
        status, out, _ = command(*block["command"].split()[1:], capsys=capsys)
        assert (status, out) == (0, f"drawn in {block['id']}.pdf\n")
        assert (tmp_path / f"{block['id']}.pdf").read_bytes().startswith(b"%PDF-")


def test_points_and_lines_have_the_values_of_the_page(compared, tmp_path, drawn):
    shown = {block["id"]: block["chart"] for block in figures_of(compared)}
    for name in ("calibration", "drift"):
        draw_chart(runs_in(compared), tmp_path / "figure.png", chart=name)
        lines = drawn[-1].axes[0].lines
        for series, line in zip(shown[name]["series"], lines, strict=False):
            np.testing.assert_array_equal(line.get_xdata(), series["x"])
            np.testing.assert_array_equal(line.get_ydata(), series["y"])
        assert drawn[-1].axes[0].get_xlabel() == shown[name]["x"]["label"]


def test_a_heat_map_has_a_panel_per_method_and_empty_cells_for_zeros(compared, tmp_path, drawn):
    chart = next(block["chart"] for block in figures_of(compared) if block["id"] == "confusion")
    draw_chart(runs_in(compared), tmp_path / "figure.png", chart="confusion")
    panels = [axes for axes in drawn[-1].axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["fedavg", "fedprox"]
    for axes, frame in zip(panels, chart["frames"], strict=True):
        given = np.array(frame["values"], dtype=float)
        np.testing.assert_array_equal(np.ma.filled(axes.images[0].get_array(), 0), given)


def test_one_round_is_shown_by_default_the_last(compared, tmp_path, drawn):
    for rounds, title in (((), "round 2"), ((1,), "round 1")):
        draw_chart(runs_in(compared), tmp_path / "figure.png", chart="spectra", rounds=rounds)
        assert [axes.get_title() for axes in drawn[-1].axes] == [title]


def test_a_figure_has_at_most_some_panels_and_says_so(compared, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(charts, "MOST_PANELS", 1)
    with pytest.warns(UserWarning, match="the figure has the first 1 of 2 panels"):
        draw_chart(runs_in(compared), tmp_path / "figure.png", chart="confusion")
    assert len([axes for axes in drawn[-1].axes if axes.images]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chart": "calibraton"}, 'no chart "calibraton"; .*calibration'),
        ({"chart": "spectra", "rounds": [7]}, "--rounds 7: the chart has the rounds 1, 2"),
        ({"chart": "spectra", "rounds": [1, 2]}, "a chart shows one round, not 2"),
        ({"chart": "loss", "rounds": [1]}, "shows all rounds at once"),
        ({"chart": "confusion", "rounds": [1]}, "not of single rounds"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(compared, tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        draw_chart(runs_in(compared), tmp_path / "figure.png", **options)
    assert not list(tmp_path.iterdir())
