"""FedAvgM, FedAdam, FedYogi and FedAdagrad against numbers worked out by hand from their equations."""

import numpy as np
import pytest
import torch

import fullrank
from fullrank import methods


class OneWeight:
    """A server with one weight, as far as an aggregation reads it."""

    def __init__(self, method, w):
        self.w = {"w": torch.tensor(w, dtype=torch.float64)}
        self.own = method.server_state(self)

    def round(self, method, mean):
        new = {"w": torch.tensor(mean, dtype=torch.float64)}
        self.w = method.aggregate(self, new, {"w": new})
        return float(self.w["w"])


def test_fedavgm_ema():
    method = methods.build("fedavgm", fedavgm={"momentum": 0.5})
    server = OneWeight(method, 1.0)
    assert server.round(method, 2.0) == 1.5
    assert float(server.own["m"]["w"]) == 0.5
    assert server.round(method, 2.5) == 2.25
    assert float(server.own["m"]["w"]) == 0.75


def test_fedavgm_hsu():
    method = methods.build("fedavgm", fedavgm={"momentum": 0.5, "form": "hsu"})
    server = OneWeight(method, 1.0)
    # v = −1, w = 2; then Δ = 2.5 − 2 = .5: v = −.5 − .5 = −1, w = 3
    assert server.round(method, 2.0) == 2.0
    assert server.round(method, 2.5) == 3.0


@pytest.mark.parametrize("form", ["ema", "hsu"])
def test_fedavgm_settles_at_its_steady_step(form):
    rho, delta = 0.8, 0.25
    method = methods.build("fedavgm", fedavgm={"momentum": rho, "form": form})
    server = OneWeight(method, 0.0)
    steps = []
    for t in range(1, 30):
        before = float(server.w["w"])
        steps.append(server.round(method, before + delta) - before)
        expected = delta * (1 - rho**t) / (1 if form == "ema" else 1 - rho)
        assert steps[-1] == pytest.approx(expected, rel=1e-12)


ADAPTIVE = {
    "fedadam": ([4.99e-6, 5.9401e-6], [0.0618461549, 0.0851206965]),
    "fedyogi": ([5e-6, 6e-6], [0.0618033989, 0.0849952348]),
    "fedadagrad": ([4.01e-4, 5.01e-4], [0.0951249220, 0.0523588634]),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_servers(name):
    method = methods.build(name, **{name: {"lr": 0.1}})
    server = OneWeight(method, 0.0)
    for delta, v, w in zip((0.02, -0.01), *ADAPTIVE[name], strict=True):
        got = server.round(method, float(server.w["w"]) + delta)
        assert float(server.own["v"]["w"]) == pytest.approx(v, rel=1e-9)
        assert got == pytest.approx(w, rel=1e-8)


def test_yogi_shrinks_slowly():
    method = methods.build("fedyogi", fedyogi={"lr": 0.1})
    server = OneWeight(method, 0.0)
    server.round(method, 0.02)
    server.round(method, float(server.w["w"]) + 0.0005)
    assert float(server.own["v"]["w"]) == pytest.approx(4.9975e-6, rel=1e-9)


TINY = {"data.clients": 3, "model.width": 4, "model.norm": "batch", "train.rounds": 2, "train.steps": 3}


def entries(values, out):
    return fullrank.run({**TINY, **values}, out).model().state_dict()


@pytest.mark.parametrize("form", ["ema", "hsu"])
def test_fedavgm_without_momentum_is_fedavg_to_the_bit(form, tmp_path):
    plain = entries({}, tmp_path / "a")
    other = entries(
        {"method.name": "fedavgm", "method.fedavgm.momentum": 0.0, "method.fedavgm.form": form}, tmp_path / "b"
    )
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_buffers_are_averaged_and_never_optimised(name, tmp_path):
    """After one round the statistics are FedAvg's, because clients started from the same model."""
    plain = entries({"train.rounds": 1}, tmp_path / "a")
    other = entries({"train.rounds": 1, "method.name": name}, tmp_path / "b")
    buffers = [n for n in plain if "running" in n or "num_batches" in n]
    assert buffers
    assert all(torch.equal(plain[n], other[n]) for n in buffers)
    assert not all(torch.equal(plain[n], other[n]) for n in plain)


def test_one_adam_round_against_numpy(tmp_path):
    """The whole path: FedAvg's means of one round, then Algorithm 2 in NumPy float64."""
    precise = {"engine.precision": "float64", "train.rounds": 1}
    fullrank.run({**TINY, **precise}, tmp_path / "a")
    start = fullrank.runs.assemble.assemble(fullrank.Experiment.of({**TINY, **precise})).server.w
    mean = fullrank.load_run(tmp_path / "a").model().state_dict()
    got = entries({**precise, "method.name": "fedadam"}, tmp_path / "b")
    for name, w in start.items():
        w, delta = w.numpy(), mean[name].numpy() - w.numpy()
        m, v = 0.1 * delta, 0.99 * 1e-6 + 0.01 * delta**2
        np.testing.assert_allclose(got[name].numpy(), w + 0.01 * m / (np.sqrt(v) + 1e-3), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_they_learn_and_compose(name, tmp_path):
    settings = {"data.partition": "iid", "data.clients": 5, "train.rounds": 12, "train.epochs": 2}
    settings |= {"train.batch_size": 32, "train.lr": 0.03, "model.width": 8, "method.name": f"{name}+fedprox"}
    settings["method.fedavgm.momentum"] = 0.5  # at .9 the step needs more than these rounds to grow to its size
    run = fullrank.run(settings, tmp_path)
    assert run.summary()["accuracy"]["best"] > 0.85
