"""`fullrank.testing.check`: it passes for every method of the library, and says what is wrong with others."""

import sys
from dataclasses import dataclass

import pytest
import torch

from fullrank import Mean, Method, Sum, methods
from fullrank.engine.vectorised import ClientGroup
from fullrank.errors import InputError
from fullrank.testing import CheckFailed, check

QUICK = ("degenerate", "trace", "engines", "resume", "exchange", "head")


@pytest.mark.parametrize("name", methods.available())
def test_every_method_of_the_library_passes(name):
    done = check(name, only=QUICK)
    assert set(done.results) == set(QUICK)
    assert done.exchange["up"] >= 0


@dataclass(frozen=True)
class NotNeutral(Method):
    neutral = {"mu": 0.0}
    mu: float = 0.1

    def loss(self, b):
        return 1e-3 * b.z.square().mean()


@dataclass(frozen=True)
class Branches(Method):
    """Branches on a value."""

    def loss(self, b):
        return b.z.square().mean() if b.z.mean().item() > 0 else b.z.mean()


@dataclass(frozen=True)
class Remembers(Method):
    """Keeps something outside its state."""

    def __post_init__(self):
        object.__setattr__(self, "memory", {})

    def loss(self, b):
        return b.z.mean() * 0

    def weight(self, client):
        self.memory[client.id] = self.memory.get(client.id, 0) + 1
        return float(client.n * self.memory[client.id])


@dataclass(frozen=True)
class Leaks(Method):
    personal = ("head",)

    def after(self, client):
        return {"model": Mean({"head.weight": client.model["head.weight"]})}


@dataclass(frozen=True)
class Grows(Method):
    def after(self, client):
        return {"more": Sum({"t": torch.zeros(1 + client.round)})}


@pytest.mark.parametrize(
    ("method", "only", "says"),
    [
        (NotNeutral(), "degenerate", r"notneutral.*mu = 0\.0 is not FedAvg"),
        (Branches(), "trace", "branches.*cannot be traced"),
        (Remembers(), "resume", "remembers.*stopped"),
        (Leaks(), "exchange", "uploads head.weight in leaks/model, which is personal"),
        (Grows(), "exchange", "uploads grows/more in another form than in an earlier round"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(method, only, says):
    with pytest.raises(CheckFailed, match=says) as caught:
        check(method, only=[only])
    assert "\n" not in str(caught.value)


class NoDataclass(Method):
    strength: float = 0.1


def test_what_is_no_method_is_rejected():
    with pytest.raises(InputError, match="method is a int; it must be"):
        check(3)
    with pytest.raises(InputError, match=r"method is the class Grows; give an instance, Grows\(\)"):
        check(Grows)


@pytest.mark.parametrize("method", [NoDataclass(), Grows() + NoDataclass()])
def test_a_class_that_a_run_rejects_is_rejected_with_the_same_sentence(method):
    with pytest.raises(InputError) as of_a_run:
        methods.find(f"{__name__}:NoDataclass")
    with pytest.raises(InputError) as of_the_check:
        check(method)
    assert str(of_the_check.value) == str(of_a_run.value)


def test_an_unknown_check_is_named():
    with pytest.raises(ValueError, match="there is no check"):
        check("fedavg", only=["degenerated"])


def test_processes_and_a_module_of_ones_own():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
    done = check("fedprox+feddecorr", module=module.double())
    assert done.results["processes"] == "holds"
    assert "exchanged" in str(done)


def test_the_engines_are_checked_without_starting_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    assert check("fedavg", only=["engines"]).results == {"engines": "holds"}


def test_clients_really_train_as_a_group(monkeypatch):
    """A group of fewer clients than are worth mapping would train one by one, and the check could not fail."""
    groups = []
    mapped = ClientGroup._at_once
    monkeypatch.setattr(
        ClientGroup, "_at_once", lambda self, who, *rest: groups.append(len(who)) or mapped(self, who, *rest)
    )
    check("fedavg", only=["engines"])
    assert max(groups) >= 4


@pytest.mark.parametrize("name", ["fedavg", "scaffold+fedbn"])
def test_damaged_states_are_noticed(name, monkeypatch):
    assert check(name, only=["checksums"]).results == {"checksums": "holds"}
    monkeypatch.setattr("fullrank.runs.directory.verify_tensors", lambda path: None)
    monkeypatch.setattr("fullrank.files.verify_tensors", lambda path: None)
    with pytest.raises(CheckFailed, match=r"continued a run although .*\.safetensors is damaged"):
        check(name, only=["checksums"])


@dataclass(frozen=True)
class NoTree(Method):
    """Sends something that is no tree of tensors."""

    uploads = {"x": "a number"}

    def after(self, client):
        return {"x": Sum(3)}


def test_an_upload_that_is_no_tree_fails_the_check_in_a_sentence():
    with pytest.raises(CheckFailed, match=r'"notree" cannot run on the small federation: client \d: its upload is rej'):
        check(NoTree(), only=["uploads"])


def test_an_undeclared_upload_is_told_with_the_line_to_write():
    with pytest.raises(CheckFailed, match=r'write uploads = \{"x": "what it is, in plain words"\} in its class'):
        check(Silent(), only=["uploads"])


@dataclass(frozen=True)
class Silent(Method):
    """Sends what it does not declare."""

    def after(self, client):
        return {"x": Sum({"counts": client.counts})}
