"""Methods by name, their composition, their hyper-parameters, and the cases in which they are FedAvg."""

from __future__ import annotations

import doctest
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import fullrank
from fullrank import Conflict, Method, fit, methods
from fullrank.errors import InputError
from fullrank.methods import Composition, available, build, check_fields, find
from fullrank.methods import _compose as compose
from fullrank.methods import _method as method
from fullrank.methods._batch import Batch
from fullrank.methods.fedavg import FedAvg
from fullrank.methods.feddecorr import FedDecorr
from fullrank.methods.fedprox import FedProx
from fullrank.trees import combine
from hook_methods import (
    Balanced,
    Doubled,
    Even,
    FineTuned,
    Frame,
    HeadThenBody,
    Previous,
    ServerMomentum,
    Sharpness,
    Shrink,
    SideModel,
    Travelled,
    Variates,
)
from small import Downhill, Line, Quadratic, assert_same_bits, blobs, normed, parabolas, plain, the_weight

SHORT = {"rounds": 3, "batch_size": 4, "lr": 0.1, "momentum": 0.9}


def trained(method, clients=None, **settings):
    clients = clients or blobs(dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), clients, method, **{**SHORT, **settings})
    return run.model().state_dict()


# --- Names ------------------------------------------------------------------------------------------


def test_a_method_is_called_after_its_class():
    class MyOwn(Method):
        pass

    class Named(Method):
        name = "other"

    assert (FedProx().name, MyOwn().name, Named().name) == ("fedprox", "myown", "other")
    assert (FedProx() + MyOwn() + Named()).name == "fedprox+myown+other"


def test_the_library_is_found_by_its_files():
    found = available()
    assert {"fedavg": FedAvg, "fedprox": FedProx, "feddecorr": FedDecorr}.items() <= found.items()
    assert list(found) == sorted(found)
    assert all(cls.paper for cls in found.values())
    assert find("fedprox") is FedProx


def test_build_makes_what_the_name_says():
    made = build(" fedprox + feddecorr ", fedprox={"mu": 0.5}, feddecorr={"beta": 1, "scale": "paper"})
    assert made.parts == (FedProx(mu=0.5), FedDecorr(beta=1.0, scale="paper"))
    assert made == FedProx(mu=0.5) + FedDecorr(beta=1.0, scale="paper")
    assert build("fedavg") == FedAvg()


def test_sums_of_sums_are_flat():
    one = (FedProx() + FedDecorr()) + Variates()
    two = FedProx() + (FedDecorr() + Variates())
    assert one == two
    assert [part.name for part in one.parts] == ["fedprox", "feddecorr", "variates"]


def test_a_plain_method_is_fedavg():
    assert_same_bits(trained(Method()), trained("fedavg"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("feddecor", 'method.name = "feddecor" is not known; did you mean "feddecorr"'),
        ("fedprox+", "a name is missing"),
        ("nowhere:Mine", 'there is no module "nowhere" on the import path'),
        ("hook_methods:Varietes", 'the module "hook_methods" has no .*"Varietes"; did you mean "Variates"'),
        ("hook_methods:combine", '"hook_methods:combine" is not a subclass of fullrank.Method'),
    ],
)
def test_unknown_methods_are_rejected(name, sentence):
    with pytest.raises(InputError, match=sentence):
        build(name)


# --- Hyper-parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (
            {"fedprox": {"mew": 1.0}},
            'method.fedprox.mew: there is no such hyper-parameter; (did you mean "mu"|known: mu)',
        ),
        ({"fedprox": {"mu": -0.1}}, "method.fedprox.mu = -0.1: must be at least 0"),
        ({"fedprox": {"mu": "much"}}, 'method.fedprox.mu = "much": must be a number'),
        ({"fedprox": {"mu": float("nan")}}, "method.fedprox.mu = nan: must be a finite number"),
        ({"fedprox": {"mu": float("inf")}}, "method.fedprox.mu = inf: must be a finite number"),
        ({"fedprox": {"mu": True}}, "method.fedprox.mu = true: must be a number"),
        ({"feddecorr": {"scale": "big"}}, 'method.feddecorr.scale = "big": must be "code", "paper" or "algorithm"'),
        ({"fedproxs": {"mu": 1.0}}, 'method.fedproxs: there is no such method; did you mean "fedprox"'),
        ({"feddecorr": {"beta": -1}}, "method.feddecorr.beta = -1: must be at least 0"),
    ],
)
def test_hyper_parameters_are_checked(tables, sentence):
    with pytest.raises(InputError, match=sentence):
        build("fedprox", **tables)  # also those of a method that the name does not mention


def test_a_table_of_a_method_that_is_not_named_changes_nothing():
    assert build("fedprox", fedprox={"mu": 0.5}, feddecorr={"beta": 3.0}) == FedProx(mu=0.5)


def test_fit_checks_a_library_methods_values_too():
    with pytest.raises(InputError, match=r"method\.fedprox\.mu = -1"):
        fit(plain(), blobs((9,)), FedProx(mu=-1.0), rounds=1)


@dataclass(frozen=True)
class Needs(Method):
    strength: float
    groups: list[int] = field(default_factory=lambda: [1, 2])
    pair: tuple[int, ...] = (3, 4)


def test_fields_without_a_default_must_be_given_and_factories_are_called():
    with pytest.raises(InputError, match=r"method\.needs\.strength must be given"):
        check_fields(Needs, {})
    made = check_fields(Needs, {"strength": 2})
    assert made == {"strength": 2.0, "groups": [1, 2], "pair": (3, 4)}
    assert check_fields(Needs, {"strength": 2, "pair": [5]})["pair"] == (5,)  # as a TOML file gives it
    with pytest.raises(InputError, match=r"method\.needs\.pair"):
        check_fields(Needs, {"strength": 2, "pair": ["five"]})


def test_a_class_with_fields_must_be_a_dataclass(tmp_path, monkeypatch):
    (tmp_path / "undecorated.py").write_text(
        "from fullrank import Method\n\n\nclass Mine(Method):\n    strength: float = 0.1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="sets strength without effect"):
        build("undecorated:Mine")


OWN_FIELDS = """\
from dataclasses import dataclass
from fullrank import Method
from fullrank.methods.fedprox import FedProx as Library

class Untyped(Library):
    mu = 0.1

@dataclass(frozen=True)
class UntypedUnderDataclass(Library):
    mu = 0.1

class Typed(Library):
    mu: float = 0.1

@dataclass(frozen=True)
class Inherits(Untyped):
    pass

@dataclass(frozen=True)
class Right(Untyped):
    drift = False
    mu: float = 0.1

@dataclass(frozen=True)
class FedProx(Method):
    nu: float = 0.5
    cap: float | None = None
    top: float | None = 1.0
"""


@pytest.fixture
def _own_fields(tmp_path, monkeypatch):
    (tmp_path / "own_fields.py").write_text(OWN_FIELDS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_own_fields")
@pytest.mark.parametrize("name", ["Untyped", "UntypedUnderDataclass", "Typed", "Inherits"])
def test_an_overridden_value_that_the_dataclass_does_not_see_is_rejected(name):
    with pytest.raises(InputError, match=rf'"own_fields:{name}" sets mu without effect: .*\(mu: float = …\)'):
        find(f"own_fields:{name}")
    assert build("own_fields:Right").mu == 0.1


@pytest.mark.usefixtures("_own_fields")
def test_a_class_of_ones_own_under_a_name_of_the_library_has_its_own_fields():
    assert build("own_fields:FedProx", fedprox={"nu": 2.0}, feddecorr={"beta": 1.0}).nu == 2.0
    with pytest.raises(InputError, match=r"method\.fedprox\.mu: there is no such hyper-parameter"):
        build("own_fields:FedProx", fedprox={"mu": 2.0})


@pytest.mark.usefixtures("_own_fields")
def test_a_field_that_is_none_is_left_out_of_the_file_and_read_as_none(tmp_path):
    experiment = fullrank.Experiment.of({"method.name": "own_fields:FedProx"}).resolved()
    assert experiment.method.tables["fedprox"] == {"nu": 0.5, "cap": None, "top": 1.0}
    experiment.to_toml(tmp_path / "e.toml")
    again = fullrank.Experiment.from_toml(tmp_path / "e.toml")
    assert again.resolved() == experiment
    assert again.hash() == experiment.hash()
    with pytest.raises(InputError, match=r"method\.fedprox\.top = None: TOML has no such value"):
        fullrank.Experiment.of({"method.name": "own_fields:FedProx", "method.fedprox.top": None})


@pytest.mark.parametrize("name", compose.RESERVED)
def test_no_method_can_have_a_name_that_states_or_metrics_use(name):
    class Called(Method):
        pass

    Called.name = name
    with pytest.raises(InputError, match=f'no method can be called "{name}"'):
        fit(plain(), blobs((9,)), Called(), rounds=1)


# --- Conflicts --------------------------------------------------------------------------------------


class OtherHead(Method):
    def head(self, net):
        return nn.Linear(net.feature_dim, net.num_classes)


class Predicts(Method):
    def predict(self, b):
        return b.logits


class PredictsToo(Method):
    def predict(self, b):
        return b.logits


@pytest.mark.parametrize(
    ("one", "two", "what"),
    [
        (Frame(), OtherHead(), "its own classifier (`head`)"),
        (Balanced(), Quadratic(), "its own loss in place of cross-entropy (`criterion`)"),
        (HeadThenBody(), SideModel(), "its own order of local fits (`train`)"),
        (Even(), Travelled(), "its own weight of a client in the mean (`weight`)"),
        (SideModel(), FineTuned(), "its own way to a personal model (`personalise`)"),
        (Predicts(), PredictsToo(), "its own personal prediction (`predict`)"),
    ],
)
def test_two_exclusive_definitions_conflict(one, two, what):
    for a, b in ((one, two), (two, one)):
        with pytest.raises(Conflict) as caught:
            a + FedProx() + b
        assert str(caught.value) == f'"{a.name}" and "{b.name}" cannot be combined: each has {what}'


def test_one_method_twice_conflicts():
    with pytest.raises(Conflict, match='the method "fedprox" occurs twice in "fedprox\\+feddecorr\\+fedprox"'):
        FedProx(mu=0.1) + FedDecorr() + FedProx(mu=0.2)
    with pytest.raises(Conflict):
        build("feddecorr+feddecorr")


def test_a_conflict_reaches_the_user_as_an_error():
    with pytest.raises(InputError, match="occurs twice"):
        fullrank.Experiment.of({"method.name": "fedprox+fedprox"})


# --- Order ------------------------------------------------------------------------------------------


def test_composition_commutes_to_the_bit():
    both = build("fedprox+feddecorr", fedprox={"mu": 0.3}), build("feddecorr+fedprox", fedprox={"mu": 0.3})
    assert_same_bits(trained(both[0]), trained(both[1]))
    assert not torch.equal(trained(both[0])["0.weight"], trained("fedprox")["0.weight"])


def test_losses_are_added_in_the_order_of_names():
    forward, backward = Shrink() + FedDecorr() + Previous(), Previous() + FedDecorr() + Shrink()
    assert [part.name for part in Composition(forward).losses] == ["feddecorr", "previous", "shrink"]
    assert_same_bits(trained(forward), trained(backward))


def test_drift_corrections_come_last_and_by_name():
    made = Variates() + Sharpness() + FedProx() + Doubled()
    assert [part.name for part in Composition(made).corrections] == ["sharpness", "doubled", "fedprox", "variates"]
    turned = FedProx() + Variates() + Sharpness() + Doubled()
    assert_same_bits(trained(made), trained(turned))


@pytest.mark.parametrize("made", [Doubled() + FedProx(mu=0.1), FedProx(mu=0.1) + Doubled()])
def test_another_correction_never_scales_a_drift_correction(made):
    """Two steps at .1 from 0 with gradient 2(w − 1) + .1 w: .2, then .2 + .16 − .002."""
    run = fit(Line(), parabolas((1.0,), (4,)), Quadratic() + made, rounds=1, epochs=2, lr=0.1, momentum=0.0)
    assert the_weight(run) == pytest.approx(0.358, abs=1e-12)


def test_drift_corrections_are_off_in_side_fits():
    """v of two steps at .1 is .19 without the proximal term and .189 with it."""
    kept = []

    class Side(Method):
        def train(self, client):
            client.fit()
            v = client.fit(model=client.w0)
            kept.append((float(client.w["head.weight"]), float(v["head.weight"])))

    method = Quadratic() + FedProx(mu=0.1) + Side()
    fit(Line(), parabolas((1.0,), (4,)), method, rounds=1, epochs=2, lr=0.1, momentum=0.0)
    assert kept == [(pytest.approx(0.189, abs=1e-12), pytest.approx(0.19, abs=1e-12))]


def test_losses_and_other_corrections_stay_on_in_side_fits():
    kept = []

    class Side(Method):
        def train(self, client):
            client.fit()
            kept.append((client.w, client.fit(model=client.w0)))

    (x, y) = blobs((9,))[0]
    fit(plain(), [(x, y)], Side() + Shrink(strength=0.5) + Doubled(), rounds=1, batch_size=1000, lr=0.1)
    ((main, side),) = kept
    for name in main:
        torch.testing.assert_close(side[name], main[name])


@dataclass(frozen=True)
class Weighs(Method):
    def weight(self, client):
        return 1.0

    def aggregate(self, server, new, up):
        return combine(new, lambda w: w + 1)


@dataclass(frozen=True)
class Doubles(Method):
    def aggregate(self, server, new, up):
        return combine(new, lambda w: 2 * w)


@pytest.mark.parametrize("made", [Weighs() + Doubles(), Doubles() + Weighs()])
def test_the_method_that_weighs_aggregates_first(made):
    assert [part.name for part in Composition(made).aggregators] == ["weighs", "doubles"]
    run = fit(Line(), parabolas((3, 1), (30, 10)), Quadratic() + made, rounds=1, lr=1.0, momentum=0.0)
    assert the_weight(run) == pytest.approx(2 * (2 + 1), abs=1e-12)


def test_other_aggregations_run_as_written():
    @dataclass(frozen=True)
    class AddsOne(Method):
        def aggregate(self, server, new, up):
            return combine(new, lambda w: w + 1)

    clients = parabolas((3, 1), (10, 10))
    for made, w in ((AddsOne() + Doubles(), 6.0), (Doubles() + AddsOne(), 5.0)):
        run = fit(Line(), clients, Quadratic() + made, rounds=1, lr=1.0, momentum=0.0)
        assert the_weight(run) == pytest.approx(w, abs=1e-12)


def test_every_method_sees_the_same_clients_and_batches():
    seen = {}

    class Records(Method):
        def loss(self, b: Batch):
            batches.append(b.x.detach().clone())
            return b.base * 0

    for other in (Method(), FedProx(mu=1.0), Variates(), SideModel()):
        batches: list = []
        run = fit(normed(), blobs((9, 8, 7, 6)), other + Records(), rounds=3, participation=2, batch_size=4)
        drawn = [[c["client"] for c in row["clients"]] for row in run.metrics]
        if not isinstance(other, SideModel):
            seen[other.name] = drawn, batches
        assert drawn == seen["method"][0]
    for drawn, batches in seen.values():
        assert drawn == seen["method"][0]
        # A method that declares uploads has run on a synthetic client first.
        last = batches[-len(seen["method"][1]) :]
        assert all(torch.equal(a, b) for a, b in zip(last, seen["method"][1], strict=True))


# --- Degenerate cases (baselines.md) ----------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        FedProx(mu=0.0),
        FedDecorr(beta=0.0),
        FedDecorr(beta=0.0, scale="paper"),
        FedProx(mu=0.0) + FedDecorr(beta=0.0),
        ServerMomentum(rho=0.0),
        Sharpness(rho=0.0),
        Shrink(strength=0.0),
        Previous(mu=0.0),
    ],
    ids=lambda made: made.name,
)
def test_neutral_values_are_fedavg_to_the_bit(made):
    assert_same_bits(trained(made), trained("fedavg"))


def test_what_the_library_declares_neutral_is():
    declared = {name: cls for name, cls in available().items() if cls.neutral}
    assert {"fedprox", "feddecorr"} <= declared.keys()
    for cls in declared.values():
        assert_same_bits(trained(cls(**cls.neutral)), trained("fedavg"))


def test_and_elsewhere_they_are_not():
    base = trained("fedavg")
    for made in (FedProx(mu=0.1), FedDecorr(beta=0.1), ServerMomentum(), Sharpness(), Variates()):
        assert not torch.equal(trained(made)["0.weight"], base["0.weight"])


def test_variates_in_the_first_round_and_of_one_client_are_fedavg_to_the_bit():
    assert_same_bits(trained(Variates(), rounds=1), trained("fedavg", rounds=1))
    single = blobs((12,), dtype=torch.float32)
    assert_same_bits(trained(Variates(), single, rounds=2), trained("fedavg", single, rounds=2))
    later, base = trained(Variates(), single, rounds=5), trained("fedavg", single, rounds=5)
    for name in base:
        torch.testing.assert_close(later[name], base[name], rtol=1e-5, atol=1e-6)


class OddWeights(Method):
    """Weights that no binary fraction equals."""

    def weight(self, client):
        return 0.1 + client.id / 3


@pytest.mark.parametrize("made", ["fedavg", "fedprox", "feddecorr", OddWeights(), ServerMomentum(rho=0.0)])
def test_identical_clients_are_one_client_to_the_bit(made):
    """All samples of all clients are the same, so that the order of a batch does not matter."""
    x, y = blobs((1,), dtype=torch.float32)[0]
    client = (x.repeat(6, 1), y.repeat(6).fill_(2))
    settings = {"rounds": 3, "batch_size": 3, "lr": 0.1}
    start = plain(dtype=torch.float32)
    many = fit(start, [client] * 7, made, **settings).model().state_dict()
    one = fit(start, [client], made, **settings).model().state_dict()
    assert_same_bits(many, one)
    assert not torch.equal(many["0.weight"], start[0].weight)


def test_one_client_is_taken_over_to_the_bit():
    """The mean of one client's weights is what it sent."""
    sent = []

    class Records(Method):
        def after(self, client):
            sent.append({name: value.clone() for name, value in client.model.items()})
            return {}

    assert_same_bits(trained(Records() + OddWeights(), blobs((12,), dtype=torch.float32)), sent[-3:][-1])


def test_a_downhill_run_is_as_long_as_its_rounds():
    run = fit(Line(), parabolas((0, 0, 0), (3, 2, 1)), Downhill(), rounds=4, epochs=3, lr=0.5, momentum=0.0)
    assert the_weight(run) == pytest.approx(4 * 3 * 0.5, abs=1e-12)


# --- A method outside the package -------------------------------------------------------------------

MINE = '''\
from dataclasses import dataclass

from fullrank import Method


@dataclass(frozen=True)
class Mine(Method):
    """Keeps logits small."""

    strength: float = 0.5

    def loss(self, b):
        return self.strength * b.logits.square().mean()
'''
TINY = {
    "data.clients": 3,
    "model.width": 2,
    "model.features": 4,
    "train.rounds": 2,
    "train.steps": 2,
    "train.batch_size": 8,
}


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    (tmp_path / "mymethod.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["mymethod:Mine", "fedprox+mymethod:Mine", "mymethod:Mine+feddecorr"])
def test_a_method_in_a_users_own_file_runs_by_its_import_path(own_file, name):
    run = fullrank.run({**TINY, "method.name": name, "method.mine.strength": 0.25}, out=own_file / "run")
    assert run.complete
    epoch = run.metrics[0]["clients"][0]["epochs"][0]
    assert epoch["mine"] > 0
    assert ("feddecorr" in epoch) == ("feddecorr" in name)
    again = fullrank.load_run(own_file / "run", trust=True)
    assert again.experiment.method.tables["mine"] == {"strength": 0.25}
    assert again.model().state_dict().keys() == run.model().state_dict().keys()
    with pytest.raises(InputError, match=r"method\.mine\.strenght: there is no such hyper-parameter"):
        fullrank.Experiment.of({"method.name": name, "method.mine.strenght": 1.0})


def test_a_users_method_changes_the_result_and_zero_does_not(own_file):
    def model(name, strength=0.5):
        out = own_file / f"{name}-{strength}".replace(":", "")
        table = {"method.mine.strength": strength} if "mine" in name.lower() else {}
        return fullrank.run({**TINY, "method.name": name, **table}, out=out).model().state_dict()

    base = model("fedavg")
    assert_same_bits(model("mymethod:Mine", 0.0), base)
    assert not torch.equal(model("mymethod:Mine", 0.5)["head.weight"], base["head.weight"])


def test_examples():
    assert doctest.testmod(methods).failed == 0
    assert doctest.testmod(method).failed == 0
