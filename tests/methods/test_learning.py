"""Every method learns: on the embedded digits, split at random, it comes close to plain training."""

import pytest

import fullrank

SETTINGS = {"data.partition": "iid", "data.clients": 5, "train.rounds": 10, "train.epochs": 2}
SETTINGS |= {"train.batch_size": 32, "train.lr": 0.03, "model.width": 8}


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    run = fullrank.run(SETTINGS, tmp_path_factory.mktemp("fedavg"))
    return run.summary()["accuracy"]["last"]


def test_fedavg_learns(fedavg):
    assert fedavg > 0.9


@pytest.mark.parametrize("method", ["fedprox", "feddecorr", "fedprox+feddecorr"])
def test_others_come_within_five_points_of_fedavg(method, fedavg, tmp_path):
    run = fullrank.run({**SETTINGS, "method.name": method}, tmp_path)
    assert run.summary()["accuracy"]["last"] > fedavg - 0.05
