"""Predictions of a run for samples as its data have them."""

import shutil

import numpy as np
import pytest
import torch

import fullrank
from fullrank.errors import InputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"data.clients": 3, "data.holdout": 0.2, "train.rounds": 1, "train.epochs": 1, "engine.name": "serial"}
    return fullrank.run({**settings, "model": {"name": "mlp", "width": 16}}, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def images():
    return fullrank.data.load_dataset("digits").test.x[:150]


def by_hand(module, images):
    """Probabilities with the statistics that the library's digits have, without the library's pipeline."""
    x = (images.numpy().astype(np.float64) / 255 - 0.3060) / 0.3762
    with torch.no_grad():
        scores = module(torch.from_numpy(x).float()).double().numpy()
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def test_probabilities_are_those_of_the_model_on_prepared_samples(run, images):
    found = run.predict(images)
    assert found.shape == (150, 10)
    assert found.device.type == "cpu"
    np.testing.assert_allclose(found.numpy(), by_hand(run.model(), images), atol=2e-5)


def test_arrays_and_other_layouts_of_images_predict_the_same(run, images):
    expected = run.predict(images)
    for x in (images.numpy(), images[:, 0], images.permute(0, 2, 3, 1).numpy()):
        assert torch.equal(run.predict(x), expected)


def test_the_directory_suffices(run, images, tmp_path, monkeypatch):
    shutil.copytree(run.path, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fullrank.runs.result.federate", lambda *_: pytest.fail("the data were read"))
    assert torch.equal(fullrank.load_run("copy").predict(images), run.predict(images))


def test_a_clients_own_model_at_a_stage(run, images):
    for stage in ("received", "local"):
        expected = by_hand(run.client_model(1, stage), images)
        np.testing.assert_allclose(run.predict(images, client=1, stage=stage).numpy(), expected, atol=2e-5)
    assert torch.equal(run.predict(images, client=1, stage="received"), run.predict(images))
    with pytest.raises(InputError, match="choose the model of client K"):
        run.predict(images, stage="local")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.float(), "x is float32, but the run was trained on samples of uint8: 8-bit images"),
        (lambda x: x[0], r"the shape 1×8×8 of one sample; give a batch of samples, as in x\[None\]"),
        (lambda x: x[:0], "no samples"),
        (lambda x: x[:, :, :4], "have the shape 1×4×8, but the run was trained on samples of shape 1×8×8"),
        (lambda x: "images", "x is a str"),
    ],
)
def test_other_samples_are_rejected(change, words, run, images):
    with pytest.raises(InputError, match=words):
        run.predict(change(images))


def test_tables_are_taken_in_any_float_dtype(tmp_path):
    torch.manual_seed(0)
    clients = [(torch.randn(20, 5), torch.arange(20) % 2) for _ in range(2)]
    run = fullrank.fit(torch.nn.Sequential(torch.nn.Linear(5, 2)), clients, rounds=1, method="fedavg")
    x = torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = run.model()(x.float()).softmax(1)
    torch.testing.assert_close(run.predict(x), expected)
    with pytest.raises(InputError, match="x is uint8"):
        run.predict(torch.zeros(4, 5, dtype=torch.uint8))
