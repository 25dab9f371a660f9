"""Every method learns: a short run on the embedded digits, split at random, reaches a stated accuracy."""

import pytest

import fullrank
from fullrank import methods

SETTINGS = {"data.partition": "iid", "data.clients": 5, "data.holdout": 0.2, "engine.name": "serial"}
SETTINGS |= {"train.rounds": 6, "train.epochs": 2, "train.batch_size": 32, "train.lr": 0.05, "model.name": "mlp"}
OTHER_SETTINGS = {
    "fedbn": {"model.name": "cnn", "model.width": 8, "model.norm": "batch"},
    "fedrepopt": {"train.rounds": 10},
}
"""What a method needs besides; where it does not work with a perceptron, `tried_on` names a network."""
REACHED = {"fedavgm": 0.75, "fedadagrad": 0.85, "fedadam": 0.85, "fedyogi": 0.85, "fedproc": 0.75, "fedrepopt": 0.6}
"""Accuracy that slower methods reach in so few rounds; FedAvg has 0.94, and guessing 0.1."""
IN_CI = ("fedavg", "scaffold")
"""One with the reference's step and one with state at clients and server; the others run with the slow tests."""


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in methods.available()]
)
def test_every_method_learns(name, tmp_path):
    network = {f"model.{key}": value for key, value in methods.find(name).tried_on.items()}
    run = fullrank.run({**SETTINGS, **network, **OTHER_SETTINGS.get(name, {}), "method.name": name}, tmp_path)
    summary = run.summary()
    local = summary["personal"]["local"]["mean"]  # for methods without a global model
    assert summary.get("accuracy", {"last": local})["last"] > REACHED.get(name, 0.9)
