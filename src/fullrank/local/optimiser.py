"""Optimisers that work in place on tensors of the caller, give the results of torch.optim, and can be traced.

An optimiser's memory is a tree with one subtree per quantity, such as the velocity, which holds all trained entries.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fullrank.local.settings import Settings
from fullrank.trees import Flat, Tensors, Tree, copy_, flats, part_of, pointwise

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Constants of Adam and AdamW, as in their papers and in torch.optim."""


def memory(trained: Tensors, settings: Settings, before: Tree | None = None) -> Tree:
    """Return the optimiser's memory of these entries: zeros at first, later the values of earlier steps.

    Args:
        trained: The entries. The memory of entries in one vector is one vector as well.
        settings: The optimiser's settings.
        before: The memory before, which may contain other entries as well. It shares these entries' memory with the
            result, so that a step changes both trees.
    """
    known: Tree = before if before is not None else {}
    mine: Tree = {}
    for slot in _slots(settings):
        kept = known.get(slot, {})
        if slot == "count" or not isinstance(trained, Flat):
            part: Tensors = {
                name: laid_out_like(weight, kept[name]) if name in kept else _empty(slot, weight.detach())
                for name, weight in trained.items()
            }
        elif flats(trained, kept):
            part = kept
        else:
            part = Flat(torch.zeros_like(trained.base), trained.layout)
            again = [name for name in part if name in kept]
            copy_({name: part[name] for name in again}, {name: kept[name] for name in again})
        mine[slot] = part
        known[slot] = part if kept.keys() <= part.keys() else {**kept, **part}
    return mine


def _slots(settings: Settings) -> tuple[str, ...]:
    if settings.optimizer != "sgd":
        return ("mean", "square", "count")
    return ("velocity",) if settings.momentum else ()


def _empty(slot: str, weight: Tensor) -> Tensor:
    # The number of steps is exact in float64, and powers of the betas are exact enough.
    return torch.zeros((), dtype=torch.float64, device=weight.device) if slot == "count" else torch.zeros_like(weight)


def clipped(g: Tensors, norm: Tensor, limit: float) -> Tensors:
    """Return a gradient whose norm is at most a limit.

    Args:
        g: The gradient.
        norm: Its norm over all entries.
        limit: The largest norm; 0 for no limit.
    """
    if not limit:
        return g
    share = (limit / (norm + 1e-6)).clamp(max=1.0)
    return pointwise(g, lambda value: value * share)


def descend_(
    w: Tensors, g: Tensors, memory: Tree, settings: Settings, decayed: Collection[str], lr: Tensor | None = None
) -> None:
    """Run one step of the optimiser, in place in `w` and in its memory.

    Args:
        w: The entries.
        g: Their gradient.
        memory: The optimiser's memory.
        settings: The optimiser's settings.
        decayed: The names of the entries to which weight decay applies.
        lr: The learning rate in place of the setting, for a step that is captured once and replayed.
    """
    for names, rate in _by_decay(w, settings, decayed):
        if settings.optimizer == "sgd":
            speeds = [memory["velocity"]] if "velocity" in memory else []
            _sgd_(*_alike(names, w, g, *speeds), settings=settings, decay=rate, lr=lr)
        else:
            _adam_(part_of(w, names), g, memory, settings, rate, lr)


def _by_decay(w: Tensors, settings: Settings, decayed: Collection[str]) -> list[tuple[Collection[str], float]]:
    """Return the entries that decay and those that do not, each with their rate; groups without entries are omitted."""
    chosen = [name for name in w if name in decayed] if settings.weight_decay else []
    if not chosen or len(chosen) == len(w):
        return [(w, settings.weight_decay if chosen else 0.0)]
    return [(set(chosen), settings.weight_decay), (w.keys() - set(chosen), 0.0)]


def _alike(names: Collection[str], *trees: Tensors) -> list[Tensors]:
    """Return some entries of trees, each as one vector if they are contiguous in vectors of the same layout."""
    parts = list(trees) if len(names) == len(trees[0]) else [part_of(tree, names) for tree in trees]
    if alike := flats(*parts):
        return [{"": flat.base} for flat in alike]
    return parts


def laid_out_like(weight: Tensor, values: Tensor) -> Tensor:
    """Return a tensor in the memory order of a weight, without a copy if it has that order."""
    return (
        values
        if values.shape != weight.shape or values.stride() == weight.stride()
        else torch.empty_like(weight).copy_(values)
    )


def _sgd_(
    w: Tensors,
    g: Tensors,
    velocity: Tensors | None = None,
    *,
    settings: Settings,
    decay: float,
    lr: Tensor | None,
) -> None:
    """Run a step of SGD: g ← g + λw, v ← ρv + g, w ← w − ηv (Nesterov: w − η(g + ρv))."""
    if lr is not None and all(weight.dtype == torch.float32 for weight in w.values()):
        # The same in one kernel for all entries, which needs a float32 rate and tensors in the same memory order.
        torch._fused_sgd_(
            list(w.values()),
            [laid_out_like(weight, g[name]) for name, weight in w.items()],
            [velocity[name] for name in w] if velocity is not None else [],
            weight_decay=decay,
            momentum=settings.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=settings.nesterov,
            maximize=False,
            is_first_step=False,
        )
        return
    for name, weight in w.items():
        slope = g[name]
        if decay:
            slope = slope + decay * weight
        if velocity is not None:
            speed = velocity[name].mul_(settings.momentum).add_(slope)
            slope = slope + settings.momentum * speed if settings.nesterov else speed
        _subtract_(weight, slope, settings.lr if lr is None else lr)


def _subtract_(weight: Tensor, slope: Tensor, lr: float | Tensor) -> None:
    if isinstance(lr, Tensor):
        weight.addcmul_(slope, lr, value=-1)
    else:
        weight.sub_(slope, alpha=lr)


def _adam_(w: Tensors, g: Tensors, memory: Tree, settings: Settings, decay: float, rate: Tensor | None) -> None:
    """Run a step of Adam, with the decay in the gradient, or of AdamW, with decoupled decay."""
    lr = settings.lr if rate is None else rate
    for name, weight in w.items():
        slope = g[name]
        if decay and settings.optimizer == "adamw":
            weight.mul_(1 - lr * decay)
        elif decay:
            slope = slope + decay * weight
        count = memory["count"][name].add_(1)
        mean = memory["mean"][name].mul_(BETA1).add_(slope, alpha=1 - BETA1)
        square = memory["square"][name].mul_(BETA2).add_(slope * slope, alpha=1 - BETA2)
        unbiased, unbiased_square = (1 - BETA1**count).to(weight.dtype), (1 - BETA2**count).to(weight.dtype)
        _subtract_(weight, mean / unbiased / ((square / unbiased_square).sqrt() + EPSILON), lr)
