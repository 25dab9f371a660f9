"""Load a data set by name, path or import path, or take it from memory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fullrank.data.augment.resize import resized
from fullrank.data.columns import Column
from fullrank.data.dataset import DataSet, Split, class_names, with_classes
from fullrank.data.sources.hub import from_hub
from fullrank.data.sources.memory import as_split, is_array, is_pair
from fullrank.data.sources.registry import DATA_SETS, FORMATS
from fullrank.data.sources.table import TABLES
from fullrank.data.split import split_off_test
from fullrank.errors import InputError
from fullrank.plugins import HUB, called


@dataclass(frozen=True)
class Reading:
    """The options for reading files: the keys of [data] with these names, which `load_dataset` takes too."""

    size: int | Sequence[int] = 0
    """Length of the short side of images, or their height and width; 0 keeps the stored size."""
    unreadable: Literal["stop", "skip"] = "stop"
    """Whether a file that cannot be read stops the run or is left out."""
    label: str = ""
    """The column or array of the labels."""
    image: str = ""
    """The column of the paths of images."""
    client: str = ""
    """The column or array of the natural client of each sample."""
    group: str = ""
    """The column or array of the groups of samples that must not be separated, such as patients."""

    def given(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults."""
        return {name: value for name, value in vars(self).items() if value != getattr(Reading, name)}


READING = tuple(vars(Reading()))
"""The names of the keys."""


def load_dataset(
    source: object = "digits",
    root: str | Path = "",
    *,
    seed: int = 0,
    num_classes: int | None = None,
    columns: Sequence[Column] = (),
    **options: object,
) -> DataSet:
    """Load a data set by name, file or function, or make one of tensors.

    Images become (N, C, H, W), 16-bit ones with values in [0, 1] (see :class:`Split`); anything else keeps its shape.

    Args:
        source: One of

            - a name that the registry has, such as "digits", which comes with the library, or "cifar10", which is
              searched in `root`, $FULLRANK_DATA and the usual places; `fullrank keys data.name` lists them;
            - the path of an `.npz`, `.csv` or `.parquet` file, in `root`, $FULLRANK_DATA or the current directory, or
              "npz" with the file as `root`;
            - "hub:NAME", a data set of the Hugging Face hub or a folder in a form that `datasets` reads;
            - "package.module:function", called as f(root=, seed=, **options);
            - a pair (x, y) or a torch Dataset, of which a fifth becomes the test set, by class and `seed`;
            - a pair of these, for training and test.
        root: The folder of the data set.
        seed: The seed of the test split, for data that come without one.
        num_classes: The number of classes. Without it there is one class more than the largest label.
        columns: The columns of a trained model's table, of which the features of a `.csv` or `.parquet` file are made;
            by default those of the file.
        options: The keys of :class:`Reading`, and further arguments of a function.

    Returns:
        The data set.

    Raises:
        InputError: If the source is not known, is missing, or has no usable data.

    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.test), digits.input_shape
    (1437, 360, (1, 8, 8))
    """
    if num_classes is not None and num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; there must be at least one class")
    reading = Reading(**{name: value for name, value in options.items() if name in READING})  # type: ignore[arg-type]
    rest = {name: value for name, value in options.items() if name not in READING}
    if columns and str(source).endswith(TABLES):
        load = partial(FORMATS[Path(str(source)).suffix], columns=columns)
        file = _file(str(source), root)
        return resized(load(file, seed, num_classes, **_usable(str(source), reading, load)), reading.size)
    return resized(_load(source, root, seed, num_classes, reading, rest), reading.size)


def _load(
    source: object,
    root: str | Path,
    seed: int,
    num_classes: int | None,
    reading: Reading,
    options: Mapping[str, object],
) -> DataSet:
    text = str(source) if isinstance(source, (str, Path)) else ""
    own = text in DATA_SETS.own
    in_file = not own and (text == "npz" or text.endswith(tuple(FORMATS)))
    in_hub = not own and not in_file and text.startswith(f"{HUB}:")
    if not (own or in_file or in_hub) and isinstance(source, (str, Path)):
        made = _call(text, root, seed, options)
        if isinstance(made, (str, Path)) and ":" in str(made) and not str(made).endswith(tuple(FORMATS)):
            raise InputError(
                f'data "{text}" returned "{made}"; it must return data or the path of an .npz, .csv or .parquet file'
            )
        loaded = _load(made, root, seed, num_classes, reading, {})
        return loaded if isinstance(made, DataSet) else replace(loaded, name=text)
    if options:
        raise InputError(
            f'unknown option "{min(options)}" of load_dataset; only a "package.module:function" takes further options'
        )
    if own:
        keys = _usable(text, reading, DATA_SETS.own[text])
        return with_classes(DATA_SETS.own[text](root=root, seed=seed, **keys), num_classes)
    if in_hub:
        return from_hub(text, root, seed, num_classes, **_usable(text, reading, from_hub))
    if not isinstance(source, (str, Path)):
        _usable("data in memory", reading, _from_memory)
        return _from_memory(source, seed, num_classes)
    if text == "npz" and not str(root):
        raise InputError('data "npz" needs root, the path of the .npz file')
    path = Path(root) if text == "npz" else _file(text, root)
    read = FORMATS[".npz" if text == "npz" else path.suffix]
    return read(path, seed, num_classes, **_usable(text, reading, read))


def _usable(source: str, reading: Reading, load: Callable[..., Any]) -> dict[str, Any]:
    """Return the keys that a loader takes; reject others that are given, but the size, which is that of any images."""
    taken = inspect.signature(load).parameters
    for name, value in reading.given().items():
        if name not in ("size", *taken):
            raise InputError(f'data.{name} = "{value}": {source} has nothing that this key could name; leave it out')
    return {name: value for name, value in vars(reading).items() if name in taken}


def _file(name: str, root: str | Path) -> Path:
    """Return the path of a file in `root` if that is given, otherwise in $FULLRANK_DATA or the current directory."""
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
        train, test = split_off_test(as_split(data, images=True), seed)
    return DataSet("memory", train, test, class_names(train, test, num_classes))


def _split_named(name: str, data: object) -> Split:
    try:
        return as_split(data, images=True)
    except InputError as error:
        raise InputError(f"{name} split: {error}") from None


def _call(source: str, root: str | Path, seed: int, options: Mapping[str, object]) -> object:
    function = DATA_SETS.find(source)
    arguments = {**options, "root": root, "seed": seed}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f'data "{source}" cannot be called with {", ".join(sorted(arguments))}: {error};'
            " it must take root, seed and the options given"
        ) from None
    return called(function, source, "data.name", **arguments)
