"""Means of CKA by layer and of clients' classifiers: one line for all seeds of a method, with the probes' values."""

import numpy as np
import pytest

from fullrank.errors import InputError
from fullrank.report.figures import draw_figure
from pictured import drawing_without_files, legend_of, made


def symmetric(*above):
    """A table of three clients with these values above the diagonal."""
    table = np.eye(3, dtype=np.float32)
    for (k, m), value in zip(((0, 1), (0, 2), (1, 2)), above, strict=True):
        table[k, m] = table[m, k] = value
    return table


def probed(seed, shift, method="fedavg", layers=("backbone.0",)):
    """A run with one probe of three clients; `shift` is added to all similarities."""
    tables = {layer: symmetric(0.1 + shift, 0.2 + shift, 0.6 + shift) for layer in layers}
    tables |= {"z": symmetric(0.3, 0.3, 0.3 + 3 * shift), "classifier": symmetric(shift, shift, shift)}
    norms = ([1.0, 2.0], [3.0, 4.0], [2.0, 6.0 + 3 * shift])
    probe = {
        "round": 1,
        "clients": [0, 1, 2],
        "locals": [{"client": k, "classifier_norms": np.array(own)} for k, own in enumerate(norms)],
        "cka": tables,
        "classifier_cosines": symmetric(0.5, 0.5, 0.5),
        "classifier_cosine": 0.5 + shift,
    }
    return made([{"accuracy": 0.5}], method, seed, probes=[probe])


@pytest.fixture
def draw(monkeypatch, tmp_path):
    return drawing_without_files(monkeypatch, tmp_path)


def test_cka_by_layer_is_the_mean_over_pairs_and_seeds(draw):
    figure = draw("cka", probed(0, 0.0), probed(1, 0.1), over="layers")
    (axes,) = figure.axes
    (line,) = axes.lines
    # means over pairs: 0.3 and 0.4; 0.3 and 0.4; 0 and 0.1
    assert line.get_ydata() == pytest.approx([0.35, 0.35, 0.05])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["layer 0", "features z", "classifier"]
    ends = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((0.0, 0.4))
    assert legend_of(figure) == ["fedavg (2 seeds)", "range over seeds"]


def test_layers_of_different_networks_stand_before_the_representation(draw):
    runs = [probed(0, 0.0, layers=("backbone.0", "backbone.1")), probed(0, 0.0, "fedprox", layers=("stem",))]
    figure = draw("cka", *runs, over="layers")
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert names == ["layer 0", "layer 1", "stem", "features z", "classifier"]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 1, 3, 4], [2, 3, 4]]


@pytest.mark.parametrize("kind", ["cka", "classifier"])
def test_a_band_or_many_runs_average(draw, kind):
    separate = [probed(seed, 0.0, f"fed{name}") for seed, name in enumerate(("avg", "prox"))]
    assert len(draw(kind, *separate).axes) > 2
    averaged = draw(kind, *separate, band="std")
    assert [text for text in legend_of(averaged) if "seeds" not in text] == ["fedavg", "fedprox"]
    many = draw(kind, *[probed(seed, 0.01 * seed) for seed in range(6)])
    assert legend_of(many) == ["fedavg (6 seeds)", "range over seeds"]


def test_norms_and_cosines_of_classifiers_are_means_over_clients_and_seeds(draw):
    figure = draw("classifier", probed(0, 0.0), probed(1, 0.1), band="none")
    left, right = figure.axes
    # over clients (1 + 3 + 2) / 3 and (2 + 4 + 6) / 3 of one seed, the latter 4.1 of the other
    assert left.lines[0].get_ydata() == pytest.approx([2.0, 4.05])
    assert right.lines[0].get_ydata() == pytest.approx([0.55])


def test_what_cannot_be_averaged_is_rejected(tmp_path):
    with pytest.raises(InputError, match='CKA is drawn over "clients" or "layers"'):
        draw_figure("cka", [probed(0, 0.0)], tmp_path / "x.png", over="rounds")
    with pytest.raises(InputError, match="has room for 5, not for 6"):
        draw_figure("tsne", [probed(seed, 0.0) for seed in range(6)], tmp_path / "x.png")
