"""The `vectorised` engine: the same results as `serial`, within float rounding, whatever the method and the sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_replay import METHODS
from torch import nn

from fullrank import Method
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.serial import Serial
from fullrank.engine.vectorised import ClientGroup, Vectorised, steps_together, width_of
from fullrank.errors import ClientFailed, Interrupted
from fullrank.local import interrupt
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings
from fullrank.methods.fedavg import FedAvg
from fullrank.runs.assemble import assemble
from fullrank.trees import flatten
from small import blobs, normed, on_its_network, plain, put_together

BASE = {
    "data.clients": 7,
    "data.share": 0.4,
    "data.augment": ["crop", "flip"],
    "model.norm": "batch",
    "model.width": 4,
    "train.epochs": 1,
    "train.batch_size": 40,
    # Small, because FedDecorr divides by the deviation of features that a ReLU has all but silenced: at larger rates
    # a change in the last digit of the start, in the serial engine, is one in the fifth digit of the result.
    "train.lr": 0.001,
    "train.weight_decay": 1e-3,
    "engine.precision": "float64",
}
DENSE = {"model.name": "mlp", "model.width": 12, "train.lr": 0.05, "engine.precision": "float64"}


def distance(one, other):
    floats = [name for name in one if one[name].is_floating_point()]
    return sum(float((one[n].double() - other[n].double()).norm() ** 2) for n in floats) ** 0.5


def alike(one, other, tolerance=1e-9):
    """Trees of the same paths whose tensors are close, measured by the tree's largest number."""
    one, other = flatten(one), flatten(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        torch.testing.assert_close(other[path], value, rtol=tolerance, atol=tolerance)


def play(parts, engine_of, rounds, evaluate=False):
    engine = engine_of(parts.site)
    outcome = [parts.server.run_round(engine, evaluate=evaluate) for _ in range(rounds)]
    return outcome, engine


def check_same(make, rounds=2, tolerance=1e-9, evaluate=False):
    """Rounds of an assembly under both engines; the vectorised one."""
    want, got = make(), make()
    start = want.server.model
    rows, _ = play(want, Serial, rounds, evaluate)
    same, engine = play(got, lambda site: Vectorised(site, EngineOptions(clients=9)), rounds, evaluate)
    assert distance(want.server.model, got.server.model) <= tolerance * distance(want.server.model, start)
    for a, b in zip(rows, same, strict=True):
        assert a.idle == b.idle
        assert a.skipped == b.skipped
        assert vars(a.traffic) == vars(b.traffic)
        assert [r.client for r in a.results] == [r.client for r in b.results]
        for left, right in zip(a.results, b.results, strict=True):
            check_same_metrics(left.metrics, right.metrics)
    for client in want.server.store.contacts:
        alike(want.server.store.get(client) or {}, got.server.store.get(client) or {}, 1e-7)
    return engine


def check_same_metrics(one, other):
    assert one.keys() == other.keys()
    for name in one.keys() - {"epochs", "personal"}:
        assert one[name] == other[name]
    for epoch, again in zip(one["epochs"], other["epochs"], strict=True):
        assert list(epoch) == list(again)
        assert again == pytest.approx(epoch, rel=1e-6, abs=1e-12)
    for stage, scores in one.get("personal", {}).items():
        assert other["personal"][stage] == pytest.approx(scores)


def made(values):
    return lambda: assemble(Experiment.of(values))


# --- The same results -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_as_in_serial(method):
    engine = check_same(made(on_its_network(BASE, method)))
    assert bool(engine.reasons) == bool(engine.site.composition.defined("train"))


@pytest.mark.parametrize("last", ["keep", "wrap", "drop"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimisers_schedules_and_odd_batches(optimizer, last):
    values = {**DENSE, "data.clients": 9, "train.optimizer": optimizer, "train.optimizer_state": "keep"}
    values |= {"train.lr_schedule": "cosine", "train.clip_norm": 0.5, "train.label_smoothing": 0.1, "train.rounds": 3}
    values |= {"train.last_batch": last, "train.weight_decay": 1e-3, "train.decay_on": "matrices", "train.lr": 0.002}
    assert not check_same(made(values), 3, tolerance=1e-7).reasons


def test_a_number_of_steps_takes_clients_through_different_numbers_of_epochs():
    values = {**DENSE, "data.clients": 9, "data.alpha": 0.3, "train.steps": 11, "train.batch_size": 20}
    assert not check_same(made(values)).reasons


def test_in_float32_results_differ_by_rounding_only():
    values = {**DENSE, "data.clients": 9, "engine.precision": "float32"}
    engine = check_same(made(values), tolerance=1e-4, rounds=1)
    assert not engine.reasons


def test_last_batches_too_small_for_batch_norm_are_left_out_as_in_serial():
    sizes = (40, 26, 19, 18, 17, 12, 11, 10, 9)
    engine = check_same(lambda: put_together(normed(), blobs(sizes), FedAvg(), {"train.batch_size": 8}))
    assert not engine.reasons


def test_clients_without_a_step_send_nothing():
    sizes = (40, 25, 12, 12, 11, 10, 9, 7, 3)
    changes = {"train.batch_size": 8, "train.last_batch": "drop", "train.lr": 0.1}
    engine = check_same(lambda: put_together(normed(), blobs(sizes), FedAvg(), changes))
    assert not engine.reasons
    played, _ = play(
        put_together(normed(), blobs(sizes), FedAvg(), changes), lambda s: Vectorised(s, EngineOptions(clients=9)), 1
    )
    assert played[0].idle == [7, 8]


def test_judged_clients_report_the_same_scores():
    values = {**DENSE, "data.clients": 9, "data.holdout": 0.2}
    check_same(made(values), evaluate=True)


def test_few_clients_of_a_size_step_one_by_one_in_the_same_group(monkeypatch):
    """Whatever the threshold, the result is the same."""
    make = made({**BASE, "method.name": "hook_methods:Variates"})
    for threshold in (1, 100):
        monkeypatch.setattr("fullrank.engine.vectorised.WORTH_MAPPING", threshold)
        monkeypatch.setattr(Vectorised, "__init__", _grouping)
        assert not check_same(make, 1).reasons


def _grouping(self, site, clients):
    self.site, self.width, self.reasons = site, 5, []


# --- Who steps together -----------------------------------------------------------------------------


def test_everybody_makes_the_steps_of_its_plan_in_order():
    rng = np.random.default_rng(0)
    settings = Settings(epochs=3, batch_size=5)
    plans = [make_plan(int(n), settings, rng) for n in rng.integers(0, 40, size=20)]
    at = [0] * len(plans)
    for who in steps_together(plans):
        assert len({plans[client].sizes[at[client]] for client in who}) == 1
        for client in who:
            at[client] += 1
    assert at == [plan.steps for plan in plans]


def test_equal_clients_step_all_together():
    plans = [make_plan(23, Settings(epochs=2, batch_size=5), np.random.default_rng(k)) for k in range(6)]
    assert list(steps_together(plans)) == [tuple(range(6))] * 10


# --- What cannot be grouped -------------------------------------------------------------------------


class Stops(Method):
    """Fails at one client, in one of several places."""

    where = "after"

    def client_state(self, client):
        return self._now("client_state", client, {"n": torch.tensor(0.0)})

    def after(self, client):
        return self._now("after", client, {})

    def weight(self, client):
        return self._now("weight", client, 1.0)

    def _now(self, where, client, otherwise):
        if where == self.where and client.id == 3:
            raise KeyError("no power")
        return otherwise


@pytest.mark.parametrize("place", ["client_state", "after", "weight"])
def test_a_failure_is_one_clients_own(place):
    class Here(Stops):
        where = place

    changes = {"run.on_client_error": "skip", "train.batch_size": 4}
    engine = check_same(lambda: put_together(normed(), blobs((12,) * 6), Here(), changes), 1)
    assert not engine.reasons
    parts = put_together(normed(), blobs((12,) * 6), Here(), {"train.batch_size": 4})
    with pytest.raises(ClientFailed, match=r"client 3.*no power"):
        parts.server.run_round(Vectorised(parts.site, EngineOptions(clients=6)))


@dataclass(frozen=True)
class Branches(Method):
    """Looks at numbers, which no mapped step can; and fails where they say so."""

    limit: float = 0.0

    def loss(self, b):
        if float(b.counts.sum()) < self.limit:
            raise OSError("too few samples")
        return b.base * 0


def test_a_step_that_cannot_be_mapped_is_made_one_by_one():
    make = lambda: put_together(normed(), blobs((12, 11, 10, 9, 8)), Branches(), {"train.batch_size": 4})  # noqa: E731
    engine = check_same(make)
    assert len(engine.reasons) == 1
    assert engine.notes() == {"one_by_one": engine.reasons}


def test_a_failure_in_a_step_is_one_clients_own():
    changes = {"run.on_client_error": "skip", "train.batch_size": 4}
    make = lambda: put_together(normed(), blobs((12, 11, 10, 9, 8)), Branches(9), changes)  # noqa: E731
    assert not check_same(make).reasons


@dataclass(frozen=True)
class Noisy(Method):
    """Draws random numbers in a step."""

    source: str = "torch"

    def loss(self, b):
        number = {"torch": lambda: torch.rand(()), "numpy": np.random.rand, "python": random.random}[self.source]()
        return b.logits.square().mean() * number


@pytest.mark.parametrize("source", ["torch", "numpy", "python"])
def test_steps_that_draw_numbers_are_made_one_by_one(source):
    make = lambda: put_together(normed(), blobs((12,) * 5), Noisy(source), {"train.batch_size": 4})  # noqa: E731
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert len(check_same(make).reasons) == 1
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


@dataclass(frozen=True)
class Tossed(Method):
    """Draws its number before the fit."""

    def before(self, client):
        return {"number": torch.rand((), dtype=torch.float64)}

    def loss(self, b):
        return b.logits.square().mean() * b.fixed["number"]


def test_numbers_that_are_drawn_before_a_fit_are_those_of_the_client():
    engine = check_same(lambda: put_together(normed(), blobs((12,) * 5), Tossed(), {"train.batch_size": 4}))
    assert not engine.reasons


def test_dropout_and_loose_buffers_are_left_to_the_ordinary_way():
    engine = check_same(made({**DENSE, "model.dropout": 0.5, "data.clients": 5}), 1)
    assert "random numbers" in engine.reasons[0]

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64), persistent=False)
            self.head = nn.Linear(5, 3, dtype=torch.float64)

        def forward(self, x):
            return self.head(x * self.scale)

    module = Scaled()
    engine = check_same(lambda: put_together(module, blobs((12,) * 5), FedAvg()), 1)
    assert "no part of its state" in engine.reasons[0]


def test_questions_and_personal_models_are_asked_for_one_by_one():
    parts = assemble(Experiment.of({**DENSE, "data.clients": 5, "method.name": "hook_methods:Calibrated"}))
    engine = Vectorised(parts.site, EngineOptions(clients=5))
    parts.server.run_round(engine)
    parts.server.finished(engine)
    jobs = [parts.server.job("personal", client) for client in range(5)]
    results = list(engine.run(jobs))
    assert [result.client for result in results] == list(range(5))
    assert all(result.error is None and result.model for result in results)


# --- Groups -----------------------------------------------------------------------------------------


def test_no_more_jobs_are_taken_than_a_group_has():
    parts = put_together(plain(), blobs((8,) * 12), FedAvg())
    engine = Vectorised(parts.site, EngineOptions(clients=12))
    engine.width = 5
    taken = []

    def jobs():
        for client in range(12):
            taken.append(client)
            yield parts.server.job("train", client)

    results = engine.run(jobs())
    assert next(results).client == 0
    assert len(taken) == 5
    assert [result.client for result in results] == list(range(1, 12))


def test_an_interruption_stops_between_steps(monkeypatch):
    parts = put_together(plain(), blobs((8,) * 6), FedAvg(), {"train.batch_size": 2})
    made, real = [], ClientGroup._gradient

    def counted(self, *arguments):
        made.append(1)
        return real(self, *arguments)

    def check():
        if len(made) == 2:
            raise Interrupted

    monkeypatch.setattr(ClientGroup, "_gradient", counted)
    monkeypatch.setattr(interrupt, "check", check)
    with pytest.raises(Interrupted):
        parts.server.run_round(Vectorised(parts.site, EngineOptions(clients=6)))
    assert len(made) == 2


def test_large_models_make_small_groups_and_larger_ones_none():
    def site(width):
        return assemble(
            Experiment.of({"model.name": "mlp", "model.width": width, "data.clients": 50, "data.partition": "iid"})
        ).site

    assert width_of(site(8), 50) == 50
    assert width_of(site(8), 10) == 10
    assert 4 < width_of(site(600), 50) < 50
    assert "too few" in Vectorised(site(2000), EngineOptions(clients=50)).reasons[0]


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ({}, True),
        ({"model.width": 1000}, False),
        ({"model.name": "cnn"}, False),
        ({"model.dropout": 0.5}, False),
        ({"data.clients": 5}, False),
        ({"method.name": "hook_methods:HeadThenBody"}, False),
    ],
)
def test_what_auto_should_mean(changed, chosen):
    parts = assemble(Experiment.of({"model.name": "mlp", "data.clients": 20, **changed}))
    assert (parts.engine.name == "vectorised") == chosen
    assert parts.experiment.engine.name == parts.engine.name
    assert parts.engine.reasons["name"].endswith(".")
