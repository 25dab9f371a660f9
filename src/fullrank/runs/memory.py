"""The peak memory of a run: of its processes on a CPU, of the devices on GPUs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fullrank.files import write_json
from fullrank.runs.directory import read_json

PROC = Path("/proc")
FILE = "environment.json"
KINDS = {
    "cuda": "allocated on the GPU",
    "processes": "resident, of the process and its workers",
    "process": "resident, of the main process",
}
"""Descriptions of the kinds of peaks."""


def reset_peaks(device: torch.device) -> None:
    """Reset the peaks of this process, where the system can, because the process may have had other runs before."""
    if device.type == "cuda":
        for number in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(number)
    with contextlib.suppress(OSError):
        (PROC / "self" / "clear_refs").write_text("5")


def peak_memory(device: torch.device) -> dict[str, Any] | None:
    """Return the peak memory of this process; None on systems that do not report it.

    On GPUs it is the largest number of bytes that torch has allocated ("cuda"), the sum over devices. Otherwise it is
    the peak resident memory: the sum over the process and its worker processes where the system has /proc
    ("processes"), in which memory that they share counts for each of them, else that of this process ("process").

    Args:
        device: The device of the run.

    Returns:
        The peak in `bytes`, and `of`, which of these it is.
    """
    if device.type == "cuda":
        return {"bytes": sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))), "of": "cuda"}
    if found := [peak for pid in _tree("self") if (peak := _resident(pid)) is not None]:
        return {"bytes": sum(found), "of": "processes"}
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "of": "process"}
    return None


def record_peak(path: Path, device: torch.device) -> None:
    """Record the peak memory of this process among the facts about the environment of a run."""
    if (found := peak_memory(device)) is None:
        return
    history = read_json(path / FILE)
    (history.get("resumed") or [history])[-1]["peak_memory"] = found
    write_json(path / FILE, history)


def recorded_peak(path: Path) -> dict[str, Any] | None:
    """Return the largest recorded peak of the processes of a run, as `peak_memory` returns it, if there is one."""
    history = read_json(path / FILE)
    peaks = [entry["peak_memory"] for entry in (history, *history.get("resumed", [])) if "peak_memory" in entry]
    return max(peaks, key=lambda peak: peak["bytes"], default=None)


def _tree(pid: str) -> Iterator[str]:
    """Yield a process and all its descendants that are alive."""
    yield pid
    with contextlib.suppress(OSError):  # it ended meanwhile, or the system keeps no such list
        for thread in (PROC / pid / "task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _tree(child)


def _resident(pid: str) -> int | None:
    """Return the peak resident memory of a process in bytes, or None if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in (PROC / pid / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
