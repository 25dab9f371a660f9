"""Every training setting against torch.optim and torch's schedulers on the same sequence of batches, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullrank
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.local.plan import make_plan
from fullrank.local.settings import Schedule, Settings, Travel
from fullrank.randomness import generator
from fullrank.runs.assemble import assemble

ROUNDS, STEPS = 4, 6


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)]
        return nn.Sequential(*layers).double()


def samples(n=40):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


def batches(round, settings):
    """The batches of the only client's fit: a function of seed, round and client, as documented."""
    plan = make_plan(40, settings, generator(0, "batches", round, 0, "fit-0"), batch_norm=True)
    start = 0
    for size in plan.sizes:
        yield plan.index[start : start + size]
        start += size


def with_torch(values, optimiser, scheduler=None, keep=False, clip=0.0, smoothing=0.0, groups=None):
    """The same training written in plain torch: one client, so that the mean of the clients is the client."""
    x, y = samples()
    net = network().train()
    settings = Settings(batch_size=16, steps=STEPS)
    shares = _shares(scheduler)
    opt = None
    for round in range(ROUNDS):
        if opt is None or not keep:
            opt = optimiser(groups(net) if groups else net.parameters())
            full = [group["lr"] for group in opt.param_groups]
        for group, lr in zip(opt.param_groups, full, strict=True):
            group["lr"] = lr * shares[round]
        for chosen in batches(round, settings):
            opt.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen], label_smoothing=smoothing).backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            opt.step()
    return net.state_dict()


def _shares(scheduler):
    """What a torch scheduler makes of a learning rate of 1, stepped once a round."""
    if scheduler is None:
        return [1.0] * ROUNDS
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = scheduler(opt)
    shares = []
    for _ in range(ROUNDS):
        shares.append(opt.param_groups[0]["lr"])
        opt.step()
        steps.step()
    return shares


def ours(values):
    run = fullrank.fit(
        network(),
        [samples()],
        "fedavg",
        rounds=ROUNDS,
        batch_size=16,
        set={"train.steps": STEPS, **{f"train.{k}": v for k, v in values.items()}},
    )
    return run.model().state_dict()


def agree(values, optimiser, **rest):
    expected, got = with_torch(values, optimiser, **rest), ours(values)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-9, msg=name)


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    ("values", "optimiser"),
    [
        ({"lr": 0.1, "momentum": 0.0}, lambda p: SGD(p, lr=0.1)),
        ({"lr": 0.1}, lambda p: SGD(p, lr=0.1, momentum=0.9)),
        ({"lr": 0.1, "weight_decay": 0.05}, lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05)),
        ({"lr": 0.1, "nesterov": True}, lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
        (
            {"lr": 0.1, "nesterov": True, "weight_decay": 0.05},
            lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
        ),
        ({"lr": 0.02, "optimizer": "adam"}, lambda p: ADAM(p, lr=0.02)),
        ({"lr": 0.02, "optimizer": "adam", "weight_decay": 0.05}, lambda p: ADAM(p, lr=0.02, weight_decay=0.05)),
        ({"lr": 0.02, "optimizer": "adamw", "weight_decay": 0.05}, lambda p: ADAMW(p, lr=0.02, weight_decay=0.05)),
        ({"lr": 0.02, "optimizer": "adamw"}, lambda p: ADAMW(p, lr=0.02, weight_decay=0.0)),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_optimisers(values, optimiser, keep):
    agree({**values, "optimizer_state": "keep" if keep else "fresh"}, optimiser, keep=keep)


def test_clipping():
    agree({"lr": 0.5, "clip_norm": 0.05}, lambda p: SGD(p, lr=0.5, momentum=0.9), clip=0.05)


def test_a_generous_limit_clips_nothing():
    plain, limited = ours({"lr": 0.1}), ours({"lr": 0.1, "clip_norm": 1e6})
    assert all(torch.equal(plain[name], limited[name]) for name in plain)


def test_label_smoothing():
    agree({"lr": 0.1, "label_smoothing": 0.2}, lambda p: SGD(p, lr=0.1, momentum=0.9), smoothing=0.2)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_decay_on_matrices_only(optimizer):
    def groups(net):
        matrices = [p for p in net.parameters() if p.dim() >= 2]
        others = [p for p in net.parameters() if p.dim() < 2]
        return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]

    made = {"sgd": lambda p: SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: ADAMW(p, lr=0.1)}[optimizer]
    agree({"lr": 0.1, "weight_decay": 0.1, "decay_on": "matrices", "optimizer": optimizer}, made, groups=groups)


SCHEDULES = torch.optim.lr_scheduler


def warm(after, warmup):
    """torch's own: a linear warm-up, then the schedule."""

    def scheduler(opt):
        start = SCHEDULES.LinearLR(opt, start_factor=1 / (warmup + 1), end_factor=1.0, total_iters=warmup)
        return SCHEDULES.SequentialLR(opt, [start, after(opt)], milestones=[warmup])

    return scheduler


@pytest.mark.parametrize(
    ("values", "scheduler"),
    [
        ({"lr_schedule": "cosine"}, lambda o: SCHEDULES.CosineAnnealingLR(o, ROUNDS)),
        ({"lr_schedule": "step", "decay": 0.5, "decay_every": 2}, lambda o: SCHEDULES.StepLR(o, 2, 0.5)),
        ({"lr_schedule": "exponential", "decay": 0.7}, lambda o: SCHEDULES.ExponentialLR(o, 0.7)),
        ({"warmup": 2}, lambda o: SCHEDULES.LinearLR(o, 1 / 3, 1.0, 2)),
        ({"warmup": 1, "lr_schedule": "cosine"}, warm(lambda o: SCHEDULES.CosineAnnealingLR(o, ROUNDS - 1), 1)),
        ({"warmup": 2, "lr_schedule": "exponential", "decay": 0.5}, warm(lambda o: SCHEDULES.ExponentialLR(o, 0.5), 2)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
def test_schedules_over_rounds(values, scheduler):
    agree({"lr": 0.1, **values}, lambda p: SGD(p, lr=0.1, momentum=0.9), scheduler=scheduler)


def test_shares_by_hand():
    cosine = Schedule("cosine", rounds=4)
    assert [cosine.share(t) for t in range(4)] == pytest.approx([1, 0.8535533906, 0.5, 0.1464466094])
    step = Schedule("step", decay=0.1, decay_every=3, warmup=1)
    assert [step.share(t) for t in range(8)] == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.01])


def test_a_schedule_by_steps_is_torchs_own_step_by_step():
    """One client, five steps a round: cosine over all 15 of them after three rounds' worth of torch.optim."""
    rounds, steps = 3, 5
    values = {"train.steps": steps, "train.lr_schedule": "cosine", "train.lr_schedule_by": "step"}
    x, y = samples()
    whole = {"batch_size": len(x), "lr": 0.1, "momentum": 0.0}
    run = fullrank.fit(network(), [(x, y)], "fedavg", rounds=rounds, **whole, set=values)
    net = network()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = SCHEDULES.CosineAnnealingLR(optimiser, rounds * steps)
    for _ in range(rounds * steps):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
        scheduler.step()
    for name, value in run.model().state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_rates_inside_a_round_and_how_far_they_carry():
    schedule = Schedule("cosine", rounds=2, by="step")
    settings = schedule.at(1, Settings(lr=2.0, momentum=0.5))
    rates = [2 * (1 + math.cos(math.pi * t / 2)) / 2 for t in (1, 1.25, 1.5, 1.75)]
    assert settings.rates(4) == pytest.approx(rates)
    # u = 1, 1.5, 1.75, 1.875
    assert Travel().on(4, settings).distance == pytest.approx(np.dot(rates, [1, 1.5, 1.75, 1.875]))
    assert Schedule("constant", by="step").at(0, Settings()).moving is None


def test_a_fit_with_its_own_rate_leaves_the_schedule():
    values = {"train.lr_schedule": "cosine", "train.lr_schedule_by": "step", "train.rounds": 1}
    parts = assemble(Experiment.of({**values, "data.clients": 2, "method.name": "fedetf", "engine.name": "serial"}))
    client, _ = parts.site._client(parts.server.job("personal", 0))
    assert client._adapted(None, None, {"lr": 0.5}).rates(2) == [0.5, 0.5]
    assert client._adapted(None, None, {}).moving is not None


def test_travel_with_nesterov_and_kept_momentum():
    # u = 1, 1.9, 2.71: η(1 + ρu) = .1·(1.9 + 2.71 + 3.439)
    assert Travel().on(3, Settings(lr=0.1, nesterov=True)).distance == pytest.approx(0.1 * 8.049)
    assert Travel(speed=2.71).on(1, Settings(lr=0.1)).distance == pytest.approx(0.1 * 3.439)


def test_kept_momentum_is_in_the_clients_state_with_its_speed():
    run = fullrank.fit(
        network(),
        [samples()],
        "fedavg",
        rounds=2,
        batch_size=16,
        momentum=0.5,
        set={"train.steps": 2, "train.optimizer_state": "keep"},
    )
    kept = run._assembled().server.store.get(0)["optimizer"]
    assert kept["velocity"].keys() == dict(network().named_parameters()).keys()
    assert float(kept["u"]) == 1.875  # 1, 1.5, 1.75, 1.875 after four steps
    assert sum(t.numel() for t in kept["velocity"].values()) == sum(p.numel() for p in network().parameters())


def test_clients_that_sit_out_keep_their_momentum():
    clients = [samples(n) for n in (20, 30, 40)]
    run = fullrank.fit(network(), clients, "fedavg", rounds=3, participation=1, set={"train.optimizer_state": "keep"})
    store = run._assembled().server.store
    took_part = {row["clients"][0]["client"] for row in run.metrics}
    assert {k for k in range(3) if store.get(k) is not None} == took_part


def test_adam_has_no_travel():
    class Asks(fullrank.Method):
        def after(self, client):
            return {"travel": fullrank.Sum({"t": torch.tensor([client.travel])})}

    fullrank.fit(network(), [samples()], Asks(), rounds=1)
    with pytest.raises(fullrank.errors.ClientFailed, match="adam has no travel"):
        fullrank.fit(network(), [samples()], Asks(), rounds=1, set={"train.optimizer": "adam"})


def test_what_does_not_go_together_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"train.decay_every = 0"):
        Experiment.of({"train.lr_schedule": "step"})
    with pytest.raises(InputError, match=r"train.nesterov"):
        Experiment.of({"train.nesterov": True, "train.momentum": 0.0})
    values = {"data.clients": 3, "model.width": 2, "train.steps": 1, "train.lr_schedule": "cosine", "train.rounds": 2}
    fullrank.run(values, tmp_path)
    with pytest.raises(InputError, match="cosine schedule runs over all rounds"):
        fullrank.run({**values, "train.rounds": 3}, tmp_path)


def test_the_steps_of_adam_trace():
    """The optimisers are part of the step, so they trace like it."""
    from torch.func import vmap
    from torch.fx.experimental.proxy_tensor import make_fx

    from fullrank.local.optimiser import memory
    from fullrank.local.step import Context, Functional, State, Step
    from fullrank.methods import Composition
    from fullrank.models import Network

    x, y = samples(12)
    settings = Settings(optimizer="adamw", lr=0.1, weight_decay=0.1, clip_norm=0.5)
    net = Network.of(network(), x, 3)
    names = frozenset(net.parameter_names)
    step = Step(Composition(fullrank.Method()), Functional(net), settings, names, names)
    trained = {n: p.detach().clone() for n, p in net.parameters().items()}
    buffers = {n: net.tensors()[n].clone() for n in net.buffer_names}
    state = State(trained, {}, buffers, memory(trained, settings))
    context = Context({**trained, **buffers}, {}, {}, torch.ones(3, dtype=torch.float64))
    single, _ = step(state, context, x, y)
    traced = make_fx(lambda *a: step(*a)[0].trained)(state, context, x, y)(state, context, x, y)
    pair = torch.utils._pytree.tree_map(lambda t: torch.stack([t, t]), (state, x, y))
    twice = vmap(lambda s, x, y: step(s, context, x, y)[0].trained)(*pair)
    for name in trained:  # no closer: where a gradient is 0 but for rounding, Adam makes a full step of the rounding
        torch.testing.assert_close(traced[name], single.trained[name], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(twice[name][1], single.trained[name], rtol=1e-8, atol=1e-8)


def test_a_step_of_numbers_that_lie_in_another_order_is_the_same_step():
    """Gradients of convolutions may come in channels-last form where weights are not, or the other way round."""
    from fullrank.local.optimiser import descend_, memory

    settings = Settings(lr=0.1, momentum=0.9, weight_decay=0.01)
    weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    slope = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    reference = nn.Parameter(weight.clone())
    optimiser = torch.optim.SGD([reference], lr=0.1, momentum=0.9, weight_decay=0.01)
    w = {"w": weight.clone()}
    kept = memory(w, settings)
    for _ in range(3):
        reference.grad = slope.clone()
        optimiser.step()
        descend_(
            w, {"w": slope.contiguous(memory_format=torch.channels_last)}, kept, settings, ["w"], torch.tensor(0.1)
        )
    torch.testing.assert_close(w["w"], reference.detach())


def test_the_memory_of_two_fits_is_one_and_each_fit_has_its_part_in_one_piece():
    """A head first and the rest after it: neither loses its velocity, and neither is stepped entry by entry."""
    from fullrank.local.optimiser import memory
    from fullrank.trees import Flat, FlatLayout

    settings, entries = Settings(momentum=0.9), {name: torch.ones(2) for name in "abcd"}
    whole = Flat.copied(entries, FlatLayout.of(entries))
    known: dict = {}
    first = memory(whole.part("cd"), settings, known)["velocity"]
    first.base.fill_(5)
    rest = memory(whole.part("ab"), settings, known)["velocity"]
    rest.base.fill_(7)
    assert isinstance(first, Flat)
    assert isinstance(rest, Flat)
    assert {name: value.tolist() for name, value in known["velocity"].items()} == {
        "a": [7, 7],
        "b": [7, 7],
        "c": [5, 5],
        "d": [5, 5],
    }
    again = memory(whole.part("bc"), settings, known)["velocity"]
    assert again.base.tolist() == [7, 7, 5, 5]
    again.base.fill_(1)
    assert known["velocity"]["c"].tolist() == [1, 1]
    assert memory(whole, settings, known)["velocity"].base.tolist() == [7, 7, 1, 1, 1, 1, 5, 5]
