"""Which files a user's function reads: their content is part of the result as much as the code is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors

CODE = {".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib"}
"""Suffixes of modules, bytecode and shared libraries: they are no data."""
NOT_ON_DISK = ("/proc/", "/sys/", "/dev/")

_thread = threading.local()


@contextlib.contextmanager
def collecting_files() -> Iterator[dict[str, str]]:
    """Inside, the files that users' functions read in this thread; afterwards their SHA-256 by path.

    >>> with collecting_files() as found, noting_files():
    ...     _ = Path(os.devnull).read_text()
    >>> found
    {}
    """
    found: dict[str, str] = {}
    before = getattr(_thread, "collected", None)
    _thread.collected = paths = set[str]()
    try:
        yield found
    finally:
        _thread.collected = before
    for path in sorted(paths):
        if _is_data(path):
            found[_shown(path)] = hashlib.sha256(Path(path).read_bytes()).hexdigest()


@contextlib.contextmanager
def noting_files() -> Iterator[None]:
    """While a user's function runs: note what it opens for reading, if somebody collects it."""
    if getattr(_thread, "collected", None) is None or getattr(_thread, "noting", False):
        yield
        return
    _install_hook()
    _thread.noting = True
    try:
        with _watched_safetensors():
            yield
    finally:
        _thread.noting = False


@cache
def _install_hook() -> None:
    sys.addaudithook(_on_event)  # it can never be removed, so it must cost next to nothing


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and getattr(_thread, "noting", False):
        path, mode, flags = arguments
        reading = "r" in mode and "+" not in mode if mode else not flags & (os.O_WRONLY | os.O_RDWR)
        if reading and isinstance(path, (str, bytes, os.PathLike)):
            _note(path)


def _note(path: str | bytes | os.PathLike[Any]) -> None:
    _thread.collected.add(os.path.abspath(os.fsdecode(path)))


@contextlib.contextmanager
def _watched_safetensors() -> Iterator[None]:
    """Its reader is not Python's and raises no audit event; modules may have imported it under any name."""
    reader = safetensors.safe_open

    def safe_open(filename: str | os.PathLike[str], *arguments: Any, **options: Any) -> Any:
        if getattr(_thread, "noting", False):
            _note(filename)
        return reader(filename, *arguments, **options)

    places = [
        (vars(module), name)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        if value is reader
    ]
    for names, name in places:
        names[name] = safe_open
    try:
        yield
    finally:
        for names, name in places:
            names[name] = reader


def _is_data(path: str) -> bool:
    inside = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return (
        Path(path).suffix.lower() not in CODE
        and ".so." not in Path(path).name
        and not path.startswith((*NOT_ON_DISK, *inside))
        and os.path.isfile(path)
    )


def _shown(path: str) -> str:
    """Relative to the working directory where it lies below it."""
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(f"{here}{os.sep}") else path
