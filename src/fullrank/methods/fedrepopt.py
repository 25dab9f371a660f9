"""FedRepOpt: Lau et al., *FedRepOpt: Gradient Re-parametrized Optimizers in Federated Learning* (ACCV 2024)."""

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
    """A plain network that trains like one with branches: the gradient of each 3×3 kernel is multiplied by M.

    M is α₃² everywhere, plus α₁² at the kernel's centre, plus 1 on the diagonal of channels at the centre if there is
    an identity branch (RepGhost: α² and 1). With it, steps of SGD on W' = α₃W₃ + α₁W₁ + s·I are the images of those on
    W₃, W₁ and s, weight decay and momentum included, and so are their means over clients. The paper's equation 1, which
    multiplies all of a kernel by α₃² + α₁², does not have this property; its code does. Clipping of the gradient's norm
    breaks the equivalence, since norms differ, and so does Adam.

    The method needs a network with `mode = "repopt"`, which has the constants α as entries that are never trained: they
    are sent to a site once and never leave it.
    """

    paper = "Lau et al., ACCV 2024; Ding et al., ICLR 2023 (RepOptimizers)"
    tried_on = {
        "name": "fullrank.models.reparam.repvgg:repvgg",
        "mode": "repopt",
        "widths": [4, 4, 6, 8],
        "blocks": [2, 2, 1],
    }

    def model(self, net: Network) -> Network:
        """Check the network, which does not change.

        Raises:
            InputError: If it has no scales.
        """
        if not mapped_kernels(tuple(net.names)):
            raise InputError("fedrepopt needs a network with scales: a repvgg or repghost with model.mode = repopt")
        return net

    def before(self, client: ClientView) -> Tree:
        """Return M for every parameter that is not frozen. It is 1 for parameters without scales."""
        model = client.model
        weights, scales = ({n: model[n] for n in names} for names in (client.trainable, client.entries.frozen))
        return {"multiplier": multiplier(weights, scales)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Return the gradient multiplied by M."""
        m = b.fixed["multiplier"]
        if flats(g, m):
            return pointwise(g, torch.mul, m)
        kernels = part_of(g, [kernel.name for kernel in mapped_kernels(tuple(b.model))])
        if named := {
            name: slope for name, slope in kernels.items() if name not in m
        }:  # frozen, but trained in this fit
            m = {**m, **multiplier(named, b.model)}
        return {**g, **{name: slope * m[name] for name, slope in kernels.items()}}

    def caution(self, settings: Settings) -> str:
        """Warn about settings that break the equivalence."""
        if settings.optimizer != "sgd":
            cause = f"train.optimizer = {settings.optimizer}"
        elif settings.clip_norm:
            cause = f"train.clip_norm = {settings.clip_norm:g}"
        else:
            return ""
        return f"{cause}: under it fedrepopt does not train the plain network as the one with branches would be trained"


class MappedKernel(NamedTuple):
    """The names of the entries of a kernel that stands for branches."""

    name: str
    scale: str
    """The name of the scale of the 3×3 branch."""
    pointwise: str
    """The name of the scale of the 1×1 branch, if there is one."""
    identity: bool


@torch.no_grad()
def multiplier(weights: Tensors, scales: Tensors) -> Tensors:
    """Compute M for some entries of a model.

    All kernels are computed in one table, because separate operations for each kernel would each launch a kernel on a
    GPU.

    Args:
        weights: The entries.
        scales: The scales of the model, by the names of the kernels and in the layout of the entries.
    """
    m = pointwise(weights, torch.ones_like)
    kernels = [kernel for kernel in mapped_kernels(tuple(scales)) if kernel.name in m]
    if not kernels:
        return m
    kernels.sort(key=lambda kernel: kernel.pointwise not in scales)
    alpha = torch.cat([scales[kernel.scale] for kernel in kernels])[:, None]
    table = alpha * alpha.expand(-1, 9)
    if pointwise_scales := [scales[kernel.pointwise] for kernel in kernels if kernel.pointwise in scales]:
        middle = torch.cat(pointwise_scales)
        table[: len(middle), 4].add_(middle * middle)
    parts = torch.split(table, [len(scales[kernel.scale]) for kernel in kernels])
    for kernel, part in zip(kernels, parts, strict=True):
        m[kernel.name].copy_(part.view(-1, 1, 3, 3))  # the same for all inputs of an output channel
    if middles := [centre_diagonal(m[kernel.name]) for kernel in kernels if kernel.identity]:
        torch._foreach_add_(middles, 1.0)
    return m


@lru_cache(maxsize=64)
def mapped_kernels(names: tuple[str, ...]) -> tuple[MappedKernel, ...]:
    """Return the kernels with scales among the entries of a network.

    Args:
        names: The names of the entries.
    """
    return tuple(_found(names))


def _found(names: Iterable[str]) -> Iterable[MappedKernel]:
    for name in names:
        for identity, scales in enumerate(SCALES):
            operator, found, rest = name.rpartition(f".{scales}.kernel")
            if found and not rest:
                yield MappedKernel(
                    f"{operator}.kernel.conv.weight", name, f"{operator}.{scales}.pointwise", bool(identity)
                )
