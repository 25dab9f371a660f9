"""Wrong arithmetic that others shipped (design/PITFALLS.md): each test would have caught its own."""

from __future__ import annotations

import copy
import traceback
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fullrank
from fullrank import Method, Sum, fit
from fullrank.errors import ClientFailed, InputError
from fullrank.local.settings import Settings
from fullrank.local.step import Context, Functional, State, Step
from fullrank.methods.fedprox import FedProx
from fullrank.objectives import proximal
from fullrank.trees import combine
from hook_methods import Counting, SideModel, Variates
from small import (
    HIDDEN,
    Line,
    Quadratic,
    assert_close,
    assert_same_bits,
    blobs,
    normed,
    parabolas,
    plain,
    put_together,
    the_weight,
)

# --- FedProx ----------------------------------------------------------------------------------------


def correction(mu, distance, seed=0):
    """What FedProx adds to the gradient of every entry of a net with five tensors, `distance` away from w."""
    assembly = put_together(plain(seed), blobs(), FedProx(mu))
    received = assembly.server.model
    moved = {name: value + distance for name, value in received.items()}
    x, y = blobs((6,))[0]
    gradients = []
    for method in (FedProx(mu), Method()):
        composition = put_together(plain(seed), blobs(), method).composition
        step = Step(composition, Functional(assembly.network), Settings(), frozenset(moved), frozenset())
        state, context = State(moved, {}, {}), Context(received, {}, {}, torch.ones(3))
        gradients.append(step.gradient(state, context, x, y)[0])
    return combine(gradients[0], torch.sub, gradients[1])


def test_the_proximal_reference_is_a_constant():
    """plato: w is not detached from w_k, so the term's gradient cancels and FedProx is FedAvg."""
    for value in correction(0.5, 0.1).values():
        assert torch.allclose(value, torch.full_like(value, 0.05), rtol=1e-9)
    clients = parabolas((1.0,), (4,))
    settings = {"rounds": 1, "epochs": 5, "lr": 0.1, "momentum": 0.0}
    free = the_weight(fit(Line(), clients, Quadratic(), **settings))
    held = the_weight(fit(Line(), clients, Quadratic() + FedProx(mu=1.0), **settings))
    assert held == pytest.approx(0.5 * (1 - 0.8**5), abs=1e-12)
    assert free == pytest.approx(1 - 0.9**5, abs=1e-12)


def test_the_proximal_norm_is_squared():
    """plato, Flower's docstring, FedBN's repository: the gradient of an unsquared norm does not grow with distance."""
    near, far = correction(0.5, 0.1), correction(0.5, 0.4)
    for name in near:
        assert torch.allclose(far[name], 4 * near[name], rtol=1e-9)


def test_the_proximal_term_pulls_towards_the_global_model():
    """FedScale: the wrong sign pushes away."""
    assert all((value > 0).all() for value in correction(0.5, 0.1).values())
    assert all((value < 0).all() for value in correction(0.5, -0.1).values())


def test_the_proximal_term_counts_every_layer_once():
    """FLUTE: added inside the loop over parameters, layer i counts n − i times."""
    added = correction(1.0, 0.1)
    assert len(added) == 4
    assert all(torch.allclose(value, torch.full_like(value, 0.1), rtol=1e-9) for value in added.values())


def test_the_proximal_term_reads_names_not_positions():
    """The trees of a batch may hold their names in any order, and more of them."""
    g = {"b": torch.zeros(2), "a": torch.zeros(2)}

    class B:
        w = {"a": torch.full((2,), 1.0), "c": torch.ones(1), "b": torch.full((2,), 10.0)}
        w0 = {"c": torch.ones(1), "b": torch.full((2,), 4.0), "a": torch.full((2,), 3.0)}

    result = FedProx(mu=0.5).grad(g, B)
    assert {name: value.tolist() for name, value in result.items()} == {"b": [3.0, 3.0], "a": [-1.0, -1.0]}


def test_the_term_as_a_loss_agrees_with_the_correction():
    w = {"a": torch.randn(3, dtype=torch.float64, requires_grad=True)}
    w0 = {"a": torch.randn(3, dtype=torch.float64, requires_grad=True)}
    (slope,) = torch.autograd.grad(0.3 * proximal(w, w0), w["a"])
    g = FedProx(mu=0.3).grad({"a": torch.zeros(3, dtype=torch.float64)}, type("B", (), {"w": w, "w0": w0}))
    torch.testing.assert_close(g["a"], slope)


# --- Control variates -------------------------------------------------------------------------------


def test_variates_correct_the_gradient_and_are_written_back():
    """FedLab: never applied. FL-bench: never written back. Flower's baseline: start at the weights. plato: c_k sent."""
    clients = blobs()
    seen = []

    class Records(Method):
        def after(self, client):
            seen.append(client.round)
            return {}

    run = fit(normed(), clients, Variates() + Records(), rounds=1, batch_size=1000, lr=0.1, momentum=0.0)
    states = [run._assembly.server.store.get(k)["variates"]["c"] for k in range(3)]
    start = {name: p.detach() for name, p in normed().named_parameters()}
    for (x, y), c in zip(clients, states, strict=True):  # one step from 0: c_k is the client's gradient
        module = normed().train()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        assert_close(c, {name: p.grad for name, p in module.named_parameters()}, 1e-9)
        assert not torch.allclose(c["0.weight"], start["0.weight"])
    server = run._assembly.server.state()["own"]["variates"]["c"]
    mean = {name: sum(c[name] for c in states) / 3 for name in server}
    assert_close(server, mean, 1e-12)
    later = fit(normed(), clients, Variates(), rounds=2, batch_size=1000, lr=0.1, momentum=0.0).model().state_dict()
    plain_run = fit(normed(), clients, "fedavg", rounds=2, batch_size=1000, lr=0.1, momentum=0.0).model().state_dict()
    assert not torch.allclose(later["0.weight"], plain_run["0.weight"])


# --- BatchNorm --------------------------------------------------------------------------------------


def shifted(shifts, size=8):
    """Clients whose inputs lie far apart."""
    return [(x + shift, y) for (x, y), shift in zip(blobs((size,) * len(shifts)), shifts, strict=True)]


def test_statistics_do_not_leak_from_client_to_client():
    """pfl-research: running statistics go from user to user in processing order, −2.69 where the average is −.12."""
    seen = {}

    class Records(Method):
        def train(self, client):
            seen.setdefault(client.id, []).append({name: v.clone() for name, v in client.model.items()})
            client.fit()

    clients = shifted((-5.0, 0.0, 7.0))
    run = fit(normed(), clients, Records(), rounds=2, batch_size=4, lr=0.1)
    for round in range(2):
        for k in (1, 2):
            assert_same_bits(seen[k][round], seen[0][round])  # everybody starts from the same
    assert_same_bits(seen[0][0], normed().state_dict())
    assert not torch.equal(seen[0][1]["1.running_mean"], seen[0][0]["1.running_mean"])
    assert run.complete


def test_a_clients_result_does_not_depend_on_who_came_before():
    ends = {}

    class Records(Method):
        def after(self, client):
            ends.setdefault(client.id, []).append({name: v.clone() for name, v in client.model.items()})
            return {}

    clients = shifted((-5.0, 0.0, 7.0))
    fit(normed(), clients, Records(), rounds=1, batch_size=4, lr=0.1)
    first = copy.deepcopy(ends)
    ends.clear()
    # the same client among others of other sizes is worked on at another place
    others = [(x.repeat(3, 1), y.repeat(3)) for x, y in clients]
    fit(normed(), [clients[0], others[1], others[2]], Records(), rounds=1, batch_size=4, lr=0.1)
    assert_same_bits(ends[0][0], first[0][0])


def test_statistics_are_averaged():
    """PFLlib: the global model keeps the first client's buffers. FLamby: model 0 is evaluated."""
    start, clients = normed(), shifted((-5.0, 7.0))
    clients[1] = tuple(part[:6] for part in clients[1])
    run = fit(start, clients, "fedavg", rounds=1, batch_size=1000, lr=0.1)
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    inside = [x.numpy() @ weight.T + bias for x, _ in clients]
    mean = sum(n * 0.1 * z.mean(0) for n, z in zip((8, 6), inside, strict=True)) / 14
    var = sum(n * (0.9 + 0.1 * z.var(0, ddof=1)) for n, z in zip((8, 6), inside, strict=True)) / 14
    state = run.model().state_dict()
    np.testing.assert_allclose(state["1.running_mean"].numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(state["1.running_var"].numpy(), var, rtol=1e-12)
    assert state["1.num_batches_tracked"].dtype == torch.int64


def test_the_evaluated_model_is_the_averaged_one():
    clients, test = shifted((-5.0, 7.0)), blobs((40,), seed=9)[0]
    run = fit(normed(), clients, "fedavg", test=test, rounds=2, batch_size=4, lr=0.1)
    with torch.no_grad():
        scores = run.model()(test[0])
    right = (scores.argmax(1) == test[1]).double().mean().item()
    assert run.metrics[-1]["accuracy"] == pytest.approx(right, abs=1e-12)
    loss = torch.nn.functional.cross_entropy(scores, test[1]).item()
    assert run.metrics[-1]["loss"] == pytest.approx(loss, rel=1e-12)


class Scratch(nn.Module):
    """Keeps what it saw last in a buffer outside its state, and shows it."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(5, HIDDEN).double(), nn.Linear(HIDDEN, 3).double()
        self.register_buffer("last", torch.zeros(HIDDEN, dtype=torch.float64), persistent=False)

    def forward(self, x):
        z = torch.tanh(self.body(x)) + self.last
        if self.training:
            self.last.copy_(z.mean(0).detach())
        return self.out(z)


def test_buffers_outside_the_state_do_not_leak_either():
    torch.manual_seed(0)
    start, starts = Scratch(), []

    class Records(Method):
        def train(self, client):
            starts.append(dict(client.network.module.named_buffers())["last"].clone())
            client.fit()

    fit(start, blobs(), Records(), rounds=2, lr=0.1)
    assert len(starts) == 6
    assert not any(value.any() for value in starts)


def test_server_arithmetic_never_reaches_the_statistics():
    """Server optimisers over whole state_dicts make variances negative."""

    class Overshoots(Method):
        def aggregate(self, server, new, up):
            assert set(new) == set(server.w)
            return combine(new, lambda new, w: w + 50 * (new - w), server.w)

    clients = blobs()
    run = fit(normed(), clients, Overshoots(), rounds=1, batch_size=1000, lr=0.1)
    base = fit(normed(), clients, "fedavg", rounds=1, batch_size=1000, lr=0.1)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(run.model().state_dict()[name], base.model().state_dict()[name])


# --- Failures ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breaks(Method):
    """Some clients fail from some round on."""

    who: tuple[int, ...] = (0, 1, 2)
    when: int = 0

    def train(self, client):
        client.fit()
        if client.id in self.who and client.round >= self.when:
            self._deep_inside(client)

    def _deep_inside(self, client):
        raise ZeroDivisionError(f"no sample of client {client.id} is usable")


def test_every_client_raising_is_an_error_not_a_result():
    """Flower: all 50 clients raised, the run printed "Final results" and returned normally."""
    with pytest.raises(ClientFailed, match="client 0: ZeroDivisionError: no sample of client 0 is usable"):
        fit(plain(), blobs(), Breaks(), rounds=2)
    with pytest.raises(InputError, match="round 1: no client sent anything") as caught:
        fit(plain(), blobs(), Breaks(), rounds=2, set={"run.on_client_error": "skip"})
    for k in range(3):
        assert f"client {k}: ZeroDivisionError: no sample of client {k} is usable" in str(caught.value)


def test_a_later_round_in_which_everybody_fails_is_an_error_too():
    with pytest.raises(InputError, match="round 3: no client sent anything"):
        fit(plain(), blobs(), Breaks(when=2), rounds=5, set={"run.on_client_error": "skip"})


def test_nobody_making_a_step_is_an_error():
    x, y = blobs((3,))[0]
    with pytest.raises(InputError, match=r"round 1: no client sent anything \(none of them made a step"):
        fit(normed(), [(x[:1], y[:1]), (x[2:], y[2:])], "fedavg", rounds=1)


def test_a_clients_exception_carries_its_id_and_its_own_traceback():
    with pytest.raises(ClientFailed) as caught:
        fit(plain(), blobs(), Breaks(who=(2,)), rounds=1)
    assert caught.value.client == 2
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert "_deep_inside" in "".join(traceback.format_tb(cause.__traceback__))
    assert "_deep_inside" in "".join(traceback.format_exception(caught.value))


def test_a_failed_client_leaves_no_trace_and_the_others_continue():
    clients = blobs()
    settings = {"rounds": 2, "batch_size": 1000, "lr": 0.1}
    method = Breaks(who=(1,)) + Counting() + Variates()
    run = fit(normed(), clients, method, set={"run.on_client_error": "skip"}, **settings)
    assert [set(row["skipped"]) for row in run.metrics] == [{"1"}, {"1"}]
    assert run._assembly.server.store.get(1) is None
    assert int(run._assembly.server.store.get(0)["counting"]["rounds"]) == 2
    assert run.summary()["skipped"] == 2
    # the mean is over those who answered
    once = fit(normed(), clients, Breaks(who=(1,)), set={"run.on_client_error": "skip"}, **{**settings, "rounds": 1})
    single = [fit(normed(), [clients[k]], "fedavg", **{**settings, "rounds": 1}).model().state_dict() for k in (0, 2)]
    want = (12 * single[0]["0.weight"] + 7 * single[1]["0.weight"]) / 19
    torch.testing.assert_close(once.model().state_dict()["0.weight"], want)


@pytest.mark.parametrize(
    ("value", "reason"), [(float("nan"), "not finite"), (float("inf"), "not finite")], ids=["nan", "inf"]
)
def test_a_client_whose_weights_are_not_finite_is_named(value, reason):
    class Explodes(Method):
        def train(self, client):
            client.fit()
            if client.id == 1:
                client.network.load({"2.bias": torch.full((3,), value)})

    with pytest.raises(ClientFailed, match=f"client 1: its upload is rejected: in its w, 2.bias is {reason}"):
        fit(plain(), blobs(), Explodes(), rounds=1)
    run = fit(plain(), blobs(), Explodes(), rounds=1, set={"run.on_client_error": "skip"})
    assert list(run.metrics[0]["skipped"]) == ["1"]
    assert all(torch.isfinite(v).all() for v in run.model().state_dict().values())


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (lambda client: {}, "its uploads differ from what the method sends in odd/x"),
        (lambda client: {"x": Sum({"v": torch.zeros(3)})}, r"v has shape \(3,\) instead of \(2,\)"),
        (lambda client: {"x": Sum({"u": torch.zeros(2)})}, "v is missing"),
        (lambda client: {"x": {"v": torch.zeros(2)}}, "its odd/x is a dict; uploads are a Sum or a Mean"),
    ],
)
def test_an_upload_unlike_the_others_is_rejected_and_named(upload, reason):
    class Odd(Method):
        def after(self, client):
            return upload(client) if client.id == 1 else {"x": Sum({"v": torch.zeros(2)})}

    with pytest.raises(ClientFailed, match=f"client 1: its upload is rejected: .*{reason}"):
        fit(plain(), blobs(), Odd(), rounds=1)


def test_diverging_training_stops_loudly():
    with pytest.raises(ClientFailed, match="not finite"):
        fit(plain(), blobs(), Shoots(), rounds=20, epochs=5, lr=1e6, momentum=0.0)


class Shoots(Method):
    def criterion(self, b):
        return b.logits.square().square().mean()


# --- State with tensors that share memory -----------------------------------------------------------


class Aliases(Method):
    """One tensor under two names, a view of another, an expanded one, and empty trees."""

    def client_state(self, client):
        weight = client.model["0.weight"]
        return {"a": weight, "b": weight, "row": weight[1], "turned": weight.T, "none": {}, "nor": {"this": {}}}

    def server_state(self, server):
        weight = server.w["0.weight"]
        return {"a": weight, "b": weight, "wide": torch.ones(1).expand(4, 3), "none": {}}

    def after(self, client):
        own = client.own
        client.own = {**own, "a": own["a"] + 1, "b": own["b"]}
        return {}


def test_state_with_tensors_that_share_memory_survives_a_checkpoint(tmp_path):
    clients = blobs()
    fit(plain(), clients, Aliases(), rounds=2, out=tmp_path / "run")
    resumed = fit(plain(), clients, Aliases(), rounds=4, out=tmp_path / "run")
    start = plain()[0].weight.detach()
    own = resumed._assembly.server.store.get(1)["aliases"]
    assert torch.equal(own["a"], start + 4)
    assert torch.equal(own["b"], start)
    assert torch.equal(own["row"], start[1])
    assert torch.equal(own["turned"], start.T)
    assert own["none"] == {}
    assert own["nor"] == {"this": {}}
    server = resumed._assembly.server.state()["own"]["aliases"]
    assert torch.equal(server["a"], start)
    assert torch.equal(server["wide"], torch.ones(4, 3))
    assert server["none"] == {}


def test_a_second_model_starts_as_a_copy(tmp_path):
    """Ditto's v_k at first contact is the model itself: saved twice, moved once."""
    clients = blobs()
    fit(normed(), clients, SideModel(), rounds=1, out=tmp_path / "run", batch_size=4)
    resumed = fit(normed(), clients, SideModel(), rounds=3, out=tmp_path / "run", batch_size=4)
    straight = fit(normed(), clients, SideModel(), rounds=3, batch_size=4)
    assert_same_bits(resumed.model().state_dict(), straight.model().state_dict())
    for k in range(3):
        one, two = (run._assembly.server.store.get(k)["sidemodel"]["v"] for run in (resumed, straight))
        assert_same_bits(one, two)


def test_uploads_that_are_the_models_own_tensors_are_sums_of_what_was_sent():
    """`client.w` is alive: the next client trains in the same memory."""
    totals = {}

    class Sends(Method):
        def after(self, client):
            return {"mine": Sum(client.w)}

        def aggregate(self, server, new, up):
            totals.update(up["mine"])
            return new

    clients = blobs((8, 8, 8))
    run = fit(plain(), clients, Sends(), rounds=1, batch_size=1000, lr=0.1)
    mean = run.model().state_dict()
    for name, value in totals.items():
        torch.testing.assert_close(value, 3 * mean[name])


# --- Sampling and seeds -----------------------------------------------------------------------------


def test_the_global_generators_are_neither_used_nor_moved():
    def result():
        return fit(normed(), blobs((9, 8, 7)), "feddecorr", rounds=2, participation=2).model().state_dict()

    torch.manual_seed(1)
    np.random.seed(1)
    first = result()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    second = result()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert_same_bits(second, first)


def test_dropout_follows_the_seed():
    def result(seed):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
        torch.manual_seed(seed + 100)
        return fit(module, blobs(), "fedavg", rounds=2, seed=seed, lr=0.1).model().state_dict()

    assert_same_bits(result(0), result(0))
    assert not torch.equal(result(0)["0.weight"], result(1)["0.weight"])


def test_a_library_run_that_cannot_start_is_no_run(tmp_path):
    settings = {"data.clients": 2, "method.name": "test_pitfalls:Breaks", "train.rounds": 2, "model.width": 2}
    with pytest.raises(ClientFailed):
        fullrank.run(settings, out=tmp_path / "run")
    run = fullrank.load_run(tmp_path / "run")
    assert not run.complete
    assert run.metrics == []
    assert not (tmp_path / "run" / "model.safetensors").exists()
