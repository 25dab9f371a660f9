"""`fullrank inspect`: a run's model or any other, by the measures of collapse."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import fullrank
from commands import fullrank as command
from fullrank import collapse
from fullrank.data import Pipeline, load_dataset

SETTINGS = {
    "data.clients": 3,
    "model.width": 2,
    "model.features": 8,
    "model.norm": "batch",
    "train.rounds": 1,
    "engine.name": "serial",
    "probe.every": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fullrank.run(SETTINGS, tmp_path_factory.mktemp("inspect") / "run")


def found(*arguments, capsys):
    status, out, err = command("inspect", *arguments, "--json", capsys=capsys)
    assert (status, err) == (0, "")
    return json.loads(out)


def rejected(*arguments, capsys):
    status, _, err = command("inspect", *arguments, capsys=capsys)
    assert status == 2
    assert err.count("\n") == 1
    return err


def prepared(normalise="auto"):
    data = load_dataset("digits")
    return Pipeline.build(data, normalise, "none")(data.test.x, None, torch.float32), data.test.y


def assert_measured(facts, module, x, y):
    with torch.no_grad():
        z, logits = module.features(x), module(x)
    np.testing.assert_allclose(facts["spectrum"], collapse.spectrum(z), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(facts["effective_rank"], collapse.effective_rank(z), rtol=1e-5)
    np.testing.assert_allclose(facts["class_accuracy"], collapse.class_accuracy(logits, y, 10))
    for name, value in collapse.neural_collapse(z, y, module.head.weight, module.head.bias).items():
        np.testing.assert_allclose(facts[name], value, rtol=1e-5)


def test_a_runs_model_is_measured_on_its_test_set(run, capsys):
    facts = found(run.path, capsys=capsys)
    assert_measured(facts, run.model(), *prepared())
    assert (facts["samples"], facts["features"]) == (360, 8)
    for name, value in run.probes[-1]["global"].items():
        np.testing.assert_allclose(facts[name], value, rtol=1e-6)


def test_a_person_reads_the_same_numbers(run, capsys):
    status, out, err = command("inspect", run.path, capsys=capsys)
    assert (status, err) == (0, "")
    facts = run.probes[-1]["global"]
    assert f"accuracy              {100 * facts['accuracy']:.2f} %" in out
    assert f"{facts['effective_rank']:.4g}" in out
    assert f"{facts['significant']} of 8 singular values" in out
    for words in ("NC1", "NC2", "NC3", "NC4", "classifier norms", "accuracy by class"):
        assert words in out


@pytest.fixture
def copied(run, tmp_path):
    """The same run in a directory of the test's own."""
    return shutil.copytree(run.path, tmp_path / "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_run_of_a_gpu_is_inspected_where_there_is_none(copied, run, capsys):
    text = (copied / "experiment.toml").read_text().rpartition("# checksum")[0]
    for key, here, there in (("name", "serial", "cuda"), ("device", "", "cuda"), ("precision", "auto", "bfloat16")):
        assert f'{key} = "{here}"' in text
        text = text.replace(f'{key} = "{here}"', f'{key} = "{there}"')
    (copied / "experiment.toml").write_text(text)
    assert_measured(found(copied, capsys=capsys), run.model(), *prepared())


def test_a_network_that_never_trained_does_not_stand_in_for_a_model_that_is_gone(copied, run, capsys):
    (copied / "model.safetensors").unlink()
    assert "has all its rounds (1), but no model.safetensors" in rejected(copied, capsys=capsys)
    (copied / "summary.json").unlink()  # stopped before its end: the checkpoint has the model
    assert_measured(found(copied, capsys=capsys), run.model(), *prepared())
    for part in (copied / "checkpoints").iterdir():
        part.unlink()
    assert "it was not kept" in rejected(copied, capsys=capsys)
    (copied / "metrics.jsonl").unlink()
    assert "no round of the run" in rejected(copied, capsys=capsys)


def test_a_clients_own_model(tmp_path, run, capsys):
    facts = found(run.path, "--client", 1, "--stage", "received", capsys=capsys)
    assert facts["stage"] == "received"
    assert facts["accuracy"] == found(run.path, capsys=capsys)["accuracy"]
    own = fullrank.run({**SETTINGS, "method.name": "fedbn"}, tmp_path / "own")
    facts = found(own.path, "--client", 1, capsys=capsys)
    assert facts["stage"] == "local"
    assert_measured(facts, own.client_model(1), *prepared())
    lacking = rejected(own.path, capsys=capsys)
    assert "no complete global model" in lacking
    assert "--client K" in lacking
    assert "client_model" not in lacking
    assert "there is no client 9" in rejected(own.path, "--client", 9, capsys=capsys)


def test_a_file_of_weights_with_the_networks_name(tmp_path, run, capsys):
    options = [f"--set=model.{key}={SETTINGS[f'model.{key}']}" for key in ("width", "features", "norm")]
    file = run.path / "model.safetensors"
    facts = found(file, "digits", "--model", "cnn", *options, capsys=capsys)
    assert_measured(facts, run.model(), *prepared())
    unfit = rejected(file, "digits", "--model", "cnn", capsys=capsys)
    assert unfit.startswith(f'fullrank: "{file}" does not fit the model: ')
    missing = rejected(tmp_path / "none.safetensors", "digits", "--model", "cnn", capsys=capsys)
    assert missing == f'fullrank: there is no file "{tmp_path / "none.safetensors"}"\n'
    assert "--model cnn" in rejected(file, "digits", capsys=capsys)
    assert "name a data set" in rejected(file, "--model", "cnn", capsys=capsys)
    assert 'did you mean "cnn"?' in rejected(file, "digits", "--model", "cmn", capsys=capsys)


class Own(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
        self.head = nn.Linear(12, classes)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def trained():
    torch.manual_seed(5)
    return Own()


def told(num_classes, in_channels):
    assert (num_classes, in_channels) == (10, 1)
    return trained()


def needy(path):
    return trained()


def no_module():
    return 3


@pytest.mark.parametrize("name", ["trained", "told"])
def test_any_torch_model_by_the_function_that_makes_it(capsys, name):
    facts = found(f"test_inspect:{name}", "digits", "--set", "data.normalise=none", capsys=capsys)
    assert_measured(facts, trained().eval(), *prepared("none"))
    assert facts["classifier_bias"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["does not exist", "package.module:function"]),
        (["."], ["has no experiment.toml"]),
        (["test_inspect:trainee", "digits"], ['did you mean "trained"?']),
        (["test_inspect:needy", "digits"], ["path"]),
        (["test_inspect:no_module", "digits"], ["returned a int"]),
        (["test_inspect:trained"], ["name a data set"]),
        (["test_inspect:trained", "digit"], ['did you mean "digits"?']),
        (["test_inspect:trained", "digits", "--client", "1"], ["--client is for runs"]),
        (["test_inspect:trained", "digits", "--model", "cnn"], ["makes its own network"]),
    ],
)
def test_what_cannot_be_inspected_is_rejected_in_one_sentence(capsys, arguments, words):
    err = rejected(*arguments, capsys=capsys)
    for word in words:
        assert word in err


def test_a_run_knows_its_own_model(run, capsys):
    assert "contains its model" in rejected(run.path, "--set", "model.width=3", capsys=capsys)


def test_a_run_on_other_data(tmp_path, run, capsys):
    digits = load_dataset("digits")
    arrays = {"x_train": digits.train.x[:50], "y_train": digits.train.y[:50], "x_test": digits.test.x[:90]}
    np.savez(tmp_path / "few.npz", y_test=digits.test.y[:90], **arrays)
    facts = found(run.path, tmp_path / "few.npz", capsys=capsys)
    x, y = prepared()
    assert facts["samples"] == 90
    assert_measured(facts, run.model(), x[:90], y[:90])
    coloured = np.zeros((20, 3, 8, 8), np.uint8)
    np.savez(
        tmp_path / "rgb.npz", x_train=coloured, x_test=coloured, y_train=np.arange(20) % 10, y_test=np.arange(20) % 10
    )
    assert "does not take" in rejected(run.path, tmp_path / "rgb.npz", capsys=capsys)


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_the_spectrum_is_drawn(tmp_path, run, capsys, ending):
    target = tmp_path / f"spectrum.{ending}"
    status, out, _ = command("inspect", run.path, "--png", target, capsys=capsys)
    assert status == 0
    assert str(target) in out
    assert target.read_bytes().startswith(b"%PDF-" if ending == "pdf" else b"\x89PNG")
