"""The commands `fullrank theory NAME`."""

import sys

import pytest

from commands import fullrank


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("theorem", ["--examples", 2], "main text's form differs"),
        ("growth", ["--classes", 4], "two frequent classes: effective rank"),
        ("disjoint", [], "15.0° off; 45.0°"),
        ("bound", [], "after one round"),
        ("alignment", ["--data", "digits"], "epoch 9"),
    ],
)
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_one_command_a_figure(name, more, says, suffix, tmp_path, capsys):
    target = tmp_path / "deep" / f"{name}.{suffix}"
    status, out, _ = fullrank("theory", name, "--out", target, *more, capsys=capsys)
    assert status == 0
    assert says in out
    assert target.read_bytes().startswith({"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[suffix])


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        ("theorem", "--examples", 0, "must be at least 1"),
        ("theorem", "--examples", -3, "must be at least 1"),
        ("growth", "--classes", 0, "must be at least 2"),
        ("growth", "--classes", 17, "must be at most 16"),
        ("growth", "--seed", -1, "must be at least 0"),
        ("alignment", "--lr", 0, "must be a number above 0"),
        ("alignment", "--lr", "nan", "must be a number above 0"),
        ("bound", "--p", 2, "must be at most 1"),
        ("bound", "--p", "nan", "must be at least 0"),
        ("bound", "--rounds", 0, "must be at least 1"),
        ("toy-sphere", "--seed", -1, "must be at least 0"),
    ],
)
def test_a_number_out_of_range_is_rejected(name, option, value, says, tmp_path, capsys):
    target = tmp_path / "figure.png"
    status, _, err = fullrank("theory", name, "--out", target, option, value, capsys=capsys)
    assert (status, err) == (2, f"fullrank: {option} {value}: {says}\n")
    assert not target.exists()


@pytest.mark.parametrize("name", ["theorem", "growth", "alignment", "disjoint", "bound", "toy-sphere", "unit-sphere"])
def test_a_file_that_cannot_be_written_is_rejected_at_once(name, tmp_path, capsys, monkeypatch):
    for study in ("theorem.aligned_example", "growing.growth", "aligning.alignment", "disjoint.disjoint_example"):
        monkeypatch.setattr(f"fullrank.theory.{study}", lambda *_, **__: pytest.fail("computed in vain"))
    for study in ("bound.fedmr_bound", "toy_study.toy_sphere", "sphere_study.unit_sphere"):
        monkeypatch.setattr(f"fullrank.theory.{study}", lambda *_, **__: pytest.fail("computed in vain"))
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "x.png"
    status, _, err = fullrank("theory", name, "--out", target, capsys=capsys)
    assert (status, err) == (2, f'fullrank: "{target}" cannot be written: Not a directory\n')


def test_the_bound_is_printed_as_it_is_drawn(tmp_path, capsys, monkeypatch):
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    status, out, _ = fullrank("theory", "bound", "--out", tmp_path / "b.png", "--p", 0.4, "--rounds", 3, capsys=capsys)
    assert status == 0
    *printed, explained, _ = out.splitlines()
    curves = [curve for curve in figures[0].axes[0].lines if not curve.get_label().startswith("_")]
    assert len(printed) == len(curves) == 4
    for curve, said in zip(curves, printed, strict=True):
        p_hat, delta = (float(part.split("=")[1]) for part in said.split(":")[0].split(",")[1:])
        assert rf"$\hat p$ = {p_hat:g}" in curve.get_label()
        assert (rf"$\delta$ = {delta:g}" in curve.get_label()) == (delta > 0)
        _, first, _, last = curve.get_ydata()
        assert f"{first:.3g} after one round, {last:.3g} after 3" in said
    assert "δ: margin" in explained


def test_figures_without_matplotlib_or_with_another_ending(tmp_path, capsys, monkeypatch):
    status, _, error = fullrank("theory", "bound", "--out", tmp_path / "bound.gif", capsys=capsys)
    assert status == 2
    assert "must end in .pdf, .png or .svg" in error
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, error = fullrank("theory", "bound", "--out", tmp_path / "bound.png", capsys=capsys)
    assert status == 2
    assert "pip install 'fullrank[report]'" in error
    assert len(error.splitlines()) == 1
