"""The optimisers' arithmetic, in place, on tensors that the caller owns: what torch.optim computes, traceable.

An optimiser's memory is a tree: one subtree for each thing it remembers, in which every trained entry has its place.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..trees import Tensors, Tree
from .settings import Settings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Of Adam and AdamW, as in their papers and in torch.optim."""


def memory(trained: Tensors, settings: Settings, before: Tree | None = None) -> Tree:
    """What the optimiser remembers of these entries: zeros at first, what was remembered before otherwise."""
    memory: Tree = before if before is not None else {}
    for slot in _slots(settings):
        kept = memory.setdefault(slot, {})
        for name, weight in trained.items():
            if name not in kept:
                kept[name] = _empty(slot, weight.detach())
    return memory


def _slots(settings: Settings) -> tuple[str, ...]:
    if settings.optimizer != "sgd":
        return ("mean", "square", "count")
    return ("velocity",) if settings.momentum else ()


def _empty(slot: str, weight: Tensor) -> Tensor:
    # Counting steps is exact in float64, and so is a power of it as far as it matters.
    return torch.zeros((), dtype=torch.float64, device=weight.device) if slot == "count" else torch.zeros_like(weight)


def clipped(g: Tensors, norm: Tensor, limit: float) -> Tensors:
    """The gradient, shortened to `limit` where its norm over all entries is longer; 0 means no limit."""
    if not limit:
        return g
    share = (limit / (norm + 1e-6)).clamp(max=1.0)
    return {name: value * share for name, value in g.items()}


def descend_(w: Tensors, g: Tensors, memory: Tree, settings: Settings, decayed: Collection[str]) -> None:
    """One step of the optimiser, in place in `w` and in its memory."""
    step = _sgd_ if settings.optimizer == "sgd" else _adam_
    for name, weight in w.items():
        step(name, weight, g[name], memory, settings, settings.weight_decay if name in decayed else 0.0)


def _sgd_(name: str, weight: Tensor, slope: Tensor, memory: Tree, settings: Settings, decay: float) -> None:
    """g + λw, v ← ρv + g, w ← w − ηv (Nesterov: w − η(g + ρv))."""
    if decay:
        slope = slope + decay * weight
    if settings.momentum:
        velocity = memory["velocity"][name].mul_(settings.momentum).add_(slope)
        slope = slope + settings.momentum * velocity if settings.nesterov else velocity
    weight.sub_(slope, alpha=settings.lr)


def _adam_(name: str, weight: Tensor, slope: Tensor, memory: Tree, settings: Settings, decay: float) -> None:
    """Adam with the decay in the gradient, AdamW with the decay beside it."""
    if decay and settings.optimizer == "adamw":
        weight.mul_(1 - settings.lr * decay)
    elif decay:
        slope = slope + decay * weight
    count = memory["count"][name].add_(1)
    mean = memory["mean"][name].mul_(BETA1).add_(slope, alpha=1 - BETA1)
    square = memory["square"][name].mul_(BETA2).add_(slope * slope, alpha=1 - BETA2)
    unbiased, unbiased_square = (1 - BETA1**count).to(weight.dtype), (1 - BETA2**count).to(weight.dtype)
    weight.sub_(mean / unbiased / ((square / unbiased_square).sqrt() + EPSILON), alpha=settings.lr)
