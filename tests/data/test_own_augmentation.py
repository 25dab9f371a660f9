"""An augmentation from outside the library: named in an experiment, tried, and the same with every engine."""

import json
import re
import sys

import pytest
import torch

import fullrank as fr
from commands import fullrank
from fullrank.data import Operation, Pipeline, load_dataset
from fullrank.data.augment.registry import AUGMENTATIONS
from fullrank.errors import InputError

MODULE = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from fullrank.data import Operation


@dataclass(frozen=True)
class Cutout(Operation):
    side: int = 4
    level: float = 0.0
    draws: ClassVar[int] = 2

    def apply(self, x, u):
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        top, left = (u.T * torch.tensor(x.shape[-2:])[:, None]).floor()
        tall = (rows >= top[:, None]) & (rows < top[:, None] + self.side)
        wide = (columns >= left[:, None]) & (columns < left[:, None] + self.side)
        return x.masked_fill((tall[:, :, None] & wide[:, None, :])[:, None], self.level)


def darker(arguments, dataset):
    return Cutout(max(dataset.input_shape) // int(arguments), 0)


@dataclass(frozen=True)
class Random(Cutout):
    def apply(self, x, u):
        return super().apply(x, torch.rand_like(u))


@dataclass(frozen=True)
class Smaller(Cutout):
    def apply(self, x, u):
        return x[..., 1:, 1:]


@dataclass(frozen=True)
class Floats(Cutout):
    def apply(self, x, u):
        return x / 255


@dataclass(frozen=True)
class InPlace(Cutout):
    def apply(self, x, u):
        return x.fill_(0)


@dataclass(frozen=True)
class Mixed(Cutout):
    def apply(self, x, u):
        return x.flip(0)


@dataclass(frozen=True)
class Raises(Cutout):
    def apply(self, x, u):
        raise KeyError("side")


@dataclass(frozen=True)
class Many(Cutout):
    draws: ClassVar[float] = 1.5


@dataclass(frozen=True)
class Fixed(Cutout):
    draws: ClassVar[int] = 0


class Abstract(Operation):
    pass


def nothing(arguments, dataset):
    return arguments
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path, monkeypatch):
    (tmp_path / "ownimages.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ownimages", None)


def test_arguments_are_the_fields_of_the_class_or_what_the_function_makes_of_them():
    digits = load_dataset("digits")
    found = Pipeline.build(
        digits,
        augment=["crop:1", "ownimages:Cutout", "ownimages:Cutout:3", "ownimages:Cutout:2,9.5", "ownimages:darker:4"],
    ).operations[1:]
    assert [(cut.side, cut.level) for cut in found] == [(4, 0.0), (3, 0.0), (2, 9.5), (2, 0)]
    pipeline = Pipeline.build(digits, "none", ["flip", "ownimages:Cutout:3"])
    assert pipeline.draws == 3
    x = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    out = pipeline(x, torch.tensor([[0.9, 0.0, 0.5], [0.9, 0.9, 0.0]]))
    assert out[0, 0].nonzero().shape[0] == 64 - 9
    assert out[0, 0, :3, 4:7].sum() == 0
    assert out[1, 0, 7, :3].sum() == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Cutuot", 'the module "ownimages" has no Class "Cutuot"; did you mean "Cutout"'),
        ("Cutout:big", 'side = "big": input should be a valid integer'),
        ("Cutout:1,2,3", '"1,2,3": there are 3 arguments, and Cutout takes 2'),
        ("Cutout:", "ends in a colon"),
        ("Random", "two results for the same numbers; all randomness must come from its argument u"),
        ("Smaller", r"apply gave torch.uint8 of shape \(8, 1, 7, 7\)"),
        ("Floats", "apply gave torch.float32 .* it must keep both"),
        ("InPlace", "apply wrote into the batch"),
        ("Mixed", "samples must not depend on each other"),
        ("Many", "its draws are 1.5; they must be a whole number"),
        ("Fixed", "its draws are 0; they must be a whole number of at least 1"),
        ("nothing:5", "it gave a str; it must be or return a fullrank.data.Operation"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_key(name, words):
    with pytest.raises(InputError, match=words) as caught:
        Pipeline.build(load_dataset("digits"), augment=[f"ownimages:{name}"])
    assert f'"ownimages:{name.partition(":")[0]}' in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "words"), [("Raises", "raised KeyError"), ("Abstract", "raised TypeError")])
def test_what_it_raises_names_the_key(name, words):
    with pytest.raises(fr.FullrankError, match=rf'data.augment = "ownimages:{name}": it {words}') as caught:
        Pipeline.build(load_dataset("digits"), augment=[f"ownimages:{name}"])
    assert caught.value.traceback


SETTINGS = {
    "data.clients": 6,
    "data.augment": ["crop:1", "ownimages:Cutout:3"],
    "model.name": "mlp",
    "model.width": 8,
    "train.rounds": 2,
    "engine.precision": "float64",
}


def run(out, engine, **values):
    return fr.run({**SETTINGS, "engine.name": engine, "engine.workers": 1, **values}, out)


def test_every_engine_gives_the_same_result(tmp_path):
    want = run(tmp_path / "serial", "serial")
    without = run(tmp_path / "without", "serial", **{"data.augment": ["crop:1"]})
    assert want.metrics[-1]["loss"] != without.metrics[-1]["loss"]
    processes = run(tmp_path / "processes", "processes")
    for name, value in want.model().state_dict().items():
        assert torch.equal(value, processes.model().state_dict()[name])
    vectorised = run(tmp_path / "vectorised", "vectorised")
    assert "one_by_one" not in vectorised.metrics[-1]
    for name, value in want.model().state_dict().items():
        torch.testing.assert_close(vectorised.model().state_dict()[name], value, rtol=1e-9, atol=1e-9)
    assert "ownimages" in json.loads((tmp_path / "serial" / "environment.json").read_text())["sources"]


def test_a_name_in_the_registry_is_known_everywhere(monkeypatch, tmp_path, capsys):
    class Inverse(Operation):
        draws = 1

        def apply(self, x, u):
            return 255 - x

    monkeypatch.setitem(AUGMENTATIONS.own, "inverse", Inverse)
    status, out, _ = fullrank("keys", "data.augment", capsys=capsys)
    assert status == 0
    assert re.search(r"raug,\s+inverse or", out)
    with pytest.raises(InputError, match='"invers" is not known; did you mean "inverse"'):
        Pipeline.build(load_dataset("digits"), augment=["invers"])
    values = {**SETTINGS, "train.rounds": 1}
    ours = fr.run({**values, "data.augment": ["inverse"]}, tmp_path / "run")
    plain = fr.run({**values, "data.augment": "none"}, tmp_path / "plain")
    assert ours.metrics[-1]["loss"] != plain.metrics[-1]["loss"]
