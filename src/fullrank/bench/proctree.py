"""CPU time and memory of a process and of all its descendants, with those that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError

if TYPE_CHECKING:
    import psutil


def require() -> None:
    """Check that this system counts the CPU time of ended children and the shared memory of processes.

    Raises:
        InputError: If it does not, or psutil is not installed.
    """
    try:
        import psutil
    except ModuleNotFoundError:
        raise InputError("the CPU benchmark needs psutil; pip install 'fullrank[bench]'") from None
    if not psutil.LINUX:
        raise InputError("the CPU benchmark measures whole process trees, which only Linux counts; run it on Linux")


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants that are alive."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of the whole tree, including ended children that were waited for."""
    return _total(pid, lambda process: sum(process.cpu_times()[:4]))


def memory(pid: int) -> int:
    """Return the memory of the whole tree in bytes; pages that several of its processes share count once."""
    return int(_total(pid, lambda process: process.memory_full_info().pss))


def _total(pid: int, measure: Callable[[Any], float]) -> float:
    import psutil

    found = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile
            found += measure(process)
    return found
