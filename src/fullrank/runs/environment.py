"""The software and the machine of a run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from fullrank._version import __version__


def environment(threads: int, device: torch.device) -> dict[str, Any]:
    """Return the versions, the commit and the machine, on which a result depends in addition to its experiment."""
    return {
        "fullrank": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "command": sys.argv,
    }


@cache
def _git_commit() -> str | None:
    """Return the commit of the package's source tree, marked if it has changes; None if the package is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "") if tracked else None
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
