"""EMNIST in IDX files and FEMNIST in LEAF's JSON files."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
import threading
import zipfile
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from commands import fullrank
from fullrank.data import load_dataset
from fullrank.data.sources import registry
from fullrank.data.sources.idx import EMNIST
from fullrank.data.sources.stored import Download
from fullrank.errors import InputError


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)


def rejected(name, root, *words):
    with pytest.raises(InputError) as caught:
        load_dataset(name, root)
    sentence = str(caught.value)
    assert [word for word in words if str(word) not in sentence] == [], sentence
    assert "\n" not in sentence


# EMNIST


def write_emnist(folder, division, labels, zipped=True):
    """Write the four files of a division; images have a bright top row, stored as the first column."""
    folder.mkdir(parents=True, exist_ok=True)
    upright = np.zeros((len(labels), 28, 28), np.uint8)
    upright[:, 0, :] = np.arange(200, 228)
    stored = upright.transpose(0, 2, 1)
    for part in ("train", "test"):
        images = struct.pack(">4I", 2051, len(labels), 28, 28) + stored.tobytes()
        numbers = struct.pack(">2I", 2049, len(labels)) + bytes(labels)
        for kind, content in (("images-idx3", images), ("labels-idx1", numbers)):
            name = f"emnist-{division}-{part}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


@pytest.mark.parametrize(("where", "zipped"), [("gzip", True), ("EMNIST/raw", False), (".", True)])
def test_images_are_upright(tmp_path, where, zipped):
    write_emnist(tmp_path / where, "balanced", [0, 46, 10], zipped)
    data = load_dataset("emnist", tmp_path)
    assert data.train.x.shape == (3, 1, 28, 28)
    assert data.train.x[1, 0, 0].tolist() == list(range(200, 228))
    assert data.train.x[1, 0, 1:].sum() == 0
    assert data.train.y.tolist() == [0, 46, 10]
    assert [data.classes[label] for label in data.train.y] == ["0", "t", "A"]


@pytest.mark.parametrize(
    ("name", "division", "labels", "classes", "read", "named"),
    [
        ("emnist", "balanced", [36, 37], 47, [36, 37], ["a", "b"]),
        ("emnist-byclass", "byclass", [0, 61], 62, [0, 61], ["0", "z"]),
        ("emnist-letters", "letters", [1, 26], 26, [0, 25], ["a", "z"]),
    ],
)
def test_labels_of_each_division(tmp_path, name, division, labels, classes, read, named):
    write_emnist(tmp_path, division, labels)
    data = load_dataset(name, tmp_path)
    assert (data.num_classes, data.train.y.tolist()) == (classes, read)
    assert [data.classes[label] for label in read] == named


def test_labels_out_of_range_are_rejected(tmp_path):
    write_emnist(tmp_path, "letters", [1, 0])
    rejected("emnist-letters", tmp_path, "record 1 has the label 0", "1..26")
    write_emnist(tmp_path, "balanced", [1, 47])
    rejected("emnist", tmp_path, "record 1 has the label 47", "0..46")


def test_files_without_a_known_checksum_are_not_called_official(tmp_path, capsys, monkeypatch):
    official = tuple(replace(file, records=2) for file in EMNIST.official)
    monkeypatch.setitem(registry.DATA_SETS.own, "emnist", replace(EMNIST, official=official))
    write_emnist(tmp_path, "balanced", [3, 4])
    status, out, _ = fullrank("data", "check", "emnist", "--root", tmp_path, "--json", capsys=capsys)
    facts = json.loads(out)
    assert (status, facts["official"]) == (0, False)
    assert {file["state"] for file in facts["files"]} == {"of the official size"}


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{running.server_port}/"
    running.shutdown()
    running.server_close()


def offer(server, monkeypatch, *extra):
    """Serve a zip archive of the balanced files, and of further entries, as EMNIST's official one."""
    folder, address = server
    write_emnist(folder / "files", "balanced", [3, 4])
    files = sorted((folder / "files").iterdir())
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for file in files:
            archive.write(file, f"gzip/{file.name}")
        for name in extra:
            archive.writestr(name, b"x")
    md5 = hashlib.md5((folder / "gzip.zip").read_bytes()).hexdigest()
    download = Download(f"{address}gzip.zip", md5, members=tuple(f"gzip/{file.name}" for file in files))
    official = tuple(replace(file, records=2) for file in EMNIST.official)
    offered = replace(EMNIST, downloads=((download,),), official=official)
    monkeypatch.setitem(registry.DATA_SETS.own, "emnist", offered)


def test_the_official_archive_is_downloaded_and_unpacked(tmp_path, capsys, server, monkeypatch):
    offer(server, monkeypatch)
    root = tmp_path / "root"
    status, out, _ = fullrank("data", "get", "emnist", "--root", root, capsys=capsys)
    assert (status, "EMNIST (balanced) is in" in out) == (0, True)
    assert load_dataset("emnist", root).train.y.tolist() == [3, 4]
    assert not (root / "gzip.zip").exists()
    status, out, _ = fullrank("data", "get", "emnist", "--root", root, capsys=capsys)
    assert (status, "complete" in out) == (0, True)


def test_an_archive_with_a_path_that_leads_elsewhere_is_not_unpacked(tmp_path, capsys, server, monkeypatch):
    offer(server, monkeypatch, "../outside")
    status, _, err = fullrank("data", "get", "emnist", "--root", tmp_path / "root", capsys=capsys)
    assert (status != 0, 'entry "../outside"' in err) == (True, True)
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "root" / "gzip").exists()


# FEMNIST


def writer(*samples):
    """What LEAF writes of a writer: pixels divided by 255, and labels; a sample is (pixel in the corner, label)."""
    x = [[pixel / 255, *[1.0] * 783] for pixel, _ in samples]
    return {"x": x, "y": [label for _, label in samples]}


def write_leaf(path, **writers):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(writers),
        "num_samples": [len(samples["y"]) for samples in writers.values()],
        "user_data": writers,
    }
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("below", ["", "femnist/data", "femnist"])
def test_leafs_own_split_and_its_writers(tmp_path, below):
    root = tmp_path / below
    write_leaf(root / "train/all_data_0_niid_0_keep_0_train_9.json", f1=writer((0, 5), (77, 61)), f0=writer((128, 10)))
    write_leaf(root / "train/all_data_1_niid_0_keep_0_train_9.json", f2=writer((254, 3)))
    write_leaf(root / "test/all_data_0_niid_0_keep_0_test_9.json", f1=writer((9, 0)), f2=writer((255, 36)))
    data = load_dataset("femnist", tmp_path)
    assert data.clients == ("f0", "f1", "f2")
    assert data.train.client.tolist() == [0, 1, 1, 2]
    assert data.train.x.shape == (4, 1, 28, 28)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x[:, 0, 0, 0].tolist() == [128, 0, 77, 254]
    assert data.train.x[:, 0, 5, 5].tolist() == [255] * 4
    assert data.train.y.tolist() == [10, 5, 61, 3]
    assert [data.classes[label] for label in (10, 5, 61, 3)] == ["A", "5", "z", "3"]
    assert (data.test.client.tolist(), data.test.y.tolist()) == ([1, 2], [0, 36])


def test_without_a_split_a_tenth_of_each_writer_is_for_the_test(tmp_path):
    write_leaf(
        tmp_path / "all_data/all_data_0.json",
        a=writer(*((pixel, 1) for pixel in range(20))),
        b=writer((50, 2), (51, 2)),
        c=writer((60, 3)),
    )
    data = load_dataset("femnist", tmp_path, seed=1)
    assert data.train.client.bincount().tolist() == [18, 1, 1]
    assert data.test.client.bincount().tolist() == [2, 1]
    pixels = torch.cat([data.train.x[:, 0, 0, 0], data.test.x[:, 0, 0, 0]])
    assert sorted(pixels.tolist()) == [*range(20), 50, 51, 60]
    assert load_dataset("femnist", tmp_path, seed=1).fingerprint() == data.fingerprint()
    assert load_dataset("femnist", tmp_path, seed=2).fingerprint() != data.fingerprint()


def test_writers_become_clients(tmp_path, capsys):
    for part in ("train", "test"):
        write_leaf(tmp_path / f"{part}/0.json", a=writer((1, 0), (2, 1)), b=writer((3, 1), (4, 2)))
    sets = ["data.name=femnist", f"data.root={tmp_path}", "data.partition=natural", "train.rounds=1", "model.width=4"]
    words = [word for value in [*sets, "train.epochs=1"] for word in ("--set", value)]
    status, _, err = fullrank("run", *words, "--out", "out", capsys=capsys)
    assert (status, err) == (0, "")
    assert json.loads((tmp_path / "out/partition.json").read_text())["clients"] == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ("not JSON",)),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.1', ("truncated", "not JSON")),
        ("[1, 2]", ('a list "users"',)),
        ('{"users": ["a"]}', ('an object "user_data"',)),
        ('{"users": ["a"], "user_data": {}}', ('the writer "a"', "no x and y")),
        ('{"users": ["a"], "user_data": {"a": {"x": []}}}', ('the writer "a"', "no x and y")),
        ({"x": [[0.5] * 783], "y": [1]}, ("784 numbers",)),
        ({"x": [["a"] * 784], "y": [1]}, ("784 numbers",)),
        ({"x": [[0.5] * 784], "y": [1, 2]}, ("as many labels",)),
        ({"x": [[0.5] * 784], "y": ["3"]}, ("as many labels",)),
        ({"x": [[0.5] * 784], "y": 3}, ("as many labels",)),
        ({"x": [[255] * 784], "y": [1]}, ("outside 0..1",)),
        ({"x": [[float("nan")] * 784], "y": [1]}, ("outside 0..1",)),
        ({"x": [[0.5] * 784], "y": [62]}, ("the label 62", "0..61")),
        ({"x": [[0.5] * 784], "y": [-1]}, ("the label -1", "0..61")),
        ({"x": [], "y": []}, ("no training samples",)),
        ("[" * 100_000, ("not JSON",)),
    ],
)
def test_other_json_is_rejected(tmp_path, content, words):
    write_leaf(tmp_path / "test/0.json", a=writer((1, 1)))
    path = tmp_path / "train/0.json"
    path.parent.mkdir()
    if isinstance(content, dict):
        content = json.dumps({"users": ["a"], "user_data": {"a": content}})
    path.write_text(content)
    rejected("femnist", tmp_path, tmp_path, *words)


def test_a_writer_is_in_one_file_once(tmp_path):
    write_leaf(tmp_path / "all_data/0.json", a=writer((1, 1)))
    write_leaf(tmp_path / "all_data/1.json", a=writer((1, 1)))
    rejected("femnist", tmp_path, "1.json", '"a"', "an earlier file")
    (tmp_path / "all_data/1.json").unlink()
    content = {"users": ["a", "a"], "user_data": {"a": writer((1, 1))}}
    (tmp_path / "all_data/0.json").write_text(json.dumps(content))
    rejected("femnist", tmp_path, '"a" twice')


def test_absent_files_of_leaf_are_named(tmp_path):
    rejected("femnist", tmp_path, "train/*.json", "all_data/*.json", "LEAF")
    write_leaf(tmp_path / "train/0.json", a=writer((1, 1)))
    rejected("femnist", tmp_path, "in train only")
