"""Data sets of tables: columns that are features, or a column of image files, and labels, clients and groups."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.columns import Column, Numbers, Texts, described
from fullrank.data.dataset import DataSet, Split, with_classes
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.cells import FEW, Table, chosen_column, classes_in, columns_of, numbered
from fullrank.data.sources.contained import below
from fullrank.data.sources.delimited import read_delimited
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing
from fullrank.data.sources.parquet import read_parquet
from fullrank.data.split import split_off_test
from fullrank.errors import InputError

Indices = npt.NDArray[np.int64]

USUAL = {"label": ("label", "y"), "client": ("client",), "group": ("group",)}
"""The columns that are used if the keys of [data] with these names are empty."""
SPLIT = "split"
"""The column that says whether a row is for training or for the test."""
SIDES = ("train", "test")

READERS: Mapping[str, Callable[[Path], Table]] = {".csv": read_delimited, ".parquet": read_parquet}

TABLES = tuple(READERS)
"""The suffixes of files with tables."""


def from_file(
    path: Path,
    seed: int,
    num_classes: int | None,
    *,
    label: str = "",
    image: str = "",
    client: str = "",
    group: str = "",
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
    columns: Sequence[Column] = (),
) -> DataSet:
    """Read a data set from a `.csv` or `.parquet` file.

    Args:
        path: The file.
        seed: The seed of the test split, for a table without a column "split".
        num_classes: The number of classes that the labels must have.
        label: The column of the labels, by default "label" or "y".
        image: The column of the paths of images, relative to the folder of the file; then no other is a feature.
        client: The column of the natural clients, by default "client" if it is there.
        group: The column of the groups, by default "group" if it is there.
        size: As in `load_dataset`, for images.
        unreadable: As in `load_dataset`, for images.
        columns: The columns of a trained model's table, of which features are made; by default those of the file.

    Raises:
        InputError: If the file cannot be read, or its columns are not a data set.
    """
    path = path.expanduser()
    if not image and unreadable != "stop":
        raise InputError(f'data.unreadable = "{unreadable}": applies to image files, and data.image names none')
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a {path.suffix} file")
    try:
        keys = {"label": label, "client": client, "group": group}
        read = partial(READERS[path.suffix], path)
        if not image:
            return with_classes(of_table(path.stem, read(), keys, seed, columns=columns), num_classes)
        listed = partial(_list_images, path, read, keys, image, seed)
        root = path.absolute().parent
        return with_classes(load_listing(path.stem, listed, root=root, size=size, unreadable=unreadable), num_classes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def of_table(
    name: str,
    table: Table,
    keys: Mapping[str, str],
    seed: int,
    *,
    classes: tuple[str, ...] = (),
    sides: tuple[Indices, Indices] | None = None,
    columns: Sequence[Column] = (),
) -> DataSet:
    """Return the data set of a table whose columns are features.

    Args:
        name: The name of the data set.
        table: The table.
        keys: The columns of labels, clients and groups; empty for the usual ones.
        seed: The seed of the test split, for a table without a column "split".
        classes: The names of the classes, if labels are their numbers.
        sides: The rows for training and for the test, if a column does not say it.
        columns: The columns of a trained model's table, of which features are made; by default all others of the table.
    """
    roles = Roles.of(table, keys, classes, sides)
    train, test = roles.sides(seed)
    remarks: tuple[str, ...] = ()
    if columns:
        x = _encoded(table, columns)
    else:
        columns, x, remarks = _features(table, [name for name in table.columns if name not in roles.taken], train)
    parts = [roles.split(torch.from_numpy(x[rows]), rows, missing=True) for rows in (train, test)]
    return DataSet(
        name, parts[0], parts[1], roles.classes, clients=roles.clients, columns=tuple(columns), remarks=remarks
    )


def _list_images(path: Path, read: Callable[[], Table], keys: Mapping[str, str], image: str, seed: int) -> Listing:
    """List the images that a table names."""
    table = read()
    roles = Roles.of(table, keys)
    name = chosen_column(table, "image", image, ())
    if name in roles.taken:
        raise InputError(f'data.image = "{name}": the column has another meaning already')
    train, test = roles.sides(seed)
    files: list[ImageFile] = []
    first: dict[Path, int] = {}
    for place, (row, cell) in enumerate(zip(table.rows, table.complete(name), strict=True)):
        file = below(path.absolute().parent, cell.replace("\\", "/"), f'row {row} of the column "{name}"')
        if first.setdefault(file, row) != row:
            raise InputError(f'rows {first[file]} and {row} of the column "{name}" name the same image; delete one')
        files.append(roles.image(file, place))
    if not any(os.path.lexists(file.path) for file in files):  # the cells may be about people, so none is shown
        raise InputError(
            f'data.image = "{name}": none of the {len(files)} cells of this column is the path of a file below '
            f"{path.absolute().parent}; name the column of the paths of images"
        )
    variant = json.dumps([dict(keys), image, *([] if roles.has_split else [seed])])
    parts = [[files[row] for row in rows] for rows in (train, test)]
    return Listing(parts[0], parts[1], roles.classes, described_by=(path,), variant=variant)


class Roles:
    """The columns of a table with another meaning than a feature: labels, clients, groups, and the side of the split.

    Args:
        table: The table.
        names: The names of the columns of labels, clients and groups, by key; empty for a column that is not there.
        classes: The names of the classes, if labels are their numbers.
        sides: The rows for training and for the test, if a column does not say it.
    """

    def __init__(
        self, table: Table, names: Mapping[str, str], classes: tuple[str, ...], sides: tuple[Indices, Indices] | None
    ):
        self.names = names
        self.labels, self.classes = _labels(table, names["label"], classes)
        self.client, self.clients = _numbered(table, names["client"])
        self.group, _ = _numbered(table, names["group"])
        self.has_split = sides is None and SPLIT in table.columns
        self._sides = _sides_in(table) if self.has_split else sides

    @classmethod
    def of(
        cls,
        table: Table,
        keys: Mapping[str, str],
        classes: tuple[str, ...] = (),
        sides: tuple[Indices, Indices] | None = None,
    ) -> Roles:
        """Find the columns that keys of [data] name, or the usual ones.

        Args:
            table: The table.
            keys: The values of the keys `label`, `client` and `group`; empty for the usual columns.
            classes: The names of the classes, if labels are their numbers.
            sides: The rows for training and for the test, if a column does not say it.

        Raises:
            InputError: If there is no such column, or two keys name the same one.
        """
        names = {key: chosen_column(table, key, given, USUAL[key]) for key, given in keys.items()}
        if not names["label"]:
            raise InputError(
                f"it has no column {' or '.join(USUAL['label'])}; name the column of the labels in data.label (the "
                f"columns are {columns_of([*table.columns])})"
            )
        used = [name for name in names.values() if name]
        twice = next((name for name in used if used.count(name) > 1), None)
        if twice is not None:
            both = " and ".join(f"data.{key}" for key, name in names.items() if name == twice)
            raise InputError(f'{both} name the same column, "{twice}"; a column has one meaning')
        return cls(table, names, classes, sides)

    @property
    def taken(self) -> frozenset[str]:
        """The columns that cannot be features."""
        return frozenset(filter(None, [*self.names.values(), SPLIT if self.has_split else ""]))

    def sides(self, seed: int) -> tuple[Indices, Indices]:
        """Return the sides of the split.

        Args:
            seed: The seed of the test split, if neither a column nor the caller defines it.

        Returns:
            The rows for training, and those for the test.
        """
        if self._sides is not None:
            return self._sides
        rows = torch.arange(len(self.labels))
        whole = self.split(rows[:, None], rows.numpy())
        train, test = split_off_test(whole, seed)
        return train.x[:, 0].numpy(), test.x[:, 0].numpy()

    def image(self, file: Path, row: int) -> ImageFile:
        """Return an image file with the label, the group and the client of its row."""
        group = "" if self.group is None else str(self.group[row])
        client = "" if self.client is None else self.clients[self.client[row]]
        return ImageFile(file, int(self.labels[row]), group=group, client=client)

    def split(self, x: torch.Tensor, rows: Indices, *, missing: bool = False) -> Split:
        """Return samples with the labels, groups and clients of their rows.

        Args:
            x: The samples.
            rows: The row of each sample.
            missing: Whether NaN stands for a missing value.
        """
        ids = {"client": self.client, "group": self.group}
        found = {name: torch.from_numpy(column[rows]) for name, column in ids.items() if column is not None}
        return Split(x, torch.from_numpy(self.labels[rows]), **found, missing=missing)


def _labels(table: Table, name: str, classes: tuple[str, ...]) -> tuple[Indices, tuple[str, ...]]:
    """Return labels and classes, which are those of the labels unless labels number given ones."""
    cells = table.complete(name)
    if not classes:
        return classes_in(name, cells)
    known = {str(k): k for k in range(len(classes))}
    odd = [row for row, cell in zip(table.rows, cells, strict=True) if cell not in known]
    if odd:
        raise InputError(
            f'the column "{name}" has no class in row {odd[0]}; a label must be one of 0 to {len(classes) - 1}'
        )
    return np.array([known[cell] for cell in cells], dtype=np.int64), classes


def _numbered(table: Table, name: str) -> tuple[Indices | None, tuple[str, ...]]:
    return numbered(table.complete(name)) if name else (None, ())


def _sides_in(table: Table) -> tuple[Indices, Indices]:
    cells = [cell.lower() for cell in table.complete(SPLIT)]
    other = [row for row, cell in zip(table.rows, cells, strict=True) if cell not in SIDES]
    if other:
        raise InputError(
            f'the column "{SPLIT}" must be "train" or "test" in each row, and is neither in row {other[0]}; rename the '
            "column if it is not about the test set"
        )
    found = tuple(np.flatnonzero([cell == side for cell in cells]) for side in SIDES)
    for side, rows in zip(SIDES, found, strict=True):
        if not len(rows):
            raise InputError(f'no row has "{side}" in the column "{SPLIT}"; both "train" and "test" must be there')
    return found[0], found[1]


def features_in(path: Path, columns: Sequence[Column]) -> torch.Tensor:
    """Return the features (N, F) of the rows of a file, as the columns of a trained model's table make them.

    Other columns of the file are ignored.

    Args:
        path: A `.csv` or `.parquet` file.
        columns: The columns of the table with which the model was trained.

    Raises:
        InputError: If the file cannot be read or lacks a column, or if a numeric column does not hold numbers.
    """
    try:
        if not path.is_file():
            raise InputError("there is no such file")
        return torch.from_numpy(_encoded(READERS[path.suffix](path), columns))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _encoded(table: Table, columns: Sequence[Column]) -> npt.NDArray[np.float64]:
    """Return the features (N, F) as the columns of a trained model's table make them."""
    absent = [column.name for column in columns if column.name not in table.columns]
    if absent:
        raise InputError(f"it has no column {columns_of(absent)}, with which the model was trained")
    return np.hstack([column.encode(_cells_of(table, column)) for column in columns])


def _cells_of(table: Table, column: Column) -> Numbers | Texts:
    """Return the cells as the column needs them: texts for categories, although some file may have numbers only."""
    return table.feature(column.name) if column.numeric else table.texts(column.name)


def _features(
    table: Table, names: Sequence[str], train: Indices
) -> tuple[tuple[Column, ...], npt.NDArray[np.float64], tuple[str, ...]]:
    """Return columns as the rows for training make them, the features (N, F) of all rows, and remarks."""
    if not names:
        raise InputError("no column is left that could be a feature; there must be one more than the labels")
    columns, encoded, remarks, width = [], [], [], 0
    for name in names:
        cells = table.feature(name)
        own = cells[train] if isinstance(cells, np.ndarray) else [cells[row] for row in train]
        column = described(name, own)
        if column is None:
            remarks.append(f'the column "{name}" is left out, because it has no value in the training part')
            continue
        if isinstance(own, np.ndarray) and _may_number_cases(own):
            remarks.append(
                f'the column "{name}" has another whole number in each row; delete it if it numbers the cases, because '
                "the model learns from it"
            )
        columns.append(column)
        width += column.width
        reject_too_large(f"the table of {len(table)} rows and {width} features", len(table) * width * 16, "store fewer")
        encoded.append(column.encode(cells))
    if not columns:
        raise InputError(f"none of the columns {columns_of(names)} has a value in the training part")
    return tuple(columns), np.hstack(encoded), tuple(remarks)


def _may_number_cases(values: Numbers) -> bool:
    there = values[~np.isnan(values)]
    return len(there) >= FEW and len(np.unique(there)) == len(there) and bool((there == np.floor(there)).all())
