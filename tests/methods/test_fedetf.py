"""FedETF: the frame, its loss, whole federations and personalisation against NumPy float64, written out here."""

from __future__ import annotations

import copy
import doctest
import functools
import importlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from test_baselines_b import check, features, forward, lacking, mean, numbers, place, slope
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fullrank
from fullrank import Conflict, Method, fit, methods, models
from fullrank.config.experiment import Experiment
from fullrank.engine.serial import Serial
from fullrank.errors import InputError
from fullrank.methods import fedetf
from fullrank.methods.fedetf import FedETF, FrameHead
from fullrank.objectives import balanced_cross_entropy, simplex_etf
from fullrank.runs.assemble import assemble
from fullrank.runs.summary import over_stages
from fullrank.testing import check as check_method
from fullrank.trees import elements
from small import CLASSES, HIDDEN, WIDTH, assert_same_bits, blobs, exchanged, normed, plain, put_together

LR, MOMENTUM, DECAY, EPOCHS = 0.2, 0.9, 0.01, 2
TRAIN = {"lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY, "epochs": EPOCHS, "batch_size": 1000}
"""Full batches, so that the order of samples does not matter."""


def near(value, tolerance=1e-9):
    return pytest.approx(value, rel=tolerance, abs=tolerance)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- The frame --------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100])
@pytest.mark.parametrize("more", [-1, 0, 1, 7])
def test_the_frame_is_a_simplex(classes, more):
    dim = classes + more
    v = simplex_etf(classes, dim, seed=3)
    assert v.dtype == torch.float64
    v = v.numpy()
    assert v.shape == (dim, classes)
    gram = classes / (classes - 1) * np.eye(classes) - 1 / (classes - 1)
    np.testing.assert_allclose(v.T @ v, gram, atol=1e-13 if more < 0 else 1e-12)
    np.testing.assert_allclose(v.sum(1), 0, atol=1e-12)
    spectrum = np.linalg.eigvalsh(v @ v.T)[::-1]
    np.testing.assert_allclose(spectrum[: classes - 1], classes / (classes - 1), atol=1e-12)
    np.testing.assert_allclose(spectrum[classes - 1 :], 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, atol=1e-13)


@pytest.mark.parametrize(
    ("classes", "degrees"), [(2, 180), (3, 120), (4, 109.471), (10, 96.379), (100, 90.579), (200, 90.288)]
)
def test_angles(classes, degrees):
    v = simplex_etf(classes, classes - 1 if classes < 100 else None).numpy()
    cosines = (v.T @ v)[~np.eye(classes, dtype=bool)]
    np.testing.assert_allclose(np.degrees(np.arccos(np.clip(cosines, -1, 1))), degrees, atol=1e-3)


def test_frames_follow_the_seed_and_nothing_else():
    torch.manual_seed(0)
    np.random.seed(0)
    one = simplex_etf(5, 7, 1)
    torch.manual_seed(9)
    np.random.seed(9)
    assert torch.equal(simplex_etf(5, 7, 1), one)
    assert not torch.allclose(simplex_etf(5, 7, 2), one)
    assert not torch.allclose(simplex_etf(5, 4, 2), simplex_etf(5, 4, 1))
    assert torch.equal(simplex_etf(5), simplex_etf(5, 5, 0))


def test_the_frames_span_is_any_not_always_the_same():
    """Orthonormal columns of uniform numbers: the direction that the frame leaves out depends on the seed."""
    out = [np.linalg.svd(simplex_etf(4, 4, seed).numpy())[0][:, 3] for seed in range(3)]
    assert abs(out[0] @ out[1]) < 1 - 1e-6
    assert abs(out[1] @ out[2]) < 1 - 1e-6


def test_impossible_frames_are_rejected():
    with pytest.raises(InputError, match="4 vectors with equal angles need at least 3 dimensions, not 2"):
        simplex_etf(4, 2)
    with pytest.raises(InputError, match="at least 2 classes, not 1"):
        simplex_etf(1)
    assert doctest.testmod(importlib.import_module("fullrank.objectives.etf")).failed == 0


# --- The loss at known places -----------------------------------------------------------------------


def head_of(width, classes, dim=None, beta=1.0, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FrameHead(width, classes, dim or classes, beta, torch.float64)


def through(v, mu, beta, y, counts=None):
    """The loss of normalised features μ, without a projection."""
    logits = beta * mu @ v
    counts = torch.ones(v.shape[1]) if counts is None else torch.as_tensor(counts)
    return balanced_cross_entropy(logits, y, counts)


def test_perfect_and_opposite_features():
    v, y = simplex_etf(10), torch.arange(10)
    assert through(v, v.mT, 10.0, y).item() == near(1.3450e-4, 1e-8)
    for beta in (0.5, 1.0, 10.0):
        assert through(v, v.mT, beta, y).item() == near(np.log(1 + 9 * np.exp(-beta * 10 / 9)))
    one = torch.tensor([4])
    assert through(v, -v.mT[4:5], 2.0, one).item() == near(np.log(1 + 9 * np.exp(2 * 10 / 9)))


@pytest.mark.parametrize(("classes", "best"), [(10, 1.3769), (100, 3.6124), (200, 4.3019)])
def test_what_a_temperature_of_one_can_reach(classes, best):
    v = simplex_etf(classes)
    assert through(v, v.mT, 1.0, torch.arange(classes)).item() == near(best, 1e-4)


def test_without_temperature_only_the_counts_speak():
    v, mu = simplex_etf(3), F.normalize(draw(3, 3))
    for y in range(3):
        one = torch.tensor([y])
        assert through(v, mu[:1], 0.0, one).item() == near(np.log(3))
        n = np.array([8.0, 2, 5])
        assert through(v, mu[:1], 0.0, one, n).item() == near(-np.log(n[y] / 15))
        filled = through(v, mu[:1], 0.0, one, [8.0, 2, 0]).item()
        assert filled == near((0.318454, 1.704748, 2.397895)[y], 1e-6)


def test_counts_may_be_scaled_unless_one_is_missing():
    v, mu, y = simplex_etf(3), F.normalize(draw(5, 3)), torch.tensor([0, 1, 2, 0, 1])
    whole, many = (through(v, mu, 3.0, y, c).item() for c in ([8.0, 2, 5], [80.0, 20, 50]))
    assert whole == near(many)
    assert abs(through(v, mu, 3.0, y, [8.0, 2, 0]).item() - through(v, mu, 3.0, y, [80.0, 20, 0]).item()) > 1e-3
    zero = torch.zeros(1, 3, dtype=torch.float64)
    for n, total in (([8.0, 2, 0], 11), ([80.0, 20, 0], 101)):
        assert balanced_cross_entropy(zero, y[:1], torch.tensor(n)).item() == near(-np.log(n[0] / total))
    logits = 3 * mu @ v
    assert through(v, mu, 3.0, y, [7.0, 7, 7]).item() == near(F.cross_entropy(logits, y).item(), 1e-14)


# --- The classifier ---------------------------------------------------------------------------------


def by_hand(z, weight, bias, beta, v, y, prior):
    """Loss of the classifier, and its gradients, in NumPy; v has a row for each class."""
    hat = z @ weight.T + bias
    length = np.maximum(np.linalg.norm(hat, axis=1, keepdims=True), 1e-12)
    mu = hat / length
    cosines = mu @ v.T
    logits = beta * cosines + prior
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    d = slope(logits, y)
    dmu = beta * d @ v
    dhat = (dmu - mu * (dmu * mu).sum(1, keepdims=True)) / length
    slopes = {
        "projection.weight": dhat.T @ z,
        "projection.bias": dhat.sum(0),
        "beta": (d * cosines).sum(),
        "frame": beta * d.T @ mu,
    }
    return -logp[np.arange(len(y)), y].mean(), slopes, dhat @ weight, mu


def loss_of(head, z, y, counts, gamma=1.0):
    logits, extras = head(z)
    return balanced_cross_entropy(logits, y, counts, gamma), logits, extras["mu"]


@pytest.mark.parametrize("dim", [3, 4, 9])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_classifier_is_its_definition_with_its_gradients(dim, gamma):
    head, z, y = head_of(6, 4, dim, beta=2.5), draw(8, 6).requires_grad_(), torch.tensor([0, 1, 3, 3, 0, 0, 1, 0])
    counts = torch.tensor([40.0, 3, 0, 7])
    head.frame.requires_grad_()
    loss, logits, mu = loss_of(head, z, y, counts, gamma)
    loss.backward()
    w = {name: p.detach().numpy() for name, p in head.named_parameters()}
    prior = gamma * np.log([40.0, 3, 1, 7])
    value, slopes, dz, unit = by_hand(
        z.detach().numpy(), w["projection.weight"], w["projection.bias"], 2.5, w["frame"], y.numpy(), prior
    )
    assert loss.item() == near(value, 1e-12)
    np.testing.assert_allclose(mu.detach().numpy(), unit, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(logits.detach().numpy(), 2.5 * unit @ w["frame"].T, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(z.grad.numpy(), dz, rtol=1e-10, atol=1e-14)
    for name, p in head.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), slopes[name], rtol=1e-10, atol=1e-14, err_msg=name)


def test_gradcheck_map_and_trace():
    head, y, counts = head_of(5, 4, 6, beta=3.0), torch.tensor([0, 1, 2, 3, 3, 1]), torch.tensor([4.0, 0, 2, 9])
    weights = {name: p.detach().clone() for name, p in head.named_parameters()}

    def loss(z, weight, bias, beta, frame):
        given = {"projection.weight": weight, "projection.bias": bias, "beta": beta, "frame": frame}
        logits, _ = torch.func.functional_call(head, given, (z,))
        return balanced_cross_entropy(logits, y, counts)

    leaves = [draw(6, 5), *(weights[n] for n in ("projection.weight", "projection.bias", "beta", "frame"))]
    assert torch.autograd.gradcheck(loss, [t.clone().requires_grad_() for t in leaves])
    mapped = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))
    many = [torch.stack([t, t + 0.1]) for t in leaves]
    traced = make_fx(mapped)(*many)
    for got, want in zip(traced(*many), mapped(*many), strict=True):
        torch.testing.assert_close(got, want)
    single = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*leaves)
    for got, want in zip(mapped(*many), single, strict=True):
        torch.testing.assert_close(got[0], want)


def test_a_common_rotation_changes_nothing():
    head, z, y, counts = head_of(6, 4, beta=2.0), draw(7, 6).requires_grad_(), torch.arange(7) % 4, torch.arange(4.0)
    turn = torch.linalg.qr(draw(4, 4, seed=8))[0]
    turned = copy.deepcopy(head)
    with torch.no_grad():
        turned.frame.copy_(head.frame @ turn.mT)  # rows are v_c: Q v_c
        turned.projection.weight.copy_(turn @ head.projection.weight)
        turned.projection.bias.copy_(turn @ head.projection.bias)
    got = []
    for one in (head, turned):
        loss, *_ = loss_of(one, z, y, counts)
        got.append((loss.detach(), *torch.autograd.grad(loss, [z, one.beta])))
    for one, two in zip(*got, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(head.frame, turned.frame)


def test_gradients_stay_in_the_span_and_along_the_sphere():
    head, z, y = head_of(6, 4, beta=2.0), draw(7, 6), torch.arange(7) % 4
    hat = head.projection(z)
    mu = F.normalize(hat)
    loss = balanced_cross_entropy(head.beta * mu @ head.frame.mT, y, torch.tensor([5.0, 0, 2, 1]))
    dmu, dhat = torch.autograd.grad(loss, [mu, hat])
    left_out = torch.linalg.svd(head.frame.mT)[0][:, -1]  # U·1, which no v_c has a part in
    torch.testing.assert_close(head.frame @ left_out, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(dmu @ left_out, torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-13)
    assert (dhat @ left_out).abs().max() > 1e-4  # through the normalisation it has one
    torch.testing.assert_close((dhat * hat).sum(1), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-13)


def test_only_the_direction_counts():
    head, z = head_of(6, 4), draw(7, 6)
    logits, extras = head(z)
    with torch.no_grad():
        for p in head.projection.parameters():
            p.mul_(1234.5)
    again, same = head(z)
    torch.testing.assert_close(again, logits)
    torch.testing.assert_close(same["mu"], extras["mu"])
    with torch.no_grad():
        head.projection.weight.zero_()
        head.projection.bias.zero_()
    dead, nothing = head(z.requires_grad_())
    assert not dead.any()
    assert not nothing["mu"].any()
    F.cross_entropy(dead, torch.zeros(7, dtype=torch.int64)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_the_slope_of_the_temperature():
    v = simplex_etf(5)
    mu, y = F.normalize(draw(6, 5)), torch.arange(6) % 5
    beta = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    through(v, mu, beta, y).backward()
    p = torch.softmax(1.7 * mu @ v, 1)
    want = ((p - F.one_hot(y, 5)) * (mu @ v)).sum(1).mean()
    assert beta.grad.item() == near(want.item(), 1e-12)
    beta.grad = None
    through(v, v.mT[:1], beta, y[:1]).backward()
    p = 1 / (1 + 4 * np.exp(-1.7 * 5 / 4))
    assert beta.grad.item() == near(-(1 - p) * 5 / 4, 1e-12)


# --- Whole rounds -----------------------------------------------------------------------------------


def counts_of(client):
    return np.bincount(client[1].numpy(), minlength=CLASSES)


def classifier(client, gamma=1.0):
    """The balanced loss on a client's counts; gamma 0 is plain cross-entropy."""
    prior = gamma * np.log(np.maximum(counts_of(client), 1))

    def objective(state, z, y):
        at = place(state)
        w = {name: state[f"{at}.{name}"] for name in ("projection.weight", "projection.bias", "beta", "frame")}
        _, slopes, dz, _ = by_hand(z, w["projection.weight"], w["projection.bias"], w["beta"], w["frame"], y, prior)
        return {f"{at}.{name}": g for name, g in slopes.items()}, dz

    return objective


def phase(state, client, objective, names, *, epochs, lr, momentum, decay, stats="move", velocity=None):
    """So many full-batch steps on some entries."""
    x, y = (part.numpy() for part in client)
    state, velocity = dict(state), {} if velocity is None else velocity
    for _ in range(epochs):
        if stats == "move":
            z, back, moved = forward(state, x)
        else:
            z, back, moved = features(state, x), lambda dz: {}, {}
        head, dz = objective(state, z, y)
        for name, g in {**head, **back(dz)}.items():
            if names(name):
                velocity[name] = momentum * velocity.get(name, 0.0) + g + decay * state[name]
                state[name] = state[name] - lr * velocity[name]
        state |= moved
    return state


def is_frame(name):
    return name.endswith(".frame")


LOCAL = {"epochs": EPOCHS, "lr": LR, "momentum": MOMENTUM, "decay": DECAY}


def rounds_by_hand(start, clients, rounds, gamma=1.0, velocities=None):
    state = start
    for _ in range(rounds):
        after = [
            phase(
                state,
                client,
                classifier(client, gamma),
                lambda name: not is_frame(name),
                velocity=None if velocities is None else velocities[k],
                **LOCAL,
            )
            for k, client in enumerate(clients)
        ]
        state = mean(after, [len(y) for _, y in clients])
    return state


def one_class():
    """The last client has a single class."""
    clients = lacking()
    return [*clients[:2], (clients[2][0], torch.ones_like(clients[2][1]))]


def begun(module, clients, method, seed=0):
    """What the server starts from, in NumPy, its own part first."""
    state = numbers(put_together(module, clients, method, {"seed": seed}).server.model)
    at = place(state)
    frame, dim = state[f"{at}.frame"], method.dim or CLASSES
    assert frame.shape == (CLASSES, dim)
    np.testing.assert_allclose(frame @ frame.T, (CLASSES * np.eye(CLASSES) - 1) / (CLASSES - 1), atol=1e-12)
    assert state[f"{at}.beta"] == method.beta
    assert state[f"{at}.projection.weight"].shape == (dim, HIDDEN)
    assert state[f"{at}.projection.bias"].shape == (dim,)
    kept = {name: value for name, value in state.items() if not name.startswith(f"{at}.")}
    check({name: value for name, value in module.state_dict().items() if name in kept}, kept, 0)
    return state


@pytest.mark.parametrize("start", [plain, normed], ids=["plain", "normed"])
@pytest.mark.parametrize(
    "method",
    [FedETF(), FedETF(beta=10.0, gamma=0.5), FedETF(dim=2), FedETF(dim=HIDDEN + 2, gamma=0.0)],
    ids=["default", "warm", "reduced", "wide"],
)
def test_two_rounds_against_numpy(method, start):
    """Clients lack classes, one has a single one: weights, β and statistics; the frame to the bit."""
    clients, module = one_class(), start()
    begin = begun(module, clients, method)
    run = fit(module, clients, method, rounds=2, **TRAIN)
    got, want = run.model().state_dict(), rounds_by_hand(begin, clients, 2, method.gamma)
    check(got, want, 1e-9)
    at = place(begin)
    assert np.array_equal(got[f"{at}.frame"].numpy(), begin[f"{at}.frame"])
    assert abs(float(got[f"{at}.beta"]) - method.beta) > 1e-4


def test_kept_optimisers_cross_rounds_and_are_decayed_everywhere():
    clients, module = one_class(), normed()
    run = fit(
        module, clients, FedETF(repeats=0, preset="repo"), rounds=3, **TRAIN, set={"train.optimizer_state": "keep"}
    )
    velocities = [{} for _ in clients]
    want = rounds_by_hand(begun(module, clients, FedETF()), clients, 3, velocities=velocities)
    check(run.model().state_dict(), want, 1e-9)
    # feature adaptation continues with the same optimiser; the frame and its (absent) momentum stay
    for k, client in enumerate(clients):
        adapted = phase(want, client, classifier(client), lambda n: not is_frame(n), velocity=velocities[k], **LOCAL)
        check(run.client_model(k).state_dict(), adapted, 1e-9)
    kept = run._assembly.server.store.get(0)["optimizer"]["velocity"]
    assert "3.frame" not in kept
    assert "3.beta" in kept


def test_identical_clients_are_one():
    client = blobs((12,))[0]
    one, four = (fit(normed(), [client] * n, FedETF(), rounds=2, **TRAIN).model().state_dict() for n in (1, 4))
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, rtol=1e-12, atol=1e-12)
    assert torch.equal(one["3.frame"], four["3.frame"])


def test_statistics_of_norm_layers_by_hand():
    clients, start = blobs(), normed()
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    inside = [x.numpy() @ weight.T + bias for x, _ in clients]
    shares = np.array([len(a) for a in inside]) / 28
    state = fit(start, clients, FedETF(), rounds=1, lr=LR, batch_size=1000).model().state_dict()
    want = sum(share * 0.1 * a.mean(0) for share, a in zip(shares, inside, strict=True))
    np.testing.assert_allclose(state["1.running_mean"].numpy(), want, rtol=1e-11)
    want = 0.9 + sum(share * 0.1 * a.var(0, ddof=1) for share, a in zip(shares, inside, strict=True))
    np.testing.assert_allclose(state["1.running_var"].numpy(), want, rtol=1e-11)


# --- What a method combined with it sees -------------------------------------------------------------------


@dataclass(frozen=True)
class Recorder(Method):
    """Notes what batches hold."""

    def __post_init__(self):
        object.__setattr__(self, "seen", [])

    def loss(self, b):
        self.seen.append((b.x, b.z.detach(), b.mu.detach(), b.logits.detach(), {n: t.clone() for n, t in b.w.items()}))
        return b.base * 0


def test_z_is_the_backbones_feature_and_mu_has_unit_rows():
    recorder = Recorder()
    run = fit(plain(), blobs(), FedETF(dim=5, beta=4.0) + recorder, rounds=2, batch_size=4)
    frame = run.model()[2].frame.detach()
    assert len(recorder.seen) > 4
    for x, z, mu, logits, w in recorder.seen:
        torch.testing.assert_close(z, torch.tanh(x @ w["0.weight"].mT + w["0.bias"]))
        torch.testing.assert_close(mu.norm(dim=1), torch.ones(len(x), dtype=torch.float64))
        torch.testing.assert_close(mu, F.normalize(z @ w["2.projection.weight"].mT + w["2.projection.bias"]))
        torch.testing.assert_close(logits, w["2.beta"] * mu @ frame.mT)
        assert z.shape[1] == HIDDEN
        assert mu.shape[1] == 5
        assert "2.frame" not in w


# --- The frame travels once, and lasts --------------------------------------------------------------

BODY, NORM = WIDTH * HIDDEN + HIDDEN, 2 * HIDDEN
B = 2 * HIDDEN + 1


@pytest.mark.parametrize("dim", [0, 2, 7])
def test_elements_exchanged_and_kept(dim):
    width = dim or CLASSES
    usual = BODY + NORM + (HIDDEN + 1) * width + 1 + B
    run = fit(
        normed(dtype=torch.float32),
        blobs((9, 8, 7, 6), dtype=torch.float32),
        FedETF(dim=dim),
        rounds=4,
        participation=2,
    )
    met = set()
    for row in run.metrics:
        drawn = {c["client"] for c in row["clients"]}
        assert row["elements_down"] == 2 * usual + len(drawn - met) * width * CLASSES
        assert row["elements_up"] == 2 * usual
        met |= drawn
    assert len(met) > 2
    assert all(not run._assembly.server.store.get(k) for k in met)
    assert elements(run._assembly.server.state()["own"]) == 0


def pictures(*sizes, side=8, channels=3, classes=10):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, channels, side, side, generator=g), torch.arange(n) % classes) for n in sizes]


def test_exchange_of_a_resnet20():
    """272,474 elements with a linear head of 650; projection and β in its place, buffers, and the frame once."""
    net = models.build("resnet20-conv", 10, 3)
    assert sum(p.numel() for p in net.parameters()) == 272_474
    assert sum(p.numel() for p in models.build("resnet20-conv", 100, 3).parameters()) == 278_324
    parts = put_together(net, pictures(12, 11), FedETF())
    assert sum(parts.network.parameters()[n].numel() for n in parts.entries.shared) == 272_475
    engine = Serial(parts.site)
    first, later = (parts.server.run_round(engine).traffic for _ in range(2))
    assert (first.elements_down, first.elements_up) == (2 * 274_164, 2 * 274_064)
    assert (later.elements_down, later.elements_up) == (2 * 274_064, 2 * 274_064)


def test_sizes_with_both_heads():
    """As the authors' code prints them: the linear head stays, with projection and β."""
    for name, classes, both in (("resnet20-conv", 10, 273_125), ("resnet18", 200, 11_374_033)):
        with torch.device("meta"):
            net = models.build(name, classes, 3)
        mine = (net.feature_dim + 1) * classes + 1
        assert sum(p.numel() for p in net.parameters()) + mine == both


@pytest.mark.parametrize("decay_on", ["all", "matrices"])
def test_the_frame_is_never_decayed_averaged_or_trained(decay_on):
    settings = {"train.decay_on": decay_on}
    for dtype in (torch.float32, torch.float64):
        clients = blobs(dtype=dtype)
        begin = put_together(normed(dtype=dtype), clients, FedETF()).server.model["3.frame"]
        run = fit(normed(dtype=dtype), clients, FedETF(), rounds=3, lr=0.5, weight_decay=0.5, set=settings)
        assert torch.equal(run.model()[3].frame, begin)
        assert not run.model()[3].frame.requires_grad
        assert begin.dtype == dtype


def test_a_float32_frame_is_the_cast_of_the_float64_one():
    """The construction is in float64 whatever the model's dtype."""
    single, double = (
        put_together(normed(dtype=t), blobs(dtype=t), FedETF()).server.model["3.frame"]
        for t in (torch.float32, torch.float64)
    )
    assert torch.equal(single, double.float())


def test_the_frame_follows_the_runs_seed():
    def frame(seed):
        return put_together(normed(), blobs(), FedETF(), {"seed": seed}).server.model["3.frame"]

    assert torch.equal(frame(0), frame(0))
    assert not torch.allclose(frame(0), frame(1))


def test_a_site_takes_the_frame_that_it_is_sent():
    """Not the one that it would make itself: here the server's is another seed's."""
    theirs = put_together(normed(), blobs(), FedETF(), {"seed": 1})
    ours = put_together(normed(), blobs(), FedETF())
    ours.server.restore(theirs.server.state(), 0, torch.device("cpu"))
    frame = theirs.server.model["3.frame"]
    assert not torch.allclose(ours.site.start["3.frame"], frame)
    assert torch.equal(ours.server.model["3.frame"], frame)
    for _ in range(2):  # at the first contact, and later
        for kind in ("train", "personal"):
            client, _ = ours.site._client(ours.server.job(kind, 0))
            assert torch.equal(client.model["3.frame"], frame)
        ours.server.run_round(Serial(ours.site))
    assert torch.equal(ours.server.model["3.frame"], frame)


SMALL = {"data.clients": 3, "model.norm": "batch", "model.width": 2, "model.features": 12, "train.steps": 2}
SMALL |= {"train.batch_size": 16, "data.holdout": 0.2, "data.alpha": 0.5, "method.name": "fedetf"}
SMALL |= {"method.fedetf.repeats": 2, "train.optimizer_state": "keep"}


def test_the_frame_is_in_the_checkpoint_and_a_resumed_run_takes_it(tmp_path):
    straight = fullrank.run({**SMALL, "train.rounds": 2}, tmp_path / "straight")
    fullrank.run({**SMALL, "train.rounds": 1}, tmp_path / "run")
    frame = straight.model().head.frame.detach()
    saved = [load_file(file) for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors")]
    found = [value for tree in saved for name, value in tree.items() if name.endswith("head.frame")]
    assert found
    assert all(torch.equal(value, frame) for value in found)
    resumed = fullrank.run({**SMALL, "train.rounds": 2}, tmp_path / "run")
    assert_same_bits(resumed.model().state_dict(), straight.model().state_dict())
    assert resumed.summary()["personal"] == straight.summary()["personal"]
    assert len(resumed.summary()["personal"]["personalised"]["course"]) == 3
    back = fullrank.load_run(tmp_path / "run")
    assert torch.equal(back.model().head.frame, frame)
    assert_same_bits(back.client_model(1).state_dict(), straight.client_model(1).state_dict())


# --- Personalisation --------------------------------------------------------------------------------

FRAME = {"epochs": 3, "lr": 0.1, "momentum": 0.0, "decay": 0.0}
PROJECTION = {"epochs": 3, "lr": 0.05, "momentum": 0.9, "decay": 5e-4}


def personal_by_hand(state, client, preset, repeats):
    """The model after feature adaptation, and after each turn of frame and projection."""
    at, plain_loss = place(state), classifier(client, gamma=0.0)

    def chosen(*parts):
        return lambda name: any(name.startswith(f"{at}.{part}") for part in parts)

    if preset == "repo":
        state = phase(state, client, classifier(client), lambda name: not is_frame(name), **LOCAL)
        turns, stats = ((chosen("frame"), FRAME), (chosen("projection"), PROJECTION)), "move"
    else:
        fixed = chosen("projection", "frame")
        state = phase(state, client, plain_loss, lambda name: not fixed(name), **LOCAL)
        turns = (chosen("frame", "beta"), FRAME), (chosen("projection", "beta"), PROJECTION)
        stats = "freeze"
    course = [state]
    for _ in range(repeats):
        for names, how in turns:
            state = phase(state, client, plain_loss, names, stats=stats, **how)
        course.append(state)
    return course


@pytest.mark.parametrize("preset", ["paper", "repo"])
@pytest.mark.parametrize("start", [plain, normed], ids=["plain", "normed"])
@pytest.mark.parametrize("dim", [0, 2])
def test_personal_models_against_numpy(preset, start, dim):
    clients, module, method = one_class(), start(), FedETF(preset=preset, repeats=2, dim=dim, beta=2.0)
    run = fit(module, clients, method, rounds=1, **TRAIN)
    state = rounds_by_hand(begun(module, clients, method), clients, 1)
    check(run.model().state_dict(), state, 1e-9)
    at = place(state)
    for k, client in enumerate(clients):
        course = personal_by_hand(state, client, preset, 2)
        got = run.client_model(k).state_dict()
        check(got, course[-1], 1e-8)
        adapted = course[0]
        assert np.abs(got[f"{at}.frame"].numpy() - state[f"{at}.frame"]).max() > 1e-3
        assert np.array_equal(adapted[f"{at}.projection.bias"], state[f"{at}.projection.bias"]) == (preset == "paper")
        assert (float(got[f"{at}.beta"]) == pytest.approx(float(adapted[f"{at}.beta"]), abs=1e-12)) == (
            preset == "repo"
        )
        np.testing.assert_allclose(got["0.weight"].numpy(), adapted["0.weight"], rtol=1e-9)
        if start is normed:
            steps = int(state["1.num_batches_tracked"]) + EPOCHS
            assert int(got["1.num_batches_tracked"]) == steps + (12 if preset == "repo" else 0)
    # what clients did to their own copies leaves no trace
    check(run.model().state_dict(), state, 1e-9)
    again = run.client_model(0).state_dict()
    check(again, personal_by_hand(state, clients[0], preset, 2)[-1], 1e-8)


@pytest.mark.parametrize("preset", ["paper", "repo"])
def test_one_step_of_the_frame_by_the_formula(preset, monkeypatch):
    """ΔV = −0.1·mean_i β μ_i (p_i − y_i)ᵀ, at the model that feature adaptation left."""
    monkeypatch.setitem(fedetf.FRAME, "epochs", 1)
    clients = blobs()
    method = FedETF(preset=preset, repeats=1)
    run = fit(plain(), clients, method, rounds=1, **TRAIN)
    state = numbers(run.model().state_dict())
    for k, client in enumerate(clients):
        adapted = personal_by_hand(state, client, preset, 0)[0]
        x, y = (part.numpy() for part in client)
        hat = features(adapted, x) @ adapted["2.projection.weight"].T + adapted["2.projection.bias"]
        mu = hat / np.linalg.norm(hat, axis=1, keepdims=True)
        p = np.exp(adapted["2.beta"] * mu @ adapted["2.frame"].T)
        p /= p.sum(1, keepdims=True)
        change = -0.1 * sum(adapted["2.beta"] * np.outer(p[i] - np.eye(CLASSES)[y[i]], mu[i]) for i in range(len(y)))
        got = run.client_model(k).state_dict()["2.frame"].numpy() - state["2.frame"]
        np.testing.assert_allclose(got, change / len(y), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.optimizer": "adam", "train.lr": 0.01},
        {"train.nesterov": True},
        {"train.steps": 1},
        {"train.lr_schedule": "exponential", "train.decay": 0.1},
        {"train.warmup": 5},
    ],
    ids=lambda settings: next(iter(settings)).split(".")[1],
)
def test_fine_tuning_has_an_optimiser_of_its_own(settings):
    """Whatever clients train with: SGD at 0.1 for the frame, at 0.05 with momentum for the projection, 3 epochs."""
    clients = blobs()
    run = fit(plain(), clients, FedETF(repeats=1), rounds=1, **TRAIN, set=settings)
    adapted = fit(plain(), clients, FedETF(repeats=0), rounds=1, **TRAIN, set=settings).client_model(0).state_dict()
    start, plain_loss = numbers(adapted), classifier(clients[0], gamma=0.0)
    state = phase(start, clients[0], plain_loss, lambda n: n in ("2.frame", "2.beta"), stats="freeze", **FRAME)
    state = phase(
        state, clients[0], plain_loss, lambda n: n.startswith("2.") and not is_frame(n), stats="freeze", **PROJECTION
    )
    check(run.client_model(0).state_dict(), state, 1e-9)


def accuracy(state, x, y):
    at = place(state)
    hat = features(state, x) @ state[f"{at}.projection.weight"].T + state[f"{at}.projection.bias"]
    return float(((hat @ state[f"{at}.frame"].T).argmax(1) == y).mean())  # β > 0 and the length decide nothing


@pytest.mark.parametrize("preset", ["paper", "repo"])
def test_the_course_of_a_personalisation(preset):
    """After feature adaptation and after each turn: the plain mean over clients, of unequal hold-outs."""
    given, repeats = blobs((40, 21, 11), seed=4), 3
    method = FedETF(preset=preset, repeats=repeats)
    run = fit(normed(), given, method, rounds=1, **TRAIN, set={"data.holdout": 0.3})
    federation, state = run._assembly.federation, numbers(run.model().state_dict())
    x, y = federation.data.train.x.numpy(), federation.data.train.y.numpy()
    courses = []
    for k in range(3):
        part, held = federation.parts[k], federation.holdouts[k]
        client = torch.tensor(x[part]), torch.tensor(y[part])
        courses.append([accuracy(s, x[held], y[held]) for s in personal_by_hand(state, client, preset, repeats)])
    assert len({len(held) for held in federation.holdouts}) == 3
    want = np.mean(courses, axis=0)
    personal = run.summary()["personal"]
    assert personal["personalised"]["course"] == [near(value) for value in want]
    assert len(personal["personalised"]["course"]) == 1 + repeats
    assert personal["personalised"]["mean"] == near(want[-1])
    assert "course" not in personal["received"]
    assert "course" not in personal["local"]
    # evaluated on the way or not, the models are the same
    silent = fit(normed(), given, method, rounds=1, **TRAIN, set={"data.holdout": 0.3, "evaluate.personal": "never"})
    assert_same_bits(silent.client_model(1).state_dict(), run.client_model(1).state_dict())


def test_no_repeats_leave_one_mark_and_no_hold_out_none():
    run = fit(normed(), blobs((20, 20)), FedETF(repeats=0), rounds=1, set={"data.holdout": 0.3})
    personal = run.summary()["personal"]["personalised"]
    assert personal["course"] == [personal["mean"]]
    assert "personal" not in fit(normed(), blobs((20, 20)), FedETF(repeats=0), rounds=1).summary()
    other = fit(normed(), blobs((20, 20)), "ditto", rounds=1, set={"data.holdout": 0.3}).summary()["personal"]
    assert "course" not in other["personalised"]


def test_a_course_counts_clients_not_samples():
    def evaluated(values, samples):
        marks = [{"accuracy": v, "loss": 0.0, "samples": samples} for v in values]
        return {"received": marks[0], "personalised": {**marks[-1], "course": marks}}

    stages = over_stages({0: evaluated((0.0, 0.5), 1), 4: evaluated((1.0, 1.0), 99), 5: {}})
    assert stages["personalised"]["course"] == [0.5, 0.75]
    assert stages["personalised"]["clients"] == 2
    assert "course" not in stages["received"]


def test_one_class_clients_train_and_personalise():
    x, y = blobs((24,))[0]
    clients = [(x[y == c], y[y == c]) for c in range(CLASSES)]
    for preset in ("paper", "repo"):
        run = fit(normed(), clients, FedETF(preset=preset, repeats=2), rounds=2, batch_size=4)
        for k in range(CLASSES):
            state = run.client_model(k).state_dict()
            assert all(torch.isfinite(value.double()).all() for value in state.values())
            assert (run.client_model(k)(clients[k][0]).argmax(1) == k).double().mean() > 0.8


def test_the_default_is_as_specified():
    fields = {"gamma": 1.0, "beta": 1.0, "dim": 0, "preset": "paper", "repeats": 20}
    fields |= {"frame_lr": 0.1, "projection_lr": 0.05}
    assert fullrank.methods.check_fields(methods.available()["fedetf"], {}) == fields
    for bad in ({"gamma": -1.0}, {"beta": 0.0}, {"dim": -1}, {"preset": "slides"}, {"repeats": -1}):
        with pytest.raises(InputError, match=rf"method\.fedetf\.{next(iter(bad))}"):
            methods.build("fedetf", fedetf=bad)


# --- Any network ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "shape"), [(9, (10, 9)), (0, (10, 10)), (10, (10, 10)), (64, (10, 64))])
@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_the_librarys_networks(name, dim, shape):
    values = {
        "data.clients": 2,
        "model.name": name,
        "train.steps": 2,
        "method.name": "fedetf",
        "method.fedetf.dim": dim,
    }
    parts = assemble(Experiment.of(values))
    assert parts.server.model["head.frame"].shape == shape
    assert parts.entries.frozen == ("head.frame",)
    before = parts.server.model
    parts.server.run_round(Serial(parts.site))
    after = parts.server.model
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert {"head.beta", "head.projection.weight", "head.projection.bias"} < moved
    assert "head.frame" not in moved


def test_a_frame_in_too_few_dimensions_is_rejected():
    with pytest.raises(
        InputError, match=r"method\.fedetf\.dim = 8: vectors of 10 classes .* need at least 9 dimensions"
    ) as caught:
        assemble(Experiment.of({"method.name": "fedetf", "method.fedetf.dim": 8}))
    assert "\n" not in str(caught.value)


class Nested(nn.Module):
    """A user's own: its classifier inside, behind dropout, and something done to its scores."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU())
        self.top = nn.ModuleDict({"drop": nn.Dropout(0.2), "classify": nn.Linear(HIDDEN, CLASSES)})

    def forward(self, x):
        return self.top["classify"](self.top["drop"](self.body(x)))


@pytest.mark.parametrize("preset", ["paper", "repo"])
def test_a_users_own_module(preset):
    module = Nested().double()
    entries = {n: t.clone() for n, t in module.state_dict().items()}
    run = fit(module, blobs(), FedETF(preset=preset, repeats=1), rounds=3, batch_size=6)
    assert_same_bits(module.state_dict(), entries)
    model = run.model()
    assert isinstance(model, Nested)
    head = model.top["classify"]
    assert isinstance(head, FrameHead)
    x = blobs()[0][0]
    mu = F.normalize(head.projection(model.body(x)))
    torch.testing.assert_close(model(x), head.beta * mu @ head.frame.mT)
    own = run.client_model(0)
    assert not torch.equal(own.top["classify"].frame, head.frame)
    assert own(x).shape == (len(x), CLASSES)


def test_it_learns():
    """Features turn to their class's vector, and β grows."""
    x = torch.cat([x for x, _ in blobs((60, 60, 60))])
    y = torch.cat([y for _, y in blobs((60, 60, 60))])
    run = fit(plain(), blobs((60, 60, 60)), FedETF(), rounds=15, lr=0.1)
    assert (run.model()(x).argmax(1) == y).double().mean() > 0.8
    assert run.model()[2].beta.item() > 1.2


# --- Compositions -----------------------------------------------------------------------------------

PAIRS = ["fedetf+feddecorr", "fedprox+fedetf", "scaffold+fedetf", "moon+fedetf"]


@functools.cache
@pytest.mark.parametrize("name", [*PAIRS, "fedavgm+fedetf", "fedbn+fedetf"])
def test_compositions_exchange_what_they_should(name):
    single, done = exchanged("fedetf"), exchanged(name)
    assert single["down_first"] - single["down_later"] == 100
    assert done["down_first"] - done["down_later"] == 100  # the frame, and nothing else, once
    if name.startswith("scaffold"):
        assert done["up"] > single["up"]
    elif name.startswith("fedbn"):
        assert done["up"] < single["up"]
    else:
        assert done == single


def test_scaffold_has_no_variate_for_the_frame():
    run = fit(normed(), blobs(), methods.build("scaffold+fedetf"), rounds=2)
    variate = run._assembly.server.state()["own"]["scaffold"]["c"]
    assert "3.frame" not in variate
    assert "3.beta" in variate


@pytest.mark.parametrize("name", ["fedetf", "moon+fedetf"])
def test_compositions_trace(name):
    assert check_method(name, only=("trace",)).results == {"trace": "holds"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedetf", *PAIRS])
def test_compositions_pass_every_check(name):
    done = check_method(methods.build(name, fedetf={"repeats": 1}))
    assert {done.results[part] for part in ("trace", "engines", "processes", "resume", "exchange")} == {"holds"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [FedETF(dim=9, repeats=1), FedETF(dim=20, beta=10.0, repeats=0), FedETF(preset="repo", repeats=1)]
)
def test_variants_pass_every_check(method):
    done = check_method(method)
    assert {done.results[part] for part in ("trace", "engines", "processes", "resume", "exchange")} == {"holds"}


@pytest.mark.slow
def test_worker_processes_personalise_alike(tmp_path):
    one, two = (
        fullrank.run({**SMALL, "train.rounds": 2, "engine.name": engine, "engine.workers": 1}, tmp_path / engine)
        for engine in ("serial", "processes")
    )
    assert_same_bits(two.model().state_dict(), one.model().state_dict())
    assert two.summary()["personal"] == one.summary()["personal"]


@pytest.mark.slow
def test_a_resnet20_trains_and_personalises():
    clients = pictures(20, 15)
    run = fit(models.build("resnet20-conv", 10, 3), clients, FedETF(repeats=1), rounds=2, batch_size=10)
    assert run.client_model(1)(clients[1][0]).isfinite().all()


@pytest.mark.parametrize("other", ["fedrod", "fednh"])
def test_what_has_a_classifier_of_its_own_cannot_be_combined_with_it(other):
    for name in (f"fedetf+{other}", f"{other}+fedetf"):
        with pytest.raises(Conflict, match=r"cannot be combined: each has its own classifier \(`head`\)") as caught:
            methods.build(name)
        assert "fedetf" in str(caught.value)
        assert other in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("other", ["fedlc", "fedrs", "ditto"])
def test_what_has_a_loss_or_a_personal_model_of_its_own_cannot_either(other):
    with pytest.raises(Conflict, match="cannot be combined"):
        methods.build(f"fedetf+{other}")


def test_order_of_a_composition_does_not_matter():
    clients, module = blobs(dtype=torch.float32), normed(dtype=torch.float32)
    one, two = (
        fit(module, clients, methods.build(name), rounds=2, batch_size=4).model().state_dict()
        for name in ("fedetf+feddecorr", "feddecorr+fedetf")
    )
    assert_same_bits(one, two)


@pytest.mark.parametrize("model", fullrank.models.available())
def test_every_network_of_the_library_takes_the_frame(model):
    size = 64 if model == "alexnet-bn" else 32
    values = {"data.clients": 2, "data.size": size, "model.name": model, "method.name": "fedetf"}
    parts = assemble(Experiment.of({**values, "engine.name": "serial"}))
    network = parts.network
    x, _ = parts.site.samples(0).batch(torch.arange(2), None, network.dtype)
    with network.mode(train=False), torch.no_grad():
        out = network(x)
    frame, beta = (network.tensors()[f"{network.head_name}.{part}"] for part in ("frame", "beta"))
    assert out.z.shape == (2, network.feature_dim)
    torch.testing.assert_close(out.logits, beta * out.extras["mu"] @ frame.T)
