"""Read data sets of the Hugging Face hub, and local folders in the same forms, with the library `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fullrank.data.dataset import DataSet, with_classes
from fullrank.data.sources.parquet import of_arrow
from fullrank.data.sources.table import SIDES, USUAL, of_table
from fullrank.errors import InputError, said_by

OLDEST = 4
"""The first version of `datasets` that never runs code that a data set brings."""


def from_hub(
    name: str,
    root: str | Path,
    seed: int,
    num_classes: int | None,
    *,
    label: str = "",
    client: str = "",
    group: str = "",
) -> DataSet:
    """Read a data set with `datasets.load_dataset`; no code that comes with it is run.

    Args:
        name: "hub:NAME" or "hub:NAME:CONFIGURATION". NAME is that of a data set of the hub, or a local folder.
        root: The folder in which the local folder is.
        seed: The seed of the test split, for a data set without one.
        num_classes: The number of classes that the labels must have.
        label: The column of the labels; by default the first one with names of classes, or "label" or "y".
        client: The column of the natural clients, by default "client" if it is there.
        group: The column of the groups, by default "group" if it is there.
    """
    short = name.partition(":")[2]
    try:
        sides = _sides(_loaded(short, root))
        features = sides["train"].features
        keys = {"label": label or _label_in(features), "client": client, "group": group}
        classes = tuple(getattr(features.get(keys["label"]), "names", None) or ())
        table, rows = _joined(sides)
        stem = Path(short.partition(":")[0]).name
        return with_classes(of_table(stem, of_arrow(table), keys, seed, classes=classes, sides=rows), num_classes)
    except InputError as error:
        raise InputError(f'data.name = "{name}": {error}') from None


def _loaded(name: str, root: str | Path) -> Mapping[str, Any]:
    """Return the parts of a data set by name."""
    try:
        import datasets
    except ImportError:
        raise InputError("the library datasets reads it, which is missing: pip install 'fullrank[hub]'") from None
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise InputError(
            f"datasets {datasets.__version__} may run code that a data set brings; install version {OLDEST} or newer "
            "(pip install 'fullrank[hub]')"
        )
    path, _, configuration = name.partition(":")
    folder = Path(root).expanduser() / path
    if str(root) and not folder.is_dir():
        raise InputError(f"data.root has no folder {path}; leave data.root empty for a data set of the hub")
    if folder.is_dir() and not any(folder.iterdir()):
        raise InputError(f"the folder {folder} is empty")
    try:
        found = datasets.load_dataset(str(folder) if folder.is_dir() else path, configuration or None)
    except Exception as error:  # of the network, of a file's format, of a name
        why = (said_by(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"the library datasets cannot read it ({type(error).__name__}: {why})") from None
    return dict(found)


def _sides(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts for training and for the test, if there is one."""
    if "train" not in parts:
        raise InputError(f'it has the parts {", ".join(parts)}; one must be called "train"')
    sides = {side: parts[side] for side in SIDES if side in parts}
    for side, part in sides.items():
        if not len(part):
            raise InputError(f'its part "{side}" has no rows')
    return sides


def _label_in(features: Mapping[str, Any]) -> str:
    """Return the first column with names of classes, or an empty text."""
    usual = next((name for name in USUAL["label"] if name in features), "")
    return next((name for name, kind in features.items() if getattr(kind, "names", None)), usual)


def _joined(sides: Mapping[str, Any]) -> tuple[Any, tuple[Any, Any] | None]:
    """Return the rows of all parts as one pyarrow.Table, and which of them are for training and for the test."""
    import pyarrow

    tables = [part.with_format("arrow")[:] for part in sides.values()]
    try:
        table = pyarrow.concat_tables(tables)
    except pyarrow.ArrowException:
        raise InputError("its parts train and test have other columns; both must have the same") from None
    if len(tables) == 1:
        return table, None
    end = tables[0].num_rows
    return table, (np.arange(end), np.arange(end, table.num_rows))
