"""The rates of FedETF's fine-tuning and the optimiser of Ditto's personal model, which were fixed before."""

from __future__ import annotations

import pytest
import torch

from fullrank import fit
from fullrank.errors import InputError
from fullrank.methods import build
from fullrank.methods.ditto import Ditto
from fullrank.methods.fedetf import FRAME, PROJECTION, FedETF
from small import assert_same_bits, blobs, plain

SHORT = {"rounds": 2, "epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.8, "weight_decay": 0.01}


def personal(method, client=0, **more):
    run = fit(plain(), blobs(), method, **{**SHORT, **more}, set={"data.holdout": 0.25})
    return run.client_model(client, "personalised").state_dict()


@pytest.mark.parametrize("preset", ["paper", "repo"])
def test_the_default_rates_of_fedetf_are_those_of_its_authors_code(preset):
    assert_same_bits(personal(FedETF(preset=preset, repeats=2)), personal(FedETF(1, 1, 0, preset, 2, 0.1, 0.05)))
    assert "lr" not in FRAME | PROJECTION


def test_each_rate_of_fedetf_is_that_of_its_part():
    """One repetition from the same model: the frame moves by its own rate, whatever the projection's is."""
    usual, slow_projection, slow_frame = (
        personal(FedETF(preset="repo", repeats=1, **rates))
        for rates in ({}, {"projection_lr": 1e-9}, {"frame_lr": 1e-9})
    )
    (frame,) = [name for name in usual if name.endswith("frame")]
    (weight,) = [name for name in usual if name.endswith("projection.weight")]
    assert torch.equal(usual[frame], slow_projection[frame])
    assert not torch.allclose(usual[weight], slow_projection[weight])
    untouched = personal(FedETF(preset="repo", repeats=0))
    assert torch.allclose(slow_frame[frame], untouched[frame], atol=1e-7)
    assert torch.allclose(slow_projection[weight], untouched[weight], atol=1e-6)
    assert not torch.allclose(usual[frame], untouched[frame])


def test_ditto_by_default_trains_the_personal_model_with_the_optimiser_of_the_run():
    named = Ditto(optimizer="sgd", lr=0.1, momentum=0.8, weight_decay=0.01)
    assert_same_bits(personal(Ditto()), personal(named))
    assert_same_bits(personal(Ditto()), personal(Ditto(optimizer="sgd", momentum=0.8, weight_decay=0.01)))


def test_the_optimiser_of_ditto_concerns_the_personal_model_only():
    one, two = (fit(plain(), blobs(), method, **SHORT) for method in (Ditto(), Ditto(optimizer="sgd", lr=0.02)))
    assert_same_bits(one.model().state_dict(), two.model().state_dict())
    assert any(
        not torch.equal(a, b)
        for a, b in zip(*(personal(m).values() for m in (Ditto(), Ditto(optimizer="adam"))), strict=True)
    )


def test_plain_sgd_of_the_personal_model_is_that_of_a_loop():
    """One client with one batch per epoch and lam = 0: v takes steps v ← v − η·g by itself."""
    model, (client,) = plain(), blobs((12,))
    method = Ditto(lam=0.0, optimizer="sgd", lr=0.05)
    run = fit(model, [client], method, **{**SHORT, "batch_size": 100})
    x, y = client
    params = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(torch.func.functional_call(model, params, (x,)), y)
        slopes = torch.autograd.grad(loss, list(params.values()))
        params = {n: (p - 0.05 * g).detach().requires_grad_() for (n, p), g in zip(params.items(), slopes, strict=True)}
    found = dict(run.client_model(0, "personalised").named_parameters())
    for name, value in params.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
def test_a_setting_of_an_optimiser_that_is_not_used_is_rejected(name):
    with pytest.raises(
        InputError, match=rf'method\.ditto\.{name} has no effect with method\.ditto\.optimizer = "global"'
    ):
        build("ditto", ditto={name: 0.5})
