"""Data sets: tensors with labels, which are checked when a data set is created."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullrank.data.columns import Column
from fullrank.errors import InputError

_CHUNK_BYTES = 1 << 24
MOST_CLASSES = 1_000_000
IDS = ("domain", "group", "client")
"""The columns of a split, besides its labels, that it may have: one whole number per sample."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels and, if known, the domain, the group and the natural client of each sample.

    Whole numbers become int64, unless they are 8-bit (uint8) or int32. 16-bit numbers without a sign (uint16) of three
    or more axes are images: they become float32 in [0, 1], divided by 65535.

    >>> len(Split(torch.zeros(3, 2), torch.tensor([0, 1, 1])))
    3
    """

    x: Tensor
    y: Tensor
    domain: Tensor | None = None
    group: Tensor | None = None
    client: Tensor | None = None
    missing: bool = False
    """Whether NaN stands for a missing value, which the preparation of batches fills in."""

    def __post_init__(self) -> None:
        if self.x.dim() == 0 or len(self.x) == 0:
            raise InputError(f"x has shape {tuple(self.x.shape)} and no samples; its first axis must be the samples")
        # contiguous, so that equal data give equal bits everywhere
        object.__setattr__(self, "x", _usable(self.x.contiguous()))
        for name in ("y", *IDS):
            column: Tensor | None = getattr(self, name)
            if column is not None:
                # the class is frozen for its users; labels are converted to one dtype at creation
                object.__setattr__(self, name, _integer_column(name, column, len(self.x)))
        if self.x.is_floating_point():
            _reject_not_finite(self.x, self.missing)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> Split:
        """Return the samples at these positions, in this order."""
        ids = {name: None if (column := getattr(self, name)) is None else column[index] for name in IDS}
        return Split(self.x[index], self.y[index], **ids, missing=self.missing)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training and a test split that agree in shape and labels, and the usual preparation of their samples.

    `mean` and `std` are those of x / 255 per channel for uint8 images and of x itself for floating images; those of a
    table are known when it is divided among clients. `augment` names the operations that "auto" stands for.

    >>> train = Split(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> test = Split(torch.rand(2, 3), torch.tensor([0, 1]))
    >>> data = DataSet("mine", train, test, classes=("cat", "dog"))
    >>> data.num_classes, data.input_shape
    (2, (3,))
    """

    name: str
    train: Split
    test: Split | None
    classes: tuple[str, ...]
    domains: tuple[str, ...] = ()
    """The names of the domains, if samples come from domains."""
    clients: tuple[str, ...] = ()
    """The names of the natural clients, if each sample belongs to one."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    """The columns of a table, whose features the samples are, in their order."""
    unreadable: tuple[str, ...] = ()
    """The files that could not be read and were left out, each with the reason."""
    remarks: tuple[str, ...] = ()
    """Remarks for the user about how the files were read, one sentence each."""
    file: Path | None = None
    """The safetensors file that the tensors are memory-mapped from (as `train.x` and so on), if there is one."""

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError(f"data set {self.name} has no classes; name at least one")
        for split_name, split in self._splits():
            _reject_outside(split_name, "label", split.y, self.num_classes)
            if self.domains and split.domain is not None:
                _reject_outside(split_name, "domain", split.domain, len(self.domains))
            if self.clients and split.client is not None:
                _reject_outside(split_name, "client", split.client, len(self.clients))
        if self.test is not None:
            self._reject_unlike(self.test.x)
            self._reject_groups_in_both(self.test)
        width = sum(column.width for column in self.columns)
        if self.columns and self.input_shape != (width,):
            raise InputError(f"samples of {self.name} have shape {self.input_shape} but its columns {width} features")
        if (self.mean is None) != (self.std is None):
            raise InputError(f"data set {self.name} has only one of mean and std; give both or neither")

    def _reject_unlike(self, test: Tensor) -> None:
        train = self.train.x
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise InputError(
                f"training samples of {self.name} are {train.dtype} of shape {tuple(train.shape[1:])} and"
                f" test samples {test.dtype} of shape {tuple(test.shape[1:])}; both must be equal"
            )

    def _reject_groups_in_both(self, test: Split) -> None:
        if self.train.group is None or test.group is None:
            return
        train_group, test_group = self.train.group.numpy(), test.group.numpy()
        both = np.intersect1d(train_group, test_group)
        if len(both):
            trained, tested = (np.flatnonzero(group == both[0])[0] for group in (train_group, test_group))
            raise InputError(
                f"{len(both)} groups of {self.name} (samples that belong together, such as those of one patient) have "
                f"samples in both the training and the test split, first that of training sample {trained} and test "
                f"sample {tested}; a group must be in one split, so divide the data by group, or leave the groups out"
            )

    def _splits(self) -> list[tuple[str, Split]]:
        return [("train", self.train)] + ([] if self.test is None else [("test", self.test)])

    @property
    def num_classes(self) -> int:
        """The number of classes, with or without samples."""
        return len(self.classes)

    @property
    def in_channels(self) -> int:
        """The number of channels of images (N, C, H, W) and of signals (N, C, L) in floating point; otherwise 1."""
        x = self.train.x
        return x.shape[1] if x.dim() == 4 or (x.dim() == 3 and x.is_floating_point()) else 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def images(self) -> bool:
        """Whether samples are 8-bit images of shape (channels, height, width)."""
        return self.train.x.dtype == torch.uint8 and self.train.x.dim() == 4

    def fingerprint(self) -> str:
        """Return SHA-256 of the content, which does not depend on how the data are stored."""
        return self._fingerprint

    def set_fingerprint(self, known: str) -> None:
        """Set the fingerprint of content that has been verified, so that it is not computed again."""
        vars(self)["_fingerprint"] = known

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for split_name, split in self._splits():
            for column in ("x", "y", *IDS):
                tensor: Tensor | None = getattr(split, column)
                if tensor is None:
                    continue
                # the header separates columns, so that their bytes are not ambiguous
                header = [split_name, column, str(tensor.dtype), list(tensor.shape)]
                digest.update(json.dumps(header).encode())
                for _, chunk in _chunks(tensor):
                    digest.update(chunk.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def class_names(train: Split, test: Split, num_classes: int | None) -> tuple[str, ...]:
    """Return numbers as the names of classes.

    Args:
        train: The training split.
        test: The test split.
        num_classes: The number of classes; None means one more than the largest label.

    Raises:
        InputError: If the largest label is too large to be the number of a class.
    """
    largest = max(int(train.y.max()), int(test.y.max()))
    if num_classes is None and largest >= MOST_CLASSES:
        raise InputError(f"the largest label is {largest}; labels must number classes from 0")
    return tuple(str(label) for label in range(max(1, largest + 1) if num_classes is None else num_classes))


def with_classes(data: DataSet, num_classes: int | None) -> DataSet:
    """Check the number of classes of a data set.

    Args:
        data: The data set.
        num_classes: The number of classes that it must have, or None for any.

    Returns:
        The same data set.

    Raises:
        InputError: If it has another number of classes.
    """
    if num_classes not in (None, data.num_classes):
        raise InputError(f"num_classes is {num_classes}, but {data.name} has {data.num_classes} classes")
    return data


def is_integer(dtype: torch.dtype) -> bool:
    """Return whether a dtype has whole numbers; booleans do not count."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _integer_column(name: str, column: Tensor, length: int) -> Tensor:
    if column.dim() != 1 or not is_integer(column.dtype):
        raise InputError(
            f"{name} is {column.dtype} of shape {tuple(column.shape)};"
            f" it must have one whole number per sample, of shape ({length},)"
        )
    if len(column) != length:
        raise InputError(f"x has {length} samples, but {name} has {len(column)}; both must have the same length")
    return column.to(torch.int64)


def _usable(x: Tensor) -> Tensor:
    """Convert whole numbers of the types that torch computes little with, in which an embedding takes no index."""
    if x.dtype == torch.uint16 and x.dim() >= 3:
        return x.float() / 65535
    if not is_integer(x.dtype) or x.dtype in (torch.uint8, torch.int32, torch.int64):
        return x
    converted = x.to(torch.int64)
    if x.dtype == torch.uint64 and bool((converted < 0).any()):
        raise InputError("x holds whole numbers of 2**63 or more, which torch cannot compute with")
    return converted


def _reject_not_finite(x: Tensor, missing: bool) -> None:
    for start, chunk in _chunks(x):
        finite = ~torch.isinf(chunk) if missing else torch.isfinite(chunk)
        if not finite.all():
            first = start + int((~finite.reshape(len(chunk), -1).all(1)).nonzero()[0])
            raise InputError(f"sample {first} of x holds NaN or infinity; every value must be finite")


def _reject_outside(split: str, what: str, values: Tensor, count: int) -> None:
    plural = "classes" if what == "label" else f"{what}s"
    outside = ((values < 0) | (values >= count)).nonzero()
    if len(outside):
        first = int(outside[0])
        raise InputError(
            f"sample {first} of the {split} split has {what} {int(values[first])};"
            f" with {count} {plural} it must lie in 0..{count - 1}"
        )


def _chunks(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield pieces along the first axis that are small compared with the whole, so that they can be copied."""
    row_bytes = max(1, math.prod(tensor.shape[1:]) * tensor.element_size())
    rows = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, len(tensor), rows):
        yield start, tensor[start : start + rows]
