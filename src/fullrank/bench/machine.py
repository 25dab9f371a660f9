"""A description of the hardware and the versions on which numbers were measured."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from fullrank._version import __version__
from fullrank.engine.machine import cores
from fullrank.errors import InputError, writing
from fullrank.files import write_atomically
from fullrank.runs.environment import cpu_name


def describe(device: str = "cpu") -> dict[str, Any]:
    """Return the hardware and the versions of libraries.

    Args:
        device: The device of the benchmark.

    Raises:
        InputError: If this machine does not have the device.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            f'--device {device}: this machine has no CUDA device that torch can use; try "--device cpu --tiny"'
        )
    facts: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": cores(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "fullrank": __version__,
    }
    if device.startswith("cuda"):
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    if hasattr(os, "getloadavg"):
        facts["load_before"] = round(os.getloadavg()[0], 2)
    return facts


def sentence(facts: dict[str, Any]) -> str:
    """Return a description of the machine in one line of text."""
    where = f"{facts['gpu']}, CUDA {facts['cuda']}; " if "gpu" in facts else ""
    load = f"; load average before {facts['load_before']}" if "load_before" in facts else ""
    return (
        f"{where}{facts['cpu']}, {facts['cores']} cores; Python {facts['python']}, torch {facts['torch']}, "
        f"fullrank {facts['fullrank']}{load}"
    )


def write_result(path: str | Path, result: object) -> None:
    """Write a result as JSON, atomically."""
    target = Path(path)
    with writing(target):
        write_atomically(target, (json.dumps(result, indent=1) + "\n").encode())
