"""Bits that change in the decoded cache of a data set, or in its sources, are never trained on."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fullrank as fr
from fullrank.data import DataSet, load_dataset
from fullrank.data.sources import cache, cifar
from small import assert_same_bits

RECORD = 1 + 3 * 32 * 32


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """CIFAR-10 of 60 pictures, with a cache of its own that even small data go into."""
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LIMIT", 1)
    below = tmp_path / "data" / "cifar-10-batches-bin"
    below.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (10, RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        (below / name).write_bytes(records.tobytes())
    return tmp_path / "data"


def flip(file, key, number):
    """Flip bits of one tensor in a safetensors file, spread over it."""
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    start, end = json.loads(raw[8 : 8 + length])[key]["data_offsets"]
    for place in np.linspace(start, end - 1, number).astype(int):
        raw[8 + length + place] ^= 1
    file.write_bytes(raw)


def experiment(folder, rounds):
    return {
        "data": {"name": "cifar10", "root": str(folder), "clients": 2, "partition": "iid"},
        "model": {"name": "mlp", "width": 4},
        "train.rounds": rounds,
    }


@pytest.mark.parametrize(("key", "number"), [("train.x", 2000), ("train.x", 1), ("train.y", 1), ("test.x", 1)])
def test_flipped_bits_in_the_cache_change_no_run(key, number, folder, tmp_path):
    whole = fr.run(experiment(folder, 2), tmp_path / "whole")
    fr.run(experiment(folder, 1), tmp_path / "resumed")
    [file] = (tmp_path / "cache").glob("*.safetensors")
    good = {name: tensor.clone() for name, tensor in load_file(file).items()}
    flip(file, key, number)
    resumed = fr.run(experiment(folder, 2), tmp_path / "resumed")
    bytes_of = [(run.path / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert bytes_of[0] == bytes_of[1]
    assert [row["accuracy"] for row in resumed.metrics] == [row["accuracy"] for row in whole.metrics]
    assert_same_bits(load_file(file), good)


def test_the_fingerprint_is_that_of_the_content(folder, tmp_path):
    first = load_dataset("cifar10", folder)
    [file] = (tmp_path / "cache").glob("*.safetensors")
    flip(file, "train.y", 1)
    again = load_dataset("cifar10", folder)
    assert again.fingerprint() == first.fingerprint()
    assert again.train.y.tolist() == first.train.y.tolist()
    with safe_open(file, framework="pt") as found:
        assert found.metadata()["fingerprint"] == first.fingerprint()


@pytest.mark.skipif(os.name == "nt", reason="this system does not note when a file was last changed")
def test_a_source_that_changed_with_its_size_and_time_kept_is_noticed(folder):
    before = load_dataset("cifar10", folder)
    path = folder / "cifar-10-batches-bin" / "data_batch_1.bin"
    times = path.stat()
    raw = bytearray(path.read_bytes())
    raw[1] ^= 255
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load_dataset("cifar10", folder).fingerprint() != before.fingerprint()


def test_a_whole_cache_is_used_as_it_is(folder, monkeypatch):
    before = load_dataset("cifar10", folder)
    monkeypatch.setattr(cifar.Cifar, "read", None)
    assert load_dataset("cifar10", folder).fingerprint() == before.fingerprint()


def test_a_cache_that_was_verified_is_not_read_again_until_it_changes(folder, monkeypatch):
    first = load_dataset("cifar10", folder)
    computed = []
    whole = DataSet._fingerprint.func
    monkeypatch.setattr(DataSet._fingerprint, "func", lambda data: computed.append(1) or whole(data))
    again = load_dataset("cifar10", folder)
    assert again.fingerprint() == first.fingerprint()
    assert not computed
    os.utime(first.file)  # a new time of the last change, with the same content
    assert load_dataset("cifar10", folder).fingerprint() == first.fingerprint()
    assert len(computed) == 1


@pytest.mark.skipif(os.name == "nt", reason="this system does not note when a file was last changed")
def test_a_changed_cache_with_its_size_and_time_kept_is_noticed(folder):
    first = load_dataset("cifar10", folder)
    before = first.train.x.clone()
    facts = first.file.stat()
    flip(first.file, "train.x", 1)
    os.utime(first.file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert torch.equal(load_dataset("cifar10", folder).train.x, before)
