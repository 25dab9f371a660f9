"""Randomness as a function of (seed, purpose, round, client), never of the order in which things happened."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit number that depends on every argument and on nothing else."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """An own NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


@contextlib.contextmanager
def torch_seeded(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch's global generators (dropout, initialisation) follow the key; afterwards they are as before."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key(seed, *purpose))
        yield
