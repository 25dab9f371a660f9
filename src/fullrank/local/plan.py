"""The plan of a local fit: which samples form which batch, and the random numbers of their augmentation.

It is made on the host, from the seed, before training, so that every engine trains on the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fullrank.local.settings import Settings

ENOUGH_SAMPLES = 16
"""The number of samples over which the statistics of BatchNorm are good enough for a step."""


@dataclass(frozen=True)
class Plan:
    """The batches of a fit, in order."""

    index: np.ndarray
    """The positions of the samples of all batches among the client's samples, concatenated."""
    sizes: tuple[int, ...]
    """The number of samples of each batch."""
    epochs: tuple[int, ...]
    """The local epoch of each batch."""
    draws: np.ndarray
    """Uniform random numbers for the augmentation, of shape (len(index), draws per sample), in float32."""
    skipped: int
    """The number of batches left out because they have too few samples for BatchNorm."""

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.sizes)


def smallest_batch(batch_size: int) -> int:
    """Return the number of samples that a last batch needs under `last_batch = "auto"` with BatchNorm.

    Statistics over a few samples are so noisy that a single step on them can ruin the model. Sixteen samples are
    enough, or half of a batch if batches are small.
    """
    return min(ENOUGH_SAMPLES, math.ceil(batch_size / 2))


def last_batch_too_small(samples: int, batch_size: int) -> bool:
    """Return whether `last_batch = "auto"` leaves out the last batch of an epoch with BatchNorm."""
    return samples > batch_size and 0 < samples % batch_size < smallest_batch(batch_size)


def make_plan(
    samples: int, settings: Settings, rng: np.random.Generator, draws: int = 0, batch_norm: bool = False
) -> Plan:
    """Plan `settings.epochs` passes over the samples, or exactly `settings.steps` batches.

    Args:
        samples: The number of samples.
        settings: The settings of the fit.
        rng: The generator of all random numbers of the plan.
        draws: The number of random numbers that the augmentation of a sample needs.
        batch_norm: Whether the network has BatchNorm, which cannot be trained on batches of one sample. They are
            left out and counted, and under `last_batch = "auto"` so is a last batch that is too small.
    """
    leaves_out = batch_norm and settings.last_batch == "auto" and last_batch_too_small(samples, settings.batch_size)
    least = smallest_batch(settings.batch_size) if leaves_out else 1 + batch_norm
    batches: list[np.ndarray] = []
    epochs: list[int] = []
    skipped = 0
    for epoch, batch in _passes(samples, settings, rng):
        if len(batch) < least:
            skipped += 1
            if settings.steps and (samples == 1 or settings.batch_size == 1):
                break  # no number of passes would give a usable batch
            continue
        batches.append(batch)
        epochs.append(epoch)
        if settings.steps and len(batches) == settings.steps:
            break
    index = np.concatenate(batches) if batches else np.empty(0, np.int64)
    uniform = rng.random((len(index), draws), dtype=np.float32)
    return Plan(index, tuple(map(len, batches)), tuple(epochs), uniform, skipped)


def _passes(samples: int, settings: Settings, rng: np.random.Generator) -> Iterator[tuple[int, np.ndarray]]:
    if samples == 0 or (settings.last_batch == "drop" and samples < settings.batch_size):
        return
    epoch = 0
    while settings.steps or epoch < settings.epochs:
        order = rng.permutation(samples)
        size = settings.batch_size
        if settings.last_batch == "wrap" and samples > size and samples % size:
            order = np.concatenate([order, order[: size - samples % size]])
        if settings.last_batch == "drop":
            order = order[: samples - samples % size]
        for start in range(0, len(order), size):
            yield epoch, order[start : start + size]
        epoch += 1
