"""SVHN in MATLAB files: read as it is stored, and everything about the files that is rejected."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest
import torch

from commands import fullrank
from fullrank.data import load_dataset
from fullrank.data.sources import svhn
from fullrank.errors import InputError

scipy_io = pytest.importorskip("scipy.io")


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)


def write(folder, train=12, test=5, compressed=True, **changed):
    """Write both files as the official ones are: X is (32, 32, 3, N) in bytes, and y (N, 1) with 10 for the digit 0."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, count, seed in (("train_32x32.mat", train, 0), ("test_32x32.mat", test, 1)):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        y = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        variables = {"X": x, "y": y, **changed}
        scipy_io.savemat(
            folder / name, {k: v for k, v in variables.items() if v is not None}, do_compression=compressed
        )
        written[name] = (x, y)
    return written


def rejected(root, *words):
    with pytest.raises(InputError) as caught:
        load_dataset("svhn", root)
    sentence = str(caught.value)
    assert [word for word in words if str(word) not in sentence] == [], sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("compressed", [True, False])
def test_images_and_labels_are_those_of_the_file(tmp_path, compressed):
    written = write(tmp_path / "svhn", compressed=compressed)
    data = load_dataset("svhn", tmp_path)
    x, _ = written["train_32x32.mat"]
    assert (len(data.train), len(data.test)) == (12, 5)
    assert data.input_shape == (3, 32, 32)
    assert data.train.x[7, 2, 30, 4] == x[30, 4, 2, 7]
    assert data.train.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert torch.equal(data.test.x[4, 0], torch.from_numpy(written["test_32x32.mat"][0][:, :, 0, 4].copy()))
    assert data.classes == tuple("0123456789")
    assert (data.mean, data.std, data.augment) == ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), ())


def test_the_extra_part_is_not_read(tmp_path):
    write(tmp_path)
    (tmp_path / "extra_32x32.mat").write_bytes(b"not read")
    assert len(load_dataset("svhn", tmp_path).train) == 12


def test_check_compares_the_checksums_of_the_files(tmp_path, capsys):
    write(tmp_path)
    status, out, _ = fullrank("data", "check", "svhn", "--root", tmp_path, capsys=capsys)
    assert status == 0
    assert "another size (officially 73257)" in out


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": None}, ("the variables X", "it must have X and y")),
        ({"X": np.zeros((32, 32, 1, 12), np.uint8)}, ("(32, 32, 1, 12)", "(32, 32, 3, N)")),
        ({"X": np.zeros((32, 32, 3, 12))}, ("float64", "it must be uint8")),
        ({"X": np.zeros((32, 32, 3, 0), np.uint8)}, ("X is empty",)),
        ({"X": {"a": 1}}, ("struct", "must hold numbers")),
        ({"X": np.array([{"a": 1}, "b"], dtype=object)}, ("cell", "must hold numbers")),
        ({"y": np.ones((11, 1), np.uint8)}, ("12 images", "(11, 1)")),
        ({"y": np.full((12, 1), 11, np.uint8)}, ("record 0 has the label 11", "1..10")),
        ({"y": np.zeros((12, 1), np.uint8)}, ("the label 0", "1..10")),
        ({"y": np.full((12, 1), 1.5)}, ("whole numbers",)),
        ({"y": np.full((12, 1), np.nan)}, ("whole numbers",)),
    ],
)
def test_other_variables_are_rejected(tmp_path, changed, words):
    write(tmp_path, **changed)
    rejected(tmp_path, tmp_path / "train_32x32.mat", *words)


def test_damaged_files_are_rejected(tmp_path):
    write(tmp_path)
    path = tmp_path / "train_32x32.mat"
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:200], content[:-50], b"x" * 1000, bytes(len(content))):
        path.write_bytes(damaged)
        rejected(tmp_path, path, "damaged")
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    rejected(tmp_path, path, "7.3")


def test_every_changed_byte_gives_data_or_a_sentence(tmp_path):
    write(tmp_path, train=1, test=1)
    path = tmp_path / "train_32x32.mat"
    content = path.read_bytes()
    for position in [*range(128, 200), *range(200, len(content), 97)]:
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        with contextlib.suppress(InputError):
            assert len(load_dataset("svhn", tmp_path).train) == 1


def test_announced_sizes_are_checked_before_anything_is_unpacked(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr("fullrank.data.memory_limit.memory_limit", lambda: 12 * 3072 - 1)
    rejected(tmp_path, "the variable X would take", "damaged")


def test_without_scipy_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    rejected(tmp_path, "pip install 'fullrank[mat]'")


def test_absent_files_are_named_with_the_way_to_get_them(tmp_path):
    rejected(tmp_path, "train_32x32.mat, test_32x32.mat", "fullrank data get svhn", svhn.SVHN.page)
    write(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    rejected(tmp_path, "lacks test_32x32.mat")
