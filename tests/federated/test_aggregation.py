"""How uploads are combined: the running mean by hand, and an aggregator of a user's."""

import json
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank import Aggregator, Mean, Method, Sum, fit
from fullrank.config.experiment import Experiment
from fullrank.errors import CallFailed, InputError
from fullrank.federated.aggregation import RunningMean
from fullrank.federated.site import Site
from killing import Strike, assert_equal_outcomes, attempt
from small import blobs, normed, plain

# The running mean


def reduced(uploads):
    aggregator = RunningMean({})
    for client, upload in enumerate(uploads):
        aggregator.add(client, upload)
    return aggregator.result()


def model(values, weight, counter=0):
    return {"": {"w": Mean({"v": torch.tensor(values), "n": torch.tensor(counter)}, weight)}}


def test_sums_and_means_by_hand():
    result = reduced(
        [
            {"": {"w": Mean({"v": torch.tensor([1.0, 10.0])}, 3)}, "m": {"c": Sum({"s": torch.tensor([1.0, 2.0])})}},
            {"": {"w": Mean({"v": torch.tensor([5.0, -2.0])}, 1)}, "m": {"c": Sum({"s": torch.tensor([0.5, -4.0])})}},
        ]
    )
    assert result[""]["w"]["v"].tolist() == [2.0, 7.0]
    assert result["m"]["c"]["s"].tolist() == [1.5, -2.0]
    assert result[""]["w"]["v"].dtype == torch.float32


def test_each_mean_has_its_own_weight():
    result = reduced(
        [
            {"a": {"x": Mean({"v": torch.tensor(0.0)}, 1), "y": Mean({"v": torch.tensor(0.0)}, 3)}},
            {"a": {"x": Mean({"v": torch.tensor(4.0)}, 3), "y": Mean({"v": torch.tensor(4.0)}, 1)}},
        ]
    )
    assert result["a"]["x"]["v"].item() == 3.0
    assert result["a"]["y"]["v"].item() == 1.0


def test_a_client_of_weight_0_counts_for_nothing():
    result = reduced([model([4.0], 2.0), model([1e9], 0.0)])
    assert result[""]["w"]["v"].item() == 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_identical_clients_average_to_themselves_to_the_bit(dtype):
    rng = np.random.default_rng(1)
    size = torch.tensor(rng.normal(size=4000) * 10.0 ** rng.uniform(-4, 3, 4000)).to(dtype)
    weights = [*rng.uniform(0.001, 977.7, 300), 1 / 3, 1e-9, 123_457]
    result = reduced([{"": {"w": Mean({"v": size}, weight)}} for weight in weights])
    assert result[""]["w"]["v"].dtype == dtype
    assert torch.equal(result[""]["w"]["v"], size)


def test_identical_float64_clients_average_to_themselves_to_an_ulp():
    rng = np.random.default_rng(2)
    value = torch.tensor(rng.normal(size=2000))
    result = reduced([{"": {"w": Mean({"v": value}, weight)}} for weight in (7, 13, 1, 1 / 3, 29)])
    mean = result[""]["w"]["v"].numpy()
    assert np.all(np.abs(mean - value.numpy()) <= 4 * np.spacing(np.abs(value.numpy())))
    # sample counts are powers of two times small numbers: their sums lose nothing
    exact = reduced([{"": {"w": Mean({"v": value}, weight)}} for weight in (8, 16, 8)])
    assert torch.equal(exact[""]["w"]["v"], value)


def test_means_of_float32_are_the_exact_mean_rounded_once():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(40, 50)).astype(np.float32)
    weights = [int(n) for n in rng.integers(1, 5000, 40)]
    result = reduced([{"": {"w": Mean({"v": torch.from_numpy(v)}, n)}} for v, n in zip(values, weights, strict=True)])
    for column in range(50):
        exact = sum(Fraction(float(v)) * n for v, n in zip(values[:, column], weights, strict=True)) / sum(weights)
        assert result[""]["w"]["v"][column].item() == np.float32(float(exact))


def test_a_sum_keeps_what_float32_would_lose():
    ones = [{"m": {"s": Sum({"v": torch.tensor([1.0])})}} for _ in range(64)]
    result = reduced([{"m": {"s": Sum({"v": torch.tensor([2.0**24])})}}, *ones])
    assert result["m"]["s"]["v"].item() == 2.0**24 + 64


def test_counters_of_a_mean_take_the_maximum():
    assert reduced([model([0.0], 5, 3), model([0.0], 1, 9), model([0.0], 3, 4)])[""]["w"]["n"].item() == 9
    assert reduced([model([0.0], 5, -3), model([0.0], 1, -2)])[""]["w"]["n"].item() == -2


def test_integers_of_a_sum_add_exactly_and_never_wrap():
    big = 2**60 + 1
    upload = {"m": {"s": Sum({"n": torch.tensor([big]), "byte": torch.tensor([200], dtype=torch.uint8)})}}
    result = reduced([upload] * 3)
    assert result["m"]["s"]["n"].tolist() == [3 * big]
    assert result["m"]["s"]["byte"].tolist() == [600]


def test_a_sum_of_masks_counts_them():
    masks = [[True, False, True], [True, False, False]]
    result = reduced([{"m": {"s": Sum({"has": torch.tensor(mask)})}} for mask in masks])
    assert result["m"]["s"]["has"].tolist() == [2, 0, 1]


def test_nested_and_empty_trees_are_reduced():
    upload = {"m": {"s": Sum({"a": {"b": torch.ones(2)}, "nothing": {}}), "none": Sum({})}}
    result = reduced([upload, upload])
    assert result["m"]["s"]["a"]["b"].tolist() == [2.0, 2.0]
    assert result["m"]["s"]["nothing"] == {}
    assert result["m"]["none"] == {}


def test_the_running_mean_owns_its_sums():
    value = torch.ones(2)
    counter = torch.tensor(4)
    aggregator = RunningMean({})
    aggregator.add(0, {"": {"w": Mean({"v": value, "n": counter}, 2)}})
    value.fill_(50)
    counter.fill_(50)
    result = aggregator.result()[""]["w"]
    assert result["v"].tolist() == [1.0, 1.0]
    assert result["n"].item() == 4
    assert aggregator.result()[""]["w"]["v"].tolist() == [1.0, 1.0]  # asking twice changes nothing


def test_a_mean_of_weights_that_are_all_0_does_not_exist():
    aggregator = RunningMean({})
    aggregator.add(0, model([1.0], 0.0))
    with pytest.raises(InputError, match="the weights of all clients' w are 0"):
        aggregator.result()


def test_sparse_uploads_are_summed():
    upload = {"m": {"c": Sum({"a": torch.eye(2).to_sparse()})}}
    assert reduced([upload] * 2)["m"]["c"]["a"].tolist() == [[2, 0], [0, 2]]


# An aggregator of a user's

MEDIAN = """
import torch
from fullrank.federated.aggregation import RunningMean

class Median(RunningMean):
    def __init__(self, received):
        super().__init__(received)
        self.weights = []

    def add(self, client, upload):
        super().add(client, upload)
        if "" in upload:
            self.weights.append(upload[""]["w"].tree)

    def result(self):
        reduced = super().result()
        if self.weights:
            names = self.weights[0]
            stacked = {name: torch.stack([w[name] for w in self.weights]) for name in names}
            reduced[""]["w"] = {name: values.median(0).values for name, values in stacked.items()}
        return reduced
"""
NAME = "robust:Median"
SETTINGS = {
    "data.clients": 4,
    "data.alpha": 1.0,
    "model.name": "mlp",
    "model.width": 4,
    "train.rounds": 3,
    "train.participation": 3,
    "train.steps": 2,
    "engine.name": "serial",
    "train.aggregator": NAME,
}


@pytest.fixture
def robust(tmp_path, monkeypatch):
    """A folder outside the package, in which a user works and has written a median."""
    (tmp_path / "robust.py").write_text(MEDIAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("robust", None)


@pytest.fixture
def sent(monkeypatch):
    """The weights that clients upload, by round, in the order in which they do."""
    seen, honest = {}, Site.do

    def do(self, job):
        result = honest(self, job)
        if job.client >= 0 and "" in result.upload:
            weights = {name: value.numpy().copy() for name, value in result.upload[""]["w"].tree.items()}
            seen.setdefault(job.round, []).append(weights)
        return result

    monkeypatch.setattr(Site, "do", do)
    return seen


def from_toml(path, capsys):
    Experiment.of(SETTINGS).to_toml("median.toml")
    assert command("run", "median.toml", "--out", path, capsys=capsys)[0] == 0


def from_the_command_line(path, capsys):
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    assert command("run", *words, "--out", path, capsys=capsys)[0] == 0


def from_python(path, capsys):
    fullrank.run(SETTINGS, path)


@pytest.mark.parametrize("start", [from_toml, from_the_command_line, from_python])
def test_a_median_written_by_a_user_is_the_median_of_the_uploads(start, robust, sent, capsys):
    start(robust / "run", capsys)
    run = fullrank.load_run(robust / "run", trust=True)
    last = sent[2]
    assert len(last) == 3
    for name, value in run.model().state_dict().items():
        np.testing.assert_array_equal(value.numpy(), np.median([w[name] for w in last], axis=0))


def test_killed_and_resumed_it_ends_with_the_same_bits(robust):
    attempt(SETTINGS, robust / "whole").succeeded()
    for number, strike in enumerate(
        (Strike("a round, not yet written", 2), Strike("an upload, not yet summed", 5), Strike("a checkpoint", 1))
    ):
        assert attempt(SETTINGS, robust / f"{number}", strike).signal == strike.signal
        attempt(SETTINGS, robust / f"{number}").succeeded()
        assert_equal_outcomes(robust / f"{number}", robust / "whole", str(strike))


def test_a_changed_source_is_noticed_on_resume(robust):
    fullrank.run({**SETTINGS, "train.rounds": 1}, "run")
    sources = json.loads((robust / "run" / "environment.json").read_text())["sources"]
    assert list(sources) == ["robust"]
    (robust / "robust.py").write_text(MEDIAN + "# another comment\n")
    with pytest.warns(UserWarning, match="the source code of robust has changed"):
        fullrank.run(SETTINGS, "run")


def test_another_aggregator_is_another_experiment(robust):
    fullrank.run({**SETTINGS, "train.rounds": 1}, "run")
    with pytest.raises(InputError, match=r"train\.aggregator was 'robust:Median', is now 'mean'"):
        fullrank.run({**SETTINGS, "train.aggregator": "mean"}, "run")


def test_the_mean_is_what_no_name_means():
    bits = [
        fit(normed(), blobs(), "scaffold", rounds=2, set=keys).model().state_dict()
        for keys in ({}, {"train.aggregator": "mean"}, {"train.aggregator": f"{RunningMean.__module__}:RunningMean"})
    ]
    assert all(torch.equal(one[name], bits[0][name]) for one in bits[1:] for name in bits[0])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("meen", 'train.aggregator = "meen" is not known; did you mean "mean"?.*"package.module:Class"'),
        ("nowhere:Median", 'train.aggregator = "nowhere:Median": there is no module "nowhere"'),
        ("fractions:Fraction", 'train.aggregator = "fractions:Fraction" is not a subclass of fullrank.Aggregator'),
    ],
)
def test_a_name_that_is_no_aggregators_is_rejected_before_anything_runs(name, sentence):
    with pytest.raises(InputError, match=sentence):
        Experiment.of({"train.aggregator": name})


class Broken(RunningMean):
    """Gives what its function makes of the running mean."""

    def change(self, reduced):
        return reduced

    def result(self):
        return self.change(super().result())


class NoDict(Broken):
    def change(self, reduced):
        return [reduced]


class NoTree(Broken):
    def change(self, reduced):
        return {**reduced, "": {**reduced[""], "w": 3}}


class WithoutBuffers(Broken):
    def change(self, reduced):
        return {"": {"w": reduced[""]["w"]}}


class More(Broken):
    def change(self, reduced):
        return {**reduced, "more": {"x": {}}}


class WithoutAnEntry(Broken):
    def change(self, reduced):
        del reduced[""]["w"]["0.bias"]
        return reduced


class AnotherShape(Broken):
    def change(self, reduced):
        reduced[""]["w"]["0.bias"] = torch.zeros(2)
        return reduced


class NotFinite(Broken):
    def change(self, reduced):
        reduced["sends"]["far"]["x"] = torch.tensor(float("inf"))
        return reduced


class AFloatingCounter(Broken):
    def change(self, reduced):
        reduced[""]["buffers"]["1.num_batches_tracked"] = torch.tensor(1.5)
        return reduced


class WritesReceived(Broken):
    def change(self, reduced):
        self.received["w"]["0.bias"].add_(1)
        return reduced


class Raises(RunningMean):
    def add(self, client, upload):
        raise ZeroDivisionError(f"nothing to divide for client {client}")


class Half(Aggregator):
    def add(self, client, upload):
        pass


class Sends(Method):
    uploads = {"far": "a number"}

    def after(self, client):
        return {"far": Sum({"x": torch.tensor(1.0)})}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (NoDict, "its result must map spaces to names to trees, and has a list in place of a dict"),
        (NoTree, "in its w, the tree is a int, not a dict of tensors by name"),
        (WithoutBuffers, "its result lacks buffers"),
        (More, "its result has more/x, which no client sent"),
        (WithoutAnEntry, "in its w, 0.bias is missing"),
        (AnotherShape, r"in its w, 0.bias has shape \(2,\) instead of \(6,\)"),
        (NotFinite, "in its sends/far, x is not finite"),
        (AFloatingCounter, "in its buffers, 1.num_batches_tracked is not of the expected kind"),
        (WritesReceived, "it wrote into a tensor of `received` in place"),
        (Raises, "it raised ZeroDivisionError: nothing to divide for client 0"),
        (Half, "it raised TypeError: .*abstract"),
    ],
)
def test_what_an_aggregator_must_not_do_is_said_in_one_sentence(kind, sentence):
    name = f"{__name__}:{kind.__name__}"
    settings = {"train.aggregator": name, "engine.name": "serial", "run.on_client_error": "skip"}
    with pytest.raises((InputError, CallFailed), match=f'round 1: train.aggregator = "{name}": {sentence}') as caught:
        fit(normed(), blobs(), Sends(), rounds=2, set=settings)
    assert "\n" not in str(caught.value)


class Keeps(Aggregator):
    """Keeps all uploads and combines them at the end."""

    received_before = []

    def __init__(self, received):
        super().__init__(received)
        self.kept = {}
        self.received_before.append({name: sorted(tree) for name, tree in received.items()})

    def add(self, client, upload):
        self.kept[client] = upload

    def result(self):
        mean = RunningMean(self.received)
        for client, upload in self.kept.items():
            mean.add(client, upload)
        return mean.result()


class SendsTheNetworksOwn(Method):
    """Sends the tensors that the network trains, which the next client overwrites, and asks a question at the end."""

    def after(self, client):
        return {"model": Mean(client.w)}

    def aggregate(self, server, new, up):
        return up["model"]

    def sizes(self, client):
        return {"n": Sum({"n": torch.tensor(client.n)})}

    def finish(self, server):
        assert int(server.ask(self.sizes)["n"]["n"]) == 12 + 9 + 7


@pytest.mark.parametrize("engine", ["serial", "vectorised", "processes"])
def test_an_aggregator_may_keep_what_it_is_given(engine):
    Keeps.received_before.clear()
    settings = {"engine.name": engine, "engine.workers": 1}
    got, want = (
        fit(plain(), blobs(), SendsTheNetworksOwn(), rounds=2, set={**settings, "train.aggregator": name})
        for name in (f"{__name__}:Keeps", "mean")
    )
    expected = want.model().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in got.model().state_dict().items())
    assert Keeps.received_before == [{"w": sorted(expected), "buffers": []}] * 3  # for two rounds and one query
