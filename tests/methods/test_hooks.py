"""Each hook of a method, through whole runs, against numbers worked out apart."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullrank
from fullrank import Mean, Method, Sum, fit
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, InputError
from fullrank.models import Network
from fullrank.trees import combine
from hook_methods import (
    Balanced,
    Calibrated,
    Counting,
    Even,
    FineTuned,
    Frame,
    FrameHead,
    HeadThenBody,
    Memory,
    MovingFrame,
    OwnHead,
    OwnNorm,
    Prepared,
    PreparedTwice,
    Previous,
    Projection,
    Prototypes,
    ServerMomentum,
    Shrink,
    SideModel,
    Travelled,
    Variates,
)
from small import (
    CLASSES,
    HIDDEN,
    WIDTH,
    Downhill,
    Line,
    Quadratic,
    assert_close,
    assert_same_bits,
    averaged,
    blobs,
    kept,
    normed,
    parabolas,
    plain,
    put_together,
    server_state,
    the_weight,
    trained_by_torch,
)

BODY = WIDTH * HIDDEN + HIDDEN
NORM = 2 * HIDDEN
HEAD = HIDDEN * CLASSES + CLASSES
P = BODY + NORM + HEAD
B = 2 * HIDDEN + 1
"""Elements of `normed()`: its parameters, and its buffers with one counter."""


def models_of(run, clients=3):
    return [run.client_model(k, "received").state_dict() for k in range(clients)]


def full(momentum=0.0):
    """Full-batch fits, so that the order of samples does not matter."""
    return {"batch_size": 1000, "momentum": momentum}


# --- Client and server state: SCAFFOLD's numbers (baselines.md) -------------------------------------


@pytest.mark.parametrize(
    ("momentum", "rounds", "w", "variates", "c"),
    [
        (0.0, 1, 0.095, (-0.95, 0.95), 0.0),
        (0.0, 2, 0.0817, (-0.90725, 1.08775), 0.09025),
        (0.9, 1, 0.14, (-0.9655172414, 0.9655172414), 0.0),
        (0.9, 2, 0.1056275862, None, 0.1351724138),
    ],
)
def test_control_variates(momentum, rounds, w, variates, c):
    run = fit(
        Line(),
        parabolas((1, -1), (30, 10)),
        Quadratic() + Variates(),
        rounds=rounds,
        epochs=2,
        lr=0.1,
        momentum=momentum,
    )
    assert the_weight(run) == pytest.approx(w, abs=1e-9)
    assert float(server_state(run)["variates"]["c"]["head.weight"]) == pytest.approx(c, abs=1e-9)
    if variates is not None:
        got = [float(kept(run, k)["variates"]["c"]["head.weight"]) for k in range(2)]
        assert got == pytest.approx(variates, abs=1e-9)


def test_the_servers_variate_is_the_mean_of_all_clients_also_of_those_who_sat_out():
    clients = blobs((9, 8, 7, 6, 5))
    for rounds in (1, 2, 4):
        run = fit(normed(), clients, Variates(), rounds=rounds, participation=2, batch_size=4, lr=0.05)
        c = server_state(run)["variates"]["c"]
        states = [kept(run, k) for k in range(5)]
        assert sum(state is not None for state in states) == len(
            {client["client"] for row in run.metrics for client in row["clients"]}
        )
        for name, value in c.items():
            total = sum(state["variates"]["c"][name] for state in states if state is not None)
            torch.testing.assert_close(value, total / 5, rtol=1e-10, atol=1e-12)


def test_clients_that_sit_out_keep_their_state():
    clients = blobs((9, 8, 7, 6, 5))
    run = fit(plain(), clients, Counting(), rounds=6, participation=2)
    drawn = [[c["client"] for c in row["clients"]] for row in run.metrics]
    assert all(len(set(ids)) == 2 for ids in drawn)
    for k in range(5):
        rounds = [number for number, ids in enumerate(drawn) if k in ids]
        if not rounds:
            assert kept(run, k) is None
        else:
            assert int(kept(run, k)["counting"]["rounds"]) == len(rounds)
            assert int(kept(run, k)["counting"]["last"]) == rounds[-1]


def test_each_method_has_its_own_space_for_state():
    run = fit(normed(), blobs(), Variates() + Counting() + ServerMomentum(), rounds=2)
    assert set(kept(run, 0)) == {"variates", "counting"}
    assert set(server_state(run)) == {"variates", "servermomentum"}
    single = fit(normed(), blobs(), Variates() + ServerMomentum(), rounds=2)
    assert_same_bits(run.model().state_dict(), single.model().state_dict())


def test_state_is_a_copy_of_what_was_assigned():
    seen = []

    class Keeps(Method):
        def client_state(self, client):
            return {"start": client.model}

        def after(self, client):
            seen.append((client.own["start"]["2.weight"].clone(), client.w0["2.weight"].clone()))
            return {}

    run = fit(plain(), blobs((9,)), Keeps(), rounds=3, lr=0.5)
    first = plain()[2].weight
    assert all(torch.equal(start, first) for start, _ in seen)
    assert torch.equal(kept(run, 0)["keeps"]["start"]["2.weight"], first)
    assert not torch.equal(seen[1][1], first)


# --- An extra forward: MOON's numbers ---------------------------------------------------------------


def cosine(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def features(module, x):
    return module[:2](x).detach().numpy()


def test_features_under_a_kept_previous_model():
    clients, start, tau = blobs((12, 9)), plain(), 0.5
    run = fit(start, clients, Previous(mu=2.0, temperature=tau), rounds=2, lr=0.3, **full())
    previous = [trained_by_torch(start, [client], lr=0.3) for client in clients]
    middle = copy.deepcopy(start)
    middle.load_state_dict(averaged(previous, (12, 9)))

    def loss(old):
        def both(module, x, y):
            z = module[:2](x)
            near = F.cosine_similarity(z, torch.tensor(features(middle, x)))
            far = F.cosine_similarity(z, torch.tensor(features(old, x)))
            term = -(near / tau - torch.logaddexp(near / tau, far / tau)).mean()
            return F.cross_entropy(module(x), y) + 2.0 * term

        return both

    for k, (x, _) in enumerate(clients):
        first, second = ({c["client"]: c for c in row["clients"]}[k]["epochs"][0]["previous"] for row in run.metrics)
        s_g, s_p = 1 / tau, cosine(features(middle, x), features(previous[k], x)) / tau
        expected = np.mean(-np.log(np.exp(s_g) / (np.exp(s_g) + np.exp(s_p))))
        assert first == 0.0
        assert second == pytest.approx(2.0 * expected, rel=1e-12)
    after = [trained_by_torch(middle, [c], lr=0.3, loss=loss(old)) for c, old in zip(clients, previous, strict=True)]
    assert_close(run.model().state_dict(), averaged(after, (12, 9)))


def test_one_clients_previous_model_is_the_global_one():
    run = fit(plain(), blobs((12,)), Previous(), rounds=3, batch_size=1000)
    terms = [row["clients"][0]["epochs"][0]["previous"] for row in run.metrics]
    assert terms == pytest.approx([0.0, math.log(2), math.log(2)], rel=1e-12)


def test_other_forwards_leave_no_trace_in_the_statistics():
    clients = blobs()
    run = fit(normed(), clients, Previous(mu=0.0), rounds=3, batch_size=4, lr=0.1)
    plain_run = fit(normed(), clients, "fedavg", rounds=3, batch_size=4, lr=0.1)
    assert_same_bits(run.model().state_dict(), plain_run.model().state_dict())


# --- Fits -------------------------------------------------------------------------------------------


def is_head(name):
    return name.startswith("3.")


def test_two_fits_head_first_then_body():
    clients, start = blobs(), normed()
    run = fit(start, clients, HeadThenBody(head_epochs=2), rounds=2, lr=0.2, **full(momentum=0.9))
    theirs = [copy.deepcopy(start) for _ in clients]
    for _ in range(2):
        for k, client in enumerate(clients):
            single = trained_by_torch(theirs[k], [client] * 2, lr=0.2, momentum=0.9, names=is_head)
            theirs[k] = trained_by_torch(single, [client], lr=0.2, momentum=0.9, names=lambda name: not is_head(name))
        mean = {name: v for name, v in averaged(theirs, (12, 9, 7)).items() if not is_head(name)}
        for module in theirs:
            module.load_state_dict({**module.state_dict(), **mean})
    got = models_of(run)
    for k, module in enumerate(theirs):
        assert_close(got[k], module.state_dict())
    assert all(torch.equal(got[0]["0.weight"], other["0.weight"]) for other in got[1:])
    assert not torch.allclose(got[0]["3.weight"], got[1]["3.weight"])
    assert [c["steps"] for c in run.metrics[0]["clients"]] == [3, 3, 3]
    with pytest.raises(InputError, match=r"no complete global model.*client_model\(k\)"):
        run.model()


def test_fits_of_one_round_share_their_momentum_unless_they_ask_for_an_own_optimiser():
    class Split(Method):
        def train(self, client):
            client.fit(epochs=1)
            client.fit(epochs=2)

    class Apart(Method):
        def train(self, client):
            client.fit(epochs=1)
            client.fit(epochs=2, momentum=0.8)

    (x, y), start = blobs((12,))[0], normed()
    common = {"rounds": 1, "epochs": 3, "lr": 0.2, "momentum": 0.8, "batch_size": 1000}
    once = trained_by_torch(start, [(x, y)] * 3, lr=0.2, momentum=0.8)
    assert_close(fit(start, [(x, y)], Split(), **common).model().state_dict(), once.state_dict())
    fresh = trained_by_torch(
        trained_by_torch(start, [(x, y)], lr=0.2, momentum=0.8), [(x, y)] * 2, lr=0.2, momentum=0.8
    )
    assert_close(fit(start, [(x, y)], Apart(), **common).model().state_dict(), fresh.state_dict())


def test_a_side_fit_by_hand():
    """λ .5, two steps a round at .1 from v = 0 near w = 0, then near w = .095."""
    method = Quadratic() + SideModel(lam=0.5)
    for rounds, v in ((1, 0.185), (2, 0.32745)):
        run = fit(Line(), parabolas((1, -1), (30, 10)), method, rounds=rounds, epochs=2, lr=0.1, momentum=0.0)
        assert float(kept(run, 0)["sidemodel"]["v"]["head.weight"]) == pytest.approx(v, abs=1e-12)
        assert run.client_model(0).head.weight.item() == pytest.approx(v, abs=1e-12)
    assert the_weight(run) == pytest.approx(0.095 + 0.19 * (0.5 - 0.095), abs=1e-12)  # as without it


def test_a_side_fit_does_not_change_a_bit_of_the_global_path():
    clients = blobs(dtype=torch.float32)
    settings = {"rounds": 3, "batch_size": 4, "lr": 0.1}
    with_side_fit = fit(normed(dtype=torch.float32), clients, SideModel(), **settings)
    single = fit(normed(dtype=torch.float32), clients, "fedavg", **settings)
    assert_same_bits(with_side_fit.model().state_dict(), single.model().state_dict())
    # and its statistics are its own
    v = kept(with_side_fit, 0)["sidemodel"]["v"]
    assert int(v["1.num_batches_tracked"]) == 3 * 3
    assert not torch.allclose(v["1.running_mean"], with_side_fit.model().state_dict()["1.running_mean"])


def test_every_fit_draws_its_own_batches():
    batches: dict[str, list] = {}

    class Several(Method):
        def watch(self, what):
            def loss(b):
                batches.setdefault(what, []).append(b.x.clone())
                return b.base * 0

            return loss

        def train(self, client):
            client.fit(loss=self.watch(f"{client.round} {client.id} first"))
            client.fit(loss=self.watch(f"{client.round} {client.id} second"))
            for number in range(2):
                client.fit(model=client.model, loss=self.watch(f"{client.round} {client.id} side {number}"))

    x, y = blobs((12,))[0]
    fit(plain(), [(x, y), (x, y)], Several(), rounds=2, batch_size=4)
    orders = [torch.cat(seen) for seen in batches.values()]
    assert len(orders) == 2 * 2 * 4
    assert all(torch.equal(order.sort(0).values, x.sort(0).values) for order in orders)
    for number, one in enumerate(orders):
        assert not any(torch.equal(one, other) for other in orders[:number])


def test_a_fits_own_loss_and_criterion_see_the_methods_state_and_broadcast():
    (x, y), start = blobs((12,))[0], plain()
    run = fit(start, [(x, y)], Memory() + Counting(), rounds=2, lr=0.1, **full())

    def loss(module, x, y):
        return 3 * F.cross_entropy(module(x), y) + 2 * module(x).square().mean()

    assert_close(run.model().state_dict(), trained_by_torch(start, [(x, y)] * 2, lr=0.1, loss=loss).state_dict())
    epoch = run.metrics[0]["clients"][0]["epochs"][0]
    assert epoch["criterion"] == pytest.approx(3 * F.cross_entropy(start(x), y).item(), rel=1e-12)
    assert epoch["fit"] == pytest.approx(2 * start(x).square().mean().item(), rel=1e-12)


def test_frozen_statistics_in_a_fit():
    class Still(Method):
        def train(self, client):
            client.fit(stats="freeze")

    (x, y), start = blobs((12,))[0], normed()
    with torch.no_grad():
        start[1].running_mean += 0.3
    model = fit(start, [(x, y)], Still(), rounds=2, lr=0.1, **full()).model()
    assert torch.equal(model[1].running_mean, start[1].running_mean)
    assert model[1].num_batches_tracked == 0

    def loss(module, x, y):
        module[1].eval()
        return F.cross_entropy(module(x), y)

    want = trained_by_torch(start, [(x, y)] * 2, lr=0.1, loss=loss)
    assert_close(model.state_dict(), want.state_dict())


@pytest.mark.parametrize(("only", "moves"), [("3", False), ("head", False), ("3.*", False), ("3.weight", True)])
def test_a_frozen_entry_trains_only_if_named_in_full(only, moves):
    start, after = normed(), []
    start[3].weight.requires_grad_(False)

    class Names(Method):
        def train(self, client):
            client.fit(("0", only))
            after.append(client.model["3.weight"].clone())

    fit(start, blobs((9,)), Names(), rounds=1, lr=0.1)
    assert torch.equal(after[0], start[3].weight) != moves


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda client: client.fit("hed"), 'the selector "hed" names no entry'),
        (lambda client: client.fit(learning_rate=1.0), 'client.fit has no setting "learning_rate"'),
        (lambda client: client.fit("buffers"), "there is nothing to train"),
    ],
)
def test_impossible_fits_are_rejected(call, sentence):
    class Wrong(Method):
        def train(self, client):
            call(client)

    with pytest.raises(ClientFailed, match=f"client 0: InputError: {sentence}"):
        fit(normed(), blobs((9,)), Wrong(), rounds=1)


def test_a_personal_model_by_fits_from_the_final_model():
    clients, start = blobs(), normed()
    run = fit(start, clients, FineTuned(steps=2), rounds=2, lr=0.1, **full())
    final = run.model()

    def loss(module, x, y):
        module[1].eval()
        return F.cross_entropy(module(x), y)

    for k, client in enumerate(clients):
        want = trained_by_torch(final, [client] * 2, lr=0.3, momentum=0.5, names=is_head, loss=loss)
        assert_close(run.client_model(k).state_dict(), want.state_dict())
        assert_same_bits(run.client_model(k).state_dict(), run.client_model(k).state_dict())
    assert_same_bits(run.model().state_dict(), final.state_dict())


# --- Criteria, losses -------------------------------------------------------------------------------


def test_a_criterion_that_reads_the_clients_counts():
    clients, start = blobs(), plain()
    run = fit(start, clients, Balanced(), rounds=1, lr=0.4, **full())
    after = []
    for x, y in clients:
        prior = torch.tensor(np.log(np.maximum(np.bincount(y, minlength=CLASSES), 1)))
        after.append(
            trained_by_torch(start, [(x, y)], lr=0.4, loss=lambda m, x, y, p=prior: F.cross_entropy(m(x) + p, y))
        )
    assert_close(run.model().state_dict(), averaged(after, (12, 9, 7)))


def test_counts_are_exact_in_half_precision():
    seen = []

    class Records(Method):
        def after(self, client):
            seen.append(client.counts)
            return {}

    x, y = torch.zeros(600, WIDTH), torch.zeros(600, dtype=torch.int64)
    y[:43] = 2
    fit(plain(dtype=torch.bfloat16), [(x, y)], Records() + Balanced(), rounds=1, batch_size=600)
    assert seen[0].tolist() == [557.0, 0.0, 43.0]
    fit(plain(), [(x.double(), y)], Records(), rounds=1, batch_size=600)
    assert seen[1].dtype == torch.float64


def test_losses_add_to_the_criterion():
    (x, y), start = blobs((12,))[0], plain()

    class Base(Method):
        def loss(self, b):
            return 0.5 * b.base.square()

    def loss(module, x, y):
        base = F.cross_entropy(module(x), y)
        return base + 0.5 * base**2 + 0.1 * sum(p.square().sum() for p in module.parameters())

    run = fit(start, [(x, y)], Shrink() + Base(), rounds=1, epochs=3, lr=0.1, **full())
    assert_close(run.model().state_dict(), trained_by_torch(start, [(x, y)] * 3, lr=0.1, loss=loss).state_dict())


# --- Personal entries -------------------------------------------------------------------------------


def test_personal_norm_layers_and_their_statistics():
    clients, start = blobs(), normed()
    run = fit(start, clients, OwnNorm(), rounds=3, lr=0.3, **full(momentum=0.9))
    theirs = [copy.deepcopy(start) for _ in clients]
    for _ in range(3):
        theirs = [trained_by_torch(m, [c], lr=0.3, momentum=0.9) for m, c in zip(theirs, clients, strict=True)]
        mean = {name: v for name, v in averaged(theirs, (12, 9, 7)).items() if not name.startswith("1.")}
        for module in theirs:
            module.load_state_dict({**module.state_dict(), **mean})
    got = models_of(run)
    for k, module in enumerate(theirs):
        assert_close(got[k], module.state_dict())
    assert set(kept(run, 0)["model"]) == {name for name in got[0] if name.startswith("1.")}


def test_a_norm_layers_statistics_after_one_round_by_hand():
    clients, start = blobs(), normed()
    run = fit(start, clients, OwnNorm(), rounds=1, lr=0.3, **full())
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    for k, (x, _) in enumerate(clients):
        inside = x.numpy() @ weight.T + bias
        state = run.client_model(k, "received").state_dict()
        np.testing.assert_allclose(state["1.running_mean"].numpy(), 0.1 * inside.mean(0), rtol=1e-12)
        np.testing.assert_allclose(state["1.running_var"].numpy(), 0.9 + 0.1 * inside.var(0, ddof=1), rtol=1e-12)
        assert int(state["1.num_batches_tracked"]) == 1


def test_personal_entries_of_those_who_sit_out_stay():
    clients = blobs((9, 8, 7, 6))
    runs = {r: fit(normed(), clients, OwnHead(), rounds=r, participation=1, lr=0.3) for r in (4, 5)}
    (last,) = (c["client"] for c in runs[5].metrics[4]["clients"])
    for k in range(4):
        before, after = (kept(runs[r], k) for r in (4, 5))
        if k == last:
            assert before is None or not torch.equal(before["model"]["3.weight"], after["model"]["3.weight"])
        elif before is None:
            assert after is None
        else:
            assert_same_bits(after["model"], before["model"])


def test_one_client_with_personal_norms_is_fedavg_to_the_bit():
    clients = blobs((12,), dtype=torch.float32)
    settings = {"rounds": 3, "batch_size": 4, "lr": 0.1}
    own = fit(normed(dtype=torch.float32), clients, OwnNorm(), **settings).client_model(0, "received").state_dict()
    assert_same_bits(own, fit(normed(dtype=torch.float32), clients, "fedavg", **settings).model().state_dict())


def test_local_buffers():
    clients, start = blobs(), normed()
    run = fit(start, clients, "fedavg", rounds=2, lr=0.3, set={"train.buffers": "local"}, **full())
    theirs = [copy.deepcopy(start) for _ in clients]
    for _ in range(2):
        theirs = [trained_by_torch(m, [c], lr=0.3) for m, c in zip(theirs, clients, strict=True)]
        mean = averaged(theirs, (12, 9, 7))
        mean = {name: value for name, value in mean.items() if "running" not in name and "num_" not in name}
        for module in theirs:
            module.load_state_dict({**module.state_dict(), **mean})
    for k, got in enumerate(models_of(run)):
        assert_close(got, theirs[k].state_dict())
    # B is taken off both ways, but for the first contact of a given module's own statistics
    assert [row["elements_down"] for row in run.metrics] == [3 * (P + B), 3 * P]
    assert [row["elements_up"] for row in run.metrics] == [3 * P, 3 * P]


def test_averaged_buffers_and_counters():
    """Statistics are averaged by sample counts; counters take the maximum."""
    clients, start = blobs((12, 6)), normed()
    run = fit(start, clients, "fedavg", rounds=1, lr=0.3, **full())
    after = [trained_by_torch(start, [client], lr=0.3) for client in clients]
    assert_close(run.model().state_dict(), averaged(after, (12, 6)))
    counted = fit(start, clients, "fedavg", rounds=2, batch_size=4)
    # 12 samples make three batches of 4, 6 make one of 4 and one of 2
    assert int(counted.model()[1].num_batches_tracked) == 3 + 3


def test_nothing_but_class_sums_travels():
    clients, start = blobs(), plain()
    run = fit(start, clients, Prototypes(), rounds=2, lr=0.1, **full())
    everything = BODY + HEAD
    sums = CLASSES * HIDDEN + CLASSES
    assert [row["elements_down"] for row in run.metrics] == [3 * (everything + sums), 3 * sums]
    assert [row["elements_up"] for row in run.metrics] == [3 * sums, 3 * sums]
    single = [trained_by_torch(start, [client] * 2, lr=0.1) for client in clients]
    total, counts = np.zeros((CLASSES, HIDDEN)), np.zeros(CLASSES)
    for k, ((x, y), module) in enumerate(zip(clients, single, strict=True)):
        assert_close(run.client_model(k, "received").state_dict(), module.state_dict())
        z = features(module, x)
        for c in range(CLASSES):
            total[c] += z[y.numpy() == c].sum(0)
        counts += np.bincount(y, minlength=CLASSES)
    np.testing.assert_allclose(server_state(run)["prototypes"]["sums"].numpy(), total, rtol=1e-10)
    assert server_state(run)["prototypes"]["counts"].tolist() == counts.tolist()


# --- Frozen entries, own heads, necks ---------------------------------------------------------------


def test_an_own_head_with_extras_and_a_frozen_frame():
    clients, start = blobs(), plain()
    run = fit(start, clients, Frame(pull=0.1), rounds=2, lr=0.2, **full())
    terms = [c["epochs"][0]["frame"] for row in run.metrics for c in row["clients"]]
    assert terms == pytest.approx([0.1 / CLASSES] * 6, rel=1e-12)  # mu has length 1
    model = run.model()
    assert isinstance(model[2], FrameHead)
    assert torch.equal(model[2].frame, torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES)
    assert model(clients[0][0]).shape == (12, CLASSES)

    begin = put_together(start, clients, Frame(pull=0.1)).network.module  # the projection comes from the seed
    assert not torch.equal(begin[2].projection.weight, model[2].projection.weight)

    def loss(module, x, y):
        mu = F.normalize(module[2].projection(module[:2](x)))
        return F.cross_entropy(mu @ module[2].frame, y) + 0.1 * mu.square().mean()

    def trained(name):
        return "frame" not in name

    first = [trained_by_torch(begin, [c], lr=0.2, loss=loss, names=trained) for c in clients]
    middle = copy.deepcopy(begin)
    middle.load_state_dict(averaged(first, (12, 9, 7)))
    second = [trained_by_torch(middle, [c], lr=0.2, loss=loss, names=trained) for c in clients]
    assert_close(model.state_dict(), averaged(second, (12, 9, 7)))


FRAME = CLASSES * CLASSES
FRAMED = BODY + NORM + HIDDEN * CLASSES


def test_frozen_entries_travel_at_first_contact_only():
    run = fit(normed(), blobs((9, 8, 7)), Frame(), rounds=6, participation=1)
    met = set()
    for row in run.metrics:
        (client,) = (c["client"] for c in row["clients"])
        assert row["elements_down"] == FRAMED + B + (FRAME if client not in met else 0)
        assert row["elements_up"] == FRAMED + B
        assert row["bytes_down"] == 8 * row["elements_down"]  # float64, and the counter is as long
        met.add(client)
    assert len(met) == 3


def test_a_frozen_frame_that_the_server_changes_travels_again():
    clients = blobs((9, 8, 7))
    run = fit(normed(), clients, MovingFrame(), rounds=4)
    assert [row["elements_down"] for row in run.metrics] == [3 * (FRAMED + B + FRAME)] * 4
    assert [row["elements_up"] for row in run.metrics] == [3 * (FRAMED + B + FRAME)] * 4
    base = np.eye(CLASSES) - 1 / CLASSES
    np.testing.assert_allclose(run.model()[3].frame.numpy(), 2**4 * base)
    np.testing.assert_allclose(server_state(run)["movingframe"]["seen"]["3.frame"].numpy(), 3 * 2**3 * base)
    np.testing.assert_allclose(run.client_model(1)[3].frame.numpy(), 2**4 * base)


def test_a_change_reaches_each_client_when_it_is_next_called_upon():
    run = fit(normed(), blobs((9, 8, 7)), MovingFrame(after_rounds=(1, 2)), rounds=8, participation=1)
    version, has = 0, {}
    for number, row in enumerate(run.metrics):
        (client,) = (c["client"] for c in row["clients"])
        assert row["elements_down"] == FRAMED + B + (FRAME if has.get(client) != version else 0)
        has[client] = version
        version += number in (1, 2)
    np.testing.assert_allclose(run.model()[3].frame.numpy(), 4 * (np.eye(CLASSES) - 1 / CLASSES))


def test_a_changed_frame_is_still_known_after_a_resume(tmp_path):
    clients, method = blobs((9, 8, 7)), MovingFrame(after_rounds=(0,))
    fit(normed(), clients, method, rounds=2, out=tmp_path / "run")
    resumed = fit(normed(), clients, method, rounds=4, out=tmp_path / "run")
    straight = fit(normed(), clients, method, rounds=4)
    assert_same_bits(resumed.model().state_dict(), straight.model().state_dict())
    assert_same_bits(server_state(resumed)["movingframe"]["seen"], server_state(straight)["movingframe"]["seen"])
    assert [row["elements_down"] for row in resumed.metrics] == [row["elements_down"] for row in straight.metrics]


def test_frozen_by_the_experiment():
    start, clients = normed(), blobs()
    run = fit(start, clients, "fedavg", rounds=2, lr=0.3, set={"model.freeze": ["0"]}, **full())
    assert torch.equal(run.model()[0].weight, start[0].weight)
    assert not torch.equal(run.model()[3].weight, start[3].weight)
    assert [row["elements_down"] for row in run.metrics] == [3 * (P + B), 3 * (P - BODY + B)]
    assert [row["elements_up"] for row in run.metrics] == [3 * (P - BODY + B)] * 2


@pytest.mark.parametrize("start", [normed, plain])
def test_a_neck_of_another_width_brings_a_fresh_head(start):
    clients = blobs()
    run = fit(start(), clients, Projection(width=4), rounds=2, lr=0.2, **full())
    network = put_together(start(), clients, Projection(width=4)).network
    assert network.feature_dim == 4
    begin = network.module
    position = len(begin) - 1
    neck = HIDDEN * 4 + 4
    body = BODY + (NORM + B if start is normed else 0)
    assert run.metrics[0]["elements_up"] == 3 * (body + neck + 4 * CLASSES + CLASSES)
    first = [trained_by_torch(begin, [c], lr=0.2) for c in clients]
    middle = copy.deepcopy(begin)
    middle.load_state_dict(averaged(first, (12, 9, 7)))
    second = [trained_by_torch(middle, [c], lr=0.2) for c in clients]
    assert_close(run.model().state_dict(), averaged(second, (12, 9, 7)))
    z = torch.tanh(F.linear(begin[:position](clients[0][0]), *begin[position].neck[1].parameters()))
    want = F.linear(z, begin[position].weight, begin[position].bias)
    torch.testing.assert_close(begin(clients[0][0]), want)


def test_necks_are_chained_and_an_own_head_comes_last():
    class Wider(Projection):
        width: int = 7

    method = Projection(width=4) + Wider(width=7) + Frame()
    network = put_together(normed(), blobs(), method).network
    assert network.feature_dim == 7
    assert network.head.projection.in_features == 7
    assert [tuple(p.shape) for name, p in network.parameters().items() if "neck" in name and p.dim() == 2] == [
        (4, HIDDEN),
        (7, 4),
    ]
    assert fit(normed(), blobs(), method, rounds=1).complete


def test_a_head_of_the_wrong_width_is_rejected():
    class Wide(Method):
        def head(self, net):
            return nn.Linear(net.feature_dim, 11, dtype=net.dtype)

    with pytest.raises(InputError, match=r"the method's network gives scores of shape \(2, 11\)"):
        fit(normed(), blobs(), Wide(), rounds=1)


# --- Weights and aggregation ------------------------------------------------------------------------


def test_a_clients_weight_in_the_mean():
    settings = {"rounds": 1, "lr": 1.0, "momentum": 0.0}
    clients = parabolas((1, -1), (30, 10))  # at a rate of 1 a step ends in a_k
    assert the_weight(fit(Line(), clients, Quadratic(), **settings)) == pytest.approx(0.5, abs=1e-15)
    assert the_weight(fit(Line(), clients, Quadratic() + Even(), **settings)) == pytest.approx(0.0, abs=1e-15)


def test_statistics_are_averaged_by_samples_whatever_weighs_the_weights():
    clients, start = blobs((12, 6)), normed()
    run = fit(start, clients, Even(), rounds=1, lr=0.3, **full())
    after = [trained_by_torch(start, [client], lr=0.3) for client in clients]
    by_samples, evenly = averaged(after, (12, 6)), averaged(after, (1, 1))
    got = run.model().state_dict()
    for name in got:
        torch.testing.assert_close(got[name], (by_samples if "running" in name else evenly)[name])


def test_travel_as_a_weight():
    """FedNova: a constant gradient of −1, steps (1, 2), equal sizes: the mean of normalised steps 1, times Σp·a."""
    run = fit(Line(), parabolas((0, 0), (5, 5)), Downhill() + Travelled(), rounds=1, lr=0.1, momentum=0.0)
    assert the_weight(run) == pytest.approx(0.15, abs=1e-12)
    assert [row["elements_up"] for row in run.metrics] == [2 * (1 + 2)]


def test_server_momentum():
    """w = 1, w̄ = 2 then 2.5, ρ .5: m = .5, .75, w = 1.5, 2.25; a constant step tends to Δ."""
    expected = {1: (0.5, 1.5), 2: (0.75, 2.25), 4: (1 - 0.5**4, 1 + sum(1 - 0.5**t for t in range(1, 5)))}
    for rounds, (m, w) in expected.items():
        run = fit(
            Line(1.0),
            parabolas((0, 0), (3, 7)),
            Downhill() + ServerMomentum(),
            rounds=rounds,
            lr=1.0,
            momentum=0.0,
        )
        assert the_weight(run) == pytest.approx(w, abs=1e-12)
        assert float(server_state(run)["servermomentum"]["m"]["head.weight"]) == pytest.approx(m, abs=1e-12)


def test_server_momentum_of_0_is_fedavg_to_the_bit_and_never_touches_buffers():
    clients = blobs(dtype=torch.float32)
    settings = {"rounds": 3, "batch_size": 4, "lr": 0.1}
    start = normed(dtype=torch.float32)
    still = fit(start, clients, ServerMomentum(rho=0.0), **settings).model().state_dict()
    assert_same_bits(still, fit(start, clients, "fedavg", **settings).model().state_dict())
    one = {"rounds": 1, "batch_size": 4, "lr": 0.1}
    heavy = fit(start, clients, ServerMomentum(rho=0.9), **one)
    light = fit(start, clients, "fedavg", **one).model().state_dict()
    got = heavy.model().state_dict()
    assert all(torch.equal(got[name], light[name]) for name in got if "running" in name or "num_" in name)
    assert not torch.equal(got["0.weight"], light["0.weight"])
    assert not any("running" in name for name in server_state(heavy)["servermomentum"]["m"])


def test_aggregation_sees_the_plain_mean_and_what_came_before_it():
    seen = []

    @dataclass(frozen=True)
    class First(Method):
        def aggregate(self, server, new, up):
            return combine(new, lambda new: new + 1)

    @dataclass(frozen=True)
    class Second(Method):
        def aggregate(self, server, new, up):
            seen.append(float(new["head.weight"] - up["w"]["head.weight"]))
            seen.append(server.taking_part)
            seen.append(server.round)
            return new

    clients = parabolas((1, -1), (30, 10))
    run = fit(Line(), clients, Quadratic() + First() + Second(), rounds=1, lr=1.0, momentum=0.0)
    assert seen == [1.0, (0, 1), 0]
    assert the_weight(run) == 1.5


def without(new, *names):
    return {name: value for name, value in new.items() if name not in names}


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda new: without(new, "0.bias"), "0.bias is missing"),
        (lambda new: {**new, "elsewhere": torch.zeros(1)}, "elsewhere is not expected"),
        (lambda new: {**new, "0.bias": torch.zeros(2)}, r"0.bias has shape \(2,\) instead of \(6,\)"),
        (lambda new: combine(new, lambda w: w / 0), "0.weight is not finite"),
        (lambda new: {**new, "1.weight": new["0.bias"]}, "1.weight is personal"),
    ],
)
def test_an_aggregation_that_does_not_fit_is_rejected_and_leaves_no_trace(broken, sentence):
    class Breaks(Method):
        personal = ("norm",)

        def server_state(self, server):
            return {"rounds": torch.tensor(0)}

        def aggregate(self, server, new, up):
            server.own = {"rounds": server.own["rounds"] + 1}
            return broken(new)

    clients = blobs()
    assembly = put_together(normed(), clients, Breaks())
    before = assembly.server.model
    with pytest.raises(InputError, match=f"the aggregated model does not fit: {sentence}"):
        assembly.server.run_round(Serial(assembly.site))
    assert assembly.server.round == 0
    assert_same_bits(assembly.server.model, before)
    assert assembly.server.store.get(0) is None
    assert int(assembly.server.state()["own"]["breaks"]["rounds"]) == 0


def test_the_name_w_is_the_models():
    class Takes(Method):
        def after(self, client):
            return {"w": Mean(client.w)}

    with pytest.raises(ClientFailed, match='"takes" cannot upload under the reserved name "w"'):
        fit(plain(), blobs(), Takes(), rounds=1)


def test_uploads_of_every_kind_are_reduced():
    seen = {}

    class Sends(Method):
        def after(self, client):
            return {
                "sum": Sum({"n": torch.tensor(client.n), "deep": {"x": torch.tensor(1.5)}}),
                "mean": Mean({"id": torch.tensor(float(client.id))}, client.id),
            }

        def aggregate(self, server, new, up):
            seen.update(up)
            return new

    fit(plain(), blobs(), Sends(), rounds=1)
    assert int(seen["sum"]["n"]) == 12 + 9 + 7
    assert float(seen["sum"]["deep"]["x"]) == 4.5
    assert float(seen["mean"]["id"]) == pytest.approx((0 * 0 + 1 * 1 + 2 * 2) / 3)


def test_clients_are_worked_on_and_summed_largest_first_then_by_id():
    seen = []

    class Records(Method):
        def after(self, client):
            seen.append(client.id)
            return {}

    run = fit(plain(), blobs((5, 9, 7, 9, 12)), Records(), rounds=2, participation=4)
    sizes = {0: 5, 1: 9, 2: 7, 3: 9, 4: 12}
    for row, ids in zip(run.metrics, (seen[:4], seen[4:]), strict=True):
        assert ids == sorted(ids, key=lambda k: (-sizes[k], k))
        assert [c["client"] for c in row["clients"]] == ids


# --- A question after the last round ----------------------------------------------------------------


def test_class_moments_of_all_clients_by_hand():
    """CCVR's check: {(0,0),(2,0)} and {(4,4),(6,4),(5,1)} of one class, and the other class."""
    a = torch.tensor([[0.0, 0], [2, 0], [1, 1]], dtype=torch.float64)
    b = torch.tensor([[4.0, 4], [6, 4], [5, 1], [-1, -2]], dtype=torch.float64)
    clients = [(a, torch.tensor([0, 0, 1])), (b, torch.tensor([0, 0, 0, 1]))]
    start = nn.Linear(2, 2).double()  # its representation is its input
    Calibrated.answers.clear()
    run = fit(start, clients, Calibrated(), rounds=1, participation=1)
    (total,) = Calibrated.answers
    n, z, zz = (total[name].numpy() for name in ("n", "z", "zz"))
    assert n.tolist() == [5, 2]
    mean = z[0] / 5
    np.testing.assert_allclose(mean, [3.4, 1.8], rtol=1e-12)
    np.testing.assert_allclose((zz[0] - 5 * np.outer(mean, mean)) / 4, [[5.8, 3.6], [3.6, 4.2]], rtol=1e-12)
    # all clients answer, also the one that never took part; everything is counted
    p, d = 6, 2
    summary = run.summary()
    assert summary["elements_down"] == p + 2 * p
    assert summary["elements_up"] == p + 2 * 2 * (d * d + d + 1)
    assert summary["bytes_up"] == 8 * summary["elements_up"]


@pytest.mark.parametrize("neck", [False, True])
@pytest.mark.parametrize("net", ["sequence", "library"])
def test_a_head_fitted_at_the_server(neck, net):
    clients = blobs()
    Calibrated.answers.clear()
    method = (Projection(width=HIDDEN) + Calibrated(epochs=5)) if neck else Calibrated(epochs=5)
    before_it = Projection(width=HIDDEN) if neck else Method()
    start = normed() if net == "sequence" else fullrank.models.build("mlp", CLASSES, width=HIDDEN).double()
    start(clients[0][0])  # so that nothing of it is lazy
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 4}
    calibrated = fit(start, clients, method, **settings)
    trained = fit(start, clients, before_it, **settings).model()
    (total,) = Calibrated.answers
    means = total["z"] / total["n"][:, None]
    head = trained[3] if net == "sequence" else trained.head
    single = nn.Linear(HIDDEN, CLASSES).double()
    single.load_state_dict({name: head.state_dict()[name] for name in ("weight", "bias")})
    single = trained_by_torch(single, [(means, torch.arange(CLASSES))] * 5, lr=0.2, momentum=0.9)
    model = calibrated.model()
    got = model[3] if net == "sequence" else model.head
    torch.testing.assert_close(got.weight, single.weight, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.bias, single.bias, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(got.weight, head.weight)
    # the rest of the model is what it was, and clients' models start from the finished one
    rest = {name: v for name, v in model.state_dict().items() if not name.startswith(("3.weight", "3.bias", "head."))}
    assert_same_bits(rest, {name: trained.state_dict()[name] for name in rest})
    assert_same_bits(calibrated.client_model(1, "received").state_dict(), model.state_dict())


def test_the_servers_questions_are_functions_of_its_methods():
    class Asks(Method):
        def finish(self, server):
            server.ask(lambda client: {})

    with pytest.raises(InputError, match=r"server\.ask takes a function of the method itself"):
        fit(plain(), blobs(), Asks(), rounds=1)


# --- What crosses the channels ----------------------------------------------------------------------

EXCHANGE = {
    "fedavg": (Method(), P + B, P + B, P + B),
    "variates": (Variates(), 2 * P + B, 2 * P + B, 2 * P + B),
    "server momentum": (ServerMomentum(), P + B, P + B, P + B),
    "previous": (Previous(), P + B, P + B, P + B),
    "side model": (SideModel(), P + B, P + B, P + B),
    "own head": (OwnHead(), P + B, P - HEAD + B, P - HEAD + B),
    "own norm": (OwnNorm(), P + B, P - NORM, P - NORM),
    "frame": (Frame(), FRAMED + B + FRAME, FRAMED + B, FRAMED + B),
    "composed": (Variates() + Frame(), 2 * FRAMED + B + FRAME, 2 * FRAMED + B, 2 * FRAMED + B),
}


@pytest.mark.parametrize("what", EXCHANGE)
def test_elements_exchanged(what):
    """Down at first contact (a given module's personal entries with it), down later, up; per client."""
    method, first, later, up = EXCHANGE[what]
    run = fit(normed(dtype=torch.float32), blobs((9, 8, 7, 6), dtype=torch.float32), method, rounds=5, participation=2)
    met = set()
    counters = 0 if what == "own norm" else 1
    for row in run.metrics:
        clients = {c["client"] for c in row["clients"]}
        new = len(clients - met)
        assert row["elements_down"] == new * first + (2 - new) * later
        assert row["elements_up"] == 2 * up
        assert row["bytes_up"] == 2 * (4 * up + 4 * counters)
        met |= clients
    total = run.summary()
    assert total["elements_up"] == 5 * 2 * up


def test_personal_entries_of_a_built_network_never_travel(tmp_path, monkeypatch):
    settings = {
        "data.clients": 3,
        "model.norm": "batch",
        "model.width": 2,
        "model.features": 4,
        "train.rounds": 2,
        "train.steps": 1,
        "method.name": "hook_methods:OwnNorm",
    }
    run = fullrank.run(settings, out=tmp_path / "run")
    shared = (9 + 1) * 2 + (2 * 9 + 1) * 4 + (4 * 16 + 1) * 4 + (4 + 1) * 10
    assert [row["elements_down"] for row in run.metrics] == [3 * shared, 3 * shared]
    assert [row["elements_up"] for row in run.metrics] == [3 * shared, 3 * shared]


# --- Before a fit -----------------------------------------------------------------------------------


def test_what_is_computed_before_a_fit_is_that_of_its_start():
    """By hand: the model as received in the first fit, as the first left it in the second; four full batches each."""
    clients = blobs([8], 3)
    net = plain()
    x, y = (part.double() for part in clients[0])
    y = y.long()
    counts = torch.bincount(y, minlength=CLASSES).double()
    keys = {"batch_size": 8, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    got = fit(net, clients, PreparedTwice(), rounds=1, **keys).model().state_dict()
    w0 = {name: p.detach().clone() for name, p in net.named_parameters()}
    w = {name: p.clone() for name, p in w0.items()}
    for _ in range(2):
        times = {name: 1 + (w[name] - w0[name]).abs() for name in w}
        for _ in range(4):
            leaves = {name: p.clone().requires_grad_() for name, p in w.items()}
            logits = torch.func.functional_call(net, leaves, x)
            loss = F.cross_entropy(logits, y) + ((1 / (1 + counts))[y] * logits.square().sum(1)).mean() / 10
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            w = {name: w[name] - 0.1 * times[name] * slope for name, slope in zip(w, slopes, strict=True)}
    assert_close(got, w)


def test_what_is_computed_before_a_fit_is_no_other_methods():
    with pytest.raises(ClientFailed, match="rare"):
        fit(plain(), blobs([8, 9], 3), Prepared() + Blind(), rounds=1)


@dataclass(frozen=True)
class Blind(Method):
    """Records for what another method computed."""

    def loss(self, b):
        return b.fixed["rare"].sum()


def test_a_layer_that_decides_itself_what_training_means_is_asked():
    """Frozen for good, as pre-trained layers often are: by its class, or as the one layer that it is."""

    class Still(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    one = nn.BatchNorm1d(HIDDEN).eval()
    one.train = lambda mode=True: one
    for frozen in (Still(HIDDEN).eval(), one):
        net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), frozen, nn.Linear(HIDDEN, CLASSES)).double()
        after = fit(net, blobs(), "fedavg", rounds=1).model().state_dict()
        assert not after["1.running_mean"].any()
        assert not torch.equal(after["0.weight"], net[0].weight)


def test_what_a_client_hands_out_is_its_own():
    """A gradient at the model, or an entry written into what was received, is no other client's business."""
    lengths = []

    @dataclass(frozen=True)
    class Records(Method):
        def after(self, client):
            model = {name: tensor.requires_grad_() for name, tensor in client.model.items()}
            assert all(tensor.grad is None for tensor in model.values())
            client.network.at(model, torch.ones(2, WIDTH, dtype=torch.float64)).logits.sum().backward()
            lengths.append(client.w0.pop("0.weight").sum().item())
            return {}

    fit(plain(), blobs(), Records(), rounds=1)
    assert len(lengths) == 3
    assert len(set(lengths)) == 1


def test_a_layer_that_joins_later_follows_the_mode():
    """In a network of the user's own, whatever was looked up before."""
    module = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES))
    network = Network.of(module, torch.zeros(2, WIDTH), CLASSES)
    network.settle()
    module[0].late = nn.Dropout(0.5)
    network.set_mode(train=False)
    assert not module[0].late.training
