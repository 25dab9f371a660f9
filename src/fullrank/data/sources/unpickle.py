"""Read pickles of plain data (containers, numbers, text, arrays of whole numbers) without running any code."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fullrank.data.sources.stored import read_whole
from fullrank.errors import InputError


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dict in a pickle of plain data.

    Args:
        path: The file.

    Returns:
        The dict, with text as keys.

    Raises:
        InputError: If the pickle is damaged, holds something else, or refers to anything that could be executed.
    """
    try:
        # text that Python 2 has pickled is read as bytes
        found = _PlainUnpickler(io.BytesIO(read_whole(path)), encoding="bytes").load()
    except _Forbidden as wish:
        raise InputError(
            f"{path} is a pickle that refers to {wish}, where only arrays, lists and dicts are expected;"
            " nothing of it was executed"
        ) from None
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged: it cannot be read as a pickle ({why})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a pickled {type(found).__name__}; it must hold a dict")
    return {text(key): value.value if isinstance(value, _Array) else value for key, value in found.items()}


def text(value: object) -> str:
    """Return text that Python 2 or 3 has pickled; for anything else its type, because its text may be endless."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else f"({type(value).__name__})"


class _Forbidden(pickle.UnpicklingError):
    """Raised if a pickle refers to anything but data."""


class _DType:
    """A stand-in for numpy.dtype, for whole numbers only."""

    __slots__ = ("code", "order")

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code, self.order = text(code), "|"
        if not re.fullmatch("[iu][1248]", self.code):
            raise ValueError(f'an array of "{self.code}", where whole numbers are expected')

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = text(state[1])

    def array(self, raw: bytes | bytearray, shape: tuple[int, ...], order: str) -> npt.NDArray[Any]:
        values = np.frombuffer(raw, np.dtype(self.order + self.code))
        return values.reshape(shape, order="F" if order == "F" else "C")


class _Array:
    """A stand-in for numpy.ndarray and for the function that makes an empty one to be filled."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value: npt.NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, raw = state[-4:]
        self.value = dtype.array(raw, shape, "F" if fortran else "C")


class _BufferedArray(_Array):
    """A stand-in for the function that makes an array of a buffer."""

    __slots__ = ()

    def __init__(self, raw: bytes | bytearray, dtype: _DType, shape: tuple[int, ...], order: str, *_: object) -> None:
        self.value = dtype.array(raw, shape, order)


def _encoded(characters: str, _: object) -> bytes:
    """Encode text as Python 3 does for bytes in pickles that Python 2 can read."""
    return characters.encode("latin-1")


# Stand-ins, so that a pickle never holds anything of NumPy's own, whose pickling trusts its input.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _BufferedArray,
    ("numpy._core.numeric", "_frombuffer"): _BufferedArray,
    ("_codecs", "encode"): _encoded,
}


def _mark_as_list(unpickler: Any) -> None:
    items = unpickler.pop_mark()  # after which `append` is another one
    unpickler.append(items)


def _last_as_list(count: int) -> Callable[[Any], None]:
    def load(unpickler: Any) -> None:
        items = [unpickler.stack.pop() for _ in range(count)]
        unpickler.append(items[::-1])

    return load


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler written in Python, in which opcodes can be changed: tuples and frozen sets become lists.

    A tuple of tuples of tuples, each of them twice, is small in the file and takes almost forever to hash as a key.
    """

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: _mark_as_list,
        pickle.FROZENSET[0]: _mark_as_list,
        pickle.EMPTY_TUPLE[0]: _last_as_list(0),
        pickle.TUPLE1[0]: _last_as_list(1),
        pickle.TUPLE2[0]: _last_as_list(2),
        pickle.TUPLE3[0]: _last_as_list(3),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Forbidden(f"{module}.{name}")
        return _ALLOWED[module, name]
