"""From what a user names or holds to a `DataSet`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from fullrank.data.dataset import DataSet, Split, class_names, with_classes
from fullrank.data.sources.memory import as_split, channels_first, is_array, is_pair
from fullrank.data.sources.npz import from_npz
from fullrank.data.sources.registry import KNOWN
from fullrank.data.split import split_off_test
from fullrank.errors import InputError, nearest
from fullrank.plugins import called, import_object


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
    - "fashion-mnist", "mnist", "cifar10" or "cifar100", in `root`, $FULLRANK_DATA or a usual place;
    - "npz" with the file as `root`, or the path of an `.npz` file, in `root`, $FULLRANK_DATA or the current directory;
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
        raise InputError(f"num_classes is {num_classes}; there must be at least one class")
    text = str(source) if isinstance(source, (str, Path)) else ""
    if _names_function(text):
        made = _call(text, root, seed, options)
        if _names_function(str(made) if isinstance(made, (str, Path)) else ""):
            raise InputError(f'data "{text}" returned "{made}"; it must return data or the path of an .npz file')
        loaded = load_dataset(made, root, seed=seed, num_classes=num_classes)
        return loaded if isinstance(made, DataSet) else replace(loaded, name=text)
    if options:
        raise InputError(
            f'unknown option "{min(options)}" of load_dataset; only a "package.module:function" takes further options'
        )
    if not isinstance(source, (str, Path)):
        return _from_memory(source, seed, num_classes)
    if text in _LOADERS:
        return with_classes(_LOADERS[text](root), num_classes)
    if text == "npz":
        if not str(root):
            raise InputError('data "npz" needs root, the path of the .npz file')
        return from_npz(Path(root), seed, num_classes)
    if text.endswith(".npz"):
        return from_npz(_npz_file(text, root), seed, num_classes)
    raise InputError(
        f'unknown data set "{text}": {nearest(text, (*_LOADERS, "npz"))}'
        ' (or the path of an .npz file, or "package.module:function")'
    )


def _npz_file(name: str, root: str | Path) -> Path:
    """The file of that name in `root` if it is given, else in $FULLRANK_DATA or, failing that, from where one works."""
    named = os.environ.get("FULLRANK_DATA")
    here = Path(root) / name
    if str(root) or not named:
        return here
    there = Path(named).expanduser() / name
    if not there.is_file() and not here.expanduser().is_file():
        raise InputError(f"there is no file {name}, neither in $FULLRANK_DATA ({named}) nor in the current directory")
    return there if there.is_file() else here


def _from_memory(data: object, seed: int, num_classes: int | None) -> DataSet:
    if isinstance(data, DataSet):
        return with_classes(data, num_classes)
    train: Split
    test: Split
    if is_pair(data) and not (is_array(data[0]) or is_array(data[1])):
        train, test = (_split_named(name, half) for name, half in zip(("train", "test"), data, strict=True))
    else:
        train, test = split_off_test(channels_first(as_split(data)), seed)
    return DataSet("memory", train, test, class_names(train, test, num_classes))


def _split_named(name: str, data: object) -> Split:
    try:
        return channels_first(as_split(data))
    except InputError as error:
        raise InputError(f"{name} split: {error}") from None


def _digits(_: str | Path = "") -> DataSet:
    with resources.files("fullrank.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        x, y = arrays["x"], arrays["y"]
    grey = np.rint(x * (255 / 16)).astype(np.uint8)
    whole = Split(torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(y))
    # one split for everybody, like a data set that comes divided: the run's seed has no say in it
    train, test = split_off_test(whole, seed=0)
    return DataSet("digits", train, test, tuple("0123456789"), mean=(0.306,), std=(0.3762,))


# name -> what loads it from a root
_LOADERS: dict[str, Callable[[str | Path], DataSet]] = {
    "digits": _digits,
    **{name: stored.load for name, stored in KNOWN.items()},
}


def _names_function(text: str) -> bool:
    return ":" in text and not text.endswith(".npz")


def _call(source: str, root: str | Path, seed: int, options: Mapping[str, object]) -> object:
    function = import_object(source, "data.name", "function")
    arguments = {**options, "root": root, "seed": seed}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f'data "{source}" cannot be called with {", ".join(sorted(arguments))}: {error};'
            " it must take root, seed and the options given"
        ) from None
    return called(function, source, "data.name", **arguments)
