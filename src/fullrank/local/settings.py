"""The settings of a local fit, and the schedule of the learning rate over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fullrank.errors import InputError, nearest

OPTIMIZERS = ("sgd", "adam", "adamw")
LAST_BATCHES = ("auto", "keep", "drop", "wrap")


@dataclass(frozen=True)
class Settings:
    """The settings of a fit: the values of `[train]` unless a method asks for others."""

    epochs: int = 1
    steps: int = 0
    batch_size: int = 64
    last_batch: str = "auto"
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_on: str | tuple[str, ...] = "all"
    clip_norm: float = 0.0
    label_smoothing: float = 0.0
    moving: Moving | None = None
    """The schedule, if the learning rate changes from step to step; `lr` is then that of the first step."""

    def check(self) -> None:
        """Check the settings that a method passes to a fit; those of `[train]` have been validated before.

        Raises:
            InputError: If a setting is invalid.
        """
        for name, least in (("epochs", 1), ("steps", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"client.fit({name}={value!r}): it must be a whole number of at least {least}")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f'client.fit(optimizer="{self.optimizer}"): {nearest(self.optimizer, OPTIMIZERS)}')
        if self.last_batch not in LAST_BATCHES:
            raise InputError(f'client.fit(last_batch="{self.last_batch}"): {nearest(self.last_batch, LAST_BATCHES)}')

    def rates(self, steps: int) -> list[float]:
        """Return the learning rates of a number of steps."""
        return self.moving.rates(steps) if self.moving is not None else [self.lr] * steps


@dataclass(frozen=True)
class Moving:
    """A learning rate that follows its schedule step by step within a round."""

    schedule: Schedule
    round: int
    lr: float

    def rates(self, steps: int) -> list[float]:
        """Return the learning rates of all steps of the round."""
        return [self.lr * self.schedule.share(self.round + step / steps) for step in range(steps)]


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a share of its full value: a linear warm-up, then the schedule proper.

    It changes from round to round or, with `by = "step"`, also from step to step within a round.
    """

    kind: str = "constant"
    rounds: int = 1
    warmup: int = 0
    decay: float = 0.1
    decay_every: int = 0
    by: str = "round"

    def share(self, round: float) -> float:
        """Return the share at a round, counted from 0; during the warm-up it is (t+1)/(warmup+1)."""
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        t = round - self.warmup
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * t / max(1, self.rounds - self.warmup))) / 2
        if self.kind == "step":
            return float(self.decay ** (t // self.decay_every))
        if self.kind == "exponential":
            return float(self.decay**t)
        return 1.0

    def at(self, round: int, settings: Settings) -> Settings:
        """Return the settings of a round."""
        share = self.share(round)
        if self.by == "step" and (self.kind != "constant" or round < self.warmup):
            return replace(settings, lr=settings.lr * share, moving=Moving(self, round, settings.lr))
        return settings if share == 1 else replace(settings, lr=settings.lr * share)


@dataclass(frozen=True)
class Travel:
    """The distance that a constant unit gradient would have moved a weight under SGD, and its present speed."""

    speed: float = 0.0
    distance: float = 0.0

    def on(self, steps: int, settings: Settings, pull: float = 0.0) -> Travel:
        """Return the travel after further steps.

        Each step sets u ← ρu + g and adds η·u (Nesterov: η(g + ρu)) to the distance, where g is the unit gradient less
        the pull of proximal terms, 1 − μ·distance.

        Args:
            steps: The number of steps.
            settings: The settings of the fit, with η and ρ.
            pull: The coefficient μ of the proximal terms.
        """
        speed, distance, rho = self.speed, self.distance, settings.momentum
        for lr in settings.rates(steps):
            gradient = 1 - pull * distance
            speed = rho * speed + gradient
            distance += lr * (gradient + rho * speed if settings.nesterov else speed)
        return Travel(speed, distance)
