"""What a client's weight in the mean counts: its training samples, or its hold-out as well."""

import json

import pytest
import torch

import fullrank

SIZES = (5, 9, 14)


def data():
    generator = torch.Generator().manual_seed(0)
    clients = []
    for size in SIZES:
        clients.append((torch.randn(size, 4, generator=generator), torch.arange(size) % 2))
    return clients


class Trained(fullrank.Callback):
    """Keeps the clients' trained models and numbers of samples."""

    def __init__(self):
        self.found = {}

    def round_started(self, round, clients):
        return clients

    def client_done(self, result):
        self.found[result.client] = result.samples, {name: t.clone() for name, t in result.model.items()}


def fitted(weight_by, engine="serial", method="fedavg", **more):
    seen = Trained()
    torch.manual_seed(0)  # the module's initial weights
    settings = {"data.holdout": 0.3, "train.weight_by": weight_by, "evaluate.personal": "never"}
    run = fullrank.fit(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).double(),
        data(),
        method,
        rounds=1,
        batch_size=3,
        lr=0.5,
        engine=engine,
        callbacks=[seen],
        set={**settings, **more},
    )
    return run, seen.found


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("weight_by", ["training", "all"])
def test_the_model_is_the_mean_with_these_weights(weight_by, engine):
    run, found = fitted(weight_by, engine)
    training = [found[k][0] for k in range(3)]
    assert all(own < size for own, size in zip(training, SIZES, strict=True))  # the others are held out
    weights = training if weight_by == "training" else SIZES
    assert [n / sum(training) for n in training] != [n / sum(SIZES) for n in SIZES]
    model = run.model().state_dict()
    for name in ("0.weight", "1.running_mean", "2.bias"):
        mean = sum(n * found[k][1][name].double() for k, n in enumerate(weights)) / sum(weights)
        assert torch.allclose(model[name], mean, atol=1e-12, rtol=0), name
    recorded = {client["client"]: client["samples"] for client in run.metrics[0]["clients"]}
    assert recorded == dict(enumerate(training))


@pytest.mark.parametrize("method", ["scaffold", "fednova", "fedexp"])
def test_methods_with_weights_of_their_own_count_the_same_samples(method):
    models = [fitted(weight_by, method=method)[0].model().state_dict() for weight_by in ("training", "all")]
    assert not torch.equal(models[0]["0.weight"], models[1]["0.weight"])


def test_without_a_hold_out_both_are_the_same():
    models = [fitted(by, **{"data.holdout": 0.0})[0].model().state_dict() for by in ("training", "all")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_by_default_only_training_samples_count_and_hashes_stay_what_they_were():
    assert fullrank.Experiment().train.weight_by == "training"
    written = fullrank.Experiment(train={"weight_by": "training"})
    assert written.hash() == fullrank.Experiment().hash() != fullrank.Experiment(train={"weight_by": "all"}).hash()


def test_a_resumed_run_keeps_its_weights(tmp_path):
    settings = {"data.holdout": 0.3, "train.weight_by": "all", "data.clients": 3, "model.name": "mlp", "train.steps": 2}
    whole = fullrank.run({**settings, "train.rounds": 2}, tmp_path / "whole")
    fullrank.run({**settings, "train.rounds": 1}, tmp_path / "part")
    both = fullrank.run({**settings, "train.rounds": 2}, tmp_path / "part")
    assert json.dumps([row["loss"] for row in both.metrics]) == json.dumps([row["loss"] for row in whole.metrics])
