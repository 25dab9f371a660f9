"""What `upload` sends in place of the weights, and what `receive` makes of it."""

from dataclasses import dataclass

import pytest
import torch

import fullrank
from fullrank import Method, Sum, fit
from fullrank.cli.methods import leaving
from fullrank.config.experiment import Experiment
from fullrank.engine import ENGINES, EngineOptions, open_engine
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, InputError, WroteInPlace
from fullrank.federated.codec import decode, encode
from fullrank.runs.assemble import assemble
from fullrank.testing import CheckFailed, check
from fullrank.trees import norm, pointwise, zeros
from hook_methods import TopK
from small import blobs, normed, plain, put_together

QUICK = ("writes", "trace", "engines", "resume", "exchange", "uploads", "head")


@dataclass(frozen=True)
class Half(Method):
    """Sends weights in half precision, which the server converts back."""

    sends = "weights in half precision, BatchNorm statistics, the number of samples"

    def upload(self, client, tree):
        return {name: value.half() for name, value in tree.items()}


@dataclass(frozen=True)
class Clip(Method):
    """Shortens a client's change of the weights to a length, and adds noise."""

    length: float = 0.1
    noise: float = 0.0

    def upload(self, client, tree):
        change = pointwise(tree, torch.sub, client.w0)
        factor = (self.length / norm(change)).clamp(max=1)
        rng = client.generator("noise")
        noise = {name: torch.from_numpy(rng.standard_normal(value.shape)).to(value) for name, value in change.items()}
        return pointwise(client.w0, lambda w, d, e: w + factor * d + self.noise * e, change, noise)


@dataclass(frozen=True)
class Shifted(Method):
    """Sends the weights plus what the client keeps: `after` runs before `upload`, and no second tree is sent."""

    def after(self, client):
        client.own = {"shift": pointwise(client.w, torch.ones_like)}
        return {}

    def upload(self, client, tree):
        return pointwise(tree, torch.add, client.own["shift"])


def one_round(method, **settings):
    parts = put_together(plain(), blobs(), method, settings or None)
    return parts, parts.server.run_round(Serial(parts.site))


def up(method):
    parts, outcome = one_round(method)
    return parts.server.w, outcome.traffic


def test_half_precision_halves_the_bytes_and_the_model_keeps_its_precision():
    want, full = up(Method())
    got, half = up(Half())
    assert half.bytes_up * 4 == full.bytes_up  # of float64
    assert half.elements_up == full.elements_up
    assert half.bytes_down == full.bytes_down
    sent = [{name: value.half() for name, value in w.items()} for w in of_clients()]
    weights = torch.tensor([12.0, 9.0, 7.0], dtype=torch.float64)
    for name, value in got.items():
        assert value.dtype == torch.float64
        mean = sum(n * w[name].double() for n, w in zip(weights, sent, strict=True)) / weights.sum()
        torch.testing.assert_close(value, mean, rtol=1e-14, atol=0)
    assert not all(torch.equal(got[name], value) for name, value in want.items())


def of_clients():
    """The trained weights of each client of a first round of FedAvg."""
    parts = put_together(plain(), blobs(), Method())
    jobs = [parts.server.job("train", client) for client in range(3)]
    return [parts.site.do(job).upload[""]["w"].tree for job in jobs]


def test_top_k_sends_places_and_values_and_keeps_the_rest():
    parts, outcome = one_round(TopK())
    w0 = put_together(plain(), blobs(), Method()).server.w
    k = int(0.1 * sum(value.numel() for value in w0.values()))
    assert outcome.traffic.elements_up == 3 * 2 * k
    assert outcome.traffic.bytes_up == 3 * 2 * k * 8
    total = zeros(w0)
    for client, (w, n) in enumerate(zip(of_clients(), (12, 9, 7), strict=True)):
        left = parts.server.store.get(client)["topk"]["left"]
        sent = {name: w[name] - w0[name] - left[name] for name in w0}
        assert sum(int((value.abs() > 1e-12).sum()) for value in sent.values()) == k
        total = pointwise(total, lambda t, s, n=n: t + s * n / 28, sent)
    for name, value in parts.server.w.items():
        torch.testing.assert_close(value, w0[name] + total[name], rtol=1e-9, atol=1e-14)


def test_top_k_of_everything_is_federated_averaging():
    want, _ = up(Method())
    got, _ = up(TopK(share=1.0))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-14)


def test_clipping_bounds_the_change_and_noise_depends_on_the_client():
    w0 = put_together(plain(), blobs(), Method()).server.w
    got, traffic = up(Clip(length=1e-3))
    assert norm(pointwise(got, torch.sub, w0)) <= 1e-3 * (1 + 1e-9)
    assert traffic == up(Method())[1]
    noisy = [up(Clip(noise=0.1))[0] for _ in range(2)]
    assert all(torch.equal(value, noisy[1][name]) for name, value in noisy[0].items())
    assert norm(pointwise(noisy[0], torch.sub, up(Clip())[0])) > 0.01


def test_a_shift_of_the_weights_costs_no_bytes():
    want, traffic = up(Method())
    got, shifted = up(Shifted())
    assert shifted == traffic
    for name, value in got.items():
        torch.testing.assert_close(value, want[name] + 1)


@pytest.mark.parametrize("method", [Clip() + TopK(share=0.5), TopK(share=0.5) + Clip()])
def test_methods_that_change_the_form_come_last(method):
    """Either way round, clipping sees weights and not places."""
    w0 = put_together(plain(), blobs(), Method()).server.w
    got, traffic = up(method)
    assert traffic.elements_up < up(Method())[1].elements_up * 1.1
    assert 0 < norm(pointwise(got, torch.sub, w0)) <= 0.1 * (1 + 1e-9)


def test_receive_runs_in_reverse():
    @dataclass(frozen=True)
    class Outer(Method):
        def upload(self, client, tree):
            return {"outer": tree}

        def receive(self, server, tree):
            return tree["outer"]

    class Inner(Outer):
        def upload(self, client, tree):
            return {"inner": tree}

        def receive(self, server, tree):
            return tree["inner"]

    want, _ = up(Method())
    parts, _ = one_round(Inner() + Outer())
    assert all(torch.equal(parts.server.w[name], value) for name, value in want.items())
    sent = parts.site.do(parts.server.job("train", 0)).upload[""]["w"].tree
    assert list(sent) == ["outer"]
    assert list(sent["outer"]) == ["inner"]


@pytest.mark.parametrize("method", [Half(), TopK(), Clip(noise=0.01), Clip() + TopK()])
def test_check(method):
    done = check(method, only=QUICK)
    assert done.exchange["up"] > 0


@pytest.mark.parametrize("engine", [name for name in ENGINES.own if name in ("vectorised", "processes")])
def test_engines_send_the_same(engine):
    keys = {"data.clients": 5, "model.name": "mlp", "train.steps": 3, "engine.precision": "float64"}
    values = {**keys, "method.name": "fedavg", "engine.name": engine}

    def run(engine_of):
        parts = assemble(Experiment.of(values), method=Clip(length=0.01) + TopK())
        engine = engine_of(parts)
        try:
            outcomes = [parts.server.run_round(engine) for _ in range(2)]
        finally:
            engine.close()
        return parts.server.w, [outcome.traffic for outcome in outcomes]

    want, traffic = run(lambda parts: Serial(parts.site))
    got, other = run(lambda parts: open_engine(engine, parts.site, EngineOptions(workers=1, clients=5)))
    assert other == traffic
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-7, atol=1e-10)


def test_the_recorded_bytes_are_what_upload_returned():
    run = fit(plain(), blobs(), TopK(), rounds=2, set={"engine.name": "serial"})
    full = fit(plain(), blobs(), "fedavg", rounds=2, set={"engine.name": "serial"})
    for row, whole in zip(run.metrics, full.metrics, strict=True):
        assert row["bytes_up"] < 0.25 * whole["bytes_up"]
        assert row["bytes_down"] == whole["bytes_down"]


def test_methods_show_says_what_is_sent():
    found = leaving(TopK())
    assert found["problem"] == ""
    assert "places" in found["round"]["w"]
    assert "values" in found["round"]["w"]
    assert leaving(Half())["round"]["w"] == "Mean of shared weights in float16"
    assert leaving(Clip())["round"]["w"] == "Mean of shared weights"


class ForgetsReceive(Method):
    def upload(self, client, tree):
        return {"first": next(iter(tree.values()))}


class NoTensor(Method):
    def upload(self, client, tree):
        return {"x": 3}


class WritesThere(Half):
    def receive(self, server, tree):
        for value in server.w.values():
            value.add_(1)
        return tree


class Remembers(Half):
    def receive(self, server, tree):
        server.own = {"last": tree}
        return tree


class Fails(Half):
    def receive(self, server, tree):
        return {name: tree[name] for name in ("absent",)}


@pytest.mark.parametrize(
    ("method", "kind", "says"),
    [
        (ForgetsReceive(), InputError, r"0.bias is missing; the hook receive must return the entries of server.w"),
        (NoTensor(), ClientFailed, r'"notensor".upload must return a tree of tensors: x is a int'),
        (WritesThere(), WroteInPlace, r'"writesthere" wrote into a tensor'),
        (Remembers(), ClientFailed, r'"remembers": the hook receive cannot change the server; do it in aggregate'),
        (Fails(), ClientFailed, r'the hook receive of "fails" raised KeyError'),
    ],
)
def test_mistakes_are_told(method, kind, says):
    with pytest.raises(kind, match=says):
        one_round(method)


class Grows(Method):
    """Sends more and more."""

    def upload(self, client, tree):
        return {**tree, "more": torch.zeros(1 + client.id)} if client.id > 0 else tree

    def receive(self, server, tree):
        return {name: tree[name] for name in server.w}


def test_uploads_of_other_form_are_rejected_by_what_the_method_sends():
    with pytest.raises(ClientFailed, match="client 1: its upload is rejected: in its w, more is not expected"):
        one_round(Grows())


def test_values_are_checked_after_receive():
    class Infinite(Half):
        def receive(self, server, tree):
            return {name: value / 0 for name, value in tree.items()}

    with pytest.raises(ClientFailed, match=r"in its w, 0\.weight is not finite"):
        one_round(Infinite())


def test_a_client_whose_upload_cannot_be_received_is_left_out():
    class Spoilt(Half):
        def upload(self, client, tree):
            return {name: value * (float("nan") if client.id == 1 else 1) for name, value in tree.items()}

    run = fit(plain(), blobs(), Spoilt(), rounds=1, set={"engine.name": "serial", "run.on_client_error": "skip"})
    assert list(run.metrics[0]["skipped"]) == ["1"]


def test_another_aggregator_takes_what_was_received():
    settings = {"train.aggregator": "fullrank.federated.aggregation:RunningMean"}
    want, got = (one_round(TopK(), **some)[0].server.w for some in ({}, settings))
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_a_compressed_upload_travels_as_bytes():
    parts = put_together(plain(), blobs(), TopK())
    result = parts.site.do(parts.server.job("train", 0))
    sent, same = (found.upload[""]["w"].tree for found in (result, decode(encode(result))))
    assert {name: value.dtype for name, value in same.items()} == {name: value.dtype for name, value in sent.items()}
    assert all(torch.equal(same[name], value) for name, value in sent.items())


def test_what_a_question_sends_does_not_pass_through():
    class Asks(Half):
        uploads = {"n": "the number of samples"}

        def count(self, client):
            return {"n": Sum({"n": client.counts.sum()})}

        def aggregate(self, server, new, up):
            answers.append(float(server.ask(self.count)["n"]["n"]))
            return new

    answers = []
    one_round(Asks())
    assert answers == [28.0]


def test_statistics_do_not_pass_through():
    parts = put_together(normed(), blobs(), Half())
    result = parts.site.do(parts.server.job("train", 0))
    kinds = {value.dtype for value in result.upload[""]["buffers"].tree.values() if value.is_floating_point()}
    assert kinds == {torch.float64}


def test_public_names():
    assert {fullrank.Batch.__name__, fullrank.Client.__name__, fullrank.Server.__name__}
    for kind in (fullrank.Batch, fullrank.Client, fullrank.Server):
        for name, member in vars(kind).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert member.__doc__, f"{kind.__name__}.{name}"


def test_a_failing_check_names_the_method():
    with pytest.raises((CheckFailed, InputError), match=r"server\.w"):
        check(ForgetsReceive(), only=["exchange"])
