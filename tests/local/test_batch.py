"""The classifier and the logits that a method reads from a batch, whatever the model's entries are called."""

import copy
import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullrank import Method, methods
from fullrank.config.experiment import Experiment
from fullrank.engine.serial import Serial
from fullrank.models.network import Network
from fullrank.runs.assemble import assemble
from fullrank.testing import CheckFailed, check
from fullrank.trees import zeros
from hook_methods import Distils
from small import assert_same_bits, blobs, normed, plain, put_together

SMALL = {"data.clients": 3, "model.name": "mlp", "model.width": 8, "train.batch_size": 16, "train.steps": 3}


@pytest.mark.parametrize("name", ["distils", "moon+distils"])
def test_check(name):
    method = Distils() if name == "distils" else methods.build("moon", moon={"head": "moon"}) + Distils()
    own_network = ["trace", "engines", "resume", "head"]
    done = check(method, only=own_network if "moon" in name else ["degenerate", *own_network])
    assert done.results["head"] == "holds"


@dataclass(frozen=True)
class ByName(Method):
    def loss(self, b):
        return F.linear(b.z, b.model["head.weight"]).mean()


def test_check_tries_a_classifier_of_another_name():
    with pytest.raises(CheckFailed, match=r"not called head: client \d: KeyError: .*head.weight.*; use b.head"):
        check(ByName(), only=["head"])
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    assert "already" in check("fedavg", module=module, only=["head"]).results["head"]
    assert check("fedrepopt", only=["head"]).results["head"] == "the method asks for a network"


def seen(module, method="fedavg", **settings):
    """What the criterion, in a client's first step, says of a batch."""
    found = []

    class Sees(Method):
        def loss(self, b):
            if not found:
                whole = torch.autograd.grad(b.logits.square().sum(), list(b.w.values()), retain_graph=True)
                again = torch.autograd.grad(b.head(b.z).square().sum(), list(b.w.values()), retain_graph=True)
                found.append(
                    {
                        "logits": b.logits.detach(),
                        "head": b.head(b.z).detach(),
                        "same": all(map(torch.allclose, whole, again)),
                        "other": b.head(b.z[:2] * 0).detach(),
                        "at": b.logits_at(b.w0),
                        "zero": b.logits_at(zeros(b.w0)),
                        "x": b.x,
                    }
                )
            return b.base * 0

    built = methods.build(method) if isinstance(method, str) else method
    parts = put_together(module, blobs(), built + Sees(), settings or None)
    parts.server.run_round(Serial(parts.site))
    return found[0]


@pytest.mark.parametrize("module", [plain(), normed()])
@pytest.mark.parametrize("method", ["fedavg", methods.build("moon", moon={"head": "moon"})])
def test_the_head_gives_the_batchs_logits_and_their_gradient(module, method):
    if not isinstance(method, str):
        module = Wrapped(module)
    b = seen(module, method)
    assert_same_bits({"": b["head"]}, {"": b["logits"]})
    assert b["same"]
    assert b["other"].shape == (2, 3)
    assert not b["at"].requires_grad


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_logits_at_are_those_of_the_received_model_in_eval_mode():
    module = normed()
    b = seen(module)
    torch.testing.assert_close(b["at"], copy.deepcopy(module).eval()(b["x"]).detach())
    torch.testing.assert_close(b["zero"], torch.zeros_like(b["zero"]))


class Tied(nn.Module):
    """The classifier is the layer that encodes, transposed in nothing but its name."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5, dtype=torch.float64)
        self.last = nn.Linear(5, 5, dtype=torch.float64)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def test_a_tied_classifier_gets_its_weights():
    module = Tied()
    network = Network.of(module, torch.randn(2, 5, dtype=torch.float64), 5)
    entries = {name: value + 1 for name, value in network.tensors().items()}
    z = torch.randn(4, 5, dtype=torch.float64)
    want = F.linear(z, entries["first.weight"], entries["last.bias"])
    torch.testing.assert_close(network.classified(entries, z), want)


def test_predict_sees_the_head():
    parts = assemble(Experiment.of(SMALL))
    client = parts.site._client(parts.server.job("train", 0))[0]
    view = client.seen_by(Method())
    network = view.network
    with network.mode(train=False):
        x = client.samples.batch(torch.arange(4), None, network.dtype)[0]
        b = view.batch(x, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(b.head(b.z), b.logits)
    assert torch.equal(b.logits_at(b.model), b.logits)


def test_a_clients_generator_depends_on_seed_method_purpose_round_and_client():
    def numbers(client=0, round=0, purpose="noise", method="fedprox", seed=0):
        parts = assemble(Experiment.of({**SMALL, "method.name": "fedprox+ditto", "seed": seed}))
        job = dataclasses.replace(parts.server.job("train", client), round=round)
        view = parts.site._client(job)[0].seen_by(methods.build(method))
        assert isinstance(view.generator(purpose), np.random.Generator)
        return tuple(view.generator(purpose).random(3))

    assert numbers() == numbers()
    others = [{"client": 1}, {"round": 1}, {"purpose": "other"}, {"method": "ditto"}, {"seed": 1}]
    assert len({numbers(), *(numbers(**other) for other in others)}) == 6
