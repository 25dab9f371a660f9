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

from fullrank.data.dataset import IDS, DataSet, Split, class_names, with_classes
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.memory import as_tensor, channels_first
from fullrank.data.split import split_off_test
from fullrank.errors import InputError

Array = npt.NDArray[Any]

_WHOLE = ("x", "y")


def from_npz(
    path: Path, seed: int, num_classes: int | None, *, label: str = "", client: str = "", group: str = ""
) -> DataSet:
    """Read a file with `x_train y_train x_test y_test`, or with `x y`, of which a fifth becomes the test set.

    Args:
        path: The file.
        seed: The seed of the test split, for a file with `x y`.
        num_classes: The number of classes; by default there is one class more than the largest label.
        label: The name of the array of labels, without `_train` and `_test`; by default "y".
        client: The name of the array of natural clients; by default "client", which may be absent.
        group: The name of the array of groups; by default "group", which may be absent.

    Raises:
        InputError: If the file cannot be read, or its arrays are not a data set.
    """
    named = {"label": label, "client": client, "group": group}
    arrays = _read_npz(path.expanduser(), named)
    try:
        classes = _stored_classes(arrays)
        labels, classes = _labels(arrays, classes)
        domains, domain_names = _numbered("domain", arrays)
        groups, _ = _numbered("group", arrays)
        clients, client_names = _numbered("client", arrays)
        ids = {**labels, **domains, **groups, **clients}
        if "x_train" in arrays:
            train, test = _stored_split(arrays, ids, "_train"), _stored_split(arrays, ids, "_test")
        else:
            train, test = split_off_test(_stored_split(arrays, ids, ""), seed)
        classes = classes or class_names(train, test, num_classes)
        return with_classes(
            DataSet(path.stem, train, test, classes, domains=domain_names, clients=client_names), num_classes
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npz(path: Path, named: Mapping[str, str]) -> dict[str, Array]:
    """Read those arrays of the file that a data set can have, under their usual names.

    Args:
        path: The file.
        named: The names of the arrays in the file, by key of [data]; empty for the usual ones.
    """
    with opened_npz(path) as file:
        stored = _names_of(path, set(file.files), named)
        return {usual: read_array(path, file, name) for usual, name in sorted(stored.items())}


def _names_of(path: Path, found: set[str], named: Mapping[str, str]) -> dict[str, str]:
    """Return the names that the arrays of a data set have in a file, by their usual names."""
    stems = {"x": "x", "y": named["label"] or "y", "domain": "domain"}
    stems |= {key: named[key] or key for key in ("client", "group")}
    there = ", ".join(sorted(found)) or "(none)"
    for suffixes in (("_train", "_test"), ("",)):
        names = {f"{usual}{suffix}": f"{stem}{suffix}" for usual, stem in stems.items() for suffix in suffixes}
        if not all(names[f"{usual}{suffix}"] in found for usual in _WHOLE for suffix in suffixes):
            continue
        for key, stem in named.items():
            wanted = f"{stem}{suffixes[0]}"
            if stem and wanted not in found:
                raise InputError(f'data.{key} = "{stem}": {path} has no array {wanted}; its arrays are {there}')
        return {usual: name for usual, name in {**names, "classes": "classes"}.items() if name in found}
    label = stems["y"]
    apart = f"x_train, {label}_train, x_test, {label}_test"
    key = f'data.label = "{label}": ' if named["label"] else ""
    raise InputError(f"{key}{path} has the arrays {there}; it must have {apart}, or x and {label}")


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
    """Read an array of an open `.npz` file.

    Args:
        path: The path of the file, for errors.
        file: The open file.
        name: The name of the array.

    Raises:
        InputError: If the entry is damaged, holds Python objects, or does not fit into memory.
    """
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
    x = as_tensor(f"x{suffix}", arrays[f"x{suffix}"])
    given: dict[str, Any] = {name: ids.get(f"{name}{suffix}") for name in IDS}
    try:
        return Split(channels_first(x), ids[f"y{suffix}"], **given)
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
    decoded = {name: _as_text(column) for name, column in columns.items()}
    if len({column.dtype.kind == "U" for column in decoded.values()}) > 1:
        raise InputError(f"{' and '.join(columns)} are numbers and text; they must be of one kind")
    values = np.unique(np.concatenate([*decoded.values()]))
    ids = {name: torch.from_numpy(np.searchsorted(values, column)) for name, column in decoded.items()}
    return ids, tuple(str(value) for value in values)


def _labels(arrays: Mapping[str, Array], classes: tuple[str, ...]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return labels as numbers, and the names of the classes if they are known.

    Labels in words are names of classes: of those in the file, or if it names none, of those that occur, sorted.
    """
    columns = {name: arrays[name] for name in ("y", "y_train", "y_test") if name in arrays}
    if not any(column.dtype.kind in "SU" for column in columns.values()):
        return {name: as_tensor(name, column) for name, column in columns.items()}, classes
    ids, found = _numbered("y", arrays)
    if not classes:
        return ids, found
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise InputError(f"{len(unknown)} of the labels are not among the names in classes; both must agree")
    place = torch.tensor([classes.index(name) for name in found])
    return {name: place[column] for name, column in ids.items()}, classes


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
