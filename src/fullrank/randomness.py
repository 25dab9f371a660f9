"""Randomness as a function of (seed, purpose, round, client), never of the order in which things happened."""

from __future__ import annotations

import contextlib
import hashlib
import random
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
def seeded(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, the global generators of torch, NumPy and Python follow the key; afterwards they are as before.

    The library draws from none of them but torch's (dropout, initialisation); a user's model may from any.
    """
    chosen = key(seed, *purpose)
    devices = [device] if device is not None and device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(chosen)
        random.seed(chosen)
        np.random.seed(chosen % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
