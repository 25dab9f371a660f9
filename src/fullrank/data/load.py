"""From what a user names or holds to a `DataSet`."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import pkgutil
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ..errors import Refusal, nearest
from ..randomness import generator
from .dataset import DataSet, Split

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

_TEST_SHARE = 0.2
_MOST_CLASSES = 1_000_000
_NAMES = ("digits", "npz")


def load_dataset(
    source: object = "digits",
    root: str | Path = "",
    *,
    seed: int = 0,
    num_classes: int | None = None,
    **options: object,
) -> DataSet:
    """A data set by name, file, function or from tensors.

    `source` is one of

    - "digits", which comes with the library;
    - "npz" with the file as `root`, or the path of an `.npz` file;
    - "package.module:function", called as f(root=, seed=, **options);
    - a pair (x, y) or a torch Dataset, of which a fifth becomes the test set, by class and `seed`;
    - a pair of these, for training and test.

    8-bit images become (N, C, H, W); anything else keeps its shape and dtype. Without `num_classes` there is
    one class more than the largest label.

    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.test), digits.input_shape
    (1437, 360, (1, 8, 8))
    """
    if num_classes is not None and num_classes < 1:
        raise Refusal(f"num_classes is {num_classes}; there must be at least one class")
    text = str(source) if isinstance(source, (str, Path)) else ""
    if _names_function(text):
        made = _call(text, root, seed, options)
        if _names_function(str(made) if isinstance(made, (str, Path)) else ""):
            raise Refusal(f'data "{text}" returned "{made}"; it must return data or the path of an .npz file')
        loaded = load_dataset(made, root, seed=seed, num_classes=num_classes)
        return loaded if isinstance(made, DataSet) else replace(loaded, name=text)
    if options:
        raise Refusal(
            f'unknown option "{min(options)}" of load_dataset; only a "package.module:function" takes further options'
        )
    if not isinstance(source, (str, Path)):
        return _from_memory(source, seed, num_classes)
    if text == "digits":
        return _with_classes(_digits(), num_classes)
    if text == "npz":
        if not str(root):
            raise Refusal('data "npz" needs root, the path of the .npz file')
        return _from_npz(Path(root), seed, num_classes)
    if text.endswith(".npz"):
        return _from_npz(Path(root) / text, seed, num_classes)
    raise Refusal(
        f'unknown data set "{text}": {nearest(text, _NAMES)}'
        ' (or the path of an .npz file, or "package.module:function")'
    )


# data in memory


def as_split(data: object) -> Split:
    """A `Split` from (x, y) or from a map-style torch Dataset of such pairs.

    Values and shapes stay as they are. A Dataset that is not a TensorDataset is read through once, item by
    item, so a random transform in it is drawn once and for all.

    >>> as_split((torch.zeros(2, 3), torch.tensor([0, 1]))).y
    tensor([0, 1])
    """
    if isinstance(data, Split):
        return data
    if _is_pair(data):
        x, y = data
        return Split(_tensor("x", x), _tensor("y", y))
    if isinstance(data, (str, tuple, list, Mapping, Tensor, np.ndarray, IterableDataset)) or not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        raise Refusal(
            f"{type(data).__name__} cannot be used as data; give a pair (x, y) of tensors or arrays,"
            " or a torch Dataset with a length whose items are such pairs"
        )
    x, y = _stored_tensors(data) or _read_items(data)
    return Split(x, y)


def _from_memory(data: object, seed: int, num_classes: int | None) -> DataSet:
    if isinstance(data, DataSet):
        return _with_classes(data, num_classes)
    train: Split
    test: Split
    if _is_pair(data) and not (_is_array(data[0]) or _is_array(data[1])):
        train, test = (_split_named(name, half) for name, half in zip(("train", "test"), data, strict=True))
    else:
        train, test = _split_off_test(_channels_first(as_split(data)), seed)
    return DataSet("memory", train, test, _class_names(train, test, num_classes))


def _split_named(name: str, data: object) -> Split:
    try:
        return _channels_first(as_split(data))
    except Refusal as refusal:
        raise Refusal(f"{name} split: {refusal}") from None


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def _is_pair(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _tensor(what: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if not _is_array(value):
        raise Refusal(f"{what} is a {type(value).__name__}; it must be a tensor or an array")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise Refusal(f"{what} is an array of {array.dtype}; it must hold numbers")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # a read-only array is fine: samples are never written to
        warnings.filterwarnings("ignore", message=".*not writable")
        try:
            return torch.from_numpy(array)
        except TypeError:
            raise Refusal(f"{what} is an array of {array.dtype}, which torch does not have") from None


def _stored_tensors(data: object) -> tuple[Tensor, Tensor] | None:
    """The tensors behind a TensorDataset or a subset of one, without touching single items."""
    if isinstance(data, Subset):
        whole = _stored_tensors(data.dataset)
        if whole is None:
            return None
        index = torch.as_tensor(data.indices, dtype=torch.int64)
        return whole[0][index], whole[1][index]
    if not isinstance(data, TensorDataset):
        return None
    if len(data.tensors) != 2:
        raise Refusal(f"a TensorDataset of {len(data.tensors)} tensors was given; it must hold two, x and y")
    return data.tensors[0].detach(), data.tensors[1].detach()


def _read_items(data: Any) -> tuple[Tensor, Tensor]:
    count = len(data)
    if count == 0:
        raise Refusal(f"the {type(data).__name__} is empty; it must hold at least one sample")
    first = _item(data[0], 0)[0]
    x = torch.empty((count, *first.shape), dtype=first.dtype)
    y = torch.empty(count, dtype=torch.int64)
    for position in range(count):
        sample, label = _item(data[position], position)
        if sample.shape != first.shape or sample.dtype != first.dtype:
            raise Refusal(
                f"item {position} is {sample.dtype} of shape {tuple(sample.shape)} and item 0 {first.dtype}"
                f" of shape {tuple(first.shape)}; all items must be alike"
            )
        x[position], y[position] = sample, label
    return x, y


def _item(item: object, position: int) -> tuple[Tensor, int]:
    if not _is_pair(item):
        raise Refusal(f"item {position} is a {type(item).__name__}, not a pair (x, y)")
    sample = _tensor(f"x of item {position}", item[0])
    try:
        return sample, operator.index(item[1])
    except TypeError:
        raise Refusal(f"y of item {position} is {item[1]!r}; it must be a whole number") from None


def _channels_first(split: Split) -> Split:
    """8-bit images as (N, C, H, W), where their shape leaves no doubt how they are stored."""
    x = split.x
    if x.dtype == torch.uint8 and x.dim() == 3:
        return replace(split, x=x.unsqueeze(1))
    if x.dtype == torch.uint8 and x.dim() == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return replace(split, x=x.permute(0, 3, 1, 2).contiguous())
    return split


def _class_names(train: Split, test: Split, num_classes: int | None) -> tuple[str, ...]:
    largest = max(int(train.y.max()), int(test.y.max()))
    if num_classes is None and largest >= _MOST_CLASSES:
        raise Refusal(f"the largest label is {largest}; labels must number the classes from 0")
    return tuple(str(label) for label in range(max(1, largest + 1) if num_classes is None else num_classes))


def _with_classes(data: DataSet, num_classes: int | None) -> DataSet:
    if num_classes not in (None, data.num_classes):
        raise Refusal(f"num_classes is {num_classes}, but {data.name} names {data.num_classes} classes")
    return data


# splitting


def split_by_class(y: Tensor | Array, share: float, seed: int) -> tuple[Indices, Indices]:
    """Positions to keep and positions taken away, each ascending; `share` of every class is taken.

    In total ceil(share · N) are taken, allotted to classes by largest remainder (the lower class on a tie).
    No class loses its last sample, so fewer are taken where there are almost as many classes as samples.

    >>> keep, taken = split_by_class(torch.tensor([0, 0, 0, 1, 1, 1]), 0.3, seed=0)
    >>> len(keep), len(taken)
    (4, 2)
    """
    if not 0 <= share < 1:
        raise Refusal(f"a share of {share} cannot be split off; it must be at least 0 and below 1")
    labels = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if labels.ndim != 1:
        raise Refusal(f"labels have shape {labels.shape}; they must be one per sample")
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quotas = _largest_remainder([int(size) for size in sizes], share)
    # the length is part of the key, so that splitting the kept samples again with the same seed draws anew;
    # ordering by drawn numbers, not Generator.permutation: only the raw stream is the same in every NumPy
    drawn = generator(seed, "split", len(labels)).random(len(labels))
    order = np.lexsort((drawn, class_of))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = rank < np.repeat(np.asarray(quotas, dtype=np.int64), sizes)
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _largest_remainder(sizes: Sequence[int], share: float) -> list[int]:
    # 0.07 · 100 is 7.000000000000001 in binary; as the decimal that was written it is 7
    exact = Fraction(str(float(share)))
    quotas = [math.floor(exact * size) for size in sizes]
    missing = math.ceil(exact * sum(sizes)) - sum(quotas)
    by_remainder = sorted(range(len(sizes)), key=lambda label: (quotas[label] - exact * sizes[label], label))
    while missing > 0:
        able = [label for label in by_remainder if quotas[label] < sizes[label] - 1][:missing]
        if not able:
            break
        for label in able:
            quotas[label] += 1
        missing -= len(able)
    return quotas


def _split_off_test(whole: Split, seed: int) -> tuple[Split, Split]:
    keep, taken = split_by_class(whole.y, _TEST_SHARE, seed)
    if not len(taken):
        raise Refusal("no class has two samples, so no test set can be split off; give training and test data apart")
    return whole.take(torch.from_numpy(keep)), whole.take(torch.from_numpy(taken))


# the digits that come with the library


def _digits() -> DataSet:
    with resources.files(__package__).joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        x, y = arrays["x"], arrays["y"]
    grey = np.rint(x * (255 / 16)).astype(np.uint8)
    whole = Split(torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(y))
    # one split for everybody, like a data set that comes divided: the run's seed has no say in it
    train, test = _split_off_test(whole, seed=0)
    return DataSet("digits", train, test, tuple("0123456789"), mean=(0.306,), std=(0.3762,))


# .npz files

_APART = ("x_train", "y_train", "x_test", "y_test")
_WHOLE = ("x", "y")


def _from_npz(path: Path, seed: int, num_classes: int | None) -> DataSet:
    arrays = _read_npz(path.expanduser())
    try:
        domains, domain_names = _numbered("domain", arrays)
        groups, _ = _numbered("group", arrays)
        ids = {**domains, **groups}
        if "x_train" in arrays:
            train, test = _stored_split(arrays, ids, "_train"), _stored_split(arrays, ids, "_test")
        else:
            train, test = _split_off_test(_stored_split(arrays, ids, ""), seed)
        classes = _stored_classes(arrays)
        loaded = DataSet(
            path.stem, train, test, classes or _class_names(train, test, num_classes), domains=domain_names
        )
        return _with_classes(loaded, num_classes)
    except Refusal as refusal:
        raise Refusal(f"{path}: {refusal}") from None


def _read_npz(path: Path) -> dict[str, Array]:
    """The arrays that matter of those in the file."""
    if not path.is_file():
        raise Refusal(f"there is no file {path}; give the path of an .npz file")
    if not zipfile.is_zipfile(path):
        raise Refusal(f"{path} is not an .npz file; numpy.savez writes such files")
    with np.load(path, allow_pickle=False) as file:
        found = set(file.files)
        if found.issuperset(_APART):
            wanted = {*_APART, "domain_train", "domain_test", "group_train", "group_test", "classes"}
        elif found.issuperset(_WHOLE):
            wanted = {*_WHOLE, "domain", "classes"}
            if "group" in found:
                raise Refusal(
                    f"{path} has an array group, which splitting x and y by class would tear apart; store"
                    f" {', '.join(_APART)} and group_train"
                )
        else:
            raise Refusal(
                f"{path} has the arrays {', '.join(sorted(found)) or '(none)'};"
                f" it must have {', '.join(_APART)}, or {' and '.join(_WHOLE)}"
            )
        return {name: _read_array(path, file, name) for name in sorted(found & wanted)}


def _read_array(path: Path, file: Mapping[str, Any], name: str) -> Array:
    try:
        array = file[name]
    except ValueError:
        raise Refusal(f"{path}: the array {name} holds Python objects; it must hold numbers or text") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise Refusal(f"{path}: the array {name} cannot be read ({error}); the file is damaged") from None
    if not isinstance(array, np.ndarray):
        raise Refusal(f"{path}: the entry {name} is not an array; numpy.savez writes arrays")
    return array


def _stored_split(arrays: Mapping[str, Array], ids: Mapping[str, Tensor], suffix: str) -> Split:
    x, y = (_tensor(f"{column}{suffix}", arrays[f"{column}{suffix}"]) for column in ("x", "y"))
    try:
        return _channels_first(Split(x, y, ids.get(f"domain{suffix}"), ids.get(f"group{suffix}")))
    except Refusal as refusal:
        raise Refusal(f"{suffix[1:]} split: {refusal}" if suffix else str(refusal)) from None


def _numbered(what: str, arrays: Mapping[str, Array]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Ids in sorted order of the values, the same in both splits, and the values as names."""
    columns = {name: arrays[name] for name in (what, f"{what}_train", f"{what}_test") if name in arrays}
    if not columns:
        return {}, ()
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in "iuSU":
            raise Refusal(
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
        raise Refusal(f"classes has shape {classes.shape}; it must be a list of names")
    return tuple(str(name) for name in classes)


def _as_text(column: Array) -> Array:
    """Bytes as the text they encode, all else as it is."""
    return np.char.decode(column, "utf-8") if column.dtype.kind == "S" else column


# functions of the user's


def _names_function(text: str) -> bool:
    return ":" in text and not text.endswith(".npz")


def _call(source: str, root: str | Path, seed: int, options: Mapping[str, object]) -> object:
    module_name, _, function_name = source.partition(":")
    if not module_name or module_name.startswith(".") or not function_name:
        raise Refusal(f'data "{source}" is not of the form "package.module:function"')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # the module is there, and what it imports is not
        raise Refusal(f'data "{source}": there is no module "{missing}"{_nearest_module(missing)}') from None
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise Refusal(
            f'data "{source}": the module "{module_name}" has no function "{function_name}";'
            f" {nearest(function_name, own)}"
        )
    arguments = {**options, "root": root, "seed": seed}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise Refusal(
            f'data "{source}" cannot be called with {", ".join(sorted(arguments))}: {error};'
            " it must take root, seed and the options given"
        ) from None
    return function(**arguments)


def _nearest_module(missing: str) -> str:
    """A suggestion among the modules beside the missing one, if one is near: they are too many to list."""
    package, _, name = missing.rpartition(".")
    places = getattr(importlib.import_module(package), "__path__", []) if package else None
    clause = nearest(name, [module.name for module in pkgutil.iter_modules(places)])
    return f"; {clause}" if clause.startswith("did") else " on the import path"
