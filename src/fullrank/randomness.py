"""Randomness as a function of (seed, purpose, round, client), independent of the order of computation."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def key(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit number that depends on every argument and on nothing else.

    Args:
        seed: The seed of the experiment.
        *purpose: The purpose of the random numbers, and what else they depend on, such as the round and the client.

    >>> key(0, "batches", 3, 7) == key(0, "batches", 3, 7), key(0, "batches", 3, 7) == key(0, "batches", 4, 7)
    (True, False)
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a new NumPy generator.

    Args:
        seed: The seed of the experiment.
        *purpose: The purpose of the random numbers, and what else they depend on, as for `key`.

    >>> bool(generator(0, "batches", 3).random() == generator(0, "batches", 3).random())
    True
    """
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


_thread = threading.local()


def disable_seeding() -> None:
    """Make `seeded` do nothing in this thread, because threads that run at the same time share global generators."""
    _thread.seeding_disabled = True


@contextlib.contextmanager
def seeded(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python in a `with` block, and restore them afterwards.

    The library uses only torch's generators (dropout, initialisation); a user's model may use any.

    Args:
        seed: The seed of the experiment.
        *purpose: The purpose of the random numbers, and what else they depend on, as for `key`.
        device: A CUDA device whose generator is seeded as well.
    """
    if getattr(_thread, "seeding_disabled", False):
        yield
        return
    chosen = key(seed, *purpose)
    # Not torch.manual_seed: it seeds every kind of device, whether present or not, which takes longer than a small fit.
    generators = _torch_generators(device)
    before = [generator.get_state() for generator in generators]
    python, numpy = random.getstate(), np.random.get_state()
    for generator in generators:
        generator.manual_seed(chosen)
    random.seed(chosen)
    np.random.seed(chosen % 2**32)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numpy)


def global_state(device: torch.device) -> tuple[Any, ...]:
    """Return the state of the global generators, including those of `device`.

    Two states are equal if no random number was drawn between them.
    """
    numpy: tuple[Any, ...] = np.random.get_state()  # type: ignore[assignment]
    mode, numbers, *rest = numpy
    torch_states = tuple(generator.get_state().numpy().tobytes() for generator in _torch_generators(device))
    return torch_states, random.getstate(), (mode, numbers.tobytes(), *rest)


def restore_global_state(device: torch.device, state: tuple[Any, ...]) -> None:
    """Set the global generators to a state from `global_state`.

    Args:
        device: The device that `global_state` was called with.
        state: The state that it returned.
    """
    torch_states, python, (mode, numbers, *rest) = state
    for generator, before in zip(_torch_generators(device), torch_states, strict=True):
        generator.set_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
    random.setstate(python)
    np.random.set_state((mode, np.frombuffer(numbers, np.uint32), *rest))


def _torch_generators(device: torch.device | None) -> list[torch.Generator]:
    """Return the CPU's generator, and the generator of a CUDA device."""
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
