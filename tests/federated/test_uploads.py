"""What the server does with uploads that are not what the method and the model say."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch

from fullrank import Mean, Method, Sum, fit, methods
from fullrank.cli.methods import small_federation
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, InputError
from fullrank.federated.site import Site
from fullrank.testing import CheckFailed, check
from fullrank.trees import combine
from small import blobs, normed, plain

SIZES = (12, 9, 8, 7)
SKIP = {"run.on_client_error": "skip", "engine.name": "serial"}


@pytest.fixture
def changing(monkeypatch):
    """Change what one client sends, in every round or in one."""
    honest = Site.do

    def start(change, client=0, round=None):
        def do(self, job):
            result = honest(self, job)
            if (job.client, job.kind) == (client, "train") and round in (None, job.round):
                change(result)
            return result

        monkeypatch.setattr(Site, "do", do)

    return start


def put(space, name, part):
    """Send something under a name."""
    return lambda result: result.upload.setdefault(space, {}).__setitem__(name, part)


def scaled(factor):
    def change(result):
        w = result.upload[""]["w"]
        result.upload[""]["w"] = Mean(combine(w.tree, lambda value: value * factor), w.weight)

    return change


def weighted(weight, name="w"):
    def change(result):
        part = result.upload[""][name]
        result.upload[""][name] = Mean(part.tree, weight)

    return change


def entry(value):
    def change(result):
        w = result.upload[""]["w"]
        result.upload[""]["w"] = Mean({**w.tree, "0.bias": value}, w.weight)

    return change


def negative_variance(result):
    part = result.upload[""]["buffers"]
    result.upload[""]["buffers"] = Mean({**part.tree, "1.running_var": -part.tree["1.running_var"]}, part.weight)


def claims(result):
    result.samples = 10**12


REJECTED = {
    "an upload too many": (put("trojan", "raw", Sum({"x": torch.zeros(3)})), "what the method sends in trojan/raw"),
    "weights missing": (lambda result: result.upload[""].pop("w"), "differ from what the method sends in /w"),
    "empty": (lambda result: result.upload.clear(), "it is empty, although the client made steps"),
    "no upload at all": (lambda result: setattr(result, "upload", None), "it is empty"),
    "a list": (lambda result: setattr(result, "upload", [1]), "it is a list"),
    "a number": (put("m", "x", Sum(3)), "the tree is a int"),
    "a tensor": (put("m", "x", Sum(torch.zeros(2))), "the tree is a Tensor"),
    "a list of tensors": (put("m", "x", Sum([torch.zeros(2)])), "the tree is a list"),
    "a number in a tree": (put("m", "x", Sum({"x": 3})), "x is a int"),
    "a name that is no text": (put("m", "x", Sum({3: torch.zeros(2)})), "3 cannot name an entry"),
    "an upload's name that is no text": (put("m", 3, Sum({"x": torch.zeros(2)})), "under 3, which is not text"),
    "a name with a slash": (put("m", "x", Sum({"a/b": torch.zeros(2)})), "'a/b' cannot name an entry"),
    "a meta tensor": (entry(torch.zeros(6, dtype=torch.float64, device="meta")), "0.bias is a meta tensor"),
    "another shape": (entry(torch.zeros(1, dtype=torch.float64)), r"0.bias has shape \(1,\) instead of \(6,\)"),
    "whole numbers": (entry(torch.zeros(6, dtype=torch.int64)), "0.bias is not of the expected kind"),
    "a value that is not finite": (entry(torch.full((6,), math.nan)), "0.bias is not finite"),
    "weights × 1e18": (scaled(1e18), "in its w, 1.weight has values above 1e"),
    "weights × 1e12": (scaled(1e12), r"its w has norm .*, more than 1e\+09 times that of the model"),
    "weights × 1e30": (scaled(1e30), "has values above 1e"),
    "weights × 1e37": (scaled(1e37), "has values above 1e"),
    "a claim of samples": (claims, r"it claims 1e\+12, but the client has 12 samples"),
    "a weight of samples": (weighted(1e12), r"the weight of its w is 1e\+12, but the client has 12"),
    "buffers' weight": (weighted(1e12, "buffers"), r"the weight of its buffers is 1e\+12"),
    "a negative weight": (weighted(-1.0), "the weight of its w is -1"),
    "a weight that is no number": (weighted(math.nan), "the weight of its w is nan"),
    "a weight that is text": (weighted("12"), "the weight of its w is a str"),
    "a negative variance": (negative_variance, "1.running_var is negative, which a variance cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("what", REJECTED)
def test_the_odd_client_is_rejected_and_named_even_if_it_comes_first(changing, what):
    change, sentence = REJECTED[what]
    changing(change)
    run = fit(normed(), blobs(SIZES), rounds=2, set=SKIP)
    for row in run.metrics:
        assert list(row["skipped"]) == ["0"]
        assert [client["client"] for client in row["clients"]] == [1, 2, 3]
    with pytest.raises(ClientFailed, match=f"client 0: its upload is rejected: .*{sentence}"):
        fit(normed(), blobs(SIZES), rounds=1, set={"engine.name": "serial"})


def variants():
    """Every method of the library at its defaults, and with hyper-parameters that change what is sent."""
    found = {name: methods.build(name) for name in methods.available()}
    for name, values in (
        ("fedmr", {"mu2": 0.0}),
        ("fedmr", {"prototypes": "onehot"}),
        ("fedmr", {"share": 0.5}),
        ("fedmr", {"min_count": 5}),
        ("fedproto", {"min_count": 5}),
        ("ccvr", {"min_count": 2}),
        ("scaffold", {"weights": "uniform"}),
        ("moon", {"head": "moon"}),
    ):
        found[f"{name} {values}"] = methods.build(name, **{name: values})
    found["scaffold+fedmr"] = methods.build("scaffold+fedmr")
    return found


VARIANTS = variants()


@pytest.mark.parametrize("name", VARIANTS)
def test_no_method_of_the_library_is_rejected_and_an_odd_first_client_is(changing, name):
    def federation():
        parts = small_federation(VARIANTS[name])
        parts.server._on_client_error = "skip"
        return parts

    parts = federation()
    for _ in range(2):
        outcome = parts.server.run_round(Serial(parts.site))
        assert not outcome.skipped
        assert not outcome.cautions
    assert not parts.server.finished(Serial(parts.site))[2]

    def drop(result):
        names = next(reversed(result.upload.values()))
        names.pop(next(iter(names)))

    for change in (put("odd", "extra", Sum({"x": torch.zeros(2)})), drop):
        changing(change)
        parts = federation()
        outcome = parts.server.run_round(Serial(parts.site))
        assert set(outcome.skipped) == {0}
        assert [result.client for result in outcome.results] == [1]


def test_an_undeclared_upload_is_believed_if_a_synthetic_client_sends_it_too(changing):
    class Undeclared(Method):
        def after(self, client):
            return {"length": Sum({"n": torch.tensor(1.0)})}

    changing(lambda result: result.upload.pop("undeclared"), client=1)
    run = fit(plain(), blobs(SIZES), Undeclared(), rounds=2, set=SKIP)
    assert [list(row["skipped"]) for row in run.metrics] == [["1"], ["1"]]


def test_a_method_that_cannot_run_on_synthetic_data_is_named_in_a_warning():
    class Particular(Method):
        uploads = {"n": "a number"}

        def after(self, client):
            if client.id < 0:
                raise ValueError("only real clients")
            return {"n": Sum({"n": torch.tensor(1.0)})}

    with pytest.warns(
        UserWarning, match=r'"particular" cannot run on a synthetic client \(ValueError: only real clients'
    ):
        run = fit(plain(), blobs(SIZES), Particular(), rounds=2, set={"engine.name": "serial"})
    assert len(run.metrics[0]["cautions"]) == 1
    assert "cautions" not in run.metrics[1]


def test_the_synthetic_client_leaves_no_trace():
    weights = []
    for other in (methods.build("fedexp"), dataclasses.replace(methods.build("fedexp"))):
        torch.manual_seed(3)
        drawn = fit(normed(), blobs(SIZES), other, rounds=2).model().state_dict()
        weights.append((drawn, torch.rand(3)))
    torch.manual_seed(3)
    assert torch.equal(weights[0][1], torch.rand(3))
    assert all(torch.equal(weights[0][0][name], value) for name, value in weights[1][0].items())


# Warnings


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_weights_a_million_times_as_large_are_a_warning_that_names_the_client(engine):
    @dataclass(frozen=True)
    class Tampers(Method):
        def train(self, client):
            client.fit()
            if client.id == 2:
                client.network.load({name: value * 1e6 for name, value in client.w.items()})

    with pytest.warns(UserWarning, match=r"round 1: weights of a norm more than 1e\+03 times .*client 2"):
        run = fit(plain(), blobs(SIZES), Tampers(), rounds=1, set={"engine.name": engine})
    assert "client 2" in run.metrics[0]["cautions"][0]


def test_one_absurd_upload_is_rejected_and_the_run_ends_with_a_finite_loss(changing, tmp_path):
    changing(scaled(1e18), client=2, round=2)
    data = blobs(SIZES)
    run = fit(plain(), data, rounds=5, set=SKIP, out=tmp_path, test=data[0])
    assert [list(row.get("skipped", [])) for row in run.metrics] == [[], [], ["2"], [], []]
    assert all(math.isfinite(row["loss"]) for row in run.metrics)


def test_a_loss_that_is_not_finite_is_told_in_the_round_and_in_the_log(tmp_path):
    class Explodes(Method):
        def aggregate(self, server, new, up):
            return combine(new, lambda w: w * (1e17 if server.round == 1 else 1.0))

    data = [(x.float(), y) for x, y in blobs(SIZES)]
    deep = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(3)), torch.nn.Linear(5, 3))
    with pytest.warns(UserWarning, match="round 2: the loss of the global model is not finite"):  # noqa: SIM117
        with pytest.raises(ClientFailed, match="the global model is at fault and not a client"):
            fit(deep, data, Explodes(), rounds=4, out=tmp_path, test=data[0], set={"engine.name": "serial"})
    assert "round 2: the loss of the global model is not finite" in (tmp_path / "log.txt").read_text()
    with (
        pytest.warns(UserWarning, match="round 2: the loss of the global model"),
        pytest.raises(InputError, match=r"no client sent anything .* the global model is at fault"),
    ):
        fit(deep, data, Explodes(), rounds=4, test=data[0], set=SKIP)


# Methods that do what none may


class Rounds(Method):
    def aggregate(self, server, new, up):
        return combine(new, lambda w: w.round().long())


class Broadcasts(Method):
    def grad(self, g, b):
        return combine(g, lambda value: value.sum().reshape(1))


class Heavy(Method):
    def weight(self, client):
        return 1e308


class Unknown(Method):
    def train(self, client):
        client.fit(optimizer="zzz")


class Backwards(Method):
    def train(self, client):
        client.fit(steps=-1)


class Silent(Exception):
    def __str__(self):
        raise RuntimeError


class Mute(Method):
    def after(self, client):
        raise Silent


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Rounds(), "the aggregated model does not fit: .* is of torch.int64"),
        (Broadcasts(), r'"broadcasts".grad returned a gradient that does not fit the model: .* has shape \(1,\)'),
        (Heavy(), r"the weight of its w is 1e\+308"),
        (Unknown(), r'client.fit\(optimizer="zzz"\): known: adam, adamw, sgd'),
        (Backwards(), r"client.fit\(steps=-1\): it must be a whole number of at least 0"),
        (Mute(), "Silent: its message cannot be shown"),
    ],
)
def test_what_a_method_must_not_do_is_said_in_a_sentence(method, sentence, engine):
    with pytest.raises((InputError, ClientFailed), match=sentence):
        fit(plain(), blobs(SIZES), method, rounds=1, set={"engine.name": engine})


@pytest.mark.parametrize("method", [Mute(), pytest.param(Broadcasts(), marks=pytest.mark.slow)])
def test_what_is_wrong_in_a_worker_process_is_said_here(method):
    """In another process: an error whose message cannot be shown, and one that the library raises."""
    sentence = (
        "Silent: its message cannot be shown" if isinstance(method, Mute) else '"broadcasts".grad returned a grad'
    )
    with pytest.raises((InputError, ClientFailed), match=sentence):
        fit(plain(), blobs(SIZES), method, rounds=1, set={"engine.name": "processes", "engine.workers": 1})


class WritesW0(Method):
    def after(self, client):
        next(iter(client.w0.values())).mul_(1.1)
        return {}


class WritesInLoss(Method):
    def grad(self, g, b):
        next(iter(b.w0.values())).mul_(1.1)
        return g


class WritesSent(Method):
    broadcast = ("c",)

    def server_state(self, server):
        return {"c": torch.ones(2, dtype=torch.float64)}

    def after(self, client):
        client.sent["c"].add_(1)
        return {}


class WritesOwn(Method):
    def client_state(self, client):
        return {"n": torch.zeros(2)}

    def before(self, client):
        client.own["n"].add_(1)
        return {}


@pytest.mark.parametrize("engine", ["serial", "vectorised", "processes"])
@pytest.mark.parametrize("method", [WritesW0(), WritesInLoss(), WritesSent()], ids=lambda method: method.name)
def test_a_method_that_writes_what_it_received_ends_the_run(method, engine):
    for how in ("stop", "skip") if engine == "serial" else ("skip",):
        settings = {"engine.name": engine, "engine.workers": 1, "run.on_client_error": how}
        with pytest.raises(InputError, match=f'the method "{method.name}" wrote into a tensor that it received'):
            fit(plain(), blobs(SIZES), method, rounds=2, set=settings)


@pytest.mark.parametrize("method", [WritesW0(), WritesInLoss(), WritesSent(), WritesOwn()], ids=lambda m: m.name)
def test_check_finds_a_method_that_writes_what_it_received(method):
    with pytest.raises(CheckFailed, match=f'the method "{method.name}" wrote into a tensor that it received'):
        check(method)
