"""The settings of a local fit and the optimiser's arithmetic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..trees import Tensors


@dataclass(frozen=True)
class Settings:
    """How a client trains; the `[train]` table's values unless a method asks for others."""

    epochs: int = 1
    steps: int = 0
    batch_size: int = 64
    last_batch: str = "keep"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    decay_on: str | tuple[str, ...] = "all"


def descend_(w: Tensors, g: Tensors, velocity: Tensors, settings: Settings, decayed: Collection[str]) -> None:
    """One step of SGD in place: g + λw, v ← ρv + g, w ← w − ηv. Without momentum `velocity` stays empty."""
    for name, weight in w.items():
        slope = g[name]
        if settings.weight_decay and name in decayed:
            slope = slope + settings.weight_decay * weight
        if settings.momentum:
            slope = velocity[name].mul_(settings.momentum).add_(slope)
        weight.sub_(slope, alpha=settings.lr)


@dataclass(frozen=True)
class Travel:
    """How far a constant unit gradient would have moved a weight, and how fast it moves now."""

    speed: float = 0.0
    distance: float = 0.0

    def on(self, steps: int, settings: Settings) -> Travel:
        """After further steps: u ← ρu + 1, travel += η·u each step."""
        speed, distance = self.speed, self.distance
        for _ in range(steps):
            speed = settings.momentum * speed + 1
            distance += settings.lr * speed
        return Travel(speed, distance)
