"""What a process and everything below it has used, read from /proc: live children count, and dead ones as well."""

from __future__ import annotations

import os
from pathlib import Path

from fullrank.errors import InputError

PROC = Path("/proc")


def require() -> None:
    """Refuse to measure where there is no /proc to read."""
    if not (PROC / "self" / "stat").exists():
        raise InputError("the CPU benchmark reads /proc, which this system has not; it runs on Linux")


def tree(pid: int) -> list[int]:
    """A process and all that descend from it, as far as they live."""
    found, frontier = [pid], [pid]
    while frontier:
        for task in (PROC / str(frontier.pop()) / "task").glob("*/children"):
            below = [int(child) for child in _read(task).split()]
            found += below
            frontier += below
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the whole tree, with that of ended children whose end was awaited."""
    return sum(map(_ticks, tree(pid))) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes that the whole tree holds: pages that several of its processes share count once."""
    return sum(map(_share, tree(pid)))


def _ticks(pid: int) -> int:
    # The command's name, in parentheses, may hold spaces: fields are counted from behind it.
    fields = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15])


def _share(pid: int) -> int:
    for line in _read(PROC / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return ""
