"""What used to change a result, or nothing at all, without a word."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fullrank as fr
from commands import fullrank
from fullrank import models
from fullrank.config.experiment import Experiment
from fullrank.data import load_dataset
from fullrank.errors import ClientFailed, InputError
from fullrank.runs.assemble import assemble
from small import blobs

SMALL = ("--set", "model.name=mlp", "--set", "model.width=4", "--set", "train.rounds=1", "--set", "data.clients=3")


def pictures(path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])


# data.normalise


@pytest.mark.parametrize(("normalise", "cautioned"), [("auto", True), ("none", False), ("half", False)])
def test_images_that_auto_cannot_normalise_are_mentioned_before_the_first_round(
    normalise, cautioned, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    pictures("mine.npz")
    data = ("--set", "data.name=mine.npz", "--set", "data.alpha=inf", "--set", f"data.normalise={normalise}")
    status, out, _ = fullrank("run", *SMALL, *data, "--out", "out", capsys=capsys)
    assert status == 0
    said = [number for number, line in enumerate(out.splitlines()) if "only divided by 255" in line]
    first = next(number for number, line in enumerate(out.splitlines()) if line.startswith("round 1"))
    assert (said != []) == cautioned
    assert all(number < first for number in said)
    row = json.loads((tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert any("data.normalise" in text for text in row.get("cautions", [])) == cautioned


def test_data_sets_with_statistics_and_data_given_to_fit_are_not_mentioned(recwarn, tmp_path):
    fr.run({"model.name": "mlp", "model.width": 4, "train.rounds": 1, "data.clients": 3}, tmp_path / "out")
    x = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    fr.fit(module, [(x, torch.arange(12) % 2)], "fedavg", rounds=1)
    assert not [warning for warning in recwarn if "255" in str(warning.message)]


# Where an .npz file lies


def test_an_npz_file_is_found_in_the_environments_folder_and_in_root(tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    pictures(tmp_path / "there" / "mine.npz")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FULLRANK_DATA", str(tmp_path / "there"))
    assert len(load_dataset("mine.npz").train) == 60
    with pytest.raises(InputError, match=r"neither in \$FULLRANK_DATA"):
        load_dataset("other.npz")
    monkeypatch.delenv("FULLRANK_DATA")
    assert fullrank("partition", "--set", "data.name=mine.npz", capsys=capsys)[0] == 2
    options = ("--set", "data.name=mine.npz", "--set", f"data.root={tmp_path / 'there'}", "--set", "data.clients=2")
    assert fullrank("partition", *options, capsys=capsys)[0] == 0
    pictures("mine.npz")
    assert len(load_dataset("mine.npz").train) == 60


# Tables that are none


@pytest.mark.parametrize(
    ("text", "override", "words"),
    [
        ("[[data]]\nalpha = inf\n", "data.clients=3", "data = [{'alpha': inf}]: must be a table"),
        ("data = 5\n", "data.clients=3", "data = 5: must be a table"),
        ('train = "long"\n', "train.rounds=1", 'train = "long": must be a table'),
        ("[method]\nfedprox = 3\n", "method.fedprox.mu=1.0", "method.fedprox = 3: must be a table"),
    ],
)
def test_what_is_no_table_is_rejected_with_an_override_as_without(text, override, words, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    name = ("--set", "method.name=fedprox") if "fedprox" in text else ()
    for overrides in ((), ("--set", override)):
        status, _, err = fullrank("partition", file, *name, *overrides, capsys=capsys)
        assert status == 2
        assert words in err


def test_normalise_may_still_be_replaced_by_a_table(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nnormalise = "auto"\n', encoding="utf-8")
    numbers = ("--set", "data.normalise.mean=[0.5]", "--set", "data.normalise.std=[0.5]")
    assert fullrank("partition", file, *numbers, capsys=capsys)[0] == 0


# Saved partitions


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partition")
    values = {"model.name": "mlp", "model.width": 4, "train.rounds": 1, "data.clients": 3, "data.holdout": 0.2}
    return load_file(fr.run(values, folder / "run").path / "partition.safetensors")


def negative(saved):
    sizes = saved["train_sizes"]
    sizes += torch.tensor([200, -int(sizes[1]) - 200, int(sizes[1])])


def twice_over(saved):
    saved["train"][-1] = saved["train"][0]


def outside(saved):
    saved["train"][0] = 10**6


def below(saved):
    saved["holdout"][0] = -1


def fewer_holdouts(saved):
    sizes = saved["holdout_sizes"]
    saved["holdout_sizes"] = torch.tensor([int(sizes[0]), int(sizes[1:].sum())])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (negative, "its sizes do not add up"),
        (twice_over, "belong to several clients"),
        (outside, "are outside the 1437 samples"),
        (below, "are outside the 1437 samples"),
        (fewer_holdouts, "hold-outs of 2"),
    ],
)
def test_saved_partitions_that_are_none_are_rejected(change, words, partition, tmp_path, capsys):
    saved = {name: tensor.clone() for name, tensor in partition.items()}
    change(saved)
    save_file(saved, tmp_path / "mine.safetensors")
    data = ("--set", "data.clients=3", "--set", f"data.partition={tmp_path / 'mine.safetensors'}")
    status, _, err = fullrank("partition", *data, capsys=capsys)
    assert status == 2
    assert words in err


def test_a_partition_that_deals_samples_out_twice_can_be_used_again(tmp_path, capsys):
    values = {"model.name": "mlp", "model.width": 4, "train.rounds": 1, "data.partition": "class-disjoint"}
    file = fr.run({**values, "data.passes": 2, "data.classes": 5}, tmp_path / "run").path / "partition.safetensors"
    again = ("--set", f"data.partition={file}")
    assert fullrank("partition", *again, capsys=capsys)[0] == 2
    assert fullrank("partition", *again, "--set", "data.passes=2", capsys=capsys)[0] == 0


# A forward without a gradient


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x).detach()


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_forward_that_is_detached_is_rejected(engine):
    with pytest.raises(ClientFailed, match="the loss does not depend on any entry that trains"):
        fr.fit(Detached(), blobs((8, 8, 8, 8, 8), dtype=torch.float32), "fedavg", rounds=1, engine=engine)


# Precision


@pytest.mark.parametrize("name", sorted(models.available()))
def test_every_network_starts_from_the_same_numbers_in_double_precision(name):
    if name == "wrn-28-10":
        pytest.skip("its 36 million weights take long, and its layers are those of the ResNets")
    values = {"model.name": name, "data.size": {"lenet": 16, "alexnet-bn": 64}.get(name, 0)}
    starts = [
        assemble(Experiment.of({**values, "engine.precision": kind})).server.model for kind in ("float32", "float64")
    ]
    assert starts[0].keys() == starts[1].keys()
    for key, value in starts[0].items():
        assert torch.equal(value.to(starts[1][key].dtype), starts[1][key]), key


def test_a_head_that_follows_a_method_starts_from_the_same_numbers_too():
    values = {"model.name": "mlp", "method.name": "moon", "method.moon.head": "moon"}
    starts = []
    for kind in ("float32", "float64"):
        starts.append(assemble(Experiment.of({**values, "engine.precision": kind})).server.model)
    for key, value in starts[0].items():
        assert torch.equal(value.double(), starts[1][key]), key
