"""The stage of clients' own models: which one a number is about, and that the model behind the number can be had."""

import json

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.metrics.evaluate import evaluate

SETTINGS = {
    "model.name": "cnn",
    "model.width": 4,
    "model.features": 8,
    "model.norm": "batch",
    "train.rounds": 2,
    "train.participation": 2,
    "data.clients": 3,
    "data.alpha": 0.5,
    "data.holdout": 0.3,
    "engine.name": "serial",
    "method.fedetf.repeats": 1,
    "evaluate.metrics": ["accuracy", "loss", "calibration"],
}
LAST = {"fedavg": "local", "fedbn": "local", "fedetf": "personalised", "ditto": "personalised"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    return {name: fullrank.run({**SETTINGS, "method.name": name}, folder / name) for name in LAST}


def on_holdouts(run, stage=None):
    """The accuracy and loss of each client's model on its hold-out, computed from the model."""
    federation, found = run._assembled().federation, []
    for client, index in enumerate(federation.holdouts):
        module = run.client_model(client, stage)
        x, y = federation.data.train.x[index], federation.data.train.y[index]
        found.append(evaluate(lambda x, _, m=module: m(x), x, y, federation.pipeline, torch.float32))
    return found


@pytest.mark.parametrize("read_back", [False, True], ids=["returned", "read back"])
@pytest.mark.parametrize("method", LAST)
def test_the_model_of_a_stage_has_the_number_that_was_reported_for_it(method, read_back, runs):
    run = fullrank.load_run(runs[method].path) if read_back else runs[method]
    reported = runs[method].summary()["personal"]
    assert list(reported)[-1] == LAST[method]
    for stage in reported:
        scores = on_holdouts(run, stage)
        assert np.mean([found["accuracy"] for found in scores]) == pytest.approx(reported[stage]["mean"])
        assert np.mean([found["loss"] for found in scores]) == pytest.approx(reported[stage]["loss"]["mean"], rel=1e-5)
    one, two = run.client_model(0).state_dict(), run.client_model(0, LAST[method]).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", LAST)
def test_a_clients_model_can_be_had_where_gradients_are_off(method, off, runs):
    run = fullrank.load_run(runs[method].path)
    with off():
        inside = run.client_model(0).state_dict()
    for name, tensor in runs[method].client_model(0).state_dict().items():
        assert torch.equal(inside[name], tensor)


def test_a_stage_that_the_method_does_not_have_is_rejected(runs, capsys):
    with pytest.raises(InputError, match='"fedavg" does not personalise; take the stage "received" or "local"'):
        runs["fedavg"].client_model(0, "personalised")
    with pytest.raises(InputError, match=r'no stage "personalized".*did you mean "personalised"'):
        runs["fedetf"].client_model(0, "personalized")
    status, _, err = command("export", runs["fedavg"].path, "--stage", "local", capsys=capsys)
    assert status == 2
    assert "--client K" in err


@pytest.mark.parametrize("stage", ["received", "local", "personalised", None])
def test_an_export_of_a_clients_model_names_its_stage(stage, runs, tmp_path, capsys):
    run = runs["fedetf"]
    wanted = ("--stage", stage) if stage else ()
    assert command("export", run.path, "--client", 1, *wanted, "--to", tmp_path, capsys=capsys)[0] == 0
    assert json.loads((tmp_path / "model.json").read_text())["stage"] == (stage or "personalised")
    exported, own = fullrank.load_export(tmp_path), run.client_model(1, stage)
    x = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(exported(x), own((x / 255 - 0.306) / 0.3762))


@pytest.mark.parametrize("method", LAST)
def test_commands_print_the_stage_that_they_take_by_themselves(method, runs, tmp_path, capsys):
    words = {"local": "after local training", "personalised": "personalised by the method"}[LAST[method]]
    _, out, _ = command("export", runs[method].path, "--client", 0, "--to", tmp_path, capsys=capsys)
    assert words in out
    _, out, _ = command("inspect", runs[method].path, "--client", 0, capsys=capsys)
    assert words in out


def compared(runs, *methods, capsys, measure="personal", as_json=False):
    paths = [runs[method].path for method in methods]
    extra = ["--json"] if as_json else []
    status, out, _ = command("compare", "--runs", *paths, "--measure", measure, *extra, capsys=capsys)
    assert status == 0
    return out


def test_a_comparison_of_clients_models_names_the_stage(runs, capsys):
    same = compared(runs, "fedavg", "fedbn", capsys=capsys)
    assert "held-out samples in percent, after local training:" in same
    assert "stage" not in same
    mixed = compared(runs, "fedavg", "fedetf", capsys=capsys)
    assert "each method at its last stage" in mixed
    for method, words in (("fedavg", "after local training"), ("fedetf", "personalised by the method")):
        assert any(line.startswith(method) and words in line for line in mixed.splitlines())
    facts = json.loads(compared(runs, "fedavg", "fedetf", capsys=capsys, as_json=True))
    assert facts["stages"] == ["local", "personalised"]
    assert [row["stage"] for row in facts["rows"]] == ["local", "personalised"]
    for row, method in zip(facts["rows"], ("fedavg", "fedetf"), strict=True):
        scores = [found["accuracy"] for found in on_holdouts(runs[method])]
        assert row["mean"] == pytest.approx(np.mean(scores))


# The worst tenth


@pytest.mark.parametrize("stage", ["received", "local"])
def test_the_worst_tenth_is_that_of_the_worst_clients(stage, runs):
    """Of three clients it is one: the lowest accuracy, but the highest loss."""
    reported, scores = runs["fedbn"].summary()["personal"][stage], on_holdouts(runs["fedbn"], stage)
    assert reported["worst_decile"] == pytest.approx(min(found["accuracy"] for found in scores))
    assert reported["loss"]["worst_decile"] == pytest.approx(max(found["loss"] for found in scores), rel=1e-5)
    for measure in ("loss", "calibration"):
        assert reported[measure]["worst_decile"] > reported[measure]["mean"]


def test_the_worst_loss_is_printed_as_a_loss(runs, capsys):
    worst = runs["fedbn"].summary()["personal"]["local"]["loss"]["worst_decile"]
    out = compared(runs, "fedbn", capsys=capsys, measure="personal.local.loss.worst_decile")
    assert "percent" not in out
    assert f"{worst:.4f}" in out
