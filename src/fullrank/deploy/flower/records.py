"""Messages as Flower's records: tensors in `ArrayRecord`s, metrics in a `MetricRecord`, the rest in a config record."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fullrank.deploy.sites.message import Message
from fullrank.federated.codec import BadMessage
from fullrank.trees import Tensors

VALUES, METRICS = "values", "metrics"
SENT = ("broadcast", "frozen", "personal", "model")
"""The parts of jobs and results whose tensors have a separate record; those of uploads are in "upload"."""
MARK = "$metric"
"""Takes the place of a metric among the values, with the metric's name in the record of metrics."""
BIT_PATTERNS = {torch.bfloat16: torch.int16}
"""The types that NumPy lacks, and those of the same size as which their bits are sent."""
NUMPY = "numpy.ndarray"


Known: TypeAlias = dict[int, tuple[torch.Tensor, Array]]
"""Tensors that were sent, with their arrays, by the identities of the tensors."""


def to_records(message: Message, known: Known | None = None) -> RecordDict:
    """Convert a message to records, which it shares with no other message.

    Args:
        message: The message.
        known: The tensors of the message before, replaced by those of this one: what several nodes are sent is
            converted once.
    """
    arrays: dict[str, dict[str, Array]] = {}
    names, kinds = [], {}
    now: Known = {}
    for number, tensor in message.tensors.items():
        path = message.paths.get(number, number)
        group = path.split("/", 1)[0]
        record = arrays.setdefault(group if group in SENT else "upload", {})
        name = path if path not in record else f"{path} {number}"
        record[name] = _array(tensor, known or {})
        now[id(tensor)] = (tensor, record[name])
        names.append(f"{group if group in SENT else 'upload'}:{name}")
        if tensor.dtype in BIT_PATTERNS:
            kinds[number] = str(tensor.dtype).removeprefix("torch.")
    if known is not None:
        known.clear()
        known.update(now)
    numbers: dict[str, int | float] = {}
    values = dict(message.values)
    result = values.get("result")
    if isinstance(result, Mapping) and "metrics" in result:
        values["result"] = {**result, "metrics": _without_numbers(result["metrics"], "", numbers)}
    records: dict[str, Any] = {
        VALUES: ConfigRecord({"json": json.dumps(values), "arrays": names, "kinds": json.dumps(kinds)})
    }
    if numbers:
        records[METRICS] = MetricRecord(numbers)
    return RecordDict({**records, **{group: ArrayRecord(record) for group, record in arrays.items()}})


def from_records(records: RecordDict) -> Message:
    """Convert records back to a message. Nothing in them is executed.

    Raises:
        BadMessage: If they are not those of a message.
    """
    try:
        config = records.config_records[VALUES]
        values, names, kinds = json.loads(str(config["json"])), config["arrays"], json.loads(str(config["kinds"]))
        if not (isinstance(values, dict) and isinstance(names, list) and isinstance(kinds, dict)):
            raise BadMessage("its values are no table")
        numbers = dict(records.metric_records[METRICS]) if METRICS in records.metric_records else {}
        result = values.get("result")
        if isinstance(result, dict) and "metrics" in result:
            result["metrics"] = _with_numbers(result["metrics"], numbers)
        tensors: Tensors = {}
        for number, full in enumerate(names):
            group, _, name = str(full).partition(":")
            tensors[str(number)] = _tensor(records.array_records[group][name], kinds.get(str(number), ""))
        if sum(map(len, records.array_records.values())) != len(tensors):
            raise BadMessage("it holds arrays that its values do not name")
        return Message(values, tensors)
    except BadMessage as problem:
        raise BadMessage(f"the records are not a message of fullrank: {problem}") from None
    except (KeyError, ValueError, TypeError, RecursionError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise BadMessage(f"the records are not a message of fullrank ({reason})") from None


def _array(tensor: torch.Tensor, known: Known) -> Array:
    if (found := known.get(id(tensor))) is not None:
        return found[1]
    bits = tensor.view(BIT_PATTERNS[tensor.dtype]) if tensor.dtype in BIT_PATTERNS else tensor
    return Array(bits.numpy())


def _tensor(array: Array, kind: str) -> torch.Tensor:
    """Return the tensor of an array. Its own header counts, and must agree with the number of its bytes."""
    if array.stype != NUMPY:
        raise BadMessage(f'an array is stored as "{array.stype[:40]}"')
    file = io.BytesIO(array.data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or size != len(array.data) - file.tell():
        raise BadMessage("an array has another number of bytes than its header announces")
    values = np.frombuffer(array.data[file.tell() :], dtype) if size else np.empty(0, dtype)
    ordered = values.reshape(shape, order="F" if fortran else "C")
    tensor = torch.from_numpy(np.array(ordered, order="C").reshape(-1)).reshape(shape)
    if not kind:
        return tensor
    types = {str(own).removeprefix("torch."): (own, bits) for own, bits in BIT_PATTERNS.items()}
    if kind not in types or tensor.dtype != types[kind][1]:
        raise BadMessage(f'an array is described as one of the type "{kind[:40]}"')
    return tensor.view(types[kind][0])


def _without_numbers(value: Any, path: str, numbers: dict[str, int | float]) -> Any:
    """Return metrics with marks in place of numbers, which go into a separate table."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Mapping, list)):
        return value
    if isinstance(value, (int, float)):
        numbers[path] = value
        return {MARK: path}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    found = {name: _without_numbers(inner, f"{path}.{name}" if path else str(name), numbers) for name, inner in pairs}
    return found if isinstance(value, Mapping) else [*found.values()]


def _with_numbers(value: Any, numbers: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_with_numbers(inner, numbers) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {MARK}:
        return numbers[value[MARK]]
    return {name: _with_numbers(inner, numbers) for name, inner in value.items()}
