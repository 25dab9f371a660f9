"""Terms of the loss by name: in the reports of clients, and as means over clients in the rows of rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fullrank
from fullrank import Method, fit
from fullrank.errors import InputError
from fullrank.local.step import named_terms
from fullrank.methods.fedmr import FedMR
from fullrank.methods.fedprox import FedProx
from fullrank.runs.summary import mean_terms
from fullrank.trees import Tree
from small import assert_same_bits, blobs, plain

FIVE = (16, 16, 12, 12, 16)
"""Samples of clients of which enough step together to be trained as a group."""
SHORT = {"rounds": 3, "epochs": 2, "batch_size": 8, "lr": 0.1}


@dataclass(frozen=True)
class InOne(FedMR):
    """FedMR with the sum of its terms as one."""

    name = "fedmr"

    def loss(self, b):
        found = super().loss(b)
        return found["intra"] + found["inter"]


@dataclass(frozen=True)
class Constant(Method):
    """Adds terms of known value, which have no gradient."""

    near: float = 3.0

    def loss(self, b):
        return {"near": b.base * 0 + self.near, "class": b.counts.sum() * 0 + b.y.double().mean()}


@dataclass(frozen=True)
class Both(FedProx):
    """A method with a term in the loss and one in the gradient."""

    def loss(self, b):
        return b.base * 0 + 10


def test_named_terms_train_to_the_bits_of_their_sum():
    one, two = (fit(plain(), blobs(), method, **SHORT) for method in (FedMR(0.3, 0.7), InOne(0.3, 0.7)))
    assert_same_bits(one.model().state_dict(), two.model().state_dict())
    for row, other in zip(one.metrics, two.metrics, strict=True):
        assert row["terms"]["fedmr"] == other["terms"]["fedmr"]
        assert "fedmr.intra" not in other["terms"]


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_the_terms_of_a_method_are_recorded_with_their_sum(engine):
    result = fit(plain(), blobs(FIVE), Constant() + FedMR(0.3, 0.7, margin=1.0), engine=engine, **SHORT)
    assert "one_by_one" not in result.metrics[0]
    for row in result.metrics:
        for client in row["clients"]:
            for epoch in client["epochs"]:
                assert epoch["constant.near"] == pytest.approx(3)
                assert epoch["constant"] == pytest.approx(3 + epoch["constant.class"])
                assert epoch["fedmr"] == pytest.approx(epoch["fedmr.intra"] + epoch["fedmr.inter"])
        assert row["clients"][0]["epochs"][0]["fedmr.intra"] > 0
    assert result.metrics[0]["terms"]["fedmr.inter"] == 0  # no prototypes in the first round
    assert result.metrics[1]["terms"]["fedmr.inter"] > 0


def test_a_term_with_a_coefficient_of_0_is_not_computed():
    terms = fit(plain(), blobs(), FedMR(mu1=0.0), **SHORT).metrics[0]["terms"]
    assert list(terms) == ["criterion", "fedmr", "fedmr.inter"]
    assert list(fit(plain(), blobs(), FedMR(0.0, 0.0), **SHORT).metrics[0]["terms"]) == ["criterion", "fedmr"]


def test_a_row_has_the_means_over_clients_weighted_by_samples():
    result = fit(plain(), blobs(), Constant(), **SHORT)
    for row in result.metrics:
        for name in ("criterion", "constant.class"):
            means = [np.mean([epoch[name] for epoch in client["epochs"]]) for client in row["clients"]]
            weights = [client["samples"] for client in row["clients"]]
            assert row["terms"][name] == pytest.approx(np.average(means, weights=weights))
        assert list(row["terms"]) == ["criterion", "constant", "constant.near", "constant.class"]
    assert mean_terms([{"client": 0, "samples": 5, "epochs": []}]) == {}


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_the_proximal_term_is_recorded_as_in_the_loss_of_its_equation(engine):
    """After one step from w0 with a rate η and without momentum, w − w0 = −η·g."""
    settings = {"rounds": 1, "lr": 0.1, "momentum": 0.0, "engine": engine, "batch_size": 100}
    result = fit(plain(), blobs(FIVE), FedProx(mu=0.4), epochs=2, **settings)
    assert "one_by_one" not in result.metrics[0]
    for client in result.metrics[0]["clients"]:
        first, second = client["epochs"]  # one step each
        assert first["fedprox"] == pytest.approx(0.4 / 2 * (0.1 * first["grad_norm"]) ** 2, rel=1e-5)
        assert second["fedprox"] == pytest.approx(0.4 / 2 * second["drift"] ** 2, rel=1e-5)
    assert list(result.metrics[0]["terms"]) == ["criterion", "fedprox"]


def test_a_term_of_the_loss_and_a_proximal_term_of_one_method_are_added():
    both, alone = (fit(plain(), blobs(), method, **SHORT).metrics[-1]["terms"] for method in (Both(0.4), FedProx(0.4)))
    assert both["both"] == pytest.approx(10 + alone["fedprox"], rel=1e-5)


@pytest.mark.parametrize("found", [{}, 3.0, None, [torch.ones(())]])
def test_anything_else_is_rejected_in_a_sentence(found):
    with pytest.raises(InputError, match=r'"mine"\.loss must return a scalar tensor, or a dict'):
        named_terms("mine", found)


def test_terms_are_summed_in_their_order():
    values = {name: torch.tensor(value) for name, value in (("a", 1e8), ("b", -1e8), ("c", 0.1))}
    assert named_terms("m", values)["m"] == torch.tensor(0.1)
    assert named_terms("m", dict(reversed(values.items())))["m"] == 0


def test_a_run_that_is_read_back_has_them(tmp_path):
    few = {"data.clients": 3, "model.name": "mlp", "train.rounds": 2, "method.name": "fedmr"}
    result = fullrank.run(few, tmp_path / "run")
    read = fullrank.load_run(tmp_path / "run")
    assert read.summary()["terms"] == result.summary()["terms"]
    assert list(read.summary()["terms"]) == ["criterion", "fedmr", "fedmr.intra", "fedmr.inter"]
    assert isinstance(read.metrics[0]["terms"]["criterion"], float)
    tree: Tree = read.summary()["terms"]["fedmr.intra"]
    assert tree["last"] == read.metrics[-1]["terms"]["fedmr.intra"]
