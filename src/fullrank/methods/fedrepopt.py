"""FedRepOpt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import Refusal
from ..local.batch import Batch
from ..models.reparam import SCALES, centre_diagonal
from ..trees import Flat, Layout, Tensors, Tree, copy_
from .method import Method

if TYPE_CHECKING:
    from ..local.settings import Settings
    from ..models import Network


@dataclass(frozen=True)
class FedRepOpt(Method):
    """A plain network trains as the one with branches would: the gradient of each 3×3 kernel is multiplied by M.

    M is α₃² everywhere; at the kernel's middle it is α₁² more and, where a channel meets itself and the branches
    included the identity, 1 more (RepGhost: α² and 1). With it, steps of SGD on W' = α₃W₃ + α₁W₁ + s·I are the
    images of those on W₃, W₁ and s, weight decay and momentum included, and so are their means over clients. The
    paper's equation 1, which multiplies all of a kernel by α₃² + α₁², is not that; its code is. Clipping the gradient's
    norm ends the likeness, since norms differ, and so does Adam.

    It takes a network with `mode = "repopt"`, which carries the constants α as entries that never train: they come to
    a site once and never leave it.
    """

    paper = "Lau et al., ACCV 2024; Ding et al., ICLR 2023 (RepOptimizers)"
    tried_on = {"name": "fullrank.models.repvgg:repvgg", "mode": "repopt", "widths": [4, 4, 6, 8], "blocks": [2, 2, 1]}

    def model(self, net: Network) -> Network:
        """The network itself, if it carries scales."""
        if not mapped_kernels(tuple(net.names)):
            raise Refusal(
                "fedrepopt needs a network that carries scales: a repvgg or repghost with model.mode = repopt"
            )
        return net

    def grad(self, g: Tree, b: Batch) -> Tree:
        """M⊙g for every kernel that stands for branches."""
        kernels = [kernel for kernel in mapped_kernels(tuple(b.model)) if kernel.name in g]
        masks = masks_of(kernels, b.model)
        beside_identity = tuple(kernel.name for kernel in kernels if kernel.identity)
        if not isinstance(g, Flat):
            multiplied = {name: g[name] * mask for name, mask in masks.items()}
            for name in beside_identity:
                centre_diagonal(multiplied[name]).add_(centre_diagonal(g[name]))
            return {**g, **multiplied}
        # Written where it belongs in a new vector: large kernels are read and written once.
        flat = Flat(torch.empty_like(g.base), g.layout)
        for name, mask in masks.items():
            torch.mul(g[name], mask, out=flat[name])
        rest = [name for name in g if name not in masks]
        copy_({name: flat[name] for name in rest}, {name: g[name] for name in rest})
        if beside_identity:
            own = own_middles(g.layout, beside_identity, g.base.device)
            flat.base.index_add_(0, own, g.base[own])
        return flat

    def caution(self, settings: Settings) -> str:
        """Of what ends the likeness."""
        if settings.optimizer != "sgd":
            cause = f"train.optimizer = {settings.optimizer}"
        elif settings.clip_norm:
            cause = f"train.clip_norm = {settings.clip_norm:g}"
        else:
            return ""
        return f"{cause}: under it fedrepopt does not train the plain network as the one with branches would be trained"


class MappedKernel(NamedTuple):
    """A kernel that stands for branches, by the names of its entries."""

    name: str
    scale: str
    """Of the 3×3 branch."""
    pointwise: str
    """Of the 1×1 branch, if there is one."""
    identity: bool


def masks_of(kernels: Sequence[MappedKernel], model: Tensors) -> Tensors:
    """M of each kernel without the identity's part: the same for all inputs of an output channel, so (o, 1, 3, 3).

    All are parts of one table: a network has many small kernels, and each operation of its own would cost a launch.
    """
    if not kernels:
        return {}
    ordered = sorted(kernels, key=lambda kernel: kernel.pointwise not in model)
    alpha = torch.cat([model[kernel.scale] for kernel in ordered])[:, None]
    table = alpha * alpha.expand(-1, 9)
    if pointwise := [model[kernel.pointwise] for kernel in ordered if kernel.pointwise in model]:
        beside = torch.cat(pointwise)
        table[: len(beside), 4].add_(beside * beside)
    parts = torch.split(table, [len(model[kernel.scale]) for kernel in ordered])
    return {kernel.name: part.view(-1, 1, 3, 3) for kernel, part in zip(ordered, parts, strict=True)}


@lru_cache(maxsize=16)
def own_middles(layout: Layout, names: tuple[str, ...], device: torch.device) -> Tensor:
    """Where in a flat tree's vector those numbers lie that multiply a channel's own middle pixel, of these kernels."""
    places = Flat(torch.arange(layout.offsets[""]), layout)
    return torch.cat([centre_diagonal(places[name]) for name in names]).to(device)


@lru_cache(maxsize=64)
def mapped_kernels(names: tuple[str, ...]) -> tuple[MappedKernel, ...]:
    """Those of a network with entries of these names."""
    return tuple(_found(names))


def _found(names: Iterable[str]) -> Iterable[MappedKernel]:
    for name in names:
        for identity, scales in enumerate(SCALES):
            operator, found, rest = name.rpartition(f".{scales}.kernel")
            if found and not rest:
                yield MappedKernel(
                    f"{operator}.kernel.conv.weight", name, f"{operator}.{scales}.pointwise", bool(identity)
                )
