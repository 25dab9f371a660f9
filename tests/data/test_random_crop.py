"""A random window of the image in training, and the middle one in evaluation: the size for which the model is built."""

import json

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fullrank as fr
from fullrank.data import DataSet, Operation, Pipeline, Split
from fullrank.data.augment.pipeline import RandomCrop
from fullrank.deploy.export import export, load_export
from fullrank.errors import InputError


def images(root="", seed=0, height=14, width=17, dtype=torch.uint8):
    x = torch.randint(0, 256, (40, 3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y = torch.arange(40) % 2
    return DataSet("images", Split(x[:30].to(dtype), y[:30]), Split(x[30:].to(dtype), y[30:]), ("a", "b"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_window_per_sample_is_cut_out(dtype):
    data = images(dtype=dtype)
    x = data.train.x
    u = torch.rand(30, 2, generator=torch.Generator().manual_seed(1))
    found = RandomCrop(8).apply(x, u)
    assert found.dtype == dtype
    tops, lefts = set(), set()
    for image, window, (first, second) in zip(x, found, u.tolist(), strict=True):
        top, left = int(first * (14 - 8 + 1)), int(second * (17 - 8 + 1))
        tops.add(top)
        lefts.add(left)
        np.testing.assert_array_equal(window.numpy(), image[:, top : top + 8, left : left + 8].numpy())
    assert tops == {*range(7)}
    assert {0, 9} <= lefts


def test_evaluation_takes_the_window_in_the_middle():
    data = images()
    prepare = Pipeline.build(data, "none", ["random-crop:8", "flip"])
    assert (prepare.crop, prepare.draws) == ((8, 8), 3)
    assert prepare.shape((3, 14, 17)) == (3, 8, 8)
    assert Pipeline().shape((3, 14, 17)) == (3, 14, 17)
    middle = data.test.x[:, :, 3:11, 4:12].float() / 255
    assert torch.equal(prepare(data.test.x), middle)
    # window 3 of 7 rows and window 4 of 10 columns, not flipped
    u = torch.tensor([[0.5, 0.45, 0.9]]).repeat(10, 1)
    assert torch.equal(prepare(data.test.x, u), middle)


def test_what_follows_is_made_for_the_window():
    data = images(height=40, width=48)
    prepare = Pipeline.build(data, "none", ["random-crop:32", "crop", "autoaugment", "resized-crop", "random-crop:9"])
    assert prepare.operations[1].pad == 4  # an eighth of 32, not of 40
    x = prepare(data.train.x, torch.rand(30, prepare.draws, generator=torch.Generator().manual_seed(0)))
    assert x.shape == (30, 3, 9, 9)
    assert prepare(data.test.x).shape == (10, 3, 9, 9)


def test_it_is_a_pure_function_of_tensors():
    x, u = images().train.x, torch.rand(30, 2, generator=torch.Generator().manual_seed(1))
    operation = RandomCrop(8)
    expected = operation.apply(x, u)
    traced = make_fx(lambda x, u: operation.apply(x, u))(x, u)
    assert torch.equal(traced(x, u), expected)
    mapped = vmap(operation.apply)(x.view(3, 10, *x.shape[1:]), u.view(3, 10, 2))
    assert torch.equal(mapped.flatten(0, 1), expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("random-crop", "must be a number of pixels"),
        ("random-crop:0", "must be a number of pixels"),
        ("random-crop:big", 'the side "big"'),
        ("random-crop:15", "15×15 pixels does not fit into images of 14×17"),
    ],
)
def test_a_window_that_cannot_be_is_rejected(text, words):
    with pytest.raises(InputError, match=words):
        Pipeline.build(images(), "none", [text])


class Halved(Operation):
    """An operation of a user that leaves half of the rows."""

    draws = 1

    def apply(self, x, u):
        return x[:, :, : x.shape[2] // 2]

    def crop(self, height, width):
        return height // 2, width


class Silent(Halved):
    def crop(self, height, width):
        return height, width


def test_operations_of_users_may_say_what_they_leave():
    prepare = Pipeline.build(images(), "none", ["test_random_crop:Halved"])
    assert prepare.crop == (7, 17)
    with pytest.raises(InputError, match="it must keep both"):
        Pipeline.build(images(), "none", ["test_random_crop:Silent"])


EXPERIMENT = {
    "data": {
        "name": "test_random_crop:images",
        "partition": "iid",
        "clients": 3,
        "holdout": 0.2,
        "augment": ["random-crop:10", "flip"],
        "normalise": "half",
    },
    "model": {"name": "mlp", "width": 8},
    "train": {"rounds": 2, "batch_size": 8, "lr": 0.05},
    "probe": {"every": 1},
}


@pytest.mark.parametrize("name", ["vectorised", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_engine_trains_the_model_on_windows(name, tmp_path):
    one, other = (
        fr.run({**EXPERIMENT, "engine": {"name": engine, "workers": 2}}, tmp_path / engine).model()
        for engine in ("serial", name)
    )
    for entry, same in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(entry, same, rtol=1e-4, atol=1e-5)
    assert next(one.parameters()).shape[1] == 3 * 10 * 10


def test_a_run_is_continued_and_its_model_is_exported_without_the_data(tmp_path):
    fr.run({**EXPERIMENT, "train": {**EXPERIMENT["train"], "rounds": 1}}, tmp_path / "run")
    run = fr.run(EXPERIMENT, tmp_path / "run")
    assert run.metrics[-1]["round"] == 2
    loaded = fr.load_run(tmp_path / "run")
    assert loaded._without_data().federation.pipeline.crop == (10, 10)
    exported = export(tmp_path / "run", tmp_path / "export", trust=True)
    facts = json.loads((exported.path / "model.json").read_text())
    assert facts["input"]["shape"] == [3, 14, 17]  # the exported model takes the middle window itself
    x = torch.randint(0, 256, (2, 3, 14, 17), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(load_export(exported.path)(x).softmax(1), run.predict(x))
