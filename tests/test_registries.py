"""Names of objects come from one registry each: an object that is added is found wherever names are listed."""

import sys

import numpy as np
import pytest
import torch

import fullrank as fr
from commands import fullrank
from fullrank.data.registry import PARTITIONS
from fullrank.metrics.registry import METRICS, Metric

OWN = """
import numpy as np
from dataclasses import dataclass
from fullrank.data import Operation


def stripes(labels, clients):
    return [np.arange(k, len(labels), clients) for k in range(clients)]


@dataclass(frozen=True)
class Dim(Operation):
    most: int = 8
    draws = 1

    @classmethod
    def parse(cls, arguments, dataset):
        return cls(int(arguments))

    def apply(self, x, u):
        return (x - (u[:, :1, None, None] * self.most).to(x.dtype)).clamp_min(0)
"""
KEYS = {
    "data.partition": "own_parts:stripes",
    "data.augment": ["own_parts:Dim:3"],
    "data.clients": 3,
    "model.name": "mlp",
    "train.rounds": 2,
    "train.epochs": 1,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_a_partition_and_an_augmentation_from_a_file_outside_the_package(folder, capsys):
    fr.run(KEYS, folder / "python")
    fr.Experiment.of(KEYS).to_toml(folder / "own.toml")
    assert fullrank("run", "own.toml", "--out", "toml", capsys=capsys)[0] == 0
    changes = [word for key, value in KEYS.items() for word in ("--set", f"{key}={value}".replace("'", '"'))]
    assert fullrank("run", *changes, "--out", "line", capsys=capsys)[0] == 0
    runs = [fr.load_run(folder / name, trust=True) for name in ("python", "toml", "line")]
    models = [run.model().state_dict() for run in runs]
    for name, value in models[0].items():
        assert torch.equal(models[1][name], value)
        assert torch.equal(models[2][name], value)
    assert [len(part) for part in runs[0]._assembled("").federation.parts] == [479, 479, 479]


def test_a_metric_and_a_partition_are_found_wherever_names_are_listed(tmp_path, monkeypatch, capsys):
    half = Metric("half_right", lambda scores, labels: 0.5, is_share=True)
    monkeypatch.setitem(METRICS.own, "half-right", half)

    def stripes(labels, clients):
        return [np.arange(k, len(labels), clients) for k in range(clients)]

    monkeypatch.setitem(PARTITIONS.own, "stripes", stripes)
    keys = fullrank("keys", capsys=capsys)[1]
    assert "half-right" in keys
    assert "stripes" in keys
    values = {
        "data": {"name": "digits", "partition": "stripes", "clients": 2, "holdout": 0.2},
        "model": {"name": "mlp"},
        "train": {"rounds": 1, "epochs": 1},
        "evaluate": {"metrics": ["half-right"]},
    }
    with pytest.raises(fr.FullrankError, match='did you mean "stripes"'):
        fr.Experiment.of({**values, "data": {"partition": "stripess"}})
    run = fr.run(values, tmp_path / "run")
    assert run.metrics[-1]["half_right"] == 0.5
    assert run.summary()["half_right"]["last"] == 0.5
    assert run.summary()["personal"]["local"]["half_right"]["mean"] == 0.5
    status, shown, _ = fullrank("run", tmp_path / "run" / "experiment.toml", "--out", tmp_path / "run", capsys=capsys)
    assert status == 0
    assert any(line.split()[:4] == ["half", "right", "50.00", "%"] for line in shown.splitlines())
    status, table, _ = fullrank("compare", "--runs", tmp_path / "run", "--measure", "half_right", capsys=capsys)
    assert status == 0
    assert "50.00" in table
