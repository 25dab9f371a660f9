"""Read data sets from `.npz` files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fullrank.data.dataset import DataSet, Split, class_names, with_classes
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.memory import as_tensor, channels_first
from fullrank.data.split import split_off_test
from fullrank.errors import InputError

Array = npt.NDArray[Any]

_APART = ("x_train", "y_train", "x_test", "y_test")
_WHOLE = ("x", "y")


def from_npz(path: Path, seed: int, num_classes: int | None) -> DataSet:
    """Read a file with `x_train y_train x_test y_test`, or with `x y`, of which a fifth becomes the test set."""
    arrays = _read_npz(path.expanduser())
    try:
        domains, domain_names = _numbered("domain", arrays)
        groups, _ = _numbered("group", arrays)
        ids = {**domains, **groups}
        if "x_train" in arrays:
            train, test = _stored_split(arrays, ids, "_train"), _stored_split(arrays, ids, "_test")
        else:
            train, test = split_off_test(_stored_split(arrays, ids, ""), seed)
        classes = _stored_classes(arrays)
        loaded = DataSet(path.stem, train, test, classes or class_names(train, test, num_classes), domains=domain_names)
        return with_classes(loaded, num_classes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npz(path: Path) -> dict[str, Array]:
    """Read those arrays of the file that a data set can have."""
    with opened_npz(path) as file:
        found = set(file.files)
        if found.issuperset(_APART):
            wanted = {*_APART, "domain_train", "domain_test", "group_train", "group_test", "classes"}
        elif found.issuperset(_WHOLE):
            wanted = {*_WHOLE, "domain", "group", "classes"}
        else:
            raise InputError(
                f"{path} has the arrays {', '.join(sorted(found)) or '(none)'};"
                f" it must have {', '.join(_APART)}, or {' and '.join(_WHOLE)}"
            )
        return {name: read_array(path, file, name) for name in sorted(found & wanted)}


def opened_npz(path: Path) -> Any:
    """Open an `.npz` file without reading its arrays.

    Raises:
        InputError: If there is no such file, or it is no `.npz` file.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of an .npz file")
    try:
        with path.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz file; numpy.savez writes such files")
    try:
        return np.load(path, allow_pickle=False)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{path} cannot be read ({error}); the file is damaged") from None


def read_array(path: Path, file: Any, name: str) -> Array:
    """Return an array of an open `.npz` file; Python objects and damaged headers are rejected."""
    try:
        _reject_header(path, file.zip, name)
        array = file[name]
    except MemoryError:
        raise InputError(f"{path}: the array {name} does not fit into memory") from None
    except InputError:
        raise
    except Exception as error:  # a damaged header can fail in any way
        why = " ".join(str(error).split())
        raise InputError(f"{path}: the array {name} cannot be read ({why}); the file is damaged") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: the entry {name} is not an array; numpy.savez writes arrays")
    return array


def _reject_header(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Reject Python objects, a header that announces another size than the file has, and what does not fit."""
    entry = f"{name}.npy"
    if entry not in archive.namelist():
        return  # not an array, which the caller reports
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        stored = archive.getinfo(entry).file_size - member.tell()
    if dtype.hasobject:
        raise InputError(f"{path}: the array {name} holds Python objects; it must hold numbers or text")
    announced = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or announced != stored:
        raise InputError(
            f"{path}: the array {name} is damaged: its header announces {dtype} of shape {shape}, that is {announced} "
            f"bytes, and the file holds {stored}"
        )
    reject_too_large(f"{path}: the array {name}", announced, "store fewer or smaller samples")


def _stored_split(arrays: Mapping[str, Array], ids: Mapping[str, Tensor], suffix: str) -> Split:
    x, y = (as_tensor(f"{column}{suffix}", arrays[f"{column}{suffix}"]) for column in ("x", "y"))
    try:
        return channels_first(Split(x, y, ids.get(f"domain{suffix}"), ids.get(f"group{suffix}")))
    except InputError as error:
        raise InputError(f"{suffix[1:]} split: {error}" if suffix else str(error)) from None


def _numbered(what: str, arrays: Mapping[str, Array]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Number the values of a column in sorted order, over both splits; return numbers and names."""
    columns = {name: arrays[name] for name in (what, f"{what}_train", f"{what}_test") if name in arrays}
    if not columns:
        return {}, ()
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in "iuSU":
            raise InputError(
                f"{name} is {column.dtype} of shape {column.shape}; it must be one whole number or text per sample"
            )
    values = np.unique(np.concatenate([_as_text(column) for column in columns.values()]))
    ids = {name: torch.from_numpy(np.searchsorted(values, _as_text(column))) for name, column in columns.items()}
    return ids, tuple(str(value) for value in values)


def _stored_classes(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    if "classes" not in arrays:
        return ()
    classes = _as_text(arrays["classes"])
    if classes.ndim != 1 or not len(classes):
        raise InputError(f"classes has shape {classes.shape}; it must be a list of names")
    return tuple(str(name) for name in classes)


def _as_text(column: Array) -> Array:
    """Decode an array of bytes to text, and return any other as it is."""
    if column.dtype.kind != "S":
        return column
    try:
        return np.char.decode(column, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"a name is stored as bytes that are not UTF-8 ({error}); store text") from None
