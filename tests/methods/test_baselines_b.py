"""FedBN, Ditto, FedRep, CCVR, FedProto, FedRoD, FedNH, FedRS and FedLC.

Whole rounds against a perceptron written out in NumPy float64, forward and backward, from the equations; and the
checks, degenerate cases and exchange counts of each method.
"""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from torch import nn

import fullrank
from engines import check_same
from fullrank import Conflict, fit
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.serial import Serial
from fullrank.engine.vectorised import Vectorised
from fullrank.errors import InputError
from fullrank.federated.server import Questions
from fullrank.methods import Composition, available, build
from fullrank.methods._batch import Batch
from fullrank.methods.ccvr import CCVR, draw, gaussian
from fullrank.methods.ditto import Ditto
from fullrank.methods.fedavgm import FedAvgM
from fullrank.methods.fedbn import FedBN
from fullrank.methods.fedlc import FedLC
from fullrank.methods.fednh import FedNH
from fullrank.methods.fedproto import FedProto
from fullrank.methods.fedrep import FedRep
from fullrank.methods.fedrod import FedRoD
from fullrank.methods.fedrs import FedRS
from fullrank.models.entries import NORM_LAYERS
from fullrank.objectives import balanced, balanced_cross_entropy
from fullrank.randomness import generator
from fullrank.runs.assemble import assemble
from fullrank.trees import elements
from hook_methods import Balanced, Projection
from small import (
    CLASSES,
    HIDDEN,
    WIDTH,
    assert_same_bits,
    blobs,
    kept,
    normed,
    plain,
    put_together,
    server_state,
    softmax,
)

NAMES = ["fedbn", "ditto", "fedrep", "ccvr", "fedproto", "fedrod", "fednh", "fedrs", "fedlc"]
BODY, NORM, HEAD = WIDTH * HIDDEN + HIDDEN, 2 * HIDDEN, HIDDEN * CLASSES + CLASSES
P, B = BODY + NORM + HEAD, 2 * HIDDEN + 1
"""Elements of `normed()`: its parameters, and its buffers with one counter."""
LR, MOMENTUM = 0.2, 0.9
FULL = {"lr": LR, "momentum": MOMENTUM, "batch_size": 1000}
"""Full batches, so that the order of samples does not matter."""
BATCHES = {"rounds": 3, "lr": 0.1, "batch_size": 4}
SIZES = (12, 9, 7)


# --- A perceptron in NumPy --------------------------------------------------------------------------


def numbers(tensors):
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


def slope(logits, y):
    """Of the mean cross-entropy, by the logits."""
    return (softmax(logits) - np.eye(logits.shape[1])[y]) / len(y)


def place(state):
    """The number of the last layer in a `plain` or `normed` perceptron."""
    return "3" if "1.weight" in state else "2"


def forward(state, x):
    """z in training; the way back to the body's gradient; moved buffers."""
    inside = x @ state["0.weight"].T + state["0.bias"]
    if place(state) == "2":
        z = np.tanh(inside)

        def back(dz):
            da = dz * (1 - z**2)
            return {"0.weight": da.T @ x, "0.bias": da.sum(0)}

        return z, back, {}
    mean, var = inside.mean(0), inside.var(0)
    unit = (inside - mean) / np.sqrt(var + 1e-5)
    out = unit * state["1.weight"] + state["1.bias"]
    moved = {
        "1.running_mean": 0.9 * state["1.running_mean"] + 0.1 * mean,
        "1.running_var": 0.9 * state["1.running_var"] + 0.1 * inside.var(0, ddof=1),
        "1.num_batches_tracked": state["1.num_batches_tracked"] + 1,
    }

    def back(dz):
        d = dz * (out > 0)
        du = d * state["1.weight"]
        da = (du - du.mean(0) - unit * (du * unit).mean(0)) / np.sqrt(var + 1e-5)
        body = {"0.weight": da.T @ x, "0.bias": da.sum(0)}
        return {**body, "1.weight": (d * unit).sum(0), "1.bias": d.sum(0)}

    return np.maximum(out, 0), back, moved


def features(state, x):
    """z in evaluation."""
    inside = x @ state["0.weight"].T + state["0.bias"]
    if place(state) == "2":
        return np.tanh(inside)
    unit = (inside - state["1.running_mean"]) / np.sqrt(state["1.running_var"] + 1e-5)
    return np.maximum(unit * state["1.weight"] + state["1.bias"], 0)


def scores(state, x):
    layer = place(state)
    return features(state, x) @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]


def linear(slope=slope, pull=None):
    """An objective of a linear head: its gradient, and what comes back to z; `pull` is a further slope by z."""

    def objective(state, z, y):
        layer = place(state)
        d = slope(z @ state[f"{layer}.weight"].T + state[f"{layer}.bias"], y)
        dz = d @ state[f"{layer}.weight"]
        return {f"{layer}.weight": d.T @ z, f"{layer}.bias": d.sum(0)}, dz if pull is None else dz + pull(z, y)

    return objective


def sgd(state, client, objective=None, *, steps=1, only=None, near=None, lam=0.0):
    """So many full-batch steps with momentum; `near` adds λ(w − near)."""
    x, y = (part.numpy() for part in client)
    state, velocity = dict(state), {}
    for _ in range(steps):
        z, back, moved = forward(state, x)
        head, dz = (objective or linear())(state, z, y)
        g = {**head, **back(dz)}
        for name in g:
            if only is None or only(name):
                total = g[name] + (lam * (state[name] - near[name]) if near is not None else 0.0)
                velocity[name] = MOMENTUM * velocity.get(name, 0.0) + total
                state[name] = state[name] - LR * velocity[name]
        state |= moved
    return state


def mean(states, sizes=SIZES):
    """By sample counts; counters take the maximum."""
    shares = np.array(sizes) / sum(sizes)
    return {
        name: np.max([s[name] for s in states])
        if name.endswith("tracked")
        else sum(share * s[name] for share, s in zip(shares, states, strict=True))
        for name in states[0]
    }


def check(got, want, tolerance=1e-10):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name].detach().numpy(), value, rtol=tolerance, atol=tolerance, err_msg=name)


def counts_of(client):
    return np.bincount(client[1].numpy(), minlength=CLASSES).astype(np.float64)


def lacking(dtype=torch.float64):
    """Clients that lack a class each, and one that lacks none."""
    clients = blobs(SIZES, dtype=dtype)
    for k, gone in ((0, 2), (1, 0)):
        clients[k][1][clients[k][1] == gone] = 1
    return clients


def start_of(module, clients, method):
    return numbers(put_together(module, clients, method).server.model)


def averaged_rounds(start, clients, objective_of, rounds=2):
    state = start
    for _ in range(rounds):
        state = mean([sgd(state, c, objective_of(c)) for c in clients])
    return state


def test_the_perceptron_itself_is_fedavg():
    """What the other tests compare with is right where nothing of the methods acts."""
    for start in (normed(), plain()):
        run = fit(start, blobs(), "fedavg", rounds=2, **FULL)
        check(run.model().state_dict(), averaged_rounds(numbers(start.state_dict()), blobs(), lambda c: linear()))


# --- Balanced softmax -------------------------------------------------------------------------------


def test_balanced_cross_entropy_known_answers():
    zero, counts = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([8, 2, 0])
    for y, value in enumerate((0.318454, 1.704748, 2.397895)):
        assert balanced_cross_entropy(zero, torch.tensor([y]), counts).item() == pytest.approx(value, abs=1e-6)
    y = torch.tensor([0])
    assert balanced_cross_entropy(zero, y, counts).item() != balanced_cross_entropy(zero, y, 10 * counts).item()
    full = torch.tensor([8.0, 2, 5])
    one, ten = (balanced_cross_entropy(zero, y, c).item() for c in (full, 10 * full))
    assert one == pytest.approx(ten, rel=1e-12)


def test_balanced_cross_entropy_by_the_book():
    rng = np.random.default_rng(0)
    a, y, n = rng.normal(size=(6, 4)), rng.integers(0, 4, 6), np.array([5.0, 0, 1, 30])
    for gamma in (0.0, 0.5, 1.0):
        p = np.maximum(n, 1) ** gamma * np.exp(a)
        want = -np.log(p[np.arange(6), y] / p.sum(1)).mean()
        logits = torch.tensor(a, requires_grad=True)
        got = balanced_cross_entropy(logits, torch.tensor(y), torch.tensor(n), gamma)
        assert got.item() == pytest.approx(want, rel=1e-12)
        (g,) = torch.autograd.grad(got, logits)
        np.testing.assert_allclose(g.numpy(), slope(a + gamma * np.log(np.maximum(n, 1)), y), rtol=1e-10, atol=1e-15)
    plain_one = nn.functional.cross_entropy(logits, torch.tensor(y), label_smoothing=0.1)
    same = balanced_cross_entropy(logits, torch.tensor(y), torch.full((4,), 7), label_smoothing=0.1)
    torch.testing.assert_close(same, plain_one)


def test_balanced_cross_entropy_takes_shares_half_precision_and_vmap():
    logits, y, n = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([6.0, 3, 1])
    torch.testing.assert_close(balanced_cross_entropy(logits, y, n / 10), balanced_cross_entropy(logits, y, n))
    assert balanced_cross_entropy(logits.bfloat16(), y, n).dtype == torch.float32
    many = torch.func.vmap(balanced_cross_entropy)(logits.expand(2, 5, 3), y.expand(2, 5), torch.stack([n, n]))
    torch.testing.assert_close(many[1], balanced_cross_entropy(logits, y, n))
    with pytest.raises(InputError, match=r"counts \(classes,\), not \(5, 3\) and \(4,\)"):
        balanced_cross_entropy(logits, y, torch.ones(4))
    assert doctest.testmod(balanced).attempted > 0
    assert doctest.testmod(balanced).failed == 0


# --- FedRS and FedLC: criteria on the client's counts -----------------------------------------------


def of_one(method, logits, y, counts, smoothing=0.0):
    logits = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    counts = torch.tensor(counts, dtype=torch.float64)
    value = method.criterion(Batch({}, logits=logits, y=torch.tensor([y]), counts=counts, label_smoothing=smoothing))
    return value.item(), torch.autograd.grad(value, logits)[0][0].numpy()


LOGITS = (1.0, 2.0, 3.0, 0.5)


def test_fedrs_known_answers():
    value, g = of_one(FedRS(), LOGITS, 0, (4, 9, 0, 0))
    assert value == pytest.approx(1.7646228547, abs=1e-10)
    np.testing.assert_allclose(g, (-0.8287486390, 0.4655094626, 0.1411728807, 0.0404467075), atol=1e-10)
    assert of_one(FedRS(), LOGITS, 1, (4, 9, 0, 0))[0] == pytest.approx(0.7646228547, abs=1e-10)
    assert of_one(FedRS(alpha=1.0), LOGITS, 0, (4, 9, 0, 0))[0] == pytest.approx(2.4607734892, abs=1e-10)


@pytest.mark.parametrize(
    ("absent", "values"),
    [("drop", (1.2135030216, 0.7135030216, 1.5468363549)), ("one", (2.0601238574, 1.5601238574, 2.3934571907))],
)
def test_fedlc_known_answers(absent, values):
    for y, value in zip((0, 1, 3), values, strict=True):
        got, g = of_one(FedLC(tau=1.0, absent=absent), LOGITS, y, (16, 1, 0, 81))
        assert got == pytest.approx(value, abs=1e-10)
        assert np.isfinite(g).all()
        assert (g[2] == 0) == (absent == "drop")


def test_fedlc_label_smoothing_leaves_absent_classes_out():
    a = np.array(LOGITS)[[0, 1, 3]] - np.array([16.0, 1, 81]) ** -0.25
    logp = a - np.log(np.exp(a).sum())
    value, g = of_one(FedLC(), LOGITS, 0, (16, 1, 0, 81), smoothing=0.1)
    assert value == pytest.approx(-0.9 * logp[0] - 0.1 * logp.mean(), rel=1e-12)
    np.testing.assert_allclose(g[[0, 1, 3]], np.exp(logp) - np.array([0.9, 0, 0]) - 0.1 / 3, rtol=1e-10)
    assert g[2] == 0
    one = of_one(FedLC(tau=0.0), LOGITS, 0, (1, 1, 1, 1), smoothing=0.1)[0]
    assert one == pytest.approx(of_one(FedRS(alpha=1.0), LOGITS, 0, (1, 1, 1, 1), smoothing=0.1)[0], rel=1e-12)


def restricted(alpha):
    def objective_of(client):
        scale = np.where(counts_of(client) > 0, 1.0, alpha)
        return linear(lambda logits, y: scale * slope(logits * scale, y))

    return objective_of


def calibrated(tau, absent):
    def objective_of(client):
        n = counts_of(client)
        margin = tau * np.maximum(n, 1) ** -0.25

        def calibrated_slope(logits, y):
            shifted = logits - margin
            if absent == "drop":
                shifted = np.where(n > 0, shifted, -np.inf)
            return slope(shifted, y)

        return linear(calibrated_slope)

    return objective_of


@pytest.mark.parametrize(
    ("method", "objective_of"),
    [
        (FedRS(alpha=0.5), restricted(0.5)),
        (FedRS(alpha=0.0), restricted(0.0)),
        (FedLC(tau=0.7), calibrated(0.7, "drop")),
        (FedLC(tau=0.7, absent="one"), calibrated(0.7, "one")),
    ],
    ids=["fedrs-half", "fedrs-0", "fedlc-drop", "fedlc-one"],
)
def test_criteria_over_two_rounds(method, objective_of):
    clients, start = lacking(), normed()
    run = fit(start, clients, method, rounds=2, **FULL)
    check(run.model().state_dict(), averaged_rounds(numbers(start.state_dict()), clients, objective_of))


def trained(method, clients, **settings):
    run = fit(normed(dtype=torch.float32), clients, method, **{**BATCHES, **settings})
    return run.model().state_dict()


def test_neutral_criteria_are_fedavg_to_the_bit_also_where_classes_are_absent():
    clients = lacking(torch.float32)
    base = trained("fedavg", clients)
    assert_same_bits(trained(FedRS(alpha=1.0), clients), base)
    assert_same_bits(trained(FedLC(tau=0.0, absent="one"), clients), base)
    assert_same_bits(trained(FedLC(tau=0.0), blobs(dtype=torch.float32)), trained("fedavg", blobs(dtype=torch.float32)))
    for other in (FedRS(), FedLC(tau=0.0), FedLC(absent="one")):
        assert not torch.equal(trained(other, clients)["0.weight"], base["0.weight"])


# --- FedBN ------------------------------------------------------------------------------------------


def test_fedbn_over_two_rounds():
    clients, start = blobs(), normed()
    run = fit(start, clients, FedBN(), rounds=2, **FULL)
    theirs = [numbers(start.state_dict()) for _ in clients]
    for _ in range(2):
        theirs = [sgd(state, client) for state, client in zip(theirs, clients, strict=True)]
        common = {name: value for name, value in mean(theirs).items() if not name.startswith("1.")}
        theirs = [{**state, **common} for state in theirs]
    for k, want in enumerate(theirs):
        check(run.client_model(k, "received").state_dict(), want)
    assert set(kept(run, 0)["model"]) == {name for name in theirs[0] if name.startswith("1.")}
    with pytest.raises(InputError, match=r"no complete global model"):
        run.model()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_statistics_after_a_round_do_not_depend_on_who_went_first(order):
    """Statistics that leak from one client to the next, or are the first client's, would."""
    given, start = blobs(), normed()
    clients = [given[k] for k in order]
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    inside = [x.numpy() @ weight.T + bias for x, _ in clients]
    own = fit(start, clients, FedBN(), rounds=1, **FULL)
    for k, a in enumerate(inside):
        state = own.client_model(k, "received").state_dict()
        np.testing.assert_allclose(state["1.running_mean"].numpy(), 0.1 * a.mean(0), rtol=1e-12)
        np.testing.assert_allclose(state["1.running_var"].numpy(), 0.9 + 0.1 * a.var(0, ddof=1), rtol=1e-12)
    shares = np.array([len(a) for a in inside]) / 28
    for method in (FedRS(), FedLC(), FedRoD(), CCVR(), Ditto(), FedNH()):
        state = fit(start, clients, method, rounds=1, **FULL).model().state_dict()
        want = sum(share * 0.1 * a.mean(0) for share, a in zip(shares, inside, strict=True))
        np.testing.assert_allclose(state["1.running_mean"].numpy(), want, rtol=1e-11)
        want = 0.9 + sum(share * 0.1 * a.var(0, ddof=1) for share, a in zip(shares, inside, strict=True))
        np.testing.assert_allclose(state["1.running_var"].numpy(), want, rtol=1e-11)
        assert int(state["1.num_batches_tracked"]) == 1


ANY_NETWORK = [name for name, method in available().items() if not getattr(method, "tried_on", {})]


def moved_by(stats, inside, batches):
    """Mean, variance and counter of a BatchNorm that has seen so many times the same batch."""
    mean, var, count = stats
    for _ in range(batches):
        mean, var = 0.9 * mean + 0.1 * inside.mean(0), 0.9 * var + 0.1 * inside.var(0, ddof=1)
    return mean, var, count + batches


@pytest.mark.parametrize("policy", ["average", "local", "fedbn"])
@pytest.mark.parametrize("name", ANY_NETWORK)
def test_statistics_of_every_method_over_two_rounds(name, policy):
    """No weight moves at this learning rate, so that statistics do not depend on what else a method does."""
    clients, start = blobs(), normed()
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    inside = [x.numpy() @ weight.T + bias for x, _ in clients]
    method = build(name if policy != "fedbn" or name == "fedbn" else f"{name}+fedbn")
    settings = {"train.buffers": "local" if policy == "local" else "average"}
    run = fit(start, clients, method, rounds=2, epochs=2, lr=1e-13, batch_size=1000, set=settings)

    personal = policy != "average" or name in ("fedbn", "fedproto")
    batches = 4 if name == "fedrep" else 2  # it fits twice
    theirs = [(np.zeros(HIDDEN), np.ones(HIDDEN), 0) for _ in clients]
    for _ in range(2):
        theirs = [moved_by(stats, a, batches) for stats, a in zip(theirs, inside, strict=True)]
        if not personal:
            means, variances, counts = zip(*theirs, strict=True)
            shares = np.array(SIZES) / sum(SIZES)
            theirs = [(shares @ np.array(means), shares @ np.array(variances), max(counts))] * len(clients)
    for k, want in enumerate(theirs):
        got = kept(run, k)["model"] if personal else run._assembly.server.model
        np.testing.assert_allclose(got["1.running_mean"].numpy(), want[0], rtol=1e-11)
        np.testing.assert_allclose(got["1.running_var"].numpy(), want[1], rtol=1e-11)
        assert int(got["1.num_batches_tracked"]) == want[2]


def test_fedbn_finds_norm_layers_by_their_type():
    """Shortcuts and layers of any name: what is personal is just what norm layers hold."""
    parts = assemble(Experiment.of({"method.name": "fedbn", "model.name": "resnet20-conv"}))
    layers = [name for name, m in parts.network.module.named_modules() if isinstance(m, NORM_LAYERS)]
    assert any("bn" not in name for name in layers)
    assert set(parts.entries.personal) == {
        f"{name}.{entry}"
        for name in layers
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    with pytest.raises(InputError, match='the selector "norm" names no entry of the model'):
        fit(plain(), blobs(), FedBN(), rounds=1)


def test_fedbn_of_one_client_is_fedavg_to_the_bit():
    single = blobs((12,), dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), single, FedBN(), **BATCHES)
    assert_same_bits(run.client_model(0, "received").state_dict(), trained("fedavg", single))


def test_fedbn_with_local_buffers_is_fedbn():
    clients = blobs(dtype=torch.float32)
    one, two = (
        fit(normed(dtype=torch.float32), clients, FedBN(), set={"train.buffers": policy}, **BATCHES)
        for policy in ("average", "local")
    )
    assert_same_bits(one.client_model(1).state_dict(), two.client_model(1).state_dict())


# --- Ditto ------------------------------------------------------------------------------------------


def ditto_by_hand(start, clients, lam, rounds=2, epochs=1):
    w, theirs = start, [start for _ in clients]
    for _ in range(rounds):
        theirs = [sgd(v, c, near=w, lam=lam, steps=epochs) for v, c in zip(theirs, clients, strict=True)]
        w = mean([sgd(w, client) for client in clients])
    return w, theirs


@pytest.mark.parametrize(("lam", "epochs"), [(0.5, 0), (0.5, 3), (0.0, 2)])
def test_ditto_over_two_rounds(lam, epochs):
    """The term pulls towards the model as received, squared, once for every layer; v has its own statistics."""
    clients, start = blobs(), normed()
    run = fit(start, clients, Ditto(lam=lam, epochs=epochs), rounds=2, **FULL)
    w, theirs = ditto_by_hand(numbers(start.state_dict()), clients, lam, epochs=epochs or 1)
    check(run.model().state_dict(), w)
    for k, v in enumerate(theirs):
        check(run.client_model(k).state_dict(), v)
        check(kept(run, k)["ditto"]["v"], v)


def test_ditto_without_a_pull_is_local_training():
    clients, start = blobs(), plain()
    run = fit(start, clients, Ditto(lam=0.0), rounds=3, lr=LR, momentum=0.0, batch_size=1000)
    for k, client in enumerate(clients):
        single = fit(start, [client], "fedavg", rounds=3, lr=LR, momentum=0.0, batch_size=1000)
        for name, value in single.model().state_dict().items():
            torch.testing.assert_close(run.client_model(k).state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_ditto_with_a_strong_pull_stays_near_the_global_model():
    clients, start = blobs(), plain()
    settings = {"rounds": 1, "epochs": 40, "lr": 0.05, "momentum": 0.0, "batch_size": 1000}

    def distance(lam):
        v = fit(start, clients, Ditto(lam=lam), **settings).client_model(0).state_dict()
        return float(sum((v[n] - t).square().sum() for n, t in start.state_dict().items()))

    far, near, nearest = (distance(lam) for lam in (0.0, 1.0, 10.0))
    assert far > 2 * near > 8 * nearest > 0


def test_dittos_global_path_is_fedavg_to_the_bit():
    clients = blobs(dtype=torch.float32)
    assert_same_bits(trained(Ditto(lam=3.0), clients), trained("fedavg", clients))


def test_ditto_of_a_client_that_was_never_called_upon_is_the_global_model():
    clients = blobs((9, 8, 7, 6), dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), clients, Ditto(), rounds=1, participation=1)
    (drawn,) = (c["client"] for c in run.metrics[0]["clients"])
    assert_same_bits(run.client_model((drawn + 1) % 4).state_dict(), run.model().state_dict())
    assert kept(run, (drawn + 1) % 4) is None


# --- FedRep -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_epochs", [0, 3])
def test_fedrep_over_two_rounds(head_epochs):
    clients, start = blobs(), normed()
    run = fit(start, clients, FedRep(head_epochs=head_epochs), rounds=2, epochs=2, **FULL)
    theirs = [numbers(start.state_dict()) for _ in clients]
    for _ in range(2):
        heads = [
            sgd(s, c, steps=head_epochs or 2, only=lambda n: n.startswith("3."))
            for s, c in zip(theirs, clients, strict=True)
        ]
        bodies = [
            sgd(s, c, steps=2, only=lambda n: not n.startswith("3.")) for s, c in zip(heads, clients, strict=True)
        ]
        common = {name: value for name, value in mean(bodies).items() if not name.startswith("3.")}
        theirs = [{**state, **common} for state in bodies]
    got = [run.client_model(k, "received").state_dict() for k in range(3)]
    for k, want in enumerate(theirs):
        check(got[k], want)
    assert all(torch.equal(got[0][n], other[n]) for other in got[1:] for n in got[0] if not n.startswith("3."))
    assert not torch.allclose(got[0]["3.weight"], got[1]["3.weight"])
    with pytest.raises(InputError, match=r"no complete global model"):
        run.model()


def test_fedrep_trains_a_neck_with_the_body():
    clients = blobs()
    run = fit(normed(), clients, FedRep() + Projection(width=4), rounds=1, **FULL)
    begin = put_together(normed(), clients, FedRep() + Projection(width=4)).server.model
    after = run.client_model(0).state_dict()
    necks = [name for name in begin if "neck" in name]
    assert necks
    assert all(not torch.equal(begin[name], after[name]) for name in necks)
    assert not any("neck" in name for name in kept(run, 0)["model"])


# --- CCVR -------------------------------------------------------------------------------------------


def sums(z):
    z = np.array(z, dtype=np.float64)
    return len(z), z.sum(0), z.T @ z


def test_ccvr_known_answer():
    one, two = sums([(0, 0), (2, 0)]), sums([(4, 4), (6, 4), (5, 1)])
    mu, sigma = gaussian(*(a + b for a, b in zip(one, two, strict=True)))
    np.testing.assert_allclose(mu, (3.4, 1.8), rtol=1e-12)
    np.testing.assert_allclose(sigma, [[5.8, 3.6], [3.6, 4.2]], rtol=1e-12)
    mu, sigma = gaussian(*sums([(3, 4)]))
    assert (mu.tolist(), sigma.tolist()) == ([3, 4], [[0, 0], [0, 0]])


def test_ccvr_draws_from_the_distribution_also_from_a_singular_one():
    z = np.random.default_rng(1).normal(size=(4, 6)) @ np.diag(np.arange(1.0, 7)) + 5  # rank 3 in 6 dimensions
    drawn = draw(np.random.default_rng(2), 200_000, *sums(z))
    np.testing.assert_allclose(drawn.mean(0), z.mean(0), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(z.T), atol=0.4)
    few = draw(np.random.default_rng(2), 1000, *sums([(3, 4)]))
    np.testing.assert_allclose(few, np.tile((3.0, 4.0), (1000, 1)), atol=6e-3)  # 1e-6 is the variance


def test_ccvr_by_hand():
    """Moments of NumPy's features under the model before the end, the draw, and the head's training on it."""
    clients, asked = blobs(), []

    class Watched(CCVR):
        name = "ccvr"

        def finish(self, server):
            asked.append(server.ask(self.moments)["moments"])
            super().finish(server)

    few = {"samples": 20, "epochs": 3, "lr": 0.5}  # 60 features make one batch
    after = fit(normed(), clients, CCVR(**few), rounds=2, **FULL).model().state_dict()
    assert_same_bits(fit(normed(), clients, Watched(**few), rounds=2, **FULL).model().state_dict(), after)
    before = averaged_rounds(numbers(normed().state_dict()), clients, lambda c: linear())
    z = np.concatenate([features(before, x.numpy()) for x, _ in clients])
    y = np.concatenate([y.numpy() for _, y in clients])
    rng, drawn = generator(0, "server", "ccvr", "features", 2), []
    for c in range(CLASSES):
        n, first, second = sums(z[y == c])
        assert float(asked[0]["n"][c]) == n
        np.testing.assert_allclose(asked[0]["z"][c].numpy(), first, rtol=1e-9)
        np.testing.assert_allclose(asked[0]["zz"][c].numpy(), second, rtol=1e-9)
        u, s, _ = np.linalg.svd(np.cov(z[y == c].T) + 1e-6 * np.eye(HIDDEN))
        drawn.append(z[y == c].mean(0) + rng.standard_normal((20, HIDDEN)) @ u @ np.diag(s**0.5) @ u.T)
    virtual, labels = np.concatenate(drawn), np.arange(CLASSES).repeat(20)
    w, velocity = {name: before[f"3.{name}"] for name in ("weight", "bias")}, {"weight": 0.0, "bias": 0.0}
    for _ in range(3):
        d = slope(virtual @ w["weight"].T + w["bias"], labels)
        for name, g in (("weight", d.T @ virtual), ("bias", d.sum(0))):
            velocity[name] = 0.9 * velocity[name] + g
            w[name] = w[name] - 0.5 * velocity[name]
    check(after, {**before, "3.weight": w["weight"], "3.bias": w["bias"]}, 1e-7)
    assert not np.allclose(w["weight"], before["3.weight"], atol=1e-2)


def test_ccvr_leaves_out_what_nobody_has_and_what_is_too_rare():
    clients = [(x[y != 2], y[y != 2]) for x, y in blobs((12, 9))] + [blobs((7,), seed=3)[0]]
    counts = np.array([counts_of(c) for c in clients])
    for limit in (0, 4, 100):
        method = CCVR(min_count=limit)
        assembly = put_together(normed(), clients, method)
        got = assembly.server.ask(method.moments, Questions(Serial(assembly.site)))["moments"]
        np.testing.assert_array_equal(got["n"].numpy(), np.where(counts >= limit, counts, 0).sum(0))
        lost = (counts < max(limit, 1)).all(0)
        assert (got["zz"].flatten(1).abs().sum(1) == 0).numpy().tolist() == lost.tolist()
    rare = (clients[2][0][:1], torch.tensor([2]))
    run = fit(normed(), [*clients[:2], rare], CCVR(min_count=2), rounds=1)
    assert torch.isfinite(run.model()[3].weight).all()
    with pytest.raises(InputError, match="no client has min_count = 100 samples of any class"):
        fit(normed(), clients, CCVR(min_count=100), rounds=1)


def test_ccvr_before_the_end_is_fedavg_to_the_bit():
    clients = blobs(dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), clients, CCVR(), **BATCHES)
    before = run._assembly.server.model
    assert_same_bits(before, trained("fedavg", clients))
    assert not torch.equal(before["3.weight"], run.model()[3].weight)


@pytest.mark.parametrize("other", [FedRep(), FedNH(), FedRoD(), FedProto()])
def test_ccvr_needs_a_common_classifier_and_says_so_before_the_first_round(other):
    with pytest.raises(Conflict, match=r"ccvr retrains the common classifier, but 3.* is personal or frozen"):
        put_together(normed(), blobs(), CCVR() + other)


# --- FedProto ---------------------------------------------------------------------------------------


def pulled(prototypes, has, lam):
    def pull(z, y):
        return lam * 2 * (z - prototypes[y]) * has[y][:, None] / z.size

    return linear(pull=pull)


def class_means(states, clients, prototypes, has, limit=0):
    total, n = np.zeros_like(prototypes), np.zeros(CLASSES)
    for state, (x, y) in zip(states, clients, strict=True):
        z, y = features(state, x.numpy()), y.numpy()
        for c in range(CLASSES):
            if (y == c).sum() >= max(limit, 1):
                total[c] += z[y == c].sum(0)
                n[c] += (y == c).sum()
    seen = n > 0
    return np.where(seen[:, None], total / np.maximum(n, 1)[:, None], prototypes), has | seen


@pytest.mark.parametrize("limit", [0, 3])
def test_fedproto_over_three_rounds(limit):
    clients, start, lam = lacking(), normed(), 0.6
    run = fit(start, clients, FedProto(lam=lam, min_count=limit), rounds=3, **FULL)
    theirs = [numbers(start.state_dict()) for _ in clients]
    prototypes, has = np.zeros((CLASSES, HIDDEN)), np.zeros(CLASSES, dtype=bool)
    for _ in range(3):
        theirs = [sgd(s, c, pulled(prototypes, has, lam)) for s, c in zip(theirs, clients, strict=True)]
        prototypes, has = class_means(theirs, clients, prototypes, has, limit)
    for k, want in enumerate(theirs):
        check(run.client_model(k, "received").state_dict(), want)
    np.testing.assert_allclose(server_state(run)["fedproto"]["prototypes"].numpy(), prototypes, rtol=1e-9, atol=1e-12)
    assert server_state(run)["fedproto"]["available"].tolist() == has.tolist()
    first, second = (row["clients"][0]["epochs"][0]["fedproto"] for row in run.metrics[:2])
    assert first == 0
    assert second > 0
    with pytest.raises(InputError, match="no complete global model"):
        run.model()


def test_fedproto_keeps_the_prototype_of_a_class_that_nobody_sent():
    x, y = blobs((12,))[0]
    clients = [(x[y == c], y[y == c]) for c in range(CLASSES)]
    runs = {r: fit(plain(), clients, FedProto(), rounds=r, participation=1) for r in (1, 2)}
    drawn = [row["clients"][0]["client"] for row in runs[2].metrics]
    assert drawn[0] != drawn[1]
    before, after = (server_state(runs[r])["fedproto"] for r in (1, 2))
    assert torch.equal(after["prototypes"][drawn[0]], before["prototypes"][drawn[0]])
    assert after["available"].tolist() == [c in drawn for c in range(CLASSES)]
    assert before["available"].tolist() == [c == drawn[0] for c in range(CLASSES)]


def test_fedproto_without_a_pull_is_local_training():
    clients = blobs(dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), clients, FedProto(lam=0.0), **BATCHES)
    apart = fit(normed(dtype=torch.float32), clients, _Apart(), **BATCHES)
    for k in range(3):
        assert_same_bits(run.client_model(k).state_dict(), apart.client_model(k).state_dict())


class _Apart(fullrank.Method):
    """Nothing is shared."""

    personal = ("all",)


def test_fedproto_predicts_by_the_nearest_prototype_that_there_is():
    z = torch.tensor([[0.0, 0.0], [3.0, 3.0], [10.0, 0.0]])
    sent = {
        "prototypes": torch.tensor([[0.0, 0.0], [4.0, 3.0], [9.0, 0.0]]),
        "available": torch.tensor([False, True, True]),
    }
    logits = torch.tensor([[9.0, 0, 0]]).expand(3, 3)
    predict = Composition(FedProto()).exclusive("predict")[1]
    got = predict(Batch({}, z=z, sent=sent, logits=logits))
    assert got.argmax(1).tolist() == [1, 1, 2]
    assert got[:, 1:].tolist() == [[-25, -81], [-1, -45], [-45, -1]]
    assert torch.isfinite(got).all()
    none = {**sent, "available": torch.zeros(3, dtype=torch.bool)}
    assert torch.equal(predict(Batch({}, z=z, sent=none, logits=logits)), logits)
    own = Composition(FedProto(predict="logits")).exclusive("predict")[1]
    assert own(Batch({}, z=z, sent=sent, logits=logits)) is logits


def test_fedprotos_hyper_parameter_has_its_name_everywhere():
    assert build("fedproto", fedproto={"predict": "logits"}) == FedProto(predict="logits")
    assert FedProto(predict="logits").predict == "logits"
    experiment = fullrank.Experiment.of({"method.name": "fedproto"}).resolved()
    assert experiment.method.tables["fedproto"] == {"lam": 1.0, "predict": "nearest", "min_count": 0}
    with pytest.raises(InputError, match=r"method\.fedproto\.predict"):
        build("fedproto", fedproto={"predict": "best"})


# --- FedRoD -----------------------------------------------------------------------------------------


def two_heads(client):
    """Balanced softmax for all but the personal head; cross-entropy of the sum for it."""
    prior = np.log(np.maximum(counts_of(client), 1))
    generic = linear(lambda logits, y: slope(logits + prior, y))

    def objective(state, z, y):
        g, dz = generic(state, z, y)
        layer = place(state)
        logits = z @ (state[f"{layer}.weight"] + state[f"{layer}.personal_head.weight"]).T
        d = slope(logits + state[f"{layer}.bias"] + state[f"{layer}.personal_head.bias"], y)
        return {**g, f"{layer}.personal_head.weight": d.T @ z, f"{layer}.personal_head.bias": d.sum(0)}, dz

    return objective


def test_fedrod_over_two_rounds():
    clients, start = lacking(), normed()
    begin = numbers(start.state_dict())
    begin |= {"3.personal_head.weight": begin["3.weight"], "3.personal_head.bias": begin["3.bias"]}
    check(put_together(start, clients, FedRoD()).server.model, begin)
    run = fit(start, clients, FedRoD(), rounds=2, **FULL)
    theirs = [begin for _ in clients]
    for _ in range(2):
        theirs = [sgd(s, c, two_heads(c)) for s, c in zip(theirs, clients, strict=True)]
        common = {name: value for name, value in mean(theirs).items() if "personal" not in name}
        theirs = [{**state, **common} for state in theirs]
    got = run.model().state_dict()
    check({name: got[name] for name in common}, common)
    for k, want in enumerate(theirs):
        check(kept(run, k)["model"], {name: v for name, v in want.items() if "personal" in name})
        # as a module, a client's model predicts by the sum
        x = clients[k][0].numpy()
        z = features(want, x)
        both = scores(want, x) + z @ want["3.personal_head.weight"].T + want["3.personal_head.bias"]
        np.testing.assert_allclose(run.client_model(k)(clients[k][0]).detach().numpy(), both, rtol=1e-9)
        np.testing.assert_allclose(run.model()(clients[k][0]).detach().numpy(), scores(common, x), rtol=1e-9)


def test_fedrods_personal_head_never_reaches_the_rest():
    """All else, momentum and statistics included, is to the bit what balanced softmax gives without that head."""
    clients = lacking(torch.float32)
    rod, single = trained(FedRoD(), clients), trained(Balanced(), clients)
    assert_same_bits({name: value for name, value in rod.items() if "personal" not in name}, single)


def test_fedrods_generic_path_with_equal_counts_is_fedavg():
    x = torch.randn(4, 12, WIDTH, generator=torch.Generator().manual_seed(0))
    clients = [(some, torch.arange(CLASSES).repeat(4)) for some in x]
    rod, base = trained(FedRoD(), clients), trained("fedavg", clients)
    for name, value in base.items():
        torch.testing.assert_close(rod[name], value, rtol=1e-6, atol=1e-6)


def test_fedrod_has_a_global_accuracy_and_a_personal_one(tmp_path):
    values = {"data.holdout": 0.3, "data.clients": 4, "train.rounds": 3, "model.width": 4, "data.alpha": 0.3}
    values |= {"train.lr": 0.01, "train.epochs": 1}
    run = fullrank.run({**values, "method.name": "fedrod"}, tmp_path / "run")
    summary = run.summary()
    assert set(summary["personal"]) == {"received", "local", "personalised"}
    assert summary["personal"]["personalised"] == summary["personal"]["received"]
    assert summary["absent"] == {}
    assert 0 <= summary["accuracy"]["last"] <= 1
    assert_same_bits(fullrank.load_run(tmp_path / "run").model().state_dict(), run.model().state_dict())
    with pytest.raises(InputError, match="no complete global model: 5 entries"):
        fit(normed(), blobs(), FedRoD() + FedBN(), rounds=1).model()


def test_fedrod_needs_a_linear_classifier():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(WIDTH, HIDDEN)
            self.top = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

        def forward(self, x):
            return self.top(self.body(x).relu())

    with pytest.raises(InputError, match="fedrod needs a linear classifier; this model's is a Sequential"):
        fit(Deep().double(), blobs(), FedRoD(), rounds=1, head="top")


# --- FedNH ------------------------------------------------------------------------------------------


def lengths(rows):
    """Of each; 1 where all features are dead: no gradient passes there anyway."""
    found = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(found == 0, 1, found)


def unit(rows):
    return rows / lengths(rows)


def cosines(state, z, y):
    layer = place(state)
    w, s = state[f"{layer}.prototypes"], state[f"{layer}.scale"]
    near = unit(z)
    d = slope(s * near @ w.T, y)
    dn = s * d @ w
    dz = (dn - near * (near * dn).sum(1, keepdims=True)) / lengths(z)
    return {f"{layer}.scale": (d * (near @ w.T)).sum()}, dz


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("begin", [plain, normed])
def test_fednh_over_two_rounds(begin, scale):
    clients, start, method = lacking(), begin(), FedNH(smoothing=0.8, scale=scale)
    run = fit(start, clients, method, rounds=2, **FULL)
    state = start_of(start, clients, method)
    layer = place(state)
    w = state[f"{layer}.prototypes"]
    assert w.shape == (CLASSES, HIDDEN)
    np.testing.assert_allclose(w @ w.T, np.eye(CLASSES), atol=1e-14)
    assert state[f"{layer}.scale"] == scale
    for _ in range(2):
        after = [sgd(state, c, cosines) for c in clients]
        total, n = np.zeros((CLASSES, HIDDEN)), np.zeros(CLASSES)
        for one, (x, y) in zip(after, clients, strict=True):
            near = unit(features(one, x.numpy()))
            for c in range(CLASSES):
                if (y.numpy() == c).any():
                    direction = near[y.numpy() == c].mean(0)
                    total[c] += (y.numpy() == c).sum() * direction / np.linalg.norm(direction)
                    n[c] += (y.numpy() == c).sum()
        w = unit(0.8 * w + 0.2 * unit(total / n[:, None]))
        state = {**mean(after), f"{layer}.prototypes": w}
    check(run.model().state_dict(), state)
    np.testing.assert_allclose(np.linalg.norm(run.model()[-1].prototypes.numpy(), axis=1), 1, rtol=1e-12)
    z = unit(features(state, clients[0][0].numpy()))
    cosine = z @ w.T
    np.testing.assert_allclose(run.model()(clients[0][0]).detach().numpy(), state[f"{layer}.scale"] * cosine, rtol=1e-9)


def test_fednh_keeps_the_row_of_a_class_that_nobody_has_and_smoothing_1_freezes_all():
    clients = [(x[y != 2], y[y != 2]) for x, y in blobs()] + [(blobs((3,))[0][0], torch.full((3,), 2))]
    seen = set()
    for seed in range(4):
        begin = put_together(normed(), clients, FedNH(), {"seed": seed}).server.model["3.prototypes"].numpy()
        run = fit(normed(), clients, FedNH(), rounds=1, participation=2, seed=seed)
        drawn = {c["client"] for c in run.metrics[0]["clients"]}
        got = run.model()[3].prototypes.numpy()
        assert np.array_equal(got[2], begin[2]) == (3 not in drawn)
        assert not np.allclose(got[0], begin[0])
        seen.add(3 in drawn)
    assert seen == {True, False}
    begin = start_of(normed(), clients, FedNH())["3.prototypes"]
    still = fit(normed(), clients, FedNH(smoothing=1.0), rounds=3).model()[3].prototypes.numpy()
    np.testing.assert_allclose(still, begin, atol=1e-14)
    assert not np.allclose(fit(normed(), clients, FedNH(), rounds=3).model()[3].prototypes.numpy(), begin, atol=1e-3)


def test_fednh_needs_as_many_features_as_classes():
    with pytest.raises(InputError, match="3 prototypes cannot be orthogonal in 2 dimensions"):
        fit(normed(hidden=2), blobs(), FedNH(), rounds=1)


@pytest.mark.parametrize("order", [FedNH() + FedAvgM(), FedAvgM() + FedNH()])
def test_a_server_optimiser_does_not_change_the_prototypes_of_fednh(order):
    clients = blobs(dtype=torch.float32)
    one = trained(order, clients)
    assert_same_bits(one, trained(FedAvgM() + FedNH(), clients))
    np.testing.assert_allclose(one["3.prototypes"].norm(dim=1).numpy(), 1, rtol=1e-6)


# --- What crosses the channels, and what is kept ----------------------------------------------------

CD = CLASSES * HIDDEN
EXCHANGE = {  # first contact with a given module, later, up; kept by a client, by the server
    "fedbn": (P + B, P - NORM, P - NORM, NORM + B, 0),
    "ditto": (P + B, P + B, P + B, P + B, 0),
    "fedrep": (P + B, P - HEAD + B, P - HEAD + B, HEAD, 0),
    "ccvr": (P + B, P + B, P + B, 0, 0),
    "fedproto": (P + B + CD + CLASSES, CD + CLASSES, CD + CLASSES, P + B, CD + CLASSES),
    "fedrod": (P + B + HEAD, P + B, P + B, HEAD, 0),
    "fednh": (P - HEAD + 1 + B + CD, P - HEAD + 1 + B + CD, P - HEAD + 1 + B + CD + CLASSES, 0, 0),
    "fedrs": (P + B, P + B, P + B, 0, 0),
    "fedlc": (P + B, P + B, P + B, 0, 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_elements_exchanged_and_kept(name):
    first, later, up, client, server = EXCHANGE[name]
    given = blobs((9, 8, 7, 6), dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), given, name, rounds=4, participation=2)
    met: set[int] = set()
    for row in run.metrics:
        drawn = {c["client"] for c in row["clients"]}
        assert row["elements_down"] == len(drawn - met) * first + len(drawn & met) * later
        assert row["elements_up"] == 2 * up
        met |= drawn
    assert [elements(kept(run, k) or {}) for k in sorted(met)] == [client] * len(met)
    assert elements(server_state(run)) == server
    ending = run._ending
    if name == "ccvr":
        assert ending["elements_down"] == 4 * (P + B)
        assert ending["elements_up"] == 4 * CLASSES * (HIDDEN**2 + HIDDEN + 1)
        assert ending["bytes_up"] == 8 * ending["elements_up"]
    else:
        assert "elements_up" not in ending


def test_a_mask_is_a_byte_a_class():
    run = fit(normed(dtype=torch.float32), blobs(dtype=torch.float32), FedProto(), rounds=2)
    assert run.metrics[1]["bytes_down"] == 3 * (4 * CD + CLASSES)
    assert run.metrics[1]["bytes_up"] == 3 * 4 * (CD + CLASSES)


BUILT = {"data.clients": 3, "model.norm": "batch", "model.width": 2, "model.features": 12, "train.steps": 1}


@pytest.mark.parametrize("name", ["fedbn", "fedrep", "fedproto", "fedrod"])
def test_personal_entries_of_a_built_network_never_travel(name):
    parts = assemble(Experiment.of({**BUILT, "method.name": name}))
    sizes = {n: t.numel() for n, t in parts.network.tensors().items()}
    shared = sum(size for n, size in sizes.items() if n not in parts.entries.personal)
    extra = 10 * 12 + 10 if name == "fedproto" else 0
    engine = Serial(parts.site)
    for _ in range(2):
        traffic = parts.server.run_round(engine).traffic
        assert (traffic.elements_down, traffic.elements_up) == (3 * (shared + extra),) * 2
    assert (shared == 0) == (name == "fedproto")


# --- Engines, composition, learning -----------------------------------------------------------------

SMALL = {"data.clients": 3, "model.norm": "batch", "model.width": 2, "model.features": 12, "train.rounds": 2}
SMALL |= {"train.steps": 2, "train.batch_size": 16, "data.holdout": 0.2, "data.alpha": 0.5}
SMALL |= {"method.ccvr.samples": 5, "method.ccvr.epochs": 1}


def outcome(run):
    server = run._assembly.server
    states = {str(k): server.store.get(k) or {} for k in range(3)}
    final = run._final
    return fullrank.trees.flatten({"server": server.state(), "clients": states, "final": final})


@pytest.mark.parametrize("name", NAMES)
def test_processes_give_the_same_bits(name, tmp_path):
    one, two = (
        fullrank.run({**SMALL, "method.name": name, "engine.name": engine, "engine.workers": 1}, tmp_path / engine)
        for engine in ("serial", "processes")
    )
    assert_same_bits(outcome(two), outcome(one))
    assert two.summary().get("personal") == one.summary().get("personal")


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    straight = fullrank.run({**SMALL, "method.name": name}, tmp_path / "straight")
    fullrank.run({**SMALL, "method.name": name, "train.rounds": 1}, tmp_path / "run")
    resumed = fullrank.run({**SMALL, "method.name": name}, tmp_path / "run")
    assert_same_bits(outcome(resumed), outcome(straight))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ditto", "fedrep")])
def test_clients_that_train_as_a_group_give_the_same(name):
    values = {**SMALL, "data.clients": 6, "data.holdout": 0.0, "method.name": name, "engine.precision": "float64"}
    engine = check_same(values, lambda site: Vectorised(site, EngineOptions(clients=6)))
    assert not engine.reasons


@pytest.mark.parametrize("name", NAMES)
def test_they_compose_with_feddecorr_and_commute(name):
    clients, module = blobs(dtype=torch.float32), normed(dtype=torch.float32)
    runs = [fit(module, clients, build(n), rounds=2, batch_size=4) for n in (f"{name}+feddecorr", f"feddecorr+{name}")]
    one, two = (run.client_model(1).state_dict() for run in runs)
    assert_same_bits(one, two)
    assert runs[0].metrics[1]["clients"][0]["epochs"][0]["feddecorr"] > 0
    single = fit(module, clients, build(name), rounds=2, batch_size=4).client_model(1).state_dict()
    assert not torch.equal(one["0.weight"], single["0.weight"])


@pytest.mark.parametrize(
    ("one", "two", "what"),
    [
        (FedRS(), FedLC(), "criterion"),
        (FedRS(), FedRoD(), "criterion"),
        (FedNH(), FedRoD(), "head"),
        (Ditto(), FedRep(), "train"),
        (Ditto(), FedRoD(), "personalise"),
        (FedProto(), FedRoD(), "predict"),
    ],
)
def test_what_cannot_be_combined_says_why(one, two, what):
    with pytest.raises(Conflict, match=rf"cannot be combined: each has its own .*\(`{what}`\)"):
        one + two


@pytest.mark.parametrize(
    "made", ["ditto+fedbn", "fedrep+fedbn", "ccvr+fedbn", "fedrs+ditto", "fednh+fedbn", "fedlc+ccvr"]
)
def test_pairs_that_run(made):
    run = fit(normed(dtype=torch.float32), blobs(dtype=torch.float32), build(made), rounds=2, batch_size=4)
    assert run.complete
    run.client_model(0)


def test_field_names_and_defaults():
    expected = {
        "fedbn": {},
        "ditto": {
            **{"lam": 0.1, "epochs": 0},
            **{"optimizer": "global", "lr": 0.0, "momentum": 0.0, "weight_decay": 0.0},
        },
        "fedrep": {"head_epochs": 0},
        "ccvr": {"samples": 200, "epochs": 10, "lr": 0.01, "min_count": 0},
        "fedproto": {"lam": 1.0, "predict": "nearest", "min_count": 0},
        "fedrod": {},
        "fednh": {"smoothing": 0.9, "scale": 1.0},
        "fedrs": {"alpha": 0.5},
        "fedlc": {"tau": 1.0, "absent": "drop"},
    }
    for name, fields in expected.items():
        assert fullrank.methods.check_fields(available()[name], {}) == fields


LEARN = {"data.partition": "iid", "data.clients": 4, "train.rounds": 6, "train.epochs": 2, "data.holdout": 0.2}
LEARN |= {"train.batch_size": 32, "train.lr": 0.05, "model.width": 4, "model.features": 32, "model.norm": "batch"}
LEARN |= {"method.fednh.scale": 20.0}


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    return fullrank.run(LEARN, tmp_path_factory.mktemp("fedavg")).summary()


@pytest.mark.parametrize("name", NAMES)
def test_on_digits_they_come_within_five_points_of_fedavg(name, fedavg, tmp_path):
    summary = fullrank.run({**LEARN, "method.name": name}, tmp_path).summary()
    assert fedavg["accuracy"]["last"] > 0.9
    if name in ("fedbn", "fedrep", "fedproto"):
        assert "each client's own" in summary["absent"]["accuracy"]
        assert "accuracy" not in summary
    else:
        accuracy = summary["accuracy"]
        assert accuracy.get("final", accuracy["last"]) > fedavg["accuracy"]["last"] - 0.05
    stage = "personalised" if name in ("ditto", "fedrod") else "local"
    print(name, summary.get("accuracy"), {k: v["mean"] for k, v in summary["personal"].items()})
    assert summary["personal"][stage]["mean"] > fedavg["personal"]["local"]["mean"] - 0.05
