"""Make data sets of objects in memory: tensors, arrays and torch Datasets."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from fullrank.data.dataset import Split
from fullrank.data.memory_limit import reject_too_large
from fullrank.errors import InputError, message_of


def as_split(data: object, *, images: bool = False) -> Split:
    """Make a `Split` from (x, y) or from a map-style torch Dataset of such pairs.

    Values and shapes stay as they are, except as `Split` says. A Dataset that is not a TensorDataset is read through
    once, item by item, so a random transform is applied only once.

    Args:
        data: The data.
        images: Whether images are returned as (N, C, H, W), as `channels_first` does it.

    Returns:
        The split. A `Split` is returned as it is, except for the order of the axes of images.

    Raises:
        InputError: If the data are neither, or if the labels do not fit the samples.

    >>> as_split((torch.zeros(2, 3), torch.tensor([0, 1]))).y
    tensor([0, 1])
    """
    if isinstance(data, Split):
        return replace(data, x=channels_first(data.x)) if images else data
    x, y = _tensors(data)
    return Split(channels_first(x) if images else x, y)


def _tensors(data: object) -> tuple[Tensor, Tensor]:
    if is_pair(data):
        return as_tensor("x", data[0]), as_tensor("y", data[1])
    if isinstance(data, (str, tuple, list, Mapping, Tensor, np.ndarray, IterableDataset)) or not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        raise InputError(
            f"{type(data).__name__} cannot be used as data; give a pair (x, y) of tensors or arrays,"
            " or a torch Dataset with a length whose items are such pairs"
        )
    return _stored_tensors(data) or _read_items(data)


def is_array(value: object) -> bool:
    """Return whether a value is a tensor or can be converted to an array."""
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def is_pair(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a tuple or list of length two."""
    return isinstance(value, (tuple, list)) and len(value) == 2


def as_tensor(what: str, value: object) -> Tensor:
    """Convert an array to a tensor, without a copy where that is possible.

    Args:
        what: What the array is, as the beginning of an error.
        value: The array; a tensor is detached.

    Raises:
        InputError: If the value is not an array of numbers that torch supports.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if not is_array(value):
        raise InputError(f"{what} is a {type(value).__name__}; it must be a tensor or an array")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} is an array of {array.dtype}; it must hold numbers")
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
            raise InputError(f"{what} is an array of {array.dtype}, which torch does not have") from None


def _stored_tensors(data: object) -> tuple[Tensor, Tensor] | None:
    """Return the tensors of a TensorDataset or of a subset of one, without reading single items."""
    if isinstance(data, Subset):
        whole = _stored_tensors(data.dataset)
        if whole is None:
            return None
        index = torch.as_tensor(data.indices, dtype=torch.int64)
        return whole[0][index], whole[1][index]
    if not isinstance(data, TensorDataset):
        return None
    if len(data.tensors) != 2:
        raise InputError(f"a TensorDataset of {len(data.tensors)} tensors was given; it must hold two, x and y")
    return data.tensors[0].detach(), data.tensors[1].detach()


def _read_items(data: Any) -> tuple[Tensor, Tensor]:
    kind = type(data).__name__
    try:
        count = len(data)
    except Exception as error:
        raise InputError(
            f"the {kind} has no length: len() raised {type(error).__name__}: {message_of(error)}"
        ) from error
    if count == 0:
        raise InputError(f"the {kind} is empty; it must hold at least one sample")
    first = _item(_taken(data, 0), 0)[0]
    needed = count * max(1, first.numel()) * first.element_size()
    reject_too_large(f"the {kind} of {count} samples", needed, "fit holds all samples in memory, so give fewer")
    x = torch.empty((count, *first.shape), dtype=first.dtype)
    y = torch.empty(count, dtype=torch.int64)
    for position in range(count):
        sample, label = _item(_taken(data, position), position)
        if sample.shape != first.shape or sample.dtype != first.dtype:
            raise InputError(
                f"item {position} is {sample.dtype} of shape {tuple(sample.shape)} and item 0 {first.dtype}"
                f" of shape {tuple(first.shape)}; all items must be alike"
            )
        x[position], y[position] = sample, label
    return x, y


def _taken(data: Any, position: int) -> Any:
    try:
        return data[position]
    except Exception as error:
        kind, what = type(data).__name__, f"{type(error).__name__}: {message_of(error)}"
        raise InputError(f"the {kind} of {len(data)} samples raised {what} when item {position} was taken") from error


def _item(item: object, position: int) -> tuple[Tensor, int]:
    if not is_pair(item):
        raise InputError(f"item {position} is a {type(item).__name__}, not a pair (x, y)")
    sample = as_tensor(f"x of item {position}", item[0])
    try:
        label = operator.index(item[1])
    except TypeError:
        shown = repr(item[1])[:100]
        raise InputError(f"y of item {position} is {shown}; it must be a whole number") from None
    if abs(label) >= 2**63:
        raise InputError(f"y of item {position} is too large a number; labels must number the classes from 0")
    return sample, label


def channels_first(x: Tensor) -> Tensor:
    """Return 8-bit and 16-bit images as (N, C, H, W) if their shape leaves no doubt about the order of the axes."""
    if x.dtype not in (torch.uint8, torch.uint16):
        return x
    if x.dim() == 3:
        return x.unsqueeze(1)
    if x.dim() == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x
