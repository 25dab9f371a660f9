"""The weights with which a run starts: which files are read, what must fit, what is reported, and what is kept."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

import fullrank
from fullrank.errors import InputError

BASE = {
    "data.clients": 2,
    "train.rounds": 1,
    "train.epochs": 1,
    "train.lr": 1e-12,
    "engine.name": "serial",
    "model": {"name": "mlp", "width": 8},
}
"""A run whose weights do not move, so that its model is what it started from."""


def started(out, start, partial=False, **settings):
    values = {**BASE, **settings}
    model = {**values.pop("model"), "start": str(start), "start_partial": partial}
    return fullrank.run({**values, "model": model}, out)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    return fullrank.run({**BASE, "seed": 5, "train.lr": 0.05}, tmp_path_factory.mktemp("runs") / "earlier")


@pytest.fixture(scope="module")
def weights(earlier):
    return load_file(earlier.path / "model.safetensors")


def assert_starts_from(run, weights, names=None):
    own = run.model().state_dict()
    for name in names or weights:
        torch.testing.assert_close(own[name], weights[name], rtol=0, atol=1e-6)


def written(kind, path, weights):
    """A file of each kind that people have."""
    if kind == "safetensors":
        save_file(weights, path / "w.safetensors")
        return path / "w.safetensors"
    prefix = {"ddp.pt": "module.", "compiled.pth": "_orig_mod.", "both.pt": "module._orig_mod."}.get(kind, "")
    state = {f"{prefix}{name}": torch.nn.Parameter(value) for name, value in weights.items()}
    inside = {"nested.ckpt": {"state_dict": state, "epoch": 3}, "model.pt": {"model": state, "best": 0.5}}
    torch.save(inside.get(kind, state), path / kind)
    return path / kind


@pytest.mark.parametrize(
    "kind", ["safetensors", "plain.pth", "ddp.pt", "compiled.pth", "both.pt", "nested.ckpt", "model.pt"]
)
def test_files_that_people_have(kind, weights, tmp_path):
    run = started(tmp_path / "run", written(kind, tmp_path, weights))
    assert_starts_from(run, weights)
    facts = json.loads((run.path / "environment.json").read_text())["start"]
    assert sorted(facts["fitted"]) == sorted(weights)
    assert (facts["left_out"], facts["initial"]) == ({}, [])
    assert facts["prefix"] == {"ddp.pt": "module.", "compiled.pth": "_orig_mod.", "both.pt": "module._orig_mod."}.get(
        kind, ""
    )


def test_the_directory_of_an_earlier_run(earlier, weights, tmp_path):
    assert_starts_from(started(tmp_path / "run", earlier.path), weights)


def test_what_does_not_fit_is_an_error_that_names_it(weights, tmp_path):
    other = {**weights, "head.weight": torch.zeros(7, 8), "head.bias": torch.zeros(7), "further": torch.zeros(2)}
    save_file(other, tmp_path / "w.safetensors")
    with pytest.raises(InputError) as caught:
        started(tmp_path / "run", tmp_path / "w.safetensors")
    text = str(caught.value)
    for words in (
        "head.weight has shape (7, 8) instead of (10, 8)",
        "head.bias has shape (7,) instead of (10,)",
        "further is not in the model",
        f"model.start_partial = true takes the {len(weights) - 2} of {len(weights)} entries that fit",
    ):
        assert words in text
    assert not (tmp_path / "run" / "experiment.toml").exists()


def test_a_long_list_of_what_does_not_fit_is_cut(tmp_path):
    save_file({f"layer{k}": torch.zeros(1) for k in range(40)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"and \d+ more") as caught:
        started(tmp_path / "run", tmp_path / "w.safetensors", partial=True)
    assert str(caught.value).count("is not in the model") == 10
    assert "start_partial" not in str(caught.value)


def test_a_head_of_another_width_is_left_out_and_keeps_its_initial_value(weights, tmp_path):
    head = {"head.weight": torch.zeros(7, 8), "head.bias": torch.zeros(7)}
    save_file({**weights, **head}, tmp_path / "w.safetensors")
    with pytest.warns(UserWarning, match=r"left at their initial values: head\.weight; head\.bias; left out"):
        run = started(tmp_path / "run", tmp_path / "w.safetensors", partial=True)
    assert_starts_from(run, weights, weights.keys() - head.keys())
    assert_starts_from(run, fullrank.run(BASE, tmp_path / "fresh").model().state_dict(), head)
    facts = json.loads((run.path / "environment.json").read_text())["start"]
    assert facts["left_out"].keys() == head.keys()
    assert sorted(facts["initial"]) == sorted(head)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("whole.pt", lambda file: torch.save(torch.nn.Linear(2, 2), file), "other objects than tensors"),
        ("counter.pt", lambda file: pickle.dump(BaseException(), file.open("wb")), "other objects than tensors"),
        ("empty.pt", lambda file: file.touch(), "is no state dict, or it is damaged"),
        ("text.pth", lambda file: file.write_text("no weights"), "damaged"),
        ("number.pt", lambda file: torch.save({"epoch": 1}, file), "holds no tensors by name"),
        ("tensor.pt", lambda file: torch.save(torch.zeros(2), file), "holds no tensors by name"),
        ("text.safetensors", lambda file: file.write_text("no weights"), "not a safetensors file or is damaged"),
        ("folder", lambda file: file.mkdir(), "is a folder, but not the directory of a run"),
        ("nothing.pt", lambda file: None, "there is no file"),
    ],
)
def test_other_files_are_rejected_in_one_sentence(name, write, words, tmp_path):
    write(tmp_path / name)
    with pytest.raises(InputError, match=words) as caught:
        started(tmp_path / "run", tmp_path / name)
    assert "\n" not in str(caught.value)


class Trap:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_nothing_in_a_pickle_is_executed(tmp_path):
    torch.save({"state_dict": Trap(tmp_path / "executed")}, tmp_path / "trap.pt")
    with pytest.raises(InputError, match="which are not loaded because that could run code"):
        started(tmp_path / "run", tmp_path / "trap.pt")
    assert not (tmp_path / "executed").exists()


def test_an_unfinished_run_has_no_model_to_start_from(earlier, tmp_path):
    folder = tmp_path / "unfinished"
    folder.mkdir()
    (folder / "experiment.toml").write_bytes((earlier.path / "experiment.toml").read_bytes())
    with pytest.raises(InputError, match=r"has no model\.safetensors, which it gets at its end"):
        started(tmp_path / "run", folder)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_run_continues_to_the_bit_when_the_file_is_gone(method, tmp_path):
    """Personal entries of a client that trains for the first time after that have the values of the file."""
    settings = {"method.name": method, "train.participation": 1, "train.lr": 0.05, "data.clients": 3}
    settings["model"] = {"name": "cnn", "width": 4, "norm": "batch"}
    first = fullrank.run({**BASE, **settings, "seed": 3}, tmp_path / "first").client_model(0, "received").state_dict()
    torch.save(first, tmp_path / "start.pt")
    whole = started(tmp_path / "whole", tmp_path / "start.pt", **{**settings, "train.rounds": 3})
    started(tmp_path / "run", tmp_path / "start.pt", **settings)
    (tmp_path / "start.pt").unlink()
    resumed = started(tmp_path / "run", tmp_path / "start.pt", **{**settings, "train.rounds": 3})
    for client in range(3):
        expected = whole.client_model(client, "received").state_dict()
        read = fullrank.load_run(tmp_path / "run").client_model(client, "received").state_dict()
        for name, tensor in resumed.client_model(client, "received").state_dict().items():
            assert torch.equal(tensor, expected[name]), name
            assert torch.equal(read[name], expected[name]), name
