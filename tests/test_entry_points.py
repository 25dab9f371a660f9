"""Objects of an installed package are found by the names under which it declares them."""

import json
import sys

import pytest

import fullrank as fr
from commands import fullrank

MODULE = '''
from dataclasses import dataclass

import numpy as np
import torch

import fullrank
from fullrank.data import Operation
from fullrank.engine.serial import Serial
from fullrank.federated.aggregation import RunningMean


def rows(root, seed):
    """Rows of the digits."""
    return fullrank.data.load_dataset("digits")


def stripes(labels, clients):
    return [np.arange(k, len(labels), clients) for k in range(clients)]


@dataclass(frozen=True)
class Noise(Operation):
    most: float = 9
    draws = 1

    def apply(self, x, u):
        return (x * (1 - u[:, 0, None, None, None] * self.most / 255)).to(x.dtype)


def flat(num_classes, in_channels, width=4):
    """A perceptron."""
    return fullrank.models.build("mlp", num_classes, in_channels, width=width)


@dataclass(frozen=True)
class Shrinks(fullrank.Method):
    """Shrinks the weights."""

    name = "shrinks"
    share: float = 0.1

    def loss(self, b):
        return self.share * sum(w.square().sum() for w in b.w.values())


def squared(logits, labels):
    """The squared distance from the labels."""
    wanted = labels[:, None] == torch.arange(logits.shape[1], device=labels.device)
    return (logits - wanted.to(logits.dtype)).square().mean()


class Plain(RunningMean):
    """The mean, by another name."""


class OneByOne(Serial):
    """The serial engine, by another name."""
'''
DECLARED = """
[fullrank.datasets]
rows = installed_package:rows
[fullrank.partitions]
stripes = installed_package:stripes
[fullrank.augmentations]
noise = installed_package:Noise
[fullrank.models]
flat = installed_package:flat
[fullrank.methods]
shrinks = installed_package:Shrinks
[fullrank.criteria]
squared = installed_package:squared
[fullrank.aggregators]
plain = installed_package:Plain
[fullrank.engines]
one-by-one = installed_package:OneByOne
"""


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    (folder / "installed_package-1.0.dist-info").mkdir(parents=True)
    (folder / "installed_package-1.0.dist-info" / "METADATA").write_text("Name: installed-package\nVersion: 1.0\n")
    (folder / "installed_package-1.0.dist-info" / "entry_points.txt").write_text(DECLARED)
    (folder / "installed_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("installed_package", None)


@pytest.mark.usefixtures("_installed")
def test_names_of_an_installed_package_run_and_are_listed(tmp_path, capsys):
    values = {
        "data": {"name": "rows", "partition": "stripes", "augment": ["crop:1", "noise:20"], "clients": 3},
        "model": {"name": "flat", "width": 6},
        "method": {"name": "fedprox+shrinks", "shrinks": {"share": 0.2}},
        "train": {"rounds": 1, "criterion": "squared", "aggregator": "plain"},
        "engine": {"name": "one-by-one"},
    }
    run = fr.run(values, tmp_path / "run")
    assert fr.load_run(tmp_path / "run").experiment.method.tables["shrinks"] == {"share": 0.2}
    assert sum(value.numel() for value in run.model().parameters()) > 0
    declared = {
        "data.name": "rows",
        "data.partition": "stripes",
        "data.augment": "noise",
        "train.criterion": "squared",
        "train.aggregator": "plain",
        "engine.name": "one-by-one",
    }
    for key, name in declared.items():
        assert name in json.loads(fullrank("keys", key, "--json", capsys=capsys)[1])[key]["values"]
    found = json.loads(fullrank("models", "--json", capsys=capsys)[1])
    assert found["flat"] == {"what": "A perceptron.", "options": {"width": 4}}
    assert "\nflat\n    A perceptron." in fullrank("models", capsys=capsys)[1]
    status, out, _ = fullrank("methods", "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["shrinks"]["hyper_parameters"]["share"]
    # A table of a method that the run does not use is checked and kept.
    other = fr.Experiment.of({"method": {"name": "fedavg", "shrinks": {"share": 0.3}}})
    assert other.method.tables == {"shrinks": {"share": 0.3}}
    with pytest.raises(fr.FullrankError, match=r'method.shrinks.sahre: .* did you mean "share"'):
        fr.Experiment.of({"method": {"name": "fedavg", "shrinks": {"sahre": 0.3}}})
