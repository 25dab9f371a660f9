"""Run directories that were written before files had checksums and before jobs, sites and engines had their seams."""

import shutil
from pathlib import Path

import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.files import load_tensors

HERE = Path(__file__).parent / "earlier_format"


@pytest.fixture
def runs(tmp_path):
    return shutil.copytree(HERE, tmp_path / "runs")


def test_runs_are_compared_inspected_and_drawn(runs, tmp_path, capsys):
    one, two = runs / "fedavg", runs / "fedprox"
    for arguments in (
        ("compare", "--runs", one, two),
        ("inspect", one),
        ("probes", one),
        ("figure", "spectrum", one, two, "--out", tmp_path / "spectrum.png"),
        ("export", one, "--format", "safetensors", "--to", tmp_path / "out"),
    ):
        status, out, err = command(*arguments, capsys=capsys)
        assert status == 0, err
        assert out
    assert (tmp_path / "spectrum.png").stat().st_size > 1000


def test_the_model_is_the_one_that_was_saved(runs):
    run = fullrank.load_run(runs / "fedavg")
    saved = load_tensors(runs / "fedavg" / "model.safetensors")
    assert all(torch.equal(saved[name], entry) for name, entry in run.model().state_dict().items())
    assert run.summary()["accuracy"]["last"] == run.metrics[-1]["accuracy"]


def test_a_run_is_continued(runs, tmp_path):
    experiment = fullrank.load_run(runs / "fedavg").experiment
    longer = fullrank.run(experiment.but(train__rounds=3), runs / "fedavg")
    whole = fullrank.run(experiment.but(train__rounds=3), tmp_path / "whole")
    assert [row["accuracy"] for row in longer.metrics] == [row["accuracy"] for row in whole.metrics]
    one, two = longer.model().state_dict(), whole.model().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
