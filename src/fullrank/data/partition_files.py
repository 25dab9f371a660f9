"""Read partitions from files: the partition.safetensors of a run, or a CSV with the client of each sample."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fullrank.data.dataset import DataSet
from fullrank.data.delimited import Delimited
from fullrank.errors import InputError
from fullrank.files import load_tensors

IndexArray = npt.NDArray[np.int64]

COLUMNS = ("sample", "client")
PART = "part"
PARTS = ("train", "holdout", "validation")
"""The values of the column `part` of a CSV; an empty cell means the first."""


@dataclass(frozen=True)
class StoredPartition:
    """A partition of a training split, as a file describes it."""

    parts: list[IndexArray]
    """Training samples of each client."""
    holdouts: list[IndexArray]
    """Held-out samples of each client."""
    validation: IndexArray
    """The validation share."""
    names: tuple[str, ...] = ()
    """The name of each client, if the file has names."""
    complete: bool = True
    """Whether the file also defines the held-out samples and the validation share, which may be empty."""


def read_partition(path: Path, data: DataSet, clients: int, *, repeats: bool = False) -> StoredPartition:
    """Read a partition from a file; it must divide these data, and training, hold-outs and validation must not overlap.

    Args:
        path: A file that a run or :meth:`fullrank.data.federation.Federation.tensors` wrote, or a CSV with the columns
            sample, client and, if wanted, part.
        data: The data set.
        clients: The number of clients that the file must have, or 0 for any number.
        repeats: Whether several clients, or one client twice, may have a training sample of a safetensors file.

    Raises:
        InputError: If the file is not a partition of these data.
    """
    if not path.is_file():
        raise InputError(f'data.partition: there is no file "{path}"')
    stored = _from_csv(path, data) if path.suffix == ".csv" else _from_tensors(path, data)
    if clients and len(stored.parts) != clients:
        raise InputError(
            f'data.clients = {clients}, but the partition "{path}" has {len(stored.parts)} clients; leave data.clients '
            "out, or at 0"
        )
    if problem := _problem_of(data, stored, repeats):
        raise InputError(f'data.partition: in "{path}" {problem}')
    return stored


def divided(joined: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> list[IndexArray]:
    """Cut an array into consecutive pieces.

    Args:
        joined: The array.
        sizes: The sizes of the pieces.

    Raises:
        ValueError: If the sizes do not add up to the length of the array.
    """
    if sizes.ndim != 1 or joined.ndim != 1 or not len(sizes) or (sizes < 0).any() or int(sizes.sum()) != len(joined):
        raise ValueError("its sizes do not add up")
    return np.split(joined.astype(np.int64, casting="safe"), np.cumsum(sizes)[:-1])


def as_bytes(names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return names as an array of bytes, for a safetensors file."""
    return np.frombuffer(json.dumps(names).encode(), dtype=np.uint8).copy()


def _from_tensors(path: Path, data: DataSet) -> StoredPartition:
    try:
        saved = {name: tensor.numpy() for name, tensor in load_tensors(path).items()}
        parts, holdouts = (divided(saved[name], saved[f"{name}_sizes"]) for name in ("train", "holdout"))
        validation, fingerprint = saved["validation"].astype(np.int64, casting="safe"), saved["fingerprint"]
        names = tuple(map(str, json.loads(saved["names"].tobytes()))) if "names" in saved else ()
    except Exception as error:
        raise InputError(f'data.partition: "{path}" is not a saved partition ({error})') from None
    if bytes(fingerprint).hex() != data.fingerprint():
        raise InputError(f'data.partition: "{path}" divides other data than "{data.name}": their fingerprints differ')
    return StoredPartition(parts, holdouts, validation, names if len(names) == len(parts) else ())


def _problem_of(data: DataSet, stored: StoredPartition, repeats: bool) -> str:
    """Return what is wrong with a partition, or an empty text."""
    if len(stored.holdouts) != len(stored.parts):
        return f"{len(stored.parts)} clients have training samples, but there are hold-outs of {len(stored.holdouts)}"
    trained, apart = np.concatenate(stored.parts), np.concatenate([*stored.holdouts, stored.validation])
    used = np.concatenate([trained, apart])
    if len(used) and not (used.min() >= 0 and used.max() < len(data.train)):
        return f"some indices are outside the {len(data.train)} samples of the data set"
    if len(np.intersect1d(trained, apart)) or len(np.unique(apart)) < len(apart):
        return "training samples, hold-outs and validation overlap"
    if not repeats and len(np.unique(trained)) < len(trained):
        return "some training samples belong to several clients, which is allowed with data.passes = 2 only"
    groups = data.train.group
    if groups is not None and len(np.intersect1d(groups.numpy()[trained], groups.numpy()[apart])):
        return "a group of samples that belong together is both in training and in a hold-out or the validation share"
    return ""


def _from_csv(path: Path, data: DataSet) -> StoredPartition:
    """Read the rows of a CSV; clients are in the order of their numbers or, where any is a text, of their names."""
    found: dict[str, dict[str, list[int]]] = {part: {} for part in PARTS}
    row_of: dict[int, int] = {}
    has_part = False
    for row, cells in _rows(path):
        has_part = PART in cells
        where = f'data.partition: row {row} of "{path}"'
        sample = _sample(where, cells["sample"], len(data.train))
        if sample in row_of:
            raise InputError(f"{where}: sample {sample} is in row {row_of[sample]} already; list each sample once")
        row_of[sample] = row
        part, client = cells.get(PART) or PARTS[0], cells["client"]
        if part not in found:
            raise InputError(f'{where}: part is "{part[:20]}"; it must be {", ".join(PARTS[:-1])} or {PARTS[-1]}')
        if part == "validation":
            client = ""
        elif not client:
            raise InputError(f"{where}: the client is empty; leave out the rows of samples that no client has")
        found[part].setdefault(client, []).append(sample)
    names = sorted({*found["train"], *found["holdout"]})
    if all(name.isascii() and name.isdecimal() for name in names):
        names = sorted(names, key=lambda name: (int(name), name))
    if not names:
        raise InputError(f'data.partition: "{path}" gives no sample to a client')
    parts, holdouts = ([_indices(found[part].get(name, [])) for name in names] for part in ("train", "holdout"))
    return StoredPartition(parts, holdouts, _indices(found["validation"].get("", [])), tuple(names), complete=has_part)


def _indices(samples: list[int]) -> IndexArray:
    return np.array(samples, dtype=np.int64)


def _sample(where: str, text: str, samples: int) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f'{where}: sample is "{text[:20]}"; it must be the position of a training sample, from 0')
    if len(text) > len(str(samples)) + 8 or int(text) >= samples:
        raise InputError(
            f"{where}: there is no sample {text[:20]}; the training split has {samples} samples, numbered from 0"
        )
    return int(text)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each row of a CSV and its cells by column; rows in which all are empty are left out."""
    try:
        table = Delimited(path)
        columns = _columns(table.columns)
        for number, cells in table:
            if any(cells):
                yield number, dict(zip(columns, cells, strict=True))
    except InputError as error:
        raise InputError(f'data.partition: "{path}": {error}') from None


def _columns(header: Sequence[str]) -> list[str]:
    columns = [name.lower() for name in header]
    found = f"its first row has the columns {', '.join(columns)[:100]}"
    if missing := [name for name in COLUMNS if name not in columns]:
        raise InputError(f"{found}; {' and '.join(missing)} must be among them")
    if unknown := [name for name in columns if name not in (*COLUMNS, PART)]:
        raise InputError(f'{found}; "{unknown[0]}" is not known, only {", ".join(COLUMNS)} and {PART} are')
    if len(set(columns)) < len(columns):
        raise InputError(f"{found}, one of them twice; each may occur once")
    return columns
