"""Tiny-ImageNet, from small files in its official format."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fullrank as fr
from commands import fullrank
from folders import picture, write
from fullrank.config.experiment import read_toml
from fullrank.data import Pipeline, load_dataset
from fullrank.errors import InputError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WNIDS = {"n02124075": "Egyptian cat", "n01443537": "goldfish, Carassius auratus", "n02012849": "crane"}
TWIN = {"n03126707": "crane"}


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))


def official(root, words, train, test):
    """Write a folder in the official format, with so many images of a class; odd ones of the first are grey."""
    below = root / "tiny-imagenet-200"
    below.mkdir(parents=True)
    (below / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in words))
    all_words = {**words, "n00001740": "entity"}
    (below / "words.txt").write_text("".join(f"{wnid}\t{name}\n" for wnid, name in all_words.items()))
    lines = []
    for number, wnid in enumerate(words):
        for k in range(train):
            image = picture((40 * number, k % 250, 90), 64, 64, spread=k + 1)
            write(below / f"train/{wnid}/images/{wnid}_{k}.JPEG", image.convert("L") if k % 2 and not number else image)
        boxes = "".join(f"{wnid}_{k}.JPEG\t0\t0\t62\t63\n" for k in range(train))
        (below / f"train/{wnid}/{wnid}_boxes.txt").write_text(boxes)
        for k in range(test):
            name = f"val_{k * len(words) + number}.JPEG"
            write(below / "val/images" / name, picture((40 * number, 250, k), 64, 64))
            lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
    (below / "val/val_annotations.txt").write_text("".join(reversed(lines)))
    write(below / "test/images/test_0.JPEG", picture(0, 64, 64))
    return below


def test_the_official_folder_is_read(tmp_path):
    below = official(tmp_path, {**WNIDS, **TWIN}, 3, 2)
    for root in (tmp_path, below):
        data = load_dataset("tiny-imagenet", root)
        assert data.classes == ("goldfish", "crane (n02012849)", "Egyptian cat", "crane (n03126707)")
        assert data.train.x.shape == (12, 3, 64, 64)
        assert data.train.y.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
        # val_0 to val_7 by name; number k is of the class k % 4 in the order of wnids.txt
        assert data.test.y.tolist() == [2, 0, 1, 3] * 2
        assert (data.name, data.augment) == ("tiny-imagenet", ("autoaugment:bins",))
        assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)
    with Image.open(below / "train/n01443537/images/n01443537_2.JPEG") as image:
        np.testing.assert_array_equal(data.train.x[2].permute(1, 2, 0).numpy(), np.asarray(image))
    [grey] = data.train.x[data.train.y == 2][1:2]
    with Image.open(below / "train/n02124075/images/n02124075_1.JPEG") as image:
        assert image.mode == "L"
        np.testing.assert_array_equal(grey.numpy(), np.stack([np.asarray(image)] * 3))


def test_images_that_are_all_grey_have_three_channels_for_the_usual_statistics(tmp_path):
    below = official(tmp_path, dict([*WNIDS.items()][:1]), 2, 1)
    for path in below.rglob("*.JPEG"):
        write(path, Image.new("L", (64, 64), 9))
    data = load_dataset("tiny-imagenet", tmp_path)
    assert data.in_channels == 3
    assert Pipeline.build(data, augment="none")(data.test.x).max() == pytest.approx(2 * 9 / 255 - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda at: (at / "words.txt").unlink(), ["lacks words.txt of Tiny-ImageNet", "cs231n.stanford.edu"]),
        (lambda at: (at / "val/images/val_1.JPEG").unlink(), ["1 of 15 image files", "val_1.JPEG (there is no such"]),
        (lambda at: (at / "val/val_annotations.txt").write_text("val_0.JPEG\n"), ["line 1", '"val_0.JPEG" must have']),
        (
            lambda at: (at / "val/val_annotations.txt").write_text("val_0.JPEG\tn99999999\t0\t0\t1\t1\n"),
            ["val_annotations.txt, line 1", "a class of wnids.txt"],
        ),
        (
            lambda at: (at / "val/val_annotations.txt").write_text("../../../../etc/passwd\tn01443537\t0\n"),
            ["leads out of the data set's folder"],
        ),
        (
            lambda at: (at / "wnids.txt").write_text("n01443537\nn02124075\nn02012849\nn00000001\n"),
            ["there is no folder", "train/n00000001/images"],
        ),
        (lambda at: (at / "words.txt").write_bytes(b"\xff\xfe\xff"), ["words.txt cannot be read"]),
    ],
)
def test_what_is_wrong_with_the_files_is_told(change, words, tmp_path):
    below = official(tmp_path, WNIDS, 3, 2)
    change(below)
    with pytest.raises(InputError) as error:
        load_dataset("tiny-imagenet", tmp_path)
    for word in words:
        assert word in str(error.value)


def test_a_missing_data_set_is_searched_and_told_where_to_get(tmp_path):
    with pytest.raises(InputError) as error:
        load_dataset("tiny-imagenet", tmp_path)
    assert "http://cs231n.stanford.edu/tiny-imagenet-200.zip" in str(error.value)


def test_data_check_counts_its_images(tmp_path, capsys):
    official(tmp_path, WNIDS, 3, 2)
    status, out, err = fullrank("data", "check", "tiny-imagenet", "--root", tmp_path, capsys=capsys)
    assert status == 0, err
    assert "training samples  9\ntest samples      6\n" in out
    assert "goldfish      3 + 2" in out
    _, out, _ = fullrank("data", "check", "tiny-imagenet", "--root", tmp_path, "--json", capsys=capsys)
    assert json.loads(out)["official"] is None  # there is nothing to compare image files with
    status, out, err = fullrank("data", "get", "tiny-imagenet", "--root", tmp_path, capsys=capsys)
    assert status == 2
    assert '"tiny-imagenet" cannot be downloaded by fullrank' in err


def two_rounds(name, root, **changes):
    values = read_toml(str(EXPERIMENTS / f"{name}.toml"))
    tables = {"data": {"root": str(root)}, "train": {"rounds": 2, "batch_size": 4}, **changes}
    for table, keys in tables.items():
        values[table] = {**values[table], **keys}
    return fr.run(values, root / "run")


def has_trained(run):
    assert [row["round"] for row in run.metrics] == [1, 2]
    assert all(np.isfinite(row["loss"]) for row in run.metrics)
    assert all(torch.isfinite(entry).all() for entry in run.model().state_dict().values())
    assert run._data_facts()["input_shape"] == [3, 64, 64]


@pytest.mark.parametrize("name", ["fedrepopt-cross-silo", "fedrepopt-cross-device"])
def test_both_experiments_on_it_run(name, tmp_path):
    official(tmp_path, WNIDS, 24, 2)
    clients = {"clients": 2} if name.endswith("silo") else {"clients": 4}
    share = {"rounds": 2, "batch_size": 4, "epochs": 1, "participation": 1.0 if name.endswith("silo") else 0.5}
    has_trained(
        two_rounds(
            name,
            tmp_path,
            data={"root": str(tmp_path), **clients, "alpha": 10.0},
            train=share,
            model={"name": "repghost-0.5"},
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clients"), [("fedrepopt-cross-silo", 2), ("fedrepopt-cross-device", 20)])
def test_both_experiments_on_it_run_with_their_own_network(name, clients, tmp_path):
    official(tmp_path, WNIDS, 60, 2)
    data = {"root": str(tmp_path), "clients": clients, "alpha": 10.0}
    has_trained(two_rounds(name, tmp_path, data=data, train={"rounds": 2, "batch_size": 4, "epochs": 1}))
