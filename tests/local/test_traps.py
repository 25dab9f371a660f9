"""Traps: each of these once gave other bits, a wrong number or a traceback where a sentence is due."""

import json
import os
import random
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fullrank
from fullrank import Method
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.processes.engine import Processes
from fullrank.errors import InputError
from fullrank.runs.assemble import assemble

TINY = {"data.clients": 3, "model.width": 4, "model.features": 16, "train.rounds": 2, "train.steps": 3}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def points(n=40, width=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=g), torch.randint(0, 3, (n,), generator=g)


def images(layout=torch.contiguous_format):
    g = torch.Generator().manual_seed(0)
    clients = []
    for n in (30, 21, 25):
        x = torch.randn(n, 3, 8, 8, generator=g).to(memory_format=layout)
        clients.append((x, torch.randint(0, 3, (n,), generator=g)))
    return clients


@dataclass(frozen=True)
class Remembers(Method):
    """Multiplies by a matrix that it keeps, which must not depend on how the matrix lies in memory."""

    def client_state(self, client):
        return {"m": torch.randn(17, 16, generator=torch.Generator().manual_seed(client.id))}

    def loss(self, b):
        return 0.01 * (b.z @ b.own["m"].T).square().mean()


def test_a_restored_state_is_aligned_like_memory(tmp_path):
    values = {**TINY, "method.name": "test_traps:Remembers", "train.rounds": 4}
    fullrank.run(values, tmp_path / "whole")
    fullrank.run({**values, "train.rounds": 2}, tmp_path / "parts")
    fullrank.run(values, tmp_path / "parts")
    assert equal(load_file(tmp_path / "whole/model.safetensors"), load_file(tmp_path / "parts/model.safetensors"))
    run = fullrank.load_run(tmp_path / "parts", trust=True)
    server = run._assembled().server
    tensors = [*server.model.values(), server.store.get(0)["remembers"]["m"]]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)


@pytest.mark.parametrize("channels_last", ["model", "data"])
def test_worker_processes_keep_the_memory_layout(channels_last):
    net = fullrank.models.build("cnn", 3, 3, norm="batch", width=8)
    if channels_last == "model":
        net = net.to(memory_format=torch.channels_last)
    data = images(torch.channels_last if channels_last == "data" else torch.contiguous_format)
    one = {"engine.workers": 1}
    runs = [
        fullrank.fit(net, data, "fedavg", rounds=2, batch_size=8, engine=engine, set=one).model().state_dict()
        for engine in ("serial", "processes")
    ]
    assert equal(*runs)
    if channels_last == "data":
        assert equal(runs[0], fullrank.fit(net, images(), "fedavg", rounds=2, batch_size=8).model().state_dict())


class Wanders(nn.Module):
    """Draws from Python's and NumPy's generators, and leaves a trace in a buffer outside its state."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(8), persistent=False)

    def forward(self, x):
        z = self.body(x).relu()
        if self.training:
            z = z * (1 + 0.1 * random.random()) + 0.1 * np.random.rand()
            self.seen += z.detach().mean(0)
        return self.out(z + self.seen)


def test_randomness_outside_torch_is_keyed_and_constants_are_put_back():
    torch.manual_seed(0)
    net, data = Wanders(), [points(40, seed=k) for k in range(3)]
    state = random.getstate()
    first, again = (fullrank.fit(net, data, "fedavg", test=points(seed=9), rounds=2) for _ in range(2))
    assert random.getstate() == state
    assert equal(first.model().state_dict(), again.model().state_dict())
    assert [row["accuracy"] for row in first.metrics] == [row["accuracy"] for row in again.metrics]
    assert not first.model().seen.any()


def test_a_mask_of_minus_infinity_is_no_failure():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(6, 3)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

        def forward(self, x):
            return self.out(x @ self.mask.softmax(1))

    run = fullrank.fit(Masked(), [points(), points(seed=1)], "fedavg", rounds=2)
    assert torch.equal(run.model().mask, nn.Transformer.generate_square_subsequent_mask(6))


def test_complex_weights_are_averaged():
    class Rotated(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j, 0.5j, 1 + 0j, 1j, 2 + 2j]))
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out((x * self.turn).real)

    net, settings = Rotated(), {"rounds": 1, "batch_size": 64, "momentum": 0.0}
    run = fullrank.fit(net, [points(30), points(10, seed=1)], "fedavg", **settings)
    alone = [fullrank.fit(net, [points(n, seed=k)], "fedavg", **settings) for k, n in enumerate((30, 10))]
    a, b = (r.model().turn.detach() for r in alone)
    torch.testing.assert_close(run.model().turn.detach(), (3 * a + b) / 4)


@dataclass(frozen=True)
class Breaks(Method):
    def train(self, client):
        if client.id == 1:
            raise RuntimeError("always")
        client.fit()


def test_skipping_a_failing_client_holds_at_the_end_too(tmp_path):
    values = {**TINY, "method.name": "test_traps:Breaks", "data.holdout": 0.2, "run.on_client_error": "skip"}
    run = fullrank.run(values, tmp_path)
    assert run.summary()["personal"]["received"]["clients"] == 2
    assert run.summary()["skipped"] == 3  # once a round, once at the end


def test_an_idle_workers_death_is_repaired():
    assembly = assemble(Experiment.of(TINY))
    engine = Processes(assembly.site, EngineOptions(workers=2, clients=2))
    try:
        idle = engine._workers[0].process
        jobs = iter([assembly.server.job("train", 0)])
        results = engine.run(jobs)  # one job, so one of the two is idle: the last is asked first
        os.kill(idle.pid, signal.SIGKILL)
        time.sleep(0.2)
        assert [result.client for result in results] == [0]
        os.kill(engine._workers[1].process.pid, signal.SIGKILL)
        engine._workers[1].process.wait()
        later = list(engine.run(assembly.server.job("train", k) for k in range(3)))
        assert [(result.client, result.error) for result in later] == [(0, None), (1, None), (2, None)]
    finally:
        engine.close()


def test_fit_rejects_what_it_would_ignore_and_serves_what_it_takes():
    net, data = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), [points(), points(seed=1)]
    for key, value in (("data.clients", 4), ("data.alpha", 1.0), ("model.name", "cnn"), ("method.name", "fedavg")):
        with pytest.raises(InputError, match=key):
            fullrank.fit(net, data, "fedprox", rounds=1, set={key: value})
    with pytest.raises(InputError, match=r"FedProx\(\)"):
        fullrank.fit(net, data, fullrank.methods.find("fedprox"), rounds=1)
    with pytest.raises(InputError, match="method is a int; it must be a method's name or"):
        fullrank.fit(net, data, 3, rounds=1)
    with pytest.raises(InputError, match=r"model is a int; it must be a torch\.nn\.Module"):
        fullrank.fit(3, data, rounds=1)
    with pytest.raises(InputError, match=r"model is the class Linear; give an instance, Linear\(…\)"):
        fullrank.fit(nn.Linear, data, rounds=1)
    run = fullrank.fit(net, data, "fedavg", None, np.int64(1), set={"data.holdout": 0.25, "data.validation": 0.1})
    assert run.summary()["personal"]["received"]["clients"] == 2
    assert "validation_accuracy" in run.metrics[0]
    federation = run._assembled().federation
    everything = np.concatenate([*federation.parts, *federation.holdouts, federation.validation])
    assert sorted(everything) == list(range(80))


def test_fit_notices_another_head_and_another_network(tmp_path):
    class Two(nn.Module):
        def __init__(self, act=nn.ReLU):
            super().__init__()
            self.a, self.act, self.b = nn.Linear(6, 3), act(), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(self.act(self.a(x)))

    data = [points(), points(seed=1)]
    fullrank.fit(Two(), data, rounds=1, head="b", out=tmp_path)
    with pytest.raises(InputError, match=r"model.structure was"):
        fullrank.fit(Two(nn.Tanh), data, rounds=2, head="b", out=tmp_path)
    with pytest.raises(InputError, match=r"model.head was 'b', is now ''"):
        fullrank.fit(Two(), data, rounds=2, out=tmp_path)


def test_more_rounds_have_the_rows_of_an_uninterrupted_run(tmp_path):
    values = {**TINY, "evaluate.every": 2}
    whole = fullrank.run({**values, "train.rounds": 4}, tmp_path / "whole")
    three = fullrank.run({**values, "train.rounds": 3}, tmp_path / "parts")
    assert "accuracy" not in three.metrics[2]
    assert three.summary()["accuracy"]["last"] is not None
    parts = fullrank.run({**values, "train.rounds": 4}, tmp_path / "parts")
    assert parts.summary()["accuracy"] == whole.summary()["accuracy"]
    assert [r.get("accuracy") for r in parts.metrics] == [r.get("accuracy") for r in whole.metrics]


def test_a_saved_partition_is_checked(tmp_path):
    fullrank.run({**TINY, "data.holdout": 0.2}, tmp_path / "run")
    saved = tmp_path / "run" / "partition.safetensors"
    again = {**TINY, "data.partition": str(saved)}
    run = fullrank.run(again, tmp_path / "again")
    hashes = [json.loads((tmp_path / name / "partition.json").read_text())["hash"] for name in ("run", "again")]
    assert hashes[0] == hashes[1]
    assert run.summary()["personal"]["received"]["clients"] == 3
    with pytest.raises(InputError, match="brings its own"):
        fullrank.run({**again, "data.holdout": 0.1}, tmp_path / "x")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "other.npz", x=rng.integers(0, 255, (2000, 8, 8), dtype=np.uint8), y=np.arange(2000) % 10)
    with pytest.raises(InputError, match="fingerprints differ"):
        fullrank.run({**again, "data.name": str(tmp_path / "other.npz")}, tmp_path / "y")
    tensors = load_file(saved)
    tensors["holdout"] = tensors["train"][: len(tensors["holdout"])].clone()
    save_file(tensors, tmp_path / "overlap.safetensors")
    with pytest.raises(InputError, match="overlap"):
        fullrank.run({**again, "data.partition": str(tmp_path / "overlap.safetensors")}, tmp_path / "z")
    assert not (tmp_path / "z").exists()


def test_given_is_not_a_partition_for_files(tmp_path):
    with pytest.raises(InputError, match="a program passes"):
        fullrank.run({**TINY, "data.partition": "given"}, tmp_path / "x")


def test_selectors_are_rejected_before_any_client(tmp_path):
    for values, words in (({"train.decay_on": "hed"}, "hed"), ({"model.freeze": ["all"]}, "nothing to train")):
        with pytest.raises(InputError, match=words):
            fullrank.run({**TINY, **values}, tmp_path / "x")


def test_names_with_a_slash_are_rejected():
    class Slashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"1/2": nn.Linear(6, 8)})
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.parts["1/2"](x))

    with pytest.raises(InputError, match="holds a"):
        fullrank.fit(Slashed(), [points()], "fedavg", rounds=1)


def test_drift_covers_every_shared_entry():
    @dataclass(frozen=True)
    class HeadThenBody(Method):
        def train(self, client):
            client.fit("head")
            client.fit("backbone")
            moved = [client.w[name] - client.w0[name] for name in client.w]
            found.append(float(torch.linalg.vector_norm(torch.cat([m.flatten() for m in moved]))))

    found: list[float] = []
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    run = fullrank.fit(net, [points()], HeadThenBody(), rounds=1)
    assert run.metrics[0]["clients"][0]["epochs"][-1]["drift"] == pytest.approx(found[0], rel=1e-6)


def test_a_loss_that_is_not_finite_is_valid_json(tmp_path):
    train = {"train.lr": 1e8, "train.momentum": 0.0, "train.rounds": 1, "train.steps": 1}
    with pytest.warns(UserWarning, match="the loss of the global model is not finite"):
        run = fullrank.run({"data.clients": 3, "model.name": "resnet20", **train}, tmp_path)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert run.metrics == fullrank.load_run(tmp_path).metrics
