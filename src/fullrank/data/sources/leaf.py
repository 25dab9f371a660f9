"""Read FEMNIST, characters by their writers, from the JSON files that LEAF writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.dataset import DataSet, Split
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.cache import Content, cached
from fullrank.data.sources.places import roots
from fullrank.data.sources.progress import report
from fullrank.data.sources.stored import read_whole
from fullrank.errors import InputError
from fullrank.randomness import generator

Array = npt.NDArray[np.uint8]

_PIXELS = 28 * 28
_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_FOLDERS = ("femnist/data", "femnist", "data/femnist/data")
_PAGE = "https://github.com/TalwalkarLab/leaf/tree/master/data/femnist"


@dataclass(frozen=True)
class _Samples:
    """The characters of one writer."""

    x: Array
    y: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Files:
    """The files of a copy of FEMNIST; without files for the test, every writer's samples are split."""

    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def femnist(root: str | Path = "", seed: int = 0) -> DataSet:
    """Load FEMNIST from `train/*.json` and `test/*.json`, or from `all_data/*.json`, of which it splits each writer.

    Each writer is a natural client (`data.partition = "natural"`). Images are black on white, as in LEAF. Of the n
    samples of a writer in `all_data`, max(1, ⌊0.9 n⌋) are for training, as by LEAF's default; `seed` draws them.

    Args:
        root: The folder of the files; by default it is searched in the usual places.
        seed: The seed of the test split of `all_data`.

    Raises:
        InputError: If the files are not there, or are not of LEAF's form.
    """
    files = _find(root)
    name = "femnist" if files.test else f"femnist-seed{seed}"
    return cached(name, [*files.train, *files.test], lambda: _decode(files, seed), _complete)


def _complete(content: Content) -> DataSet:
    return DataSet("femnist", content.train, content.test, content.classes, clients=content.clients)


def _find(root: str | Path) -> _Files:
    where = roots(root)
    for folder in (base / sub for base in where for sub in (*_FOLDERS, "")):
        train, test = _json_files(folder / "train"), _json_files(folder / "test")
        if train and test:
            return _Files(train, test)
        if train or test:
            raise InputError(
                f"{folder} has .json files in {'train' if train else 'test'} only; LEAF writes both folders"
            )
        whole = _json_files(folder / "all_data") or tuple(sorted(folder.glob("all_data*.json")))
        if whole:
            return _Files(whole)
    searched = ", ".join(f"{path}{'' if path.is_dir() else ' (no such folder)'}" for path in where)
    raise InputError(
        f"FEMNIST is not in {searched}, neither directly nor in {', '.join(f'{sub}/' for sub in _FOLDERS)}; expected"
        f" there: train/*.json and test/*.json, or all_data/*.json, as LEAF writes them ({_PAGE}); set data.root or"
        " $FULLRANK_DATA if they are elsewhere"
    )


def _json_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob("*.json") if path.is_file()))


def _decode(files: _Files, seed: int) -> Content:
    train = _read_all(files.train)
    test = _read_all(files.test)
    if not files.test:
        train, test = _split_writers(train, seed)
    writers = sorted(train.keys() | test.keys())
    for what, there in (("training", train), ("test", test)):
        if not any(len(samples.y) for samples in there.values()):
            raise InputError(f"{files.train[0].parent.parent} has no {what} samples of FEMNIST; it must have some")
    return Content(_joined(train, writers), _joined(test, writers), _CLASSES, clients=tuple(writers))


def _read_all(files: Sequence[Path]) -> dict[str, _Samples]:
    found: dict[str, _Samples] = {}
    for number, path in enumerate(files):
        report("decoding femnist", number, len(files))
        for writer, samples in _read(path).items():
            if writer in found:
                raise InputError(f'{path} has the writer "{writer}" of an earlier file; put all of a writer into one')
            found[writer] = samples
    report("decoding femnist", len(files), len(files))
    return {writer: samples for writer, samples in found.items() if len(samples.y)}


def _read(path: Path) -> dict[str, _Samples]:
    """Read one file; numbers become bytes writer by writer, so that only one writer's exist as Python objects."""
    reject_too_large(str(path), 2 * path.stat().st_size, "split it, as LEAF does, into files of fewer writers")

    def packed(value: dict[str, Any]) -> Any:
        return _pack(path, value) if value.keys() >= {"x", "y"} else value

    try:
        content = json.loads(read_whole(path), object_hook=packed)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is truncated or damaged: it is not JSON ({error})") from None
    users = content.get("users") if isinstance(content, dict) else None
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, list) or not isinstance(data, dict):
        raise InputError(f'{path} must be an object with a list "users" and an object "user_data"; it is not of LEAF')
    found: dict[str, _Samples] = {}
    for user in map(str, users):
        samples = data.get(user)
        if not isinstance(samples, _Samples):
            raise InputError(f'{path}: the writer "{user}" of "users" has no x and y in "user_data"')
        if user in found:
            raise InputError(f'{path} names the writer "{user}" twice in "users"')
        found[user] = samples
    return found


def _pack(path: Path, value: Mapping[str, Any]) -> _Samples:
    """Convert lists of 784 numbers between 0 and 1, and of labels, to bytes; LEAF divided bytes by 255."""
    count = len(value["y"]) if isinstance(value["y"], list) else -1
    try:
        x = np.array(value["x"], dtype=np.float64).reshape(-1, _PIXELS) if value["x"] else np.empty((0, _PIXELS))
        y = np.array(value["y"])
    except (ValueError, TypeError, OverflowError):
        x, y = np.empty((0, _PIXELS)), np.empty(0)
    if len(x) != count or y.shape != (count,) or (count and y.dtype.kind not in "iu"):
        raise InputError(f"{path}: x of a writer must be a list of lists of {_PIXELS} numbers, and y as many labels")
    if not ((x >= 0) & (x <= 1)).all():
        raise InputError(f"{path}: the pixels of a writer lie outside 0..1")
    outside = y[(y < 0) | (y >= len(_CLASSES))]
    if len(outside):
        raise InputError(f"{path} has the label {int(outside[0])}; it must lie in 0..{len(_CLASSES) - 1}")
    return _Samples(np.rint(x * 255).astype(np.uint8), y.astype(np.int64))


def _split_writers(whole: Mapping[str, _Samples], seed: int) -> tuple[dict[str, _Samples], dict[str, _Samples]]:
    train, test = {}, {}
    for writer, samples in whole.items():
        # ordered by drawn numbers, because only the raw stream is the same in every version of NumPy
        order = np.argsort(generator(seed, "femnist test", writer).random(len(samples.y)), kind="stable")
        kept = max(1, 9 * len(order) // 10)
        train[writer], test[writer] = (
            _Samples(samples.x[part], samples.y[part]) for part in (np.sort(order[:kept]), np.sort(order[kept:]))
        )
    return train, test


def _joined(found: Mapping[str, _Samples], writers: Sequence[str]) -> Split:
    parts = [(number, found[writer]) for number, writer in enumerate(writers) if writer in found]
    x = np.concatenate([samples.x for _, samples in parts])
    y = np.concatenate([samples.y for _, samples in parts])
    client = np.repeat([number for number, _ in parts], [len(samples.y) for _, samples in parts])
    return Split(torch.from_numpy(x.reshape(-1, 1, 28, 28)), torch.from_numpy(y), client=torch.from_numpy(client))
