"""Resuming is exact with the `vectorised` engine and with what `auto` chooses, whatever the order of names."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import dataclass

import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank import Method, methods
from fullrank.federated.client_states import ClientStates
from fullrank.testing import check
from fullrank.trees import norm, pointwise, zeros
from killing import ANY, Strike, assert_equal_outcomes, attempt, timeless
from small import on_its_network

ODD = {
    "data.clients": 20,
    "data.share": 0.4,
    "data.alpha": 0.3,  # clients of very different sizes
    "model.name": "mlp",
    "train.rounds": 4,
    "train.participation": 0.55,
    "train.epochs": 3,
    "train.batch_size": 16,  # with a remainder in most epochs
    "train.momentum": 0.0,
}
NETWORKS = {
    "mlp": {},
    "cnn": {"model.name": "cnn", "model.norm": "batch", "model.width": 2, "model.features": 12},
    "kept momentum": {
        "train.optimizer_state": "keep",
        "train.momentum": 0.9,
        "train.clip_norm": 0.5,
        "data.holdout": 0.2,
        "run.checkpoint_every": 2,
    },
}
POINTS = ("a sum", "half a row", "a row, not yet its checkpoint", "bytes of clients", "bytes of manifest", ANY)
QUICK = [
    ("scaffold", "auto", "mlp"),  # state at clients and server
    ("moon", "auto", "mlp"),  # a model and a flag at clients
    ("feddc", "vectorised", "kept momentum"),
    ("fedadam", "auto", "mlp"),  # state at the server
    ("fedbn", "vectorised", "cnn"),  # personal entries
]


def stateful() -> list[str]:
    """The library's methods that keep something at clients or at the server."""
    hooks = ("client_state", "server_state")
    return [
        name
        for name, cls in methods.available().items()
        if cls.personal or any(getattr(cls, hook) is not getattr(Method, hook) for hook in hooks)
    ]


def settings_of(method, engine, network):
    return on_its_network({**ODD, **NETWORKS[network], "engine.name": engine}, method)


def in_steps(settings, out, rounds):
    for number in rounds:
        fullrank.run({**settings, "train.rounds": number}, out=out)


def test_a_run_with_more_rounds_equals_one_that_had_them_from_the_start(tmp_path):
    """SCAFFOLD without momentum: what clients keep came back in another order, and they fell into other groups."""
    settings = {
        "data.share": 0.4,
        "model.name": "mlp",
        "method.name": "scaffold",
        "train.momentum": 0.0,
        "train.batch_size": 16,
        "train.epochs": 3,
        "train.participation": 0.8,
    }
    in_steps(settings, tmp_path / "whole", [6])
    in_steps(settings, tmp_path / "parts", [1, 6])
    assert fullrank.load_run(tmp_path / "whole").experiment.engine.name == "vectorised"
    assert_equal_outcomes(tmp_path / "parts", tmp_path / "whole")


def killed_and_resumed(method, engine, network, strikes, tmp_path):
    settings = settings_of(method, engine, network)
    trace = attempt(settings, tmp_path / "whole").succeeded()
    for strike in strikes(trace):
        ended = attempt(settings, tmp_path / "run", strike)
        assert ended.signal == signal.SIGKILL or strike.point == ANY, f"{strike} was never reached"
    attempt(settings, tmp_path / "run").succeeded()
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole", f"{method}, {engine}, {network}")


@pytest.mark.parametrize(("method", "engine", "network"), QUICK)
def test_killed_twice_and_resumed(method, engine, network, tmp_path):
    strikes = [Strike("bytes of manifest", 2), Strike("a sum", 14)]
    killed_and_resumed(method, engine, network, lambda trace: strikes, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("engine", ["vectorised", "auto"])
@pytest.mark.parametrize("method", stateful())
@pytest.mark.parametrize("point", POINTS)
def test_every_method_with_state_is_killed_at_drawn_points(point, method, engine, network, tmp_path):
    if method == "fedbn" and network != "cnn":
        pytest.skip("the network has no norm layers")

    def strikes(trace):
        draw = random.Random(f"{point} {method} {engine} {network}")
        arrivals = len(trace) if point == ANY else trace.count(point)
        return [Strike(point, draw.randint(1, max(1, arrivals // 2))) for _ in range(2 if arrivals else 0)]

    killed_and_resumed(method, engine, network, strikes, tmp_path)


@pytest.mark.parametrize("method", ["scaffold", "moon"])
def test_states_that_left_memory_change_nothing(method, tmp_path, monkeypatch):
    settings = settings_of(method, "vectorised", "mlp")
    fullrank.run(settings, out=tmp_path / "whole")
    monkeypatch.setattr(ClientStates.__init__, "__defaults__", (1,))
    fullrank.run(settings, out=tmp_path / "evicted")
    assert_equal_outcomes(tmp_path / "evicted", tmp_path / "whole")


# Methods of a user's


@dataclass(frozen=True)
class LongFirst(Method):
    """Measures a tree that it keeps, whose names are in no alphabetical order, and lets the length decide."""

    drift = True

    def server_state(self, server):
        return {"z": torch.zeros(()), "last": dict(reversed(zeros(server.w).items()))}

    def client_state(self, client):
        return {"sum": dict(reversed(zeros(client.w0).items())), "a": torch.ones(())}

    def grad(self, g, b):
        kept = pointwise(b.own["sum"], lambda s, g: g + 0.01 * s, g)
        return pointwise(kept, lambda value: value / norm(kept))

    def after(self, client):
        client.own = {**client.own, "sum": pointwise(client.own["sum"], torch.add, client.w)}
        return {}

    def aggregate(self, server, new, up):
        last = pointwise(server.own["last"], lambda last, w: 0.3 * last + w, new)
        server.own = {"z": norm(last), "last": last}
        return pointwise(new, lambda w: w * (1 - 1e-3 * norm(last)))


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_sums_over_a_kept_tree_do_not_depend_on_where_it_comes_from(engine, tmp_path):
    settings = {**ODD, "method.name": "test_vectorised_resume:LongFirst", "engine.name": engine}
    in_steps(settings, tmp_path / "whole", [4])
    in_steps(settings, tmp_path / "parts", [1, 2, 4])
    assert_equal_outcomes(tmp_path / "parts", tmp_path / "whole")


@dataclass(frozen=True)
class BranchesLater(Method):
    """Cannot be mapped over clients that took part before."""

    def client_state(self, client):
        return {"first": torch.ones(())}

    def loss(self, b):
        return 0.01 * b.z.square().mean() * (b.own["later"].item() if "later" in b.own else b.own["first"])

    def after(self, client):
        client.own = {"later": torch.ones(())}
        return {}


def test_what_the_engine_found_out_holds_after_a_resume(tmp_path):
    settings = {**ODD, "method.name": "test_vectorised_resume:BranchesLater", "engine.name": "vectorised"}
    settings |= {
        "data.share": 1.0,
        "data.clients": 60,
        "train.participation": 16,
        "train.steps": 4,
        "train.batch_size": 4,
    }
    in_steps(settings, tmp_path / "whole", [4])
    in_steps(settings, tmp_path / "parts", [3, 4])
    rows = fullrank.load_run(tmp_path / "whole").metrics
    assert "one_by_one" in rows[2]
    assert "one_by_one" not in rows[0]
    assert_equal_outcomes(tmp_path / "parts", tmp_path / "whole")


def test_check_resumes_where_clients_train_as_a_group(monkeypatch):
    """With the old rule, by which the order of names decided who trains together, the check fails."""
    from fullrank.engine import vectorised

    def by_order(fit):
        kept = {"own": fit.context.own, "fixed": fit.context.fixed, "memory": fit.state.memory}
        return fit.step.settings, tuple(vectorised.outline(kept).items())

    check("moon", only=["resume"])
    monkeypatch.setattr(vectorised, "_kind", by_order)
    monkeypatch.setattr(fullrank.federated.client_states, "by_name", lambda tree: tree)
    with pytest.raises(fullrank.testing.CheckFailed, match="where clients train as a group"):
        check("moon", only=["resume"])


# Several runs at a time


@pytest.mark.slow  # comparison/test_compare.py has the same of another engine
def test_the_number_of_jobs_changes_no_bit(tmp_path, capsys):
    options = {**ODD, "train.rounds": 2, "train.participation": 0.5}
    sets = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    for jobs in (1, 2):
        arguments = ["--methods", "fedavg,moon", "--seeds", "0", "--jobs", jobs, "--out", tmp_path / str(jobs), "-q"]
        status, _, err = command("compare", *sets, *arguments, capsys=capsys)
        assert status == 0, err
    one, two = tmp_path / "1", tmp_path / "2"
    alone = tmp_path / "alone"
    assert command("run", *sets, "--set", "method.name=moon", "--out", alone, "-q", capsys=capsys)[0] == 0
    for left, right in [
        *((one / name, two / name) for name in ("fedavg-seed0", "moon-seed0")),
        (one / "moon-seed0", alone),
    ]:
        assert (left / "model.safetensors").read_bytes() == (right / "model.safetensors").read_bytes()
        rows = [
            [timeless(json.loads(line)) for line in (path / "metrics.jsonl").read_text().splitlines()]
            for path in (left, right)
        ]
        assert rows[0] == rows[1]
