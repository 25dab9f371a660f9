"""The optimisers' arithmetic, in place, on tensors that the caller owns: what torch.optim computes, traceable.

An optimiser's memory is a tree: one subtree for each thing it remembers, in which every trained entry has its place.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..trees import Flat, Tensors, Tree, flats, pointwise
from .settings import Settings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Of Adam and AdamW, as in their papers and in torch.optim."""


def memory(trained: Tensors, settings: Settings, before: Tree | None = None) -> Tree:
    """What the optimiser remembers of these entries: zeros at first, what was remembered before otherwise."""
    memory: Tree = before if before is not None else {}
    for slot in _slots(settings):
        kept = memory.get(slot, {})
        if not kept and isinstance(trained, Flat) and slot != "count":
            memory[slot] = Flat(torch.zeros_like(trained.base), trained.layout)
        elif new := {name: _empty(slot, weight.detach()) for name, weight in trained.items() if name not in kept}:
            memory[slot] = {**kept, **new}
        else:
            memory[slot] = kept
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
    return pointwise(g, lambda value: value * share)


def descend_(
    w: Tensors,
    g: Tensors,
    memory: Tree,
    settings: Settings,
    decayed: Collection[str],
    lr: Tensor | None = None,
    decay: Tensor | None = None,
) -> None:
    """One step of the optimiser, in place in `w` and in its memory; weight decay acts on the entries `decayed`.

    For a step that is recorded once and replayed: `lr` is the learning rate of the day, and `decay` what `flat_decay`
    gave for flat trees.
    """
    if settings.optimizer == "sgd" and (alike := flats(w, g, *([memory["velocity"]] if settings.momentum else []))):
        uniform = settings.weight_decay if any(name in decayed for name in w) else 0.0
        bases = [flat.base for flat in alike]
        _sgd_(*bases, settings=settings, decay=uniform if decay is None else decay, lr=lr)
        return
    step = _sgd_named_ if settings.optimizer == "sgd" else _adam_
    for name, weight in w.items():
        step(name, weight, g[name], memory, settings, settings.weight_decay if name in decayed else 0.0, lr)


def flat_decay(w: Tensors, settings: Settings, decayed: Collection[str]) -> Tensor | None:
    """The weight decay of every number of a flat tree, where it is not the same for all; else None."""
    if not isinstance(w, Flat) or not settings.weight_decay or len({name in decayed for name in w}) == 1:
        return None
    rates = Flat(torch.zeros_like(w.base), w.layout)
    for name in w.keys() & set(decayed):
        rates[name].fill_(settings.weight_decay)
    return rates.base


def _sgd_named_(
    name: str, weight: Tensor, slope: Tensor, memory: Tree, settings: Settings, decay: float, lr: Tensor | None
) -> None:
    velocity = memory["velocity"][name] if settings.momentum else None
    _sgd_(weight, slope, velocity, settings=settings, decay=decay, lr=lr)


def _sgd_(
    weight: Tensor,
    slope: Tensor,
    velocity: Tensor | None = None,
    *,
    settings: Settings,
    decay: float | Tensor,
    lr: Tensor | None,
) -> None:
    """g + λw, v ← ρv + g, w ← w − ηv (Nesterov: w − η(g + ρv))."""
    if lr is not None and velocity is not None and isinstance(decay, float) and weight.dtype == torch.float32:
        # The same in one kernel, which takes the rate as a float32 tensor.
        torch._fused_sgd_(
            [weight],
            [slope],
            [velocity],
            weight_decay=decay,
            momentum=settings.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=settings.nesterov,
            maximize=False,
            is_first_step=False,
        )
        return
    if isinstance(decay, Tensor):
        slope = torch.addcmul(slope, decay, weight)
    elif decay:
        slope = slope + decay * weight
    if velocity is not None:
        velocity.mul_(settings.momentum).add_(slope)
        slope = slope + settings.momentum * velocity if settings.nesterov else velocity
    _subtract_(weight, slope, settings.lr if lr is None else lr)


def _subtract_(weight: Tensor, slope: Tensor, lr: float | Tensor) -> None:
    if isinstance(lr, Tensor):
        weight.addcmul_(slope, lr, value=-1)
    else:
        weight.sub_(slope, alpha=lr)


def _adam_(
    name: str,
    weight: Tensor,
    slope: Tensor,
    memory: Tree,
    settings: Settings,
    decay: float,
    rate: Tensor | None,
) -> None:
    """Adam with the decay in the gradient, AdamW with the decay beside it."""
    lr = settings.lr if rate is None else rate
    if decay and settings.optimizer == "adamw":
        weight.mul_(1 - lr * decay)
    elif decay:
        slope = slope + decay * weight
    count = memory["count"][name].add_(1)
    mean = memory["mean"][name].mul_(BETA1).add_(slope, alpha=1 - BETA1)
    square = memory["square"][name].mul_(BETA2).add_(slope * slope, alpha=1 - BETA2)
    unbiased, unbiased_square = (1 - BETA1**count).to(weight.dtype), (1 - BETA2**count).to(weight.dtype)
    _subtract_(weight, mean / unbiased / ((square / unbiased_square).sqrt() + EPSILON), lr)
