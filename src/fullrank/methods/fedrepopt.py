"""FedRepOpt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from fullrank.errors import InputError
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method
from fullrank.models.reparam.operators import SCALES, centre_diagonal
from fullrank.trees import Tensors, Tree, flats, part_of, pointwise

if TYPE_CHECKING:
    from fullrank.local.settings import Settings
    from fullrank.local.views import ClientView
    from fullrank.models import Network


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
    tried_on = {
        "name": "fullrank.models.reparam.repvgg:repvgg",
        "mode": "repopt",
        "widths": [4, 4, 6, 8],
        "blocks": [2, 2, 1],
    }

    def model(self, net: Network) -> Network:
        """The network itself, if it carries scales."""
        if not mapped_kernels(tuple(net.names)):
            raise InputError(
                "fedrepopt needs a network that carries scales: a repvgg or repghost with model.mode = repopt"
            )
        return net

    def before(self, client: ClientView) -> Tree:
        """M of every parameter that is not frozen: 1 for those that do not stand for branches."""
        model = client.model
        weights, scales = ({n: model[n] for n in names} for names in (client.trainable, client.entries.frozen))
        return {"multiplier": multiplier(weights, scales)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """M⊙g."""
        m = b.fixed["multiplier"]
        if flats(g, m):
            return pointwise(g, torch.mul, m)
        kernels = part_of(g, [kernel.name for kernel in mapped_kernels(tuple(b.model))])
        if named := {name: slope for name, slope in kernels.items() if name not in m}:  # frozen, and yet in this fit
            m = {**m, **multiplier(named, b.model)}
        return {**g, **{name: slope * m[name] for name, slope in kernels.items()}}

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


@torch.no_grad()
def multiplier(weights: Tensors, scales: Tensors) -> Tensors:
    """M of some entries of a model, from a tree with the scales that it carries: laid out like the entries.

    All are computed in one table: a network has many kernels, and each operation of its own costs a launch.
    """
    m = pointwise(weights, torch.ones_like)
    kernels = [kernel for kernel in mapped_kernels(tuple(scales)) if kernel.name in m]
    if not kernels:
        return m
    kernels.sort(key=lambda kernel: kernel.pointwise not in scales)
    alpha = torch.cat([scales[kernel.scale] for kernel in kernels])[:, None]
    table = alpha * alpha.expand(-1, 9)
    if beside := [scales[kernel.pointwise] for kernel in kernels if kernel.pointwise in scales]:
        middle = torch.cat(beside)
        table[: len(middle), 4].add_(middle * middle)
    parts = torch.split(table, [len(scales[kernel.scale]) for kernel in kernels])
    for kernel, part in zip(kernels, parts, strict=True):
        m[kernel.name].copy_(part.view(-1, 1, 3, 3))  # the same for all inputs of an output channel
    if middles := [centre_diagonal(m[kernel.name]) for kernel in kernels if kernel.identity]:
        torch._foreach_add_(middles, 1.0)
    return m


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
