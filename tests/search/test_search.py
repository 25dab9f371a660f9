"""The search for scales: what it learns from, by which settings, that it resumes, and that its file is used."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fullrank
from commands import fullrank as command
from fullrank.data import DataSet, Split, load_dataset
from fullrank.errors import CallbackFailed, InputError
from fullrank.models.reparam.repvgg import repvgg
from fullrank.search.scales import for_search, search_scales, searched

NAME = "fullrank.models.reparam.repvgg:repvgg"
SMALL_CLIENTS = {"data": {"name": "digits", "clients": 4}, "model": {"widths": [4, 4, 8], "blocks": [2, 1]}}
SMALL = {"data": {"name": "digits"}, "model": {"widths": [4, 4, 8], "blocks": [2, 1]}, "train": {"rounds": 3}}


def images(shape, classes=4, n=12, seed=0):
    noise = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, *shape), generator=noise, dtype=torch.uint8)
    y = torch.arange(n) % classes
    count = shape[0]
    names = tuple("abcdefgh"[:classes])
    return DataSet("given", Split(x, y), Split(x[:4], y[:4]), names, mean=(0.3,) * count, std=(0.2,) * count)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("repvgg-b1", {"rounds": 240, "batch_size": 128, "lr": 0.05, "weight_decay": 4e-5}),
        ("repghost-0.5", {"rounds": 600, "batch_size": 512, "lr": 1.2, "weight_decay": 1e-5}),
    ],
)
def test_the_settings_are_the_authors(model, wanted):
    train = searched(model, {}).train
    common = {"warmup": 10, "momentum": 0.9, "nesterov": False, "label_smoothing": 0.1, "clip_norm": 5.0}
    common |= {"lr_schedule": "cosine", "lr_schedule_by": "step", "optimizer_state": "keep", "last_batch": "drop"}
    for key, value in {**wanted, **common}.items():
        assert getattr(train, key) == value, key


def test_scales_do_not_decay_but_that_of_the_identity_does():
    """By the rule that decays what has two dimensions or more."""
    net = repvgg(4, widths=(4, 4), blocks=(2,), mode="hs")
    shapes = {name: parameter.dim() for name, parameter in net.named_parameters() if "tail" in name}
    assert {dim for name, dim in shapes.items() if "identity" in name} == {4}
    assert {dim for name, dim in shapes.items() if "identity" not in name} == {1}
    assert searched("repvgg-a0", {}).train.decay_on == "matrices"


def test_grey_images_are_repeated_and_enlarged():
    before = images((1, 28, 28))
    data = for_search(before)
    assert data.input_shape == (3, 32, 32)
    assert data.mean == (0.3,) * 3
    assert data.std == (0.2,) * 3
    assert torch.equal(data.train.x[:, 0], data.train.x[:, 2])
    assert data.test.x.shape[1:] == (3, 32, 32)


def test_larger_images_are_resized_and_cut_in_the_middle():
    x = torch.zeros(3, 3, 64, 128, dtype=torch.uint8)
    x[:, :, :, 48:80] = 200  # the middle quarter; 32 of 64 columns after resizing keep it in their middle
    data = DataSet("wide", Split(x, torch.arange(3)), None, ("a", "b", "c"))
    found = for_search(data).train.x
    assert found.shape == (3, 3, 32, 32)
    assert (found[..., 9:23] == 200).all()
    assert (found[..., :7] == 0).all()
    assert torch.equal(found, found.flip(3))


def test_images_of_the_right_size_stay_as_they_are():
    before = images((3, 32, 32))
    assert torch.equal(for_search(before).train.x, before.train.x)


def test_what_is_learned_is_what_was_asked_for(tmp_path):
    run = search_scales(NAME, tmp_path / "a", values=SMALL, per_class=20)
    facts = json.loads((tmp_path / "a.json").read_text())
    assert facts["data"]["samples"] == 200
    assert facts["data"]["subset"] == "20 samples of each class"
    assert run.run.metrics[-1]["clients"][0]["steps"] == 1  # 200 samples, batches of 128, the rest dropped
    part = run.run._assembled().federation.parts[0]
    labels = load_dataset("digits").train.y[torch.from_numpy(part)]
    assert torch.bincount(labels).tolist() == [20] * 10


def test_one_clients_part(tmp_path):
    dirichlet = {"partition": "dirichlet", "variant": "plain", "alpha": 0.1, "clients": 3, "name": "digits"}
    values = {**SMALL, "data": dirichlet, "train": {"rounds": 1, "batch_size": 16}}
    found = search_scales(NAME, tmp_path / "a", values=values, client=1)
    labels = load_dataset("digits").train.y.numpy()
    part = fullrank.data.partition.dirichlet(labels, 3, 0.1, seed=0, variant="plain")[1]
    np.testing.assert_array_equal(np.sort(found.run._assembled().federation.parts[0]), np.sort(part))
    facts = json.loads((tmp_path / "a.json").read_text())
    assert facts["data"]["subset"] == "client 1 of 3, dirichlet α=0.1 (plain)"
    assert facts["data"]["classes"] == len(np.unique(labels[part]))


@pytest.mark.parametrize("size", [0, 16])
def test_one_clients_part_of_a_partition_that_a_run_saved(size, tmp_path):
    """Of the images as that run saw them: neither grey ones nor those of another size are others here."""
    keys = {"data.clients": 3, "data.alpha": 1.0, "data.size": size, "model.name": "mlp", "train.rounds": 1}
    run = fullrank.run(keys, tmp_path / "run")
    saved = {"name": "digits", "partition": str(run.path / "partition.safetensors"), "clients": 3, "size": size}
    values = {**SMALL, "data": saved, "train": {"rounds": 1, "batch_size": 16}}
    found = search_scales(NAME, tmp_path / "a", values=values, client=2)
    mine = found.run._assembled().federation
    np.testing.assert_array_equal(mine.parts[0], run._assembled().federation.parts[2])
    assert mine.data.input_shape == (3, 32, 32)
    facts = json.loads((tmp_path / "a.json").read_text())
    assert facts["data"]["fingerprint"] == load_dataset("digits", size=size).fingerprint()
    assert facts["data"]["samples_hash"] == mine.hash
    assert facts["data"]["subset"] == f"client 2 of 3, {saved['partition']}"


def test_a_partition_of_other_data_is_rejected(tmp_path):
    run = fullrank.run({"data.clients": 3, "model.name": "mlp", "train.rounds": 1}, tmp_path / "run")
    saved = {"name": "digits", "partition": str(run.path / "partition.safetensors"), "clients": 3, "size": 16}
    with pytest.raises(InputError, match="divides other data"):
        search_scales(NAME, tmp_path / "a", values={**SMALL, "data": saved}, client=0)


def test_everything_that_was_chosen_is_in_the_facts(tmp_path):
    data = {"name": "digits", "partition": "pathological", "classes": 3, "clients": 4, "seed": 5, "augment": ["flip"]}
    values = {"data": data, "model": SMALL["model"], "train": {"rounds": 1, "batch_size": 16}}
    search_scales(NAME, tmp_path / "a", values=values, client=1)
    facts = json.loads((tmp_path / "a.json").read_text())
    assert {key: facts["data"]["keys"][key] for key in data if key != "name"} == {
        k: data[k] for k in data if k != "name"
    }
    assert facts["options"] == {"mode": "hs", **SMALL["model"]}
    values = {**SMALL, "data": {"name": "digits", "validation": 0.25}, "train": {"rounds": 1}}
    search_scales(NAME, tmp_path / "b", values=values)
    facts = json.loads((tmp_path / "b.json").read_text())
    assert facts["data"]["subset"] == "1077 of 1437: what clients have to train with"  # less ⌈0.25 · 1437⌉


@pytest.mark.parametrize("key", ["epochs", "steps", "participation"])
def test_a_round_is_an_epoch_of_all(key):
    with pytest.raises(
        InputError, match=f"train.{key}: a round of a search is an epoch of all its samples; leave it out"
    ):
        searched("repvgg-a0", {"train": {key: 2}})


def test_a_warm_up_is_as_long_as_is_said():
    assert searched("repvgg-a0", {"train": {"rounds": 4}}).train.warmup == 2  # theirs is longer than that
    assert searched("repvgg-a0", {"train": {"rounds": 4, "warmup": 3}}).train.warmup == 3


class Stops(fullrank.Callback):
    """Fails after a round."""

    def round_done(self, row):
        if row["round"] == 2:
            raise ConnectionError("the power is out")


def test_a_search_that_stopped_ends_like_one_that_did_not(tmp_path):
    search_scales(NAME, tmp_path / "whole", values=SMALL)
    with pytest.raises(CallbackFailed, match="its round_done raised ConnectionError: the power is out"):
        search_scales(NAME, tmp_path / "parts", values=SMALL, callbacks=[Stops()])
    assert not (tmp_path / "parts.safetensors").exists()
    search_scales(NAME, tmp_path / "parts", values=SMALL)
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "parts.safetensors").read_bytes()
    facts = json.loads((tmp_path / "parts.json").read_text())
    assert facts["sha256"] == hashlib.sha256((tmp_path / "parts.safetensors").read_bytes()).hexdigest()
    assert facts["epochs"] == 3
    assert facts["data"]["fingerprint"]


def test_the_file_is_what_the_network_learned_and_what_an_experiment_takes(tmp_path):
    found = search_scales(NAME, tmp_path / "a", values=SMALL)
    scales = load_file(found.scales)
    learned = found.run.model().state_dict()
    assert torch.equal(scales["backbone.layer1.1.alpha3"], learned["backbone.layer1.1.kernel.tail.weight"])
    start = repvgg(10, widths=(4, 4, 8), blocks=(2, 1), mode="hs").state_dict()
    moved = [not torch.equal(learned[name], start[name]) for name in learned if name.endswith("kernel.tail.weight")]
    assert moved
    assert all(moved)
    values = {"data.clients": 2, "data.size": 32, "train.rounds": 1, "train.steps": 2, "method.name": "fedrepopt"}
    model = {"name": NAME, "widths": [4, 4, 8], "blocks": [2, 1], "mode": "repopt", "scales": str(found.scales)}
    run = fullrank.run({**values, "model": model}, tmp_path / "run")
    frozen = run.model().state_dict()
    taken = [name for name in frozen if name.endswith(".kernel") and "scales" in name]
    assert any(torch.equal(frozen[name], scales["backbone.layer1.1.alpha3"]) for name in taken)


@pytest.mark.parametrize(
    ("model", "values", "more", "said"),
    [
        ("resnet18", {}, {}, '"resnet18" has no scales'),
        (NAME, {**SMALL, "method": {"name": "fedprox"}}, {}, "leave out model.mode and method.name"),
        (NAME, {**SMALL, "model": {**SMALL["model"], "mode": "tr"}}, {}, "leave out model.mode and method.name"),
        (NAME, SMALL, {"client": 1}, "there is no client 1, because the data are not divided.*--set data.partition="),
        (NAME, SMALL_CLIENTS, {"client": 4}, "there is no client 4; clients are 0 to 3"),
        (NAME, SMALL, {"client": 0, "per_class": 3}, "not both"),
        (NAME, SMALL, {"per_class": -1}, "must be at least 1"),
        (NAME, {**SMALL, "data": {"name": "digits", "size": 16}}, {}, "data.size"),
        (NAME, {**SMALL, "data": {"name": "digits", "holdout": 0.5}}, {}, "data.holdout"),
        (NAME, {**SMALL, "data": {"name": "digits", "clients": 4, "unseen": 0.5}}, {}, "data.unseen"),
        (NAME, {**SMALL, "train": {"rounds": -1}}, {}, "^train.rounds = -1: must be at least 1$"),
        (NAME, SMALL, {"per_class": 1000}, "1000 samples of each class are wanted, but class 0 has"),
    ],
)
def test_what_cannot_be_searched_is_rejected(model, values, more, said, tmp_path):
    with pytest.raises(InputError, match=said):
        search_scales(model, tmp_path / "a", values=values, **more)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "samples", "advice"),
    [
        ({"per_class": 12}, 120, "more --per-class"),
        ({"client": 2}, 23, "another --client"),
        ({}, 1437, "more data"),
    ],
)
def test_samples_that_fill_no_batch_are_rejected_before_anything_is_written(more, samples, advice, tmp_path):
    batch = 1438 if not more else 128
    clients = 63 if "client" in more else 1
    values = {**SMALL, "data": {"name": "digits", "clients": clients}, "train": {"rounds": 1, "batch_size": batch}}
    with pytest.raises(InputError) as caught:
        search_scales(NAME, tmp_path / "below" / "a", values=values, **more)
    assert str(caught.value) == (
        f'one batch of {batch} is not filled by {samples} samples (train.last_batch = "drop"): take {advice}, or '
        "smaller batches with --set train.batch_size=N"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_is_kept_need_not_be_full(tmp_path):
    values = {**SMALL, "train": {"rounds": 1, "last_batch": "keep"}}
    assert search_scales(NAME, tmp_path / "a", values=values, per_class=1).run.complete
    assert json.loads((tmp_path / "a.json").read_text())["data"]["subset"] == "1 sample of each class"


def test_other_samples_than_those_of_a_search_that_was_begun_are_rejected(tmp_path):
    values = {**SMALL_CLIENTS, "train": {"rounds": 1, "batch_size": 16}}
    search_scales(NAME, tmp_path / "a", values=values, client=1)
    before = (tmp_path / "a.safetensors").read_bytes()
    for more in ({"client": 2}, {"per_class": 5}, {}):
        with pytest.raises(InputError, match="choose another --out, or delete it") as caught:
            search_scales(NAME, tmp_path / "a", values=values, **more)
        assert str(caught.value).startswith(f'the search in "{tmp_path / "a.run"}" was started with other samples')
    with pytest.raises(InputError, match="seed was 0, is now 1"):
        search_scales(NAME, tmp_path / "a", values={**values, "seed": 1}, client=1)
    assert (tmp_path / "a.safetensors").read_bytes() == before


def test_data_that_are_no_images_are_rejected():
    data = DataSet("table", Split(torch.randn(4, 3), torch.arange(4)), None, ("a", "b", "c", "d"))
    with pytest.raises(InputError, match="a search needs 8-bit grey or colour images"):
        for_search(data)


def test_the_command(tmp_path, capsys):
    values = ["model.widths=[4,4,8]", "model.blocks=[2,1]"]
    sets = [piece for value in values for piece in ("--set", value)]
    arguments = ["search-scales", NAME, "--data", "digits", "--epochs", 1, *sets, "--out", tmp_path / "a"]
    status, out, err = command(*arguments, capsys=capsys)
    assert status == 0, err
    assert "1 client (iid), 1 per round, 1 round of 1 epoch" in out
    *_, use = out.splitlines()
    sets += use.removeprefix("to use them: ").split()
    quick = ["--set", "data.clients=1", "--set", "train.rounds=1", "--set", "train.steps=1"]
    status, said, err = command("run", *quick, *sets, "--out", tmp_path / "run", capsys=capsys)
    assert (status, err) == (0, "")
    assert said.startswith("fedrepopt on digits: 1 client (dirichlet α=0.1), 1 per round, 1 round of 1 step, ")
    assert "made for the method" not in said
    _, said, _ = command("run", *quick, *sets, "--out", tmp_path / "run", capsys=capsys)
    assert f"complete already in {tmp_path / 'run'}: its only round is complete\n" in said
    assert (tmp_path / "a.safetensors").is_file()
    arguments[-1] = tmp_path / "named.safetensors"
    status, out, err = command(*arguments, capsys=capsys)
    assert (tmp_path / "named.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()
    status, _, err = command("search-scales", "resnet18", "--out", tmp_path / "b", capsys=capsys)
    assert status != 0
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epochs", -1, "--per-class", 1], "--epochs -1: must be at least 1"),
        (["--epochs", 0, "--per-class", 1], "--epochs 0: must be at least 1"),
        (["--epochs", 1, "--out", "file/x"], 'the run directory "file/x.run" cannot be written: Not a directory'),
        (["--epochs", 1, "--out", "."], '--out "." has no file name; give one, as in --out scales/a0'),
        (["--out", ".safetensors"], '--out ".safetensors" has no file name; give one, as in --out scales/a0'),
        (["--set", "train=3"], "train = 3: must be a table, as in [train]"),
    ],
)
def test_the_command_speaks_of_what_was_typed(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    status, out, err = command("search-scales", "repghost-0.5", "--data", "digits", *arguments, capsys=capsys)
    assert (status, out, err) == (2, "", f"fullrank: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
