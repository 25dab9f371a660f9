"""Files that are written atomically, contain a checksum, and are verified when they are read.

A file without a checksum, such as one of an earlier version or of another program, is read without verification. Damage
to the checksum's key therefore goes unnoticed, but does no harm, because the content is intact.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from fullrank.errors import InputError, naming_file

if TYPE_CHECKING:
    import torch

    from fullrank.trees import Tensors

CHECKSUM = "checksum"
"""The key under which a JSON object, and the metadata of a safetensors file, hold the checksum of the rest."""
_UNKNOWN = "0" * 16
_SEALED = re.compile(rb'\{"__metadata__":\{"checksum":"([0-9a-f]{16})"\}')


class Damaged(InputError):
    """The content of a file is not what was written; the message is a clause such as "its content has changed"."""


# Bytes


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Write a file so that it is either complete or unchanged, even after a power failure.

    Args:
        path: The file.
        *content: The pieces of its content.

    Raises:
        WriteFailed: If the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with naming_file(path):
        try:
            with part.open("wb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)  # on a full disk every byte is needed
            raise
    with contextlib.suppress(OSError):  # some file systems cannot synchronise a directory
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


# JSON


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum, atomically.

    Args:
        path: The file.
        value: The object.

    Raises:
        WriteFailed: If the file cannot be written.
    """
    sealed = {**value, CHECKSUM: _checksum(json.dumps(value))}
    write_atomically(path, (json.dumps(sealed, indent=1) + "\n").encode())


def read_json(path: Path, shape: Any = dict[str, Any]) -> Any:
    """Read the object of a JSON file, without its checksum.

    Args:
        path: The file.
        shape: The type that the object must have, for example a `TypedDict`; further keys are allowed.

    Raises:
        Damaged: If the content is not JSON, has another shape, or does not match its checksum.
        FileNotFoundError: If there is no such file.
    """
    try:
        return _parsed(path.read_text(encoding="utf-8"), shape)
    except UnicodeDecodeError as error:
        raise Damaged(str(error)) from None


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a JSON object with its checksum as a line, which a kill may truncate.

    Args:
        path: The file.
        value: The object.

    Raises:
        WriteFailed: If the file cannot be written.
    """
    with naming_file(path), path.open("a", encoding="utf-8") as file:
        file.write(_line(value))
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines atomically."""
    write_atomically(path, "".join(map(_line, values)).encode())


def read_lines(path: Path, shape: Any = dict[str, Any]) -> Iterator[Any]:
    """Yield the objects of a file of JSON lines, without their checksums and without a truncated last line.

    Args:
        path: The file; a file that does not exist has no lines.
        shape: The type that every object must have.

    Raises:
        Damaged: If a line is damaged. Lines are read one by one, so the lines before it can be used.
    """
    if not path.is_file():
        return
    with reading(path):
        content = path.read_bytes()
    sealed, key = False, f'"{CHECKSUM}":'.encode()
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            if sealed and key not in line:  # earlier versions wrote none at all
                raise Damaged("its checksum is missing")
            sealed = key in line
            yield _parsed(line.decode(), shape)
        except (Damaged, UnicodeDecodeError) as error:
            raise Damaged(f'"{path}" is damaged in line {number} ({error})') from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of the operating system in a block that reads a file.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If the block raises another `OSError`.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f'"{path}" cannot be read: {error.strerror or error}') from None


def writable(value: Any) -> Any:
    """Return a value in the types of JSON, in which numbers that are not finite are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: writable(inner) for key, inner in value.items()}
    return [writable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def sealed_text(text: str) -> str:
    """Return a text with its checksum appended as a TOML comment, which `check_text` verifies."""
    return f"{text}# {CHECKSUM}: {_checksum(text)}\n"


def check_text(text: str) -> None:
    """Check that a text matches the checksum in its last line, if it has one.

    Raises:
        Damaged: If it does not.
    """
    content, comment, given = text.rpartition(f"# {CHECKSUM}: ")
    if comment and given.strip() != _checksum(content):
        raise Damaged("its content does not match its checksum; delete the last line if the change was intended")


def _line(value: Mapping[str, Any]) -> str:
    text = json.dumps(value)
    comma = ", " if value else ""
    return f'{text[:-1]}{comma}"{CHECKSUM}": "{_checksum(text)}"}}\n'


def _parsed(text: str, shape: Any) -> Any:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Damaged(f"it is not JSON: {error}") from None
    if isinstance(value, dict) and (given := value.pop(CHECKSUM, None)) is not None and given != _recomputed(value):
        raise Damaged("its content does not match its checksum")
    try:
        _adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Damaged(f"{place}: {first['msg']}" if place else first["msg"]) from None
    return value


@functools.cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _recomputed(value: Any) -> str:
    return _checksum(json.dumps(value))


def _checksum(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


# Tensors


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file with its checksum, atomically.

    Args:
        path: The file.
        tensors: The tensors by name, which may share memory or be non-contiguous.

    Raises:
        WriteFailed: If the file cannot be written.
    """
    from safetensors.torch import save

    seen: set[int] = set()
    ready: Tensors = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        if address in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        ready[name] = tensor
    content = save(ready, {CHECKSUM: _UNKNOWN})
    found = _SEALED.match(content, 8)
    assert found is not None, "safetensors writes its metadata first"
    start, end = found.span(1)
    write_atomically(path, content[:start], xxhash.xxh3_64_hexdigest(content).encode(), memoryview(content)[end:])


def load_tensors(path: Path) -> Tensors:
    """Read the tensors of a safetensors file.

    Raises:
        Damaged: If the file is not a safetensors file, or its content does not match its checksum.
        FileNotFoundError: If there is no such file.
    """
    from safetensors.torch import load_file

    verify_tensors(path)
    try:
        return load_file(path)
    except Exception as error:  # safetensors has many kinds of errors
        raise Damaged(str(error)) from None


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors of a safetensors file without reading the tensors.

    Raises:
        Damaged: If the file is not a safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise Damaged(str(error)) from None


def verify_tensors(path: Path) -> None:
    """Check that a safetensors file matches its checksum. The file is memory-mapped, not copied.

    Raises:
        Damaged: If the file is not a safetensors file, or does not match its checksum.
        FileNotFoundError: If there is no such file.
    """
    with reading(path), path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            raise Damaged("it is too short")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found = _SEALED.match(mapped, 8)
            if found is None:
                _check_structure(path)
                return
            given, start, end = found[1].decode(), *found.span(1)
            del found
            digest = xxhash.xxh3_64(mapped[:start] + _UNKNOWN.encode())
            with memoryview(mapped) as whole, whole[end:] as rest:
                digest.update(rest)
            if digest.hexdigest() != given:
                raise Damaged("its content does not match its checksum")


def _check_structure(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):  # rejects a file whose length does not match its header
            pass
    except SafetensorError as error:
        raise Damaged(str(error)) from None
