"""The cores and devices of the machine, and torch's number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fullrank.errors import InputError


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(name: str, engine: str = "") -> torch.device:
    """Return the device with a name, or the CPU if the name is empty.

    Args:
        name: The value of `engine.device`.
        engine: The value of `engine.name`, which must be able to train on that device. With "ray", clients train on
            GPUs of other machines, and this one need not have any.

    Raises:
        InputError: If this machine does not have the device, or the engine cannot train on it.
    """
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise InputError(f'engine.device = "{name}" is not a device; known are cpu, cuda, cuda:0 …') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        if engine == "ray":
            return torch.device("cpu")
        raise InputError(f'engine.device = "{name}": this machine has no CUDA device that torch can use')
    if engine == "cuda" and device.type != "cuda":
        raise InputError(f'engine.name = "cuda" needs engine.device = "cuda", not "{device}"; on a CPU take "auto"')
    if device.type == "cuda":
        # CUDA reads this when it starts. By default all streams share eight queues, in which they wait for each other.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    return device


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set torch's number of threads inside a `with` block, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
