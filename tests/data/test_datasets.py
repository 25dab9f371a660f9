"""Data sets in official formats: found, decoded, cached, fetched; and everything about them that is rejected."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import fullrank
from fullrank.data import load_dataset
from fullrank.data.sources import cache, cifar, download
from fullrank.data.sources import registry as known
from fullrank.data.sources.idx import FASHION_MNIST, MNIST
from fullrank.data.sources.places import roots
from fullrank.data.sources.stored import Download
from fullrank.errors import InputError


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    """No data and no cache but those of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    nowhere = replace(FASHION_MNIST, elsewhere=(tmp_path / "debian",))
    monkeypatch.setitem(known.DATA_SETS.own, "fashion-mnist", nowhere)


def rejected(action, *words):
    with pytest.raises(InputError) as caught:
        action()
    sentence = str(caught.value)
    for word in words:
        assert str(word) in sentence, sentence
    assert "\n" not in sentence
    return sentence


# files in the official formats

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_arrays(seed=0, train=7, test=3, side=28):
    draw = np.random.default_rng(seed).integers
    return [
        draw(0, 256, (train, side, side), np.uint8),
        draw(0, 10, train, np.uint8),
        draw(0, 256, (test, side, side), np.uint8),
        draw(0, 10, test, np.uint8),
    ]


def write_idx(folder, arrays, packed=False, dotted=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX, arrays, strict=True):
        name = name.replace("-idx", ".idx") if dotted else name
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(idx(array)) if packed else idx(array))


CIFAR10_FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def cifar_batches(labels, sizes, seed=0):
    """Per file: labels (n, columns) and pixels (n, 3, 32, 32)."""
    draw = np.random.default_rng(seed).integers
    return [(np.stack([draw(0, top, n) for top in labels], 1), draw(0, 256, (n, 3, 32, 32), np.uint8)) for n in sizes]


def cifar10_batches(seed=0):
    return cifar_batches([10], [3, 2, 4, 1, 2, 5], seed)


def cifar100_batches(seed=0):
    return cifar_batches([20, 100], [9, 4], seed)


def write_binary(folder, names, batches):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (labels, pixels) in zip(names, batches, strict=True):
        records = np.concatenate([labels.astype(np.uint8), pixels.reshape(len(pixels), -1)], 1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_pickled(folder, names, batches, dump):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (labels, pixels) in zip(names, batches, strict=True):
        keys = ["labels"] if labels.shape[1] == 1 else ["coarse_labels", "fine_labels"]
        batch = {key: labels[:, column].tolist() for column, key in enumerate(keys)}
        (folder / name).write_bytes(dump({**batch, "data": pixels.reshape(len(pixels), -1)}))


def write_cifar(name, root, form="binary", seed=0, dump=None):
    batches = cifar10_batches(seed) if name == "cifar10" else cifar100_batches(seed)
    names = CIFAR10_FILES if name == "cifar10" else ["train", "test"]
    folders = {"cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py")}
    binary, pickled = folders.get(name, ("cifar-100-binary", "cifar-100-python"))
    if form == "binary":
        write_binary(root / binary, names, batches)
    else:
        write_pickled(root / pickled, names, batches, dump or python2_pickle)
    return batches


def python2_pickle(value):
    """A pickle as cPickle of Python 2 wrote those of the official archives: protocol 2, text as bytes."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value):
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(part) for item in value.items() for part in item) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    raw = value.tobytes()
    shape = b"(" + b"".join(map(_python2, value.shape)) + b"t"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return empty + b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"


def python3_pickle(protocol, keys=str):
    return lambda batch: pickle.dumps({keys(key): value for key, value in batch.items()}, protocol)


def assert_is_cifar(data, batches):
    *train, test = batches
    for split, files in ((data.train, train), (data.test, [test])):
        assert np.array_equal(split.x.numpy(), np.concatenate([pixels for _, pixels in files]))
        assert np.array_equal(split.y.numpy(), np.concatenate([labels[:, -1] for labels, _ in files]))
        assert split.x.dtype == torch.uint8
        assert split.y.dtype == torch.int64


# IDX


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_pixel_by_pixel(name, packed, tmp_path):
    arrays = idx_arrays()
    write_idx(tmp_path / "there" / name, arrays, packed)
    data = load_dataset(name, tmp_path / "there")
    assert np.array_equal(data.train.x.numpy(), arrays[0][:, None])
    assert np.array_equal(data.train.y.numpy(), arrays[1])
    assert np.array_equal(data.test.x.numpy(), arrays[2][:, None])
    assert np.array_equal(data.test.y.numpy(), arrays[3])
    assert data.images
    assert data.name == name
    assert data.augment == ()
    assert data.num_classes == 10


def test_what_is_known_about_them(tmp_path):
    write_idx(tmp_path, idx_arrays())
    fashion, mnist = load_dataset("fashion-mnist", tmp_path), load_dataset("mnist", tmp_path)
    assert (fashion.mean, fashion.std) == ((0.2860,), (0.3530,))
    assert (mnist.mean, mnist.std) == ((0.1307,), (0.3081,))
    assert fashion.classes[0] == "T-shirt/top"
    assert fashion.classes[9] == "Ankle boot"
    assert mnist.classes == tuple("0123456789")
    write_cifar("cifar10", tmp_path)
    write_cifar("cifar100", tmp_path)
    ten, hundred = load_dataset("cifar10", tmp_path), load_dataset("cifar100", tmp_path)
    assert ten.mean == pytest.approx((125.3 / 255, 123.0 / 255, 113.9 / 255))
    assert ten.std == pytest.approx((63.0 / 255, 62.1 / 255, 66.7 / 255))
    assert hundred.mean == (0.50708, 0.48655, 0.44092)
    assert hundred.std == (0.26733, 0.25644, 0.27615)
    assert ten.augment == hundred.augment == ("crop", "flip")
    assert ten.classes[0] == "airplane"
    assert ten.classes[9] == "truck"
    assert len(set(hundred.classes)) == 100
    assert hundred.classes[0] == "apple"
    assert hundred.classes[99] == "worm"


def test_idx_other_spellings(tmp_path):
    arrays = idx_arrays()
    write_idx(tmp_path / "MNIST" / "raw", arrays, packed=True, dotted=True)
    assert np.array_equal(load_dataset("mnist", tmp_path).test.y.numpy(), arrays[3])
    # what is packed is seen by the content: some programs unpack and keep the name
    (tmp_path / "MNIST" / "raw" / "train-images.idx3-ubyte.gz").write_bytes(idx(arrays[0]))
    assert np.array_equal(load_dataset("mnist", tmp_path).train.x.numpy()[:, 0], arrays[0])


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (0, lambda raw: raw[:-1], ["truncated", "7×28×28", "only 5487 follow"]),
        (0, lambda raw: raw + b"\0", ["damaged", "more follow"]),
        (0, lambda raw: b"\0\0\x08\x01" + raw[4:], ["0x00000801", "must begin with 0x00000803"]),
        (1, lambda raw: b"\0\0\x09\x01" + raw[4:], ["0x00000901", "must begin with 0x00000801"]),
        (2, lambda raw: raw[:4] + b"\xff\xff\xff\xff" + raw[8:], ["truncated", "4294967295×28×28"]),
        (2, lambda raw: raw[:10], ["truncated", "header"]),
        (2, lambda raw: b"", ["must begin with"]),
        (3, lambda raw: raw[:4] + bytes(4), ["holds no records"]),
        (3, lambda raw: raw[:9] + b"\x0a" + raw[10:], ["damaged: record 1 has the label 10", "0..9"]),
    ],
)
def test_damaged_idx_is_named(file, change, words, tmp_path):
    write_idx(tmp_path, idx_arrays())
    path = tmp_path / IDX[file]
    path.write_bytes(change(path.read_bytes()))
    rejected(lambda: load_dataset("mnist", tmp_path), path, *words)


@pytest.mark.parametrize("place", [12, 30, 200, -6, -2])
def test_any_byte_of_a_gzipped_file_counts(place, tmp_path):
    write_idx(tmp_path, idx_arrays(), packed=True)
    path = tmp_path / f"{IDX[0]}.gz"
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x10
    path.write_bytes(raw)
    rejected(lambda: load_dataset("mnist", tmp_path), path, "damaged")
    path.write_bytes(gzip.compress(idx(idx_arrays()[0]))[:-300])
    rejected(lambda: load_dataset("mnist", tmp_path), path, "truncated")


def test_idx_files_that_do_not_belong_together(tmp_path):
    arrays = idx_arrays()
    write_idx(tmp_path, [arrays[0], arrays[1][:-1], *arrays[2:]])
    rejected(lambda: load_dataset("mnist", tmp_path), IDX[0], "7 images", IDX[1], "6 labels")
    write_idx(tmp_path, [*arrays[:2], *idx_arrays(side=27)[2:]])
    rejected(lambda: load_dataset("mnist", tmp_path), "28×28", "27×27", IDX[0], IDX[2])


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path, monkeypatch):
    """The files have the same names; the official ones are known by their labels."""
    arrays = idx_arrays()
    monkeypatch.setitem(
        known.DATA_SETS.own,
        "mnist",
        replace(MNIST, mistakable=("Fashion-MNIST", hashlib.md5(idx(arrays[1])).hexdigest())),
    )
    write_idx(tmp_path, arrays)
    rejected(lambda: known.DATA_SETS.own["mnist"].load(tmp_path), IDX[1], "is of Fashion-MNIST, not of MNIST")
    assert MNIST.mistakable[1] == FASHION_MNIST.official[1].md5
    assert FASHION_MNIST.mistakable[1] == MNIST.official[1].md5


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    write_idx(tmp_path, idx_arrays())

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    rejected(lambda: load_dataset("mnist", tmp_path), tmp_path / IDX[0], "cannot be read: Permission denied")


# CIFAR


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("form", "dump"),
    [("binary", None), ("python", python2_pickle)]
    + [("python", python3_pickle(protocol)) for protocol in (2, 3, 4, 5)]
    + [("python", python3_pickle(2, str.encode))],
)
def test_cifar_pixel_by_pixel(name, form, dump, tmp_path):
    batches = write_cifar(name, tmp_path, form, dump=dump)
    data = load_dataset(name, tmp_path)
    assert_is_cifar(data, batches)
    assert data.input_shape == (3, 32, 32)


def test_both_versions_have_one_fingerprint(tmp_path):
    write_cifar("cifar100", tmp_path / "a", "binary")
    write_cifar("cifar100", tmp_path / "b", "python")
    assert (
        load_dataset("cifar100", tmp_path / "a").fingerprint() == load_dataset("cifar100", tmp_path / "b").fingerprint()
    )


def test_labels_may_be_an_array_and_the_pixels_in_fortran_order(tmp_path):
    batches = write_cifar("cifar10", tmp_path, "python")
    labels, pixels = batches[0]
    batch = {"labels": labels[:, 0].astype(">i2"), "data": np.asfortranarray(pixels.reshape(len(pixels), -1))}
    for protocol in (2, 5):
        (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(batch, protocol))
        assert_is_cifar(load_dataset("cifar10", tmp_path), batches)


def test_class_names_come_from_their_file(tmp_path):
    names = [f"kind_{number}" for number in range(10)]
    write_cifar("cifar10", tmp_path / "a")
    path = tmp_path / "a" / "cifar-10-batches-bin" / "batches.meta.txt"
    path.write_text("\n".join(names) + "\n\n")
    assert load_dataset("cifar10", tmp_path / "a").classes == tuple(names)
    path.write_text("one\ntwo\n")
    rejected(lambda: load_dataset("cifar10", tmp_path / "a"), path, "names 2 classes", "10")
    write_cifar("cifar10", tmp_path / "b", "python")
    path = tmp_path / "b" / "cifar-10-batches-py" / "batches.meta"
    path.write_bytes(python2_pickle({"label_names": names, "num_vis": 3072}))
    assert load_dataset("cifar10", tmp_path / "b").classes == tuple(names)
    path.write_bytes(python2_pickle({"num_vis": 3072}))
    rejected(lambda: load_dataset("cifar10", tmp_path / "b"), path, "label_names")
    write_cifar("cifar100", tmp_path / "c", "python")
    path = tmp_path / "c" / "cifar-100-python" / "meta"
    fine = [f"fine_{number}" for number in range(100)]
    path.write_bytes(pickle.dumps({b"fine_label_names": fine, b"coarse_label_names": []}, 4))
    assert load_dataset("cifar100", tmp_path / "c").classes == tuple(fine)


@pytest.mark.parametrize(
    ("name", "file", "change", "words"),
    [
        ("cifar10", "data_batch_3.bin", lambda raw: raw[:-1], ["truncated", "12291 bytes", "records of 3073 bytes"]),
        ("cifar10", "test_batch.bin", lambda raw: b"", ["0 bytes"]),
        ("cifar10", "data_batch_2.bin", lambda raw: b"\x0b" + raw[1:], ["record 0 has the label 11", "0..9"]),
        ("cifar100", "test.bin", lambda raw: raw[:1] + b"\x64" + raw[2:], ["record 0 has the fine label 100"]),
        ("cifar100", "train.bin", lambda raw: b"\x14" + raw[1:], ["record 0 has the coarse label 20", "0..19"]),
        ("cifar100", "train.bin", lambda raw: raw + raw[:7], ["records of 3074 bytes"]),
    ],
)
def test_damaged_binary_file_is_named(name, file, change, words, tmp_path):
    write_cifar(name, tmp_path)
    path = next(tmp_path.glob(f"*/{file}"))
    path.write_bytes(change(path.read_bytes()))
    rejected(lambda: load_dataset(name, tmp_path), path, *words)


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["damaged"]),
        (b"nonsense", ["damaged"]),
        (python2_pickle({"labels": [1, 2], "data": PIXELS})[:-500], ["damaged"]),
        (python2_pickle([1, 2]), ["a pickled list", "a dict"]),
        (python2_pickle({"labels": [1, 2]}), ['no "data"']),
        (python2_pickle({"labels": [1, 2], "data": PIXELS[:, :5]}), ['no "data"', "3072"]),
        (python2_pickle({"data": PIXELS}), ['2 whole numbers as "labels"']),
        (python2_pickle({"labels": [1], "data": PIXELS}), ['2 whole numbers as "labels"']),
        (python2_pickle({"labels": [1, 10], "data": PIXELS}), ["record 1 has the label 10"]),
        (pickle.dumps({"labels": [1, -1], "data": PIXELS}), ["record 1 has the label -1"]),
        (pickle.dumps({"labels": [1, 10**30], "data": PIXELS}), ["record 1 has the label 1000"]),
        (pickle.dumps({"labels": [1, 1.5], "data": PIXELS}), ["whole numbers"]),
        (pickle.dumps({"labels": [], "data": PIXELS[:0]}), ["no records"]),
        (pickle.dumps({"labels": [1, 2], "data": PIXELS.astype(object)}, 2), ["damaged", "whole numbers"]),
        (pickle.dumps({"labels": [1, 2], "data": PIXELS / 2}, 5), ["damaged", "whole numbers"]),
    ],
)
def test_damaged_pickle_is_named(content, words, tmp_path):
    write_cifar("cifar10", tmp_path, "python")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    path.write_bytes(content)
    rejected(lambda: load_dataset("cifar10", tmp_path), path, *words)


class Executes:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("file", ["test_batch", "batches.meta"])
def test_a_pickle_that_wants_to_execute_something_is_rejected_unexecuted(file, protocol, tmp_path):
    write_cifar("cifar10", tmp_path, "python")
    path, witness = tmp_path / "cifar-10-batches-py" / file, tmp_path / "witness"
    for function, arguments in ((os.system, [f"touch {witness}"]), (exec, [f"open({str(witness)!r}, 'w')"])):
        path.write_bytes(pickle.dumps({"data": Executes(function, *arguments), "labels": []}, protocol))
        rejected(lambda: load_dataset("cifar10", tmp_path), path, f".{function.__name__}", "executed")
        assert not witness.exists()
        pickle.loads(path.read_bytes())
        assert witness.exists()  # it would have worked
        witness.unlink()


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cbuiltins\ngetattr\n.",
        b"c__builtin__\neval\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
    ],
)
def test_the_unpickler_knows_arrays_and_nothing_else(program, tmp_path):
    write_cifar("cifar10", tmp_path, "python")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(program)
    rejected(lambda: load_dataset("cifar10", tmp_path), path, "pickle that refers to", "executed")


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nndarray\n}(U\x05valueK\x01ub.",  # attributes of a class
        b"c_codecs\nencode\n(K\x01K\x02tR.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x02tb.",
        b"cnumpy\ndtype\n(U\x01OtR.",
        b"P1\n.",
    ],
)
def test_the_unpickler_survives_misuse_of_what_it_knows(program, tmp_path):
    write_cifar("cifar10", tmp_path, "python")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(program)
    rejected(lambda: load_dataset("cifar10", tmp_path), path, "damaged")


# places


def test_a_missing_data_set_says_where_it_was_searched_and_where_one_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLRANK_DATA", str(tmp_path / "mine"))
    usual = [tmp_path / "mine", tmp_path / "data", tmp_path / "xdg" / "fullrank" / "data"]
    rejected(
        lambda: load_dataset("cifar10"),
        *(f"{place} (no such folder)" for place in usual),
        "cifar-10-batches-bin/, cifar-10-batches-py/",
        "data_batch_5.bin, test_batch.bin (binary version)",
        "data_batch_5, test_batch (Python version)",
        '"fullrank data get cifar10"',
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "$FULLRANK_DATA",
    )
    rejected(lambda: known.DATA_SETS.own["fashion-mnist"].load(), tmp_path / "debian", "dataset-fashion-mnist", *IDX)
    (tmp_path / "given").mkdir()
    sentence = rejected(
        lambda: load_dataset("mnist", tmp_path / "given"), tmp_path / "given", "train-images-idx3-ubyte"
    )
    assert "no such folder" not in sentence
    assert str(tmp_path / "mine") not in sentence


def test_debians_folder_is_a_usual_place():
    assert roots("", FASHION_MNIST.elsewhere)[-1] == Path("/usr/share/datasets")


def test_places_in_their_order(tmp_path, monkeypatch):
    folders = [tmp_path / "mine", tmp_path / "data", tmp_path / "xdg" / "fullrank" / "data", tmp_path / "debian"]
    monkeypatch.setenv("FULLRANK_DATA", "mine")
    for number, folder in reversed(list(enumerate(folders))):
        write_idx(folder / "fashion-mnist", idx_arrays(number, train=number + 1))
        assert len(known.DATA_SETS.own["fashion-mnist"].load().train) == number + 1
    write_idx(tmp_path / "mine", idx_arrays(9, train=9))
    assert len(load_dataset("fashion-mnist").train) == 1  # its own folder goes first
    assert len(load_dataset("mnist").train) == 9
    assert len(load_dataset("fashion-mnist", tmp_path / "data").train) == 2
    assert len(load_dataset("fashion-mnist", tmp_path / "data" / "fashion-mnist").train) == 2


def test_home_without_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_idx(tmp_path / "home" / ".cache" / "fullrank" / "data" / "mnist", idx_arrays())
    assert len(load_dataset("mnist").train) == 7


def test_a_missing_file_is_named_unless_another_place_is_whole(tmp_path, monkeypatch):
    write_cifar("cifar10", tmp_path / "data")
    (tmp_path / "data" / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    (tmp_path / "data" / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    rejected(lambda: load_dataset("cifar10"), f"{folder} lacks data_batch_4.bin, test_batch.bin of CIFAR-10")
    batches = write_cifar("cifar10", tmp_path / "xdg" / "fullrank" / "data", seed=3)
    assert_is_cifar(load_dataset("cifar10"), batches)


def test_names_and_classes(tmp_path):
    rejected(lambda: load_dataset("cifar11"), 'did you mean "cifar10"?')
    rejected(
        lambda: load_dataset("zzz"),
        "cifar10, cifar100, digits",
        "the path of an .npz, .csv or .parquet file",
    )
    write_cifar("cifar10", tmp_path)
    rejected(lambda: load_dataset("cifar10", tmp_path, num_classes=7), "num_classes is 7")
    assert load_dataset("cifar10", tmp_path, num_classes=10).num_classes == 10


# the cache


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 1)


def kept(tmp_path):
    return sorted((tmp_path / "xdg" / "fullrank").glob("*.safetensors"))


def no_decoding(monkeypatch):
    def fail(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(cifar.Cifar, "read", fail)


def test_small_data_stay_out_of_the_cache(tmp_path):
    write_cifar("cifar10", tmp_path)
    load_dataset("cifar10", tmp_path)
    assert kept(tmp_path) == []


def test_cached_data_are_mapped_and_have_the_same_fingerprint(tmp_path, monkeypatch):
    batches = write_cifar("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    in_memory = load_dataset("cifar10", tmp_path)
    monkeypatch.setattr(cache, "LIMIT", 1)
    first = load_dataset("cifar10", tmp_path)
    [file] = kept(tmp_path)
    no_decoding(monkeypatch)
    second = load_dataset("cifar10", tmp_path)
    for data in (first, second):
        assert_is_cifar(data, batches)
        assert vars(data)["_fingerprint"] == in_memory.fingerprint()
        assert replace(data, name="cifar10").fingerprint() == in_memory.fingerprint()  # hashed again
        assert (data.classes, data.mean, data.std, data.augment) == (
            tuple("abcdefghij"),
            in_memory.mean,
            in_memory.std,
            in_memory.augment,
        )
        assert data.file == file
        assert _maps(file, data.train.x.data_ptr())
        assert _maps(file, data.test.x.data_ptr())
    assert in_memory.file is None
    assert not list(file.parent.glob(".*"))
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    now = os.umask(0)
    os.umask(now)
    return now


def _maps(file, address):
    """Whether an address of this process lies in a mapping of the file."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("this system does not show mappings")
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.endswith(str(file))
    return False


@pytest.mark.usefixtures("everything_is_large")
def test_another_process_maps_the_same_file(tmp_path):
    write_cifar("cifar10", tmp_path)
    here = load_dataset("cifar10", tmp_path)
    script = (
        "from fullrank.data import load_dataset\n"
        "from fullrank.data.sources import cache, cifar\n"
        "cache.LIMIT, cifar.Cifar.read = 1, None\n"
        f"data = load_dataset('cifar10', {str(tmp_path)!r})\n"
        "print(data.fingerprint(), open('/proc/self/maps').read().count('.safetensors') > 0)\n"
    )
    if sys.platform != "linux":
        pytest.skip("this system does not show mappings")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [here.fingerprint(), "True"]


@pytest.mark.usefixtures("everything_is_large")
def test_a_changed_source_rebuilds_the_cache_in_its_place(tmp_path):
    write_cifar("cifar10", tmp_path)
    before = load_dataset("cifar10", tmp_path)
    [file] = kept(tmp_path)
    old = before.train.x.clone()
    batches = write_cifar("cifar10", tmp_path, seed=1)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    after = load_dataset("cifar10", tmp_path)
    assert_is_cifar(after, batches)
    assert kept(tmp_path) == [file]
    assert torch.equal(before.train.x, old)  # who has the old file mapped keeps it
    assert after.fingerprint() != before.fingerprint()
    (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    assert load_dataset("cifar10", tmp_path).classes == tuple("abcdefghij")


@pytest.mark.usefixtures("everything_is_large")
def test_two_places_have_two_caches(tmp_path):
    one, two = write_cifar("cifar10", tmp_path / "a"), write_cifar("cifar10", tmp_path / "b", seed=1)
    for _ in range(2):
        assert_is_cifar(load_dataset("cifar10", tmp_path / "a"), one)
        assert_is_cifar(load_dataset("cifar10", tmp_path / "b"), two)
    assert len(kept(tmp_path)) == 2


def _header_without(raw, key):
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    del header["__metadata__"][key]
    changed = json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + raw[8 + length :]


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: b"nonsense",
        lambda raw: raw[:-1],
        lambda raw: raw[:100],
        lambda raw: raw.replace(f'"version":"{cache.VERSION}"'.encode(), b'"version":"0"'),
        lambda raw: raw.replace(b'"train.x"', b'"train.z"'),
        lambda raw: raw.replace(b'"classes":"[', b'"classes":"{'),
        lambda raw: _header_without(raw, "fingerprint"),
        lambda raw: _header_without(raw, "classes"),
    ],
)
def test_a_damaged_cache_is_rebuilt(damage, tmp_path, monkeypatch):
    batches = write_cifar("cifar10", tmp_path)
    fingerprint = load_dataset("cifar10", tmp_path).fingerprint()
    [file] = kept(tmp_path)
    good = file.read_bytes()
    assert damage(good) != good
    file.write_bytes(damage(good))
    data = load_dataset("cifar10", tmp_path)
    assert_is_cifar(data, batches)
    assert data.fingerprint() == fingerprint
    no_decoding(monkeypatch)
    assert_is_cifar(load_dataset("cifar10", tmp_path), batches)


@pytest.mark.usefixtures("everything_is_large")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, capsys):
    batches = write_cifar("cifar10", tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "file"))
    assert_is_cifar(load_dataset("cifar10", tmp_path), batches)
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "readonly"))

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as context:
        context.setattr(cache, "save_file", denied)
        assert_is_cifar(load_dataset("cifar10", tmp_path), batches)
    assert list((tmp_path / "readonly").iterdir()) == []
    assert capsys.readouterr() == ("", "")
    load_dataset("cifar10", tmp_path)
    assert sorted(path.suffix for path in (tmp_path / "readonly").iterdir()) == [".json", ".safetensors"]


# downloads


class Server(ThreadingHTTPServer):
    """Gives files, with or without ranges, and cuts connections when told to."""

    daemon_threads = True

    def __init__(self, ranges=True):
        super().__init__(("127.0.0.1", 0), Answer)
        self.ranges = ranges
        self.files = {}
        self.cuts = []
        """After how many bytes each of the next answers breaks off."""
        self.asked = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Answer(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path[1:], wanted))
        content = self.server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start : start + cut])


@contextlib.contextmanager
def serving(ranges=True):
    with Server(ranges) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


def md5(content):
    return hashlib.md5(content).hexdigest()


def offered(server, name, content):
    server.files[name] = content
    return Download(server.address + name, md5(content))


CONTENT = np.random.default_rng(0).bytes(700_000)


def test_a_download_with_progress(server, tmp_path):
    seen = []
    path = download.fetch(offered(server, "f.gz", CONTENT), tmp_path / "new", lambda *told: seen.append(told))
    assert path == tmp_path / "new" / "f.gz"
    assert path.read_bytes() == CONTENT
    assert not path.with_name("f.gz.part").exists()
    assert seen[-1] == (server.address + "f.gz", len(CONTENT), len(CONTENT))
    assert len(seen) > 1


def test_a_broken_connection_is_taken_up_where_it_stopped(server, tmp_path):
    server.cuts = [300_000, 200_000]
    path = download.fetch(offered(server, "f.gz", CONTENT), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [("f.gz", None), ("f.gz", "bytes=300000-"), ("f.gz", "bytes=500000-")]


def test_a_later_command_continues(server, tmp_path):
    server.cuts = [300_000, 0]
    wanted = offered(server, "f.gz", CONTENT)
    rejected(
        lambda: download.fetch(wanted, tmp_path), wanted.url, "300000 of 700000 bytes", "again", tmp_path, "by hand"
    )
    assert (tmp_path / "f.gz.part").stat().st_size == 300_000
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == ("f.gz", "bytes=300000-")


def test_a_part_that_is_whole_or_too_long(server, tmp_path):
    wanted = offered(server, "f.gz", CONTENT)
    (tmp_path / "f.gz.part").write_bytes(CONTENT)
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT
    (tmp_path / "f.gz").unlink()
    (tmp_path / "f.gz.part").write_bytes(CONTENT + b"more")
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_again(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    with serving(ranges=False) as server:
        wanted = offered(server, "f.gz", CONTENT)
        (tmp_path / "f.gz.part").write_bytes(b"x" * 1000)
        server.cuts = [300_000]
        assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT
        (tmp_path / "f.gz").unlink()
        server.cuts = [300_000, 300_000]
        rejected(lambda: download.fetch(wanted, tmp_path), wanted.url, "300000 of 700000")


def test_a_wrong_checksum_deletes_nothing(server, tmp_path):
    wanted = replace(offered(server, "f.gz", CONTENT), md5="0" * 32)
    part = tmp_path / "f.gz.part"
    for _ in range(2):
        rejected(lambda: download.fetch(wanted, tmp_path), part, md5(CONTENT), "0" * 32, wanted.url)
        assert part.read_bytes() == CONTENT
    (tmp_path / "f.gz").write_bytes(b"by hand")
    rejected(lambda: download.fetch(wanted, tmp_path), tmp_path / "f.gz", md5(b"by hand"), "0" * 32)
    assert (tmp_path / "f.gz").read_bytes() == b"by hand"


def test_a_file_put_there_by_hand_is_used(server, tmp_path):
    (tmp_path / "f.gz").write_bytes(CONTENT)
    download.fetch(offered(server, "f.gz", CONTENT), tmp_path)
    assert server.asked == []


def test_no_network_and_no_such_file(server, tmp_path):
    rejected(lambda: download.fetch(Download(server.address + "none.gz", ""), tmp_path), "404", "none.gz", "by hand")
    with serving() as other:
        gone = Download(other.address + "f.gz", "")
    rejected(lambda: download.fetch(gone, tmp_path), gone.url, "refused", tmp_path, "by hand")


def tar(entries):
    """A .tar.gz; an entry is a name with content or a TarInfo."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as file:
        for name, content in entries:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return whole.getvalue()


def _link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "entry",
    [
        "../outside",
        "folder/../../outside",
        "/tmp/outside-of-the-archive",
        _link("folder/a", "/etc/passwd", tarfile.SYMTYPE),
        _link("folder", "..", tarfile.SYMTYPE),
        _link("folder/a", "../../outside", tarfile.LNKTYPE),
        _link("pipe", "", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_that_leads_elsewhere_is_rejected_whole(entry, tmp_path):
    archive = tmp_path / "in" / "a.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(tar([("folder/a", b"good"), (entry, b"")]))
    name = entry if isinstance(entry, str) else entry.name
    rejected(lambda: download.unpack(archive, ("folder/a",), tmp_path / "in"), archive, name, "nothing was unpacked")
    assert sorted(tmp_path.rglob("*")) == [archive.parent, archive]
    assert not Path("/tmp/outside-of-the-archive").exists()


def test_only_the_expected_members_are_taken(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar([("folder/readme.html", b"r"), ("./folder/a", b"good"), ("other", b"o")]))
    download.unpack(archive, ("folder/a",), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["folder", "a"]
    assert (tmp_path / "out" / "folder" / "a").read_bytes() == b"good"
    rejected(lambda: download.unpack(archive, ("folder/b",), tmp_path / "out"), archive, "lacks folder/b")
    (tmp_path / "out" / "folder" / "a").write_bytes(b"mine")
    rejected(lambda: download.unpack(archive, ("folder/a",), tmp_path / "out"), "folder/a", "other content")
    assert (tmp_path / "out" / "folder" / "a").read_bytes() == b"mine"
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"nonsense"):
        archive.write_bytes(damaged)
        rejected(lambda: download.unpack(archive, ("folder/a",), tmp_path / "new"), archive, "damaged")


# data sets by download


@pytest.fixture
def small_official(server, tmp_path, monkeypatch):
    """CIFAR-10 and Fashion-MNIST as if a few samples were all there is, on the test's server."""
    write_cifar("cifar10", tmp_path / "origin")
    members = [f"cifar-10-batches-bin/{name}.bin" for name in CIFAR10_FILES]
    contents = [(tmp_path / "origin" / member).read_bytes() for member in members]
    names = ("cifar-10-batches-bin/batches.meta.txt", "\n".join(cifar.CIFAR10.classes).encode())
    archive = tar([*zip(members, contents, strict=True), names])
    monkeypatch.setitem(
        known.DATA_SETS.own,
        "cifar10",
        replace(
            cifar.CIFAR10,
            official=tuple(
                replace(official, records=len(content) // 3073, md5=md5(content))
                for official, content in zip(cifar.CIFAR10.official, contents, strict=True)
            ),
            downloads=((replace(offered(server, "c.tar.gz", archive), members=(*members, names[0])),),),
        ),
    )
    arrays = idx_arrays()
    monkeypatch.setitem(
        known.DATA_SETS.own,
        "fashion-mnist",
        replace(
            known.DATA_SETS.own["fashion-mnist"],
            official=tuple(
                replace(official, records=len(array), md5=md5(idx(array)))
                for official, array in zip(FASHION_MNIST.official, arrays, strict=True)
            ),
            downloads=(
                tuple(
                    replace(offered(server, f"{name}.gz", gzip.compress(idx(array))), folder="fashion-mnist")
                    for name, array in zip(IDX, arrays, strict=True)
                ),
            ),
        ),
    )
    return server


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_get_and_check(name, small_official, tmp_path, capsys):
    root = tmp_path / "root"
    status, out, err = fullrank("data", "get", name, "--root", root, capsys=capsys)
    folder = root / {"cifar10": "cifar-10-batches-bin"}.get(name, name)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].endswith(f"is in {folder}")
    assert out.startswith("downloading http://127.0.0.1")
    assert sorted(path.name for path in root.iterdir()) == [folder.name]  # neither archive nor parts
    requests = len(small_official.asked)
    status, out, _ = fullrank("data", "get", name, "--root", root, capsys=capsys)
    assert (status, len(small_official.asked)) == (0, requests)
    assert "complete" in out
    status, out, _ = fullrank("data", "check", name, "--root", root, capsys=capsys)
    assert status == 0
    assert str(folder) in out
    assert "official" in out
    status, out, _ = fullrank("data", "check", name, "--root", root, "--json", capsys=capsys)
    facts = json.loads(out)
    data = known.DATA_SETS.own[name].load(root)
    assert status == 0
    assert facts["official"] is True
    assert {file["state"] for file in facts["files"]} == {"official"}
    assert (facts["train"], facts["test"]) == (len(data.train), len(data.test))
    assert facts["fingerprint"] == data.fingerprint()
    assert facts["classes"] == list(data.classes)


def test_get_goes_to_the_usual_place_and_is_found_there(small_official, tmp_path, monkeypatch, capsys):
    assert fullrank("data", "get", "cifar10", capsys=capsys)[0] == 0
    assert (tmp_path / "xdg" / "fullrank" / "data" / "cifar-10-batches-bin").is_dir()
    assert_is_cifar(load_dataset("cifar10"), cifar10_batches())
    monkeypatch.setenv("FULLRANK_DATA", str(tmp_path / "mine"))
    assert "complete" in fullrank("data", "get", "cifar10", capsys=capsys)[1]
    assert fullrank("data", "get", "fashion-mnist", capsys=capsys)[0] == 0
    assert (tmp_path / "mine" / "fashion-mnist").is_dir()


def test_get_uses_an_archive_put_there_by_hand_and_leaves_it(small_official, tmp_path, capsys):
    (tmp_path / "c.tar.gz").write_bytes(small_official.files["c.tar.gz"])
    assert fullrank("data", "get", "cifar10", "--root", tmp_path, capsys=capsys)[0] == 0
    assert small_official.asked == []
    assert (tmp_path / "c.tar.gz").exists()


def test_get_and_check_on_other_content(small_official, tmp_path, capsys):
    write_cifar("cifar10", tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    status, out, err = fullrank("data", "check", "cifar10", "--root", tmp_path, capsys=capsys)
    assert status == 1
    assert "altered" in out
    assert "data_batch_2.bin" in err
    status, out, err = fullrank("data", "get", "cifar10", "--root", tmp_path, capsys=capsys)
    assert status == 2
    assert "data_batch_2.bin already, but not as in the official copy" in err
    path.write_bytes(good + good)
    status, out, err = fullrank("data", "check", "cifar10", "--root", tmp_path, capsys=capsys)
    assert (status, err) == (0, "")
    assert "another size (officially 2)" in out
    path.write_bytes(good[:-1])
    for command in ("check", "get"):
        status, out, err = fullrank("data", command, "cifar10", "--root", tmp_path, capsys=capsys)
        assert status == 2
        assert f"{path} is truncated" in err
    assert small_official.asked == []


def test_get_without_a_source_or_a_folder_says_what_to_do(small_official, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    status, _, err = fullrank("data", "get", "cifar10", "--root", tmp_path / "file", capsys=capsys)
    assert status == 2
    assert "cannot be written: " in err
    monkeypatch.setitem(known.DATA_SETS.own, "mnist", replace(MNIST, downloads=()))
    status, _, err = fullrank("data", "get", "mnist", capsys=capsys)
    assert status == 2
    assert MNIST.page in err


def test_digits_and_unknown_names(capsys):
    status, out, _ = fullrank("data", "get", "digits", capsys=capsys)
    assert status == 0
    assert "part of fullrank" in out
    status, out, _ = fullrank("data", "check", "digits", capsys=capsys)
    assert status == 0
    assert "1437" in out
    for command in ("get", "check"):
        status, _, err = fullrank("data", command, "cifar", capsys=capsys)
        assert status == 2
        assert 'did you mean "cifar10' in err
    status, _, err = fullrank("data", "check", "mnist", capsys=capsys)
    assert status == 2
    assert "MNIST is not in" in err


def test_a_bar_in_a_terminal(small_official, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    status, out, _ = fullrank("data", "get", "cifar10", "--root", tmp_path / "root", capsys=capsys)
    assert status == 0
    assert "c.tar.gz" in out
    assert "downloading" not in out


def test_a_run_on_a_named_data_set(tmp_path, capsys):
    write_cifar("cifar10", tmp_path)
    quick = ["data.name=cifar10", f"data.root={tmp_path}", "data.partition=iid", "data.clients=2", "train.rounds=1"]
    sets = [word for value in [*quick, "model.width=4"] for word in ("--set", value)]
    status, out, err = fullrank("run", *sets, "--out", "out", capsys=capsys)
    assert (status, err) == (0, "")
    assert "on cifar10" in out


def test_official_addresses_and_sums():
    for stored in known.stored().values():
        for layout in stored.layouts:
            assert len(layout.files) == len(stored.official)
        for fetched in (fetched for way in stored.downloads for fetched in way):
            assert len(fetched.md5) == 32
            assert fetched.url.startswith("http")
    assert [way[0].file for way in cifar.CIFAR10.downloads] == ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"]
    assert cifar.CIFAR100.downloads[1][0].members == (
        "cifar-100-python/train",
        "cifar-100-python/test",
        "cifar-100-python/meta",
    )


# the real ones, in the folder that FULLRANK_TEST_DATA names

REAL = {
    # first labels; fingerprints of published results, which may not move
    "cifar10": ([6, 9, 9, 4, 1], "c65719c21d8e312c0b48a86357c7bab525b4b02b9489edfec2043bbc8ba972f3"),
    "cifar100": ([19, 29, 0, 11, 1], "209cb58aa3b87b71dbdf75e14ef49433cc22900ef49c11544be693280d004a6e"),
    "fashion-mnist": ([9, 0, 0, 3, 0], "47cb21f5b727c805380a3d214caa40e6fef4f452bdf70a0c229c6f97806eee26"),
    "mnist": ([5, 0, 4, 1, 9], None),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_data_set(name, monkeypatch, tmp_path):
    monkeypatch.setenv("FULLRANK_DATA", os.environ.get("FULLRANK_TEST_DATA", str(tmp_path / "none")))
    stored = FASHION_MNIST if name == "fashion-mnist" else known.DATA_SETS.own[name]
    place = stored.search()
    if place is None:
        pytest.skip(f"{name} is not here")
    assert {fact.state for fact in stored.inspect(place)} == {"official"}
    data = stored.load()
    first, fingerprint = REAL[name]
    assert data.train.y[:5].tolist() == first
    assert len(data.test) == 10000
    assert data.train.y.bincount().numpy().std() == 0 or name == "mnist"
    assert len(data.train) == (50000 if name.startswith("cifar") else 60000)
    if fingerprint is not None:
        assert data.fingerprint() == fingerprint
    mean = [channel.double().mean().item() / 255 for channel in data.train.x.unbind(1)]
    std = [channel.double().std().item() / 255 for channel in data.train.x.unbind(1)]
    assert mean == pytest.approx(data.mean, abs=3e-4)
    assert std == pytest.approx(data.std, abs=3e-4)
    assert (len(kept(tmp_path)) == 1) == name.startswith("cifar")
