"""What a method's hooks see of a client, and the one door into a fit."""

import copy

import pytest
import torch

from fullrank.config.experiment import Experiment
from fullrank.engine.serial import Serial
from fullrank.errors import WroteInPlace
from fullrank.local.views import ClientView
from fullrank.methods import Method, build
from fullrank.runs.assemble import assemble

SMALL = {"data.clients": 3, "model.name": "mlp", "model.width": 8, "train.batch_size": 16, "train.steps": 3}


def a_client(method="fedavg", client=0, **values):
    parts = assemble(Experiment.of({**SMALL, "method.name": method, **values}))
    return parts.site._client(parts.server.job("train", client))[0]


def test_views_show_one_client_and_each_its_methods_state():
    client = a_client("fedprox+ditto+moon")
    ditto, moon = (client.seen_by(build(name)) for name in ("ditto", "moon"))
    assert set(ditto.own) == {"v"}
    assert set(moon.own) == {"model", "has"}
    ditto.own = {"v": {}}
    assert client.seen_by(build("ditto")).own == {"v": {}}
    assert set(moon.own) == {"model", "has"}
    ditto.fit()
    assert any(not torch.equal(client.w[name], client.w0[name]) for name in client.w0)
    assert all(torch.equal(moon.w[name], ditto.w[name]) for name in client.w0)
    assert moon.travel == ditto.travel > 0
    assert len(client.reports) == 1


def test_what_is_assigned_is_a_copy():
    view = a_client("ditto").seen_by(build("ditto"))
    given = {"v": {"x": torch.zeros(2)}}
    view.own = given
    given["v"]["x"].fill_(1)
    assert view.own["v"]["x"].tolist() == [0, 0]


def test_only_the_state_of_a_method_can_be_assigned():
    view = a_client().seen_by(Method())
    for name in ("w", "model", "w0", "sent", "n", "counts"):
        with pytest.raises(AttributeError):
            setattr(view, name, {})


def test_hooks_get_views():
    seen = []

    class Reading(Method):
        name = "reading"

        def train(self, client):
            seen.append(client)
            client.train()

        def after(self, client):
            seen.append(client)
            return {}

    parts = assemble(Experiment.of(SMALL), method=Reading())
    parts.server.run_round(Serial(parts.site))
    assert {type(client) for client in seen} == {ClientView}


def test_a_planned_fit_is_what_a_client_runs_itself():
    one, other = a_client("scaffold"), a_client("scaffold")
    one.train()
    fit = other.plan_fit()
    assert fit.label == "fit-0"
    assert not fit.fresh
    report = other.run_fit(fit)
    assert other.reports == []
    other.finish_fit(fit, report)
    assert one.reports == other.reports
    assert one.travel == other.travel
    for name, tensor in one.model.items():
        assert torch.equal(tensor, other.model[name])


def test_a_fit_that_was_run_elsewhere_is_finished_with_its_state():
    one, other = a_client(), a_client()
    one.train()
    fit = other.plan_fit()
    apart = copy.deepcopy(fit.state)
    before = {name: tensor.clone() for name, tensor in other.model.items()}
    report = one.reports[0]
    for tree in (apart.trained, apart.buffers):
        for name, tensor in tree.items():
            tensor.data.copy_(one.model[name])
    other.finish_fit(fit, report, apart)
    assert any(not torch.equal(before[name], other.model[name]) for name in before)
    for name, tensor in one.model.items():
        assert torch.equal(tensor, other.model[name])


def test_a_side_fit_leaves_no_report_and_the_model_as_it_is():
    client = a_client()
    before = {name: tensor.clone() for name, tensor in client.model.items()}
    fitted = client.seen_by(Method()).fit(model=client.model, steps=2)
    assert client.reports == []
    assert client.travel == 0
    for name, tensor in before.items():
        assert torch.equal(tensor, client.model[name])
    assert any(not torch.equal(fitted[name], before[name]) for name in before)


def test_what_a_hook_writes_in_place_before_a_fit_is_told():
    client = a_client(method="fedavg")
    fit = client.plan_fit(loss=lambda b: b.base * 0 + b.w0["head.weight"].add_(0).sum())
    with pytest.raises(WroteInPlace):
        client.run_fit(fit)
