"""Jobs and results as bytes, for a channel between machines that need not trust each other.

A message begins with a version and a checksum. What follows is JSON for plain values and for the names of trees, and
safetensors for their numbers. Nothing in it is ever executed: bytes that are not a message raise an error.

    >>> from fullrank.federated.site import Job, Result
    >>> job = Job("train", 3, 0, {"w": {"head.bias": torch.ones(2)}, "buffers": {}, "sent": {}}, {}, {}, None)
    >>> decode(encode(job)).broadcast["w"]
    {'head.bias': tensor([1., 1.])}
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import safetensors
import torch
import xxhash
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor
from typing_extensions import NotRequired, TypedDict

from fullrank.channels import Mean, Sum, Upload
from fullrank.errors import InputError, RemoteError, kind_of, message_of
from fullrank.federated.site import Job, Kind, Result, Stage
from fullrank.trees import Tree

VERSION = 1
"""The version of the format, which must be the same at both ends of a channel."""
_MAGIC = b"fullrank"
_HEAD = struct.Struct("<8sI8sQ")
"""Magic, version, checksum of all that follows the checksum, length of the JSON text."""

Form: TypeAlias = dict[str, Any]
"""A tree with the number of a tensor in place of each tensor; `_Reader.tree` checks it."""


class BadMessage(InputError):
    """Raised for bytes that are not a message of this version, or that were changed during the transfer."""


class _Part(TypedDict):
    kind: Literal["Sum", "Mean"]
    tree: Form
    weight: NotRequired[float | int]


class _Error(TypedDict):
    kind: str
    message: str
    traceback: str


class _Job(TypedDict):
    type: Literal["job"]
    kind: Kind
    client: int
    round: int
    broadcast: Form
    frozen: Form
    personal: Form
    state: Form | None
    query: list[str]
    evaluate: bool
    show: bool
    stage: Stage | None
    strides: dict[str, list[int]]


class _Result(TypedDict):
    type: Literal["result"]
    client: int
    samples: int
    upload: dict[str, dict[str, _Part]]
    state: Form
    metrics: dict[str, Any]
    model: Form
    error: _Error | None
    strides: dict[str, list[int]]


_FORMS: dict[str, TypeAdapter[Any]] = {"job": TypeAdapter(_Job), "result": TypeAdapter(_Result)}


@dataclass(frozen=True)
class Packed:
    """A job or a result as plain values and tensors, for a channel that sends them in different forms."""

    form: dict[str, Any]
    """Plain values, as JSON preserves them, with the number of a tensor in place of each tensor."""
    tensors: dict[str, Tensor]
    """Contiguous tensors on the CPU by their numbers as text. No two of them share memory."""
    paths: dict[str, str]
    """The path of each tensor in the message by its number, as in "broadcast/w/head.bias"."""


def pack(message: Job | Result) -> Packed:
    """Convert a job or a result to plain values and tensors.

    The error of a result is sent as its kind, its message and its traceback.

    Raises:
        InputError: If the message holds something that is neither a tensor nor a plain value.
    """
    writer = _Writer()
    form = writer.job(message) if isinstance(message, Job) else writer.result(message)
    return Packed({**form, "strides": writer.strides}, writer.tensors, writer.paths)


def unpack(form: Any, tensors: Mapping[str, Tensor]) -> Job | Result:
    """Convert what `pack` made back to a job or a result, with new tensors on the CPU.

    Args:
        form: The plain values, which may come from a stranger.
        tensors: The tensors by their numbers.

    Raises:
        BadMessage: If the values do not describe a message of these tensors.
    """
    with _readable():
        if not isinstance(form, dict) or form.get("type") not in _FORMS:
            raise BadMessage("a message is neither a job nor a result")
        checked = _FORMS[form["type"]].validate_python(form, strict=True)
        return _Reader(dict(tensors)).message(checked)


def encode(message: Job | Result) -> bytes:
    """Convert a job or a result to bytes.

    The error of a result is sent as its kind, its message and its traceback.

    Raises:
        InputError: If the message holds something that is neither a tensor nor a plain value.
    """
    packed = pack(message)
    return seal(packed.form, packed.tensors)


def decode(content: bytes | bytearray | memoryview) -> Job | Result:
    """Convert the bytes of `encode` back to a job or a result, with new tensors on the CPU.

    Raises:
        BadMessage: If the bytes are cut off, changed, of another version, or hold something else.
    """
    return unpack(*unseal(content))


def seal(form: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return plain values and tensors as bytes with a version and a checksum.

    Args:
        form: The plain values.
        tensors: The tensors by name.

    Raises:
        InputError: If a tensor cannot be saved.
    """
    text = json.dumps(form).encode()
    try:
        numbers = save(dict(tensors))
    except Exception as error:
        raise InputError(f"a tensor cannot be sent ({error})") from None
    return b"".join((_HEAD.pack(_MAGIC, VERSION, _checksum(len(text), text, numbers), len(text)), text, numbers))


def unseal(content: bytes | bytearray | memoryview) -> tuple[Any, dict[str, Tensor]]:
    """Return the plain values and the tensors of the bytes of `seal`.

    Raises:
        BadMessage: If the bytes are cut off, changed, of another version, or hold something else.
    """
    text, numbers = _opened(content)
    with _readable():
        return json.loads(text.decode()), load(numbers) if numbers else {}


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Convert the errors of a message that cannot be read into `BadMessage`."""
    try:
        yield
    except BadMessage:
        raise
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise BadMessage(f"a message cannot be used: {place or 'it'}: {found['msg'].lower()}") from None
    except (ValueError, RecursionError, safetensors.SafetensorError, RuntimeError, TypeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadMessage(f"a message cannot be read: {reason[:200]}") from None


def _opened(content: bytes | bytearray | memoryview) -> tuple[bytes, bytes]:
    """Return the JSON text and the tensors' bytes of a message whose checksum is right."""
    if len(content) < _HEAD.size:
        raise BadMessage(f"a message is cut off: it has {len(content)} bytes")
    magic, version, checksum, length = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise BadMessage("the bytes are not a message of fullrank")
    if version != VERSION:
        raise BadMessage(
            f"a message is of version {version} and this program reads version {VERSION}; use the same release at both "
            "ends"
        )
    rest = memoryview(content)[_HEAD.size :]
    if _checksum(length, rest) != checksum:
        raise BadMessage("a message was cut off or changed during the transfer: its checksum is wrong")
    if length > len(rest):
        raise BadMessage(f"a message is damaged: its header should have {length} bytes")
    return bytes(rest[:length]), bytes(rest[length:])


def _checksum(length: int, *rest: bytes | memoryview) -> bytes:
    digest = xxhash.xxh64(struct.pack("<Q", length))
    for piece in rest:
        digest.update(piece)
    return digest.digest()


class _Writer:
    """Replaces the tensors of a message by numbers, and collects them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.paths: dict[str, str] = {}
        self.strides: dict[str, list[int]] = {}
        self._memories: set[int] = set()

    def job(self, job: Job) -> dict[str, Any]:
        plain = {name: getattr(job, name) for name in ("kind", "client", "round", "evaluate", "show", "stage")}
        trees = {name: self.tree(getattr(job, name), name) for name in ("broadcast", "frozen", "personal")}
        state = None if job.state is None else self.tree(job.state, "state")
        return {"type": "job", **plain, **trees, "state": state, "query": list(job.query)}

    def result(self, result: Result) -> dict[str, Any]:
        upload = {
            _text(space, "upload"): {
                _text(name, "upload"): self.part(part, f"{space}/{name}") for name, part in parts.items()
            }
            for space, parts in result.upload.items()
        }
        trees = {name: self.tree(getattr(result, name), name) for name in ("state", "model")}
        plain = {"client": result.client, "samples": result.samples}
        metrics = _plain(result.metrics, "metrics")
        return {"type": "result", **plain, **trees, "upload": upload, "metrics": metrics, "error": _error(result.error)}

    def part(self, part: Any, where: str) -> dict[str, Any]:
        if not isinstance(part, (Sum, Mean)):
            raise InputError(f"{where} is a {type(part).__name__}; uploads are a Sum or a Mean")
        form = {"kind": type(part).__name__, "tree": self.tree(part.tree, where)}
        if isinstance(part, Sum):
            return form
        weight = part.weight
        return {**form, "weight": weight if type(weight) is int else float(weight)}

    def tree(self, tree: Any, where: str) -> Form:
        if not isinstance(tree, Mapping):
            raise InputError(f"{where} is a {type(tree).__name__}, not a dict of tensors by name")
        return {
            _text(name, where): self.tensor(value, f"{where}/{name}")
            if isinstance(value, Tensor)
            else self.tree(value, f"{where}/{name}")
            for name, value in tree.items()
        }

    def tensor(self, tensor: Tensor, where: str) -> int:
        if tensor.is_meta or tensor.layout != torch.strided:
            what = "has no values" if tensor.is_meta else f"is of layout {tensor.layout}"
            raise InputError(f"{where} cannot be sent: it {what}")
        number = len(self.tensors)
        # The tensor itself if possible, so that a channel can tell that several clients are sent the same one.
        values = tensor if tensor.device.type == "cpu" and not tensor.requires_grad else tensor.detach().cpu()
        if values.stride() != torch.empty(values.shape, device="meta").stride() and _is_dense(
            values.shape, values.stride()
        ):
            self.strides[str(number)] = list(values.stride())  # some kernels round differently in another memory order
        values = values.contiguous()
        memory = values.untyped_storage().data_ptr()
        # Safetensors rejects tensors that share memory.
        self.tensors[str(number)] = values.clone() if memory in self._memories else values
        self._memories.add(memory)
        self.paths[str(number)] = where
        return number


class _Reader:
    """Replaces the numbers of tensors in the trees of a message by the tensors."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors
        self.strides: dict[str, list[int]] = {}

    def message(self, form: Any) -> Job | Result:
        self.strides = form["strides"]
        message = self.job(form) if form["type"] == "job" else self.result(form)
        if self.tensors:
            raise BadMessage("a message holds tensors that no tree of it contains")
        return message

    def job(self, form: _Job) -> Job:
        plain: Any = {name: form[name] for name in ("kind", "client", "round", "evaluate", "show", "stage")}
        if len(form["query"]) != 2:
            raise BadMessage("a message cannot be used: query must hold a method and its function")
        state = None if form["state"] is None else self.tree(form["state"])
        return Job(
            **plain,
            broadcast=self.tree(form["broadcast"]),
            frozen=self.tree(form["frozen"]),
            personal=self.tree(form["personal"]),
            state=state,
            query=(form["query"][0], form["query"][1]),
        )

    def result(self, form: _Result) -> Result:
        upload: Upload = {
            space: {name: self.part(part) for name, part in parts.items()} for space, parts in form["upload"].items()
        }
        error = form["error"]
        return Result(
            form["client"],
            form["samples"],
            upload,
            self.tree(form["state"]),
            form["metrics"],
            self.tree(form["model"]),
            None if error is None else RemoteError(error["kind"], error["message"], error["traceback"]),
        )

    def part(self, form: _Part) -> Sum | Mean:
        tree = self.tree(form["tree"])
        if form["kind"] == "Sum":
            return Sum(tree)
        if "weight" not in form:
            raise BadMessage("a message cannot be used: a mean has no weight")
        return Mean(tree, form["weight"])

    def tree(self, form: Mapping[str, Any]) -> Tree:
        tree: Tree = {}
        for name, value in form.items():
            if isinstance(value, dict):
                tree[name] = self.tree(value)
            elif type(value) is int and str(value) in self.tensors:
                tree[name] = self.tensor(str(value))
            else:
                raise BadMessage(f"a message cannot be used: {name} is no tensor of it")
        return tree

    def tensor(self, number: str) -> Tensor:
        values = self.tensors.pop(number)
        strides = self.strides.get(number)
        if strides is None:
            return values.clone()  # aligned as other tensors are, since some kernels round differently otherwise
        if not _is_dense(tuple(values.shape), strides):
            raise BadMessage("a message cannot be used: a tensor's strides do not fit its shape")
        return torch.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...] | list[int]) -> bool:
    """Return whether strides only reorder the axes, as channels-last does."""
    if len(shape) != len(strides) or any(stride < 0 for stride in strides):
        return False
    expected = 1
    for size, stride in sorted(
        ((size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1), key=lambda pair: pair[1]
    ):
        if stride != expected:
            return False
        expected *= size
    return math.prod(shape) > 0


def _error(error: BaseException | None) -> dict[str, str] | None:
    if error is None:
        return None
    left = error.traceback if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
    return {"kind": kind_of(error), "message": message_of(error), "traceback": left}


def _text(name: Any, where: str) -> str:
    if not isinstance(name, str):
        raise InputError(f"{where} has the name {name!r}, which is not text")
    return name


def _plain(value: Any, where: str) -> Any:
    """Return a value that JSON preserves; any other is rejected."""
    if isinstance(value, np.generic):  # a metric's, for example
        value = value.item()
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, Mapping):
        return {_text(name, where): _plain(inner, f"{where}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, where) for inner in value]
    raise InputError(f"{where} holds a {type(value).__name__}, which is not a plain value")
