"""The local step: against torch.optim, against hand numbers, and the same under vmap and tracing as eagerly."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

from fullrank import Method, fit
from fullrank.engine.serial import Serial
from fullrank.errors import InputError
from fullrank.local.client import decayed
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings, Travel
from fullrank.local.step import Bound, Context, Functional, State, Step
from fullrank.methods import build
from fullrank.methods.fedavg import FedAvg
from fullrank.methods.feddecorr import FedDecorr
from fullrank.methods.fedprox import FedProx
from fullrank.randomness import generator
from fullrank.trees import combine
from fullrank.trees import norm as tree_norm
from hook_methods import Balanced, Doubled, Frame, OwnNorm, Previous, Projection, Sharpness, Shrink, Variates
from small import (
    Downhill,
    Line,
    Quadratic,
    assert_close,
    assert_same_bits,
    averaged,
    blobs,
    normed,
    parabolas,
    plain,
    put_together,
    the_weight,
    trained_by_torch,
)

# --- One client is plain SGD ------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_client_on_full_batches_is_plain_sgd(momentum, weight_decay):
    client, start = blobs((30,))[0], normed()
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    run = fit(start, [client], "fedavg", rounds=1, epochs=20, batch_size=1000, **settings)
    by_torch = trained_by_torch(start, [client] * 20, **settings)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)
    assert int(run.model()[1].num_batches_tracked) == 20


def test_one_client_on_small_batches_is_plain_sgd():
    (x, y), start = blobs((30,))[0], normed()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    run = fit(start, [(x, y)], "fedavg", rounds=1, epochs=3, batch_size=4, seed=5, **settings)
    plan = make_plan(30, Settings(epochs=3, batch_size=4), generator(5, "batches", 0, 0, "fit-0"))
    assert plan.steps == 24
    chosen = np.split(plan.index, np.cumsum(plan.sizes)[:-1])
    by_torch = trained_by_torch(start, [(x[i], y[i]) for i in chosen], **settings)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)


def test_several_rounds_start_with_fresh_momentum():
    client, start = blobs((30,))[0], normed()
    run = fit(start, [client], "fedavg", rounds=4, epochs=5, batch_size=1000, lr=0.1, momentum=0.9)
    by_torch = start
    for _ in range(4):
        by_torch = trained_by_torch(by_torch, [client] * 5, lr=0.1, momentum=0.9)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)


def test_several_clients_are_sgd_each_and_a_mean():
    clients, start = blobs(), normed()
    run = fit(start, clients, "fedavg", rounds=2, epochs=3, batch_size=1000, lr=0.1, momentum=0.9, weight_decay=0.01)
    middle = copy.deepcopy(start)
    for _ in range(2):
        ends = [trained_by_torch(middle, [c] * 3, lr=0.1, momentum=0.9, weight_decay=0.01) for c in clients]
        middle.load_state_dict(averaged(ends, (12, 9, 7)))
    assert_close(run.model().state_dict(), middle.state_dict(), 1e-12)


def test_a_convolutional_net_in_float32():
    torch.manual_seed(0)
    start = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 3))
    x, y = torch.randn(10, 2, 6, 6), torch.arange(10) % 3
    run = fit(start, [(x, y)], "fedavg", rounds=1, epochs=5, batch_size=1000, lr=0.1, momentum=0.9)
    by_torch = trained_by_torch(start, [(x, y)] * 5, lr=0.1, momentum=0.9)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-5)


# --- Weight decay -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decay_on", "decayed"),
    [
        ("all", lambda name: True),
        ("matrices", lambda name: name in ("0.weight", "3.weight")),
        (["head"], lambda name: name.startswith("3.")),
        (["*.weight"], lambda name: name.endswith("weight")),
        (["norm", "0.bias"], lambda name: name.startswith("1.") or name == "0.bias"),
        ("backbone", lambda name: not name.startswith("3.")),
    ],
)
def test_weight_decay_acts_where_it_is_told(decay_on, decayed):
    client, start = blobs((20,))[0], normed()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}
    changed = {"train.decay_on": decay_on}
    run = fit(start, [client], "fedavg", rounds=1, epochs=5, batch_size=1000, set=changed, **settings)
    by_torch = trained_by_torch(start, [client] * 5, decayed=decayed, **settings)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)


def test_a_decay_that_names_nothing_is_rejected():
    with pytest.raises(Exception, match='the selector "matrix" names no entry'):
        fit(plain(), blobs((9,)), "fedavg", rounds=1, weight_decay=0.1, set={"train.decay_on": "matrix"})


# --- FedProx ----------------------------------------------------------------------------------------


def test_proximal_numbers_by_hand():
    """a = (1, −.5), η .1, two steps from 0, μ .1: w_k = .189 and −.0945 (baselines.md, FedDyn's first round)."""
    settings = {"rounds": 1, "epochs": 2, "lr": 0.1, "momentum": 0.0}
    for a, w in ((1.0, 0.189), (-0.5, -0.0945)):
        run = fit(Line(), parabolas((a,), (4,)), Quadratic() + FedProx(mu=0.1), **settings)
        assert the_weight(run) == pytest.approx(w, abs=1e-15)


def test_proximal_gradient_is_that_of_half_the_squared_distance():
    assembly = put_together(normed(), blobs(), FedProx(mu=0.3))
    start = assembly.server.model
    rng = torch.Generator().manual_seed(3)
    x, y = blobs((12,))[0]

    def away(tensor):
        return tensor.detach() + 0.1 * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)

    trained = {name: away(start[name]) for name in assembly.entries.shared}
    buffers = {name: start[name] for name in assembly.entries.buffers}
    network = assembly.network
    step = Step(assembly.composition, Functional(network), Settings(), frozenset(trained), frozenset())
    with network.mode(train=True):
        state, context = State(trained, {}, buffers), Context(start, {}, {}, torch.ones(3))
        got, _, terms = step.gradient(state, context, x, y)
    leaves = {name: value.clone().requires_grad_() for name, value in trained.items()}
    moving = {name: value.clone() for name, value in buffers.items()}
    module = network.module.train()
    loss = F.cross_entropy(torch.func.functional_call(module, {**leaves, **moving}, (x,)), y)
    (loss + 0.15 * sum((w - start[name]).square().sum() for name, w in leaves.items())).backward()
    assert_close(got, {name: leaf.grad for name, leaf in leaves.items()}, 1e-12)
    assert float(terms["grad_norm"]) == pytest.approx(float(tree_norm(got)), rel=1e-12)


def test_the_proximal_term_is_zero_at_the_global_model():
    client = blobs((12,), dtype=torch.float32)
    start = normed(dtype=torch.float32)
    settings = {"rounds": 1, "batch_size": 1000, "lr": 0.1}
    first = fit(start, client, FedProx(mu=1e6), **settings).model().state_dict()
    assert_same_bits(first, fit(start, client, "fedavg", **settings).model().state_dict())


def test_a_large_mu_freezes():
    """η(1 + μ) = 1 lands in the minimiser a/(1 + μ) at once and stays there."""
    mu = 999.0
    run = fit(Line(), parabolas((1.0,), (4,)), Quadratic() + FedProx(mu), rounds=1, epochs=50, lr=1e-3, momentum=0.0)
    assert the_weight(run) == pytest.approx(1 / (1 + mu), abs=1e-12)
    free = fit(Line(), parabolas((1.0,), (4,)), Quadratic(), rounds=1, epochs=50, lr=1e-3, momentum=0.0)
    assert the_weight(free) == pytest.approx(1 - 0.999**50, abs=1e-12)


def test_the_proximal_term_comes_before_weight_decay_and_momentum():
    client, start = blobs((20,))[0], normed()
    anchor = copy.deepcopy(start.state_dict())

    def loss(module, x, y):
        near = sum((p - anchor[name]).square().sum() for name, p in module.named_parameters())
        return F.cross_entropy(module(x), y) + 0.4 / 2 * near

    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    run = fit(start, [client], FedProx(mu=0.4), rounds=1, epochs=10, batch_size=1000, **settings)
    by_torch = trained_by_torch(start, [client] * 10, loss=loss, **settings)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)


# --- FedDecorr --------------------------------------------------------------------------------------


def correlations(z):
    z = z - z.mean(0)
    z = z / (1e-8 + z.var(0, unbiased=True)).sqrt()
    square = (z.T @ z).square()
    d, n = z.shape[1], len(z)
    return (square.sum() - square.diagonal().sum()) / (d * (d - 1)) / n


def test_decorrelation_in_training():
    """The authors' code as printed: β times the mean of squared off-diagonal entries of zᵀz, over N."""
    client, start = blobs((20,))[0], normed()

    def loss(module, x, y):
        z = module[:3](x)
        return F.cross_entropy(module[3](z), y) + 0.1 * correlations(z)

    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    run = fit(start, [client], "feddecorr", rounds=1, epochs=10, batch_size=1000, **settings)
    by_torch = trained_by_torch(start, [client] * 10, loss=loss, **settings)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-9)
    epoch = run.metrics[0]["clients"][0]["epochs"][0]
    assert epoch["feddecorr"] == pytest.approx(0.1 * correlations(start[:3](client[0])).item(), rel=1e-9)
    assert epoch["criterion"] == pytest.approx(F.cross_entropy(start(client[0]), client[1]).item(), rel=1e-12)


# --- Gradients at other weights: FedSAM's numbers ---------------------------------------------------


class Plane(nn.Module):
    """Two weights, from (3, 1)."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[3.0, 1.0]]))

    def forward(self, x):
        return self.head(x)


@dataclass(frozen=True)
class Bowl(Method):
    """½(w1² + 4 w2²)."""

    def criterion(self, b):
        w = b.w["head.weight"][0]
        return 0.5 * (w[0].square() + 4 * w[1].square())


def bowl_step(method, lr=0.1):
    client = (torch.ones(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    run = fit(Plane(), [client], Bowl() + method, rounds=1, lr=lr, momentum=0.0)
    return run.model().head.weight[0].tolist(), run


def test_the_gradient_at_other_weights_by_hand():
    w, run = bowl_step(Sharpness(rho=0.05))
    assert w == pytest.approx([2.697, 0.584], abs=1e-12)
    assert run.metrics[0]["clients"][0]["epochs"][0]["grad_norm"] == pytest.approx(np.hypot(3.03, 4.16), rel=1e-12)


def test_the_gradient_at_other_weights_holds_what_stands_to_the_left():
    # doubled first: twice the bowl's gradient, at the same point, for the direction is the same
    assert bowl_step(Doubled() + Sharpness(rho=0.05))[0] == pytest.approx([3 - 0.606, 1 - 0.832], abs=1e-12)
    assert bowl_step(Sharpness(rho=0.05) + Doubled())[0] == pytest.approx([3 - 0.606, 1 - 0.832], abs=1e-12)

    class Tilted(Method):
        def grad(self, g, b):
            return {name: g + b.model[name].detach() ** 2 for name, g in g.items()}

    # g + w² is (12, 5) at (3, 1), of length 13; then w + .05·g/13 is (3.0461538, 1.0192307)
    w1, w2 = 3 + 0.05 * 12 / 13, 1 + 0.05 * 5 / 13
    want = [3 - 0.1 * (w1 + w1**2), 1 - 0.1 * (4 * w2 + w2**2)]
    assert bowl_step(Tilted() + Sharpness(rho=0.05))[0] == pytest.approx(want, abs=1e-12)
    # the other way round the tilt is that of the weights themselves
    assert bowl_step(Sharpness(rho=0.05) + Tilted())[0] == pytest.approx([2.697 - 0.9, 0.584 - 0.1], abs=1e-12)


def test_a_gradient_at_some_other_weights_keeps_the_rest():
    seen = {}

    class Some(Method):
        def grad(self, g, b):
            moved = b.grad_at({"2.bias": b.model["2.bias"] + 1.0})
            seen.update(g=g, moved=moved)
            return g

    (x, y), start = blobs((12,))[0], plain()
    fit(start, [(x, y)], Some(), rounds=1, batch_size=1000)
    assert seen["moved"].keys() == seen["g"].keys()
    other = copy.deepcopy(start)
    with torch.no_grad():
        other[2].bias += 1.0
    F.cross_entropy(other(x), y).backward()
    assert_close(seen["moved"], {name: p.grad for name, p in other.named_parameters()}, 1e-12)


def test_statistics_move_in_the_first_pass_only():
    (x, y), start = blobs((12,))[0], normed()
    model = fit(start, [(x, y)], Sharpness(rho=0.5), rounds=1, batch_size=1000, lr=0.1, momentum=0.0).model()
    assert int(model[1].num_batches_tracked) == 1
    torch.testing.assert_close(model[1].running_mean, 0.1 * start[0](x).mean(0).detach())

    def slope(module):
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        return {name: p.grad.clone() for name, p in module.named_parameters()}

    first = copy.deepcopy(start).train()
    g = slope(first)
    length = torch.sqrt(sum(value.square().sum() for value in g.values()))
    with torch.no_grad():
        for name, p in first.named_parameters():
            p += 0.5 * g[name] / length
    there = slope(first)
    want = {name: p.detach() - 0.1 * there[name] for name, p in start.named_parameters()}
    assert_close({name: p.detach() for name, p in model.named_parameters()}, want, 1e-12)


def test_a_radius_of_0_is_fedavg_to_the_bit():
    clients, start = blobs(dtype=torch.float32), normed(dtype=torch.float32)
    settings = {"rounds": 3, "batch_size": 4, "lr": 0.1}
    got = fit(start, clients, Sharpness(rho=0.0), **settings).model().state_dict()
    assert_same_bits(got, fit(start, clients, "fedavg", **settings).model().state_dict())


# --- Features under other weights -------------------------------------------------------------------


def test_features_under_other_weights_are_in_eval_mode_and_without_gradient():
    seen = {}

    class Records(Method):
        def loss(self, b):
            tree = {"0.weight": b.w0["0.weight"] * 2, "1.running_mean": torch.full((6,), 0.5, dtype=torch.float64)}
            z = b.features(tree)
            seen.update(z=z, current=b.features(b.model), needs=z.requires_grad, plain=b.features({}))
            return z.sum() * 0

    (x, y), start = blobs((12,))[0], normed()
    run = fit(start, [(x, y)], Records(), rounds=1, batch_size=1000, lr=0.1, momentum=0.0)
    other = copy.deepcopy(start).eval()
    with torch.no_grad():
        assert not seen["needs"]
        received = other[:3](x)
        other[0].weight *= 2
        other[1].running_mean.fill_(0.5)
        expected = other[:3](x)
    order = make_plan(12, Settings(batch_size=1000), generator(0, "batches", 0, 0, "fit-0")).index
    torch.testing.assert_close(seen["z"], expected[order])
    torch.testing.assert_close(seen["plain"], received[order])  # everything as received
    assert not torch.allclose(seen["current"], received[order])  # the statistics have moved
    by_torch = trained_by_torch(start, [(x, y)], lr=0.1)
    assert_close(run.model().state_dict(), by_torch.state_dict(), 1e-12)


# --- Travel -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "a"), [(1, 1.0), (2, 2.9), (10, 41.381059609), (100, 910.0023905259)])
def test_travel_with_momentum(steps, a):
    assert Travel().on(steps, Settings(lr=0.01, momentum=0.9)).distance == pytest.approx(0.01 * a, rel=1e-11)
    assert Travel().on(steps, Settings(lr=0.01, momentum=0.0)).distance == pytest.approx(0.01 * steps, rel=1e-12)


@pytest.mark.parametrize(("momentum", "distance"), [(0.9, 0.26275), (0.0, 0.175)])
def test_travel_under_changing_rates(momentum, distance):
    travel = Travel()
    for lr in (0.1, 0.05, 0.025):
        travel = travel.on(1, Settings(lr=lr, momentum=momentum))
    assert travel.distance == pytest.approx(distance, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_travel_is_how_far_a_constant_unit_gradient_moves_a_weight(momentum):
    seen = []

    class Fits(Method):
        def train(self, client):
            client.fit(steps=3)
            client.fit(steps=4)  # continues with the same momentum
            client.fit(steps=2, lr=0.07)  # an optimiser of its own
            client.fit(model=client.model, steps=5)  # a side fit
            seen.append((client.travel, float(client.w["head.weight"] - client.w0["head.weight"])))

    fit(Line(), parabolas((0.0,), (4,)), Downhill() + Fits(), rounds=1, lr=0.1, momentum=momentum)
    ((travel, moved),) = seen
    assert travel == pytest.approx(moved, rel=1e-12)
    assert travel > 0


def test_entries_trained_for_different_numbers_of_steps_have_no_common_travel():
    class Uneven(Method):
        def train(self, client):
            client.fit("head", steps=1)
            client.fit("backbone", steps=2)

        def weight(self, client):
            return client.travel

    with pytest.raises(Exception, match="have no common travel"):
        fit(plain(), blobs((9,)), Uneven(), rounds=1)


# --- The same step under vmap, traced and eager -----------------------------------------------------


@dataclass(frozen=True)
class Averages(Method):
    """Reads the buffers, which every engine must show alike: as moved by this batch."""

    def loss(self, b):
        return 0.1 * (b.z.mean() * b.model["1.running_mean"].detach().sum())

    def grad(self, g, b):
        return combine(g, lambda g: g * b.model["1.running_var"].mean())


METHODS = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.3),
    "feddecorr code": FedDecorr(beta=0.2),
    "feddecorr paper": FedDecorr(beta=2.0, scale="paper"),
    "feddecorr algorithm": FedDecorr(beta=2.0, scale="algorithm"),
    "fedprox+feddecorr": build("fedprox+feddecorr", fedprox={"mu": 0.3}),
    "variates": Variates(),
    "previous": Previous(),
    "sharpness": Sharpness(rho=0.1),
    "shrink": Shrink(),
    "balanced": Balanced(),
    "frame": Frame(),
    "projection": Projection(),
    "own norm": OwnNorm(),
    "averages": Averages(),
    "sharpness+variates+fedprox+feddecorr": Sharpness() + Variates() + FedProx(mu=0.3) + FedDecorr(beta=0.2),
    "previous+projection+frame+own norm": Previous() + Projection() + Frame() + OwnNorm(),
}
SETTINGS = Settings(lr=0.1, momentum=0.9, weight_decay=0.01, decay_on="matrices")
TABLE = {"train.lr": 0.1, "train.epochs": 1, "train.batch_size": 4}


@pytest.fixture(params=list(METHODS))
def situation(request):
    """Three clients in their second round: a step, and each client's state, context and two batches."""
    clients = blobs((12, 11, 10))
    assembly = put_together(normed(), clients, METHODS[request.param], TABLE)
    assembly.server.run_round(Serial(assembly.site))
    network, cases = assembly.network, []
    for k, (x, y) in enumerate(clients):
        client, _ = assembly.site._client(assembly.server.job("train", k))
        names = client._trained(None)
        tensors = {name: value.detach().clone() for name, value in network.tensors().items()}
        state = State(
            {name: tensors[name] for name in names},
            {n: t for n, t in tensors.items() if n not in names and n not in network.buffer_names},
            {name: tensors[name] for name in network.buffer_names},
            {"velocity": {name: torch.zeros_like(tensors[name]) for name in names}},
        )
        context = Context(client._received, client.state, client.sent, client.counts)
        cases.append((state, context, [(x[:5], y[:5]), (x[5:10], y[5:10])], client))
    shared, decays = frozenset(assembly.entries.shared), decayed(network, SETTINGS)
    step = Step(assembly.composition, Functional(network), SETTINGS, shared, decays)
    return step, cases


def eagerly(step, case):
    """Two steps in place on the module's own tensors, as the serial engine makes them."""
    state, context, batches, client = copy.copy(case)
    network = step.backend.network
    network.load({**state.trained, **state.rest, **state.buffers})
    names = tuple(state.trained)
    with client._training(names, "move"):
        own = client._state_of(names, SETTINGS, {})
        bound = Step(step.composition, Bound(network, own.trained), SETTINGS, step.shared, step.decayed)
        terms = [bound.advance_(own, context, x, y) for x, y in batches]
        return tree_map(lambda t: t.detach().clone(), (own, terms))


def stacked(trees):
    flat = [tree_flatten(tree) for tree in trees]
    return torch.utils._pytree.tree_unflatten(
        [torch.stack(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)], flat[0][1]
    )


def assert_same(got, want):
    (one, one_spec), (two, two_spec) = tree_flatten(got), tree_flatten(want)
    assert one_spec == two_spec
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_the_step_is_pure_and_gives_what_the_eager_one_does(situation):
    step, cases = situation
    for case in cases:
        state, context, batches, _ = case
        before = copy.deepcopy((state, context))
        with step.backend.network.mode(train=True):
            one, first = step(state, context, *batches[0])
            two, second = step(one, context, *batches[1])
        assert_same((state, context), before)
        assert_same((two, [first, second]), eagerly(step, case))


def test_the_step_maps_over_clients(situation):
    step, cases = situation
    context = stacked([context for _, context, _, _ in cases])
    state = stacked([state for state, _, _, _ in cases])
    terms = []
    with step.backend.network.mode(train=True):
        for number in range(2):
            x, y = (torch.stack([batches[number][part] for _, _, batches, _ in cases]) for part in (0, 1))
            state, term = torch.func.vmap(step)(state, context, x, y)
            terms.append(term)
    assert_same((state, terms), stacked([eagerly(step, case) for case in cases]))


def test_the_step_can_be_traced_once_and_run_for_every_client(situation):
    step, cases = situation
    with step.backend.network.mode(train=True):
        graph = make_fx(step)(cases[0][0], cases[0][1], *cases[0][2][0])
    for case in cases:
        state, context, batches, _ = case
        one, first = graph(state, context, *batches[0])
        two, second = graph(one, context, *batches[1])
        assert_same((two, [first, second]), eagerly(step, case))


# --- Order of a step --------------------------------------------------------------------------------


def test_drift_corrections_act_on_shared_entries_only():
    seen = []

    class Records(Method):
        drift, personal = True, ("head",)

        def grad(self, g, b):
            seen.append((set(g), set(b.w), set(b.w0), set(b.model)))
            return combine(g, lambda g: g * 0)

    (x, y), start = blobs((12,))[0], normed()
    run = fit(start, [(x, y)], Records(), rounds=1, batch_size=1000, lr=0.1, momentum=0.0)
    g, w, w0, model = seen[0]
    shared = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert g == w == w0 == shared
    assert model == set(start.state_dict())
    got = run.client_model(0, "received")
    assert torch.equal(got[0].weight, start[0].weight)
    by_torch = trained_by_torch(start, [(x, y)], lr=0.1)
    torch.testing.assert_close(got[3].weight, by_torch[3].weight)  # personal entries still train


def test_unknown_names_on_a_batch():
    class Records(Method):
        def loss(self, b):
            return b.nu

    with pytest.raises(Exception, match="a batch has no nu") as caught:
        fit(plain(), blobs((9,)), Records(), rounds=1)
    assert not isinstance(caught.value, InputError)
    with pytest.raises(Exception, match="a batch has no nu; the head gives mu"):
        fit(plain(), blobs((9,)), Records() + Frame(), rounds=1)
