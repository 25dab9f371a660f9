"""The conversion of networks with branches into plain ones that compute the same function."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from fullrank.errors import InputError
from fullrank.models.net import Net
from fullrank.models.reparam.operators import MADE_FOR, RepConv, affine, operators

Module = TypeVar("Module", bound=nn.Module)


def to_plain(net: Module) -> Module:
    """Return a copy in which each sum of scaled branches is one convolution, W' = α₃W₃ + α₁W₁ + s·I.

    It converts the mode "csla", "hs" or "repopt" to "inf". BatchNorm stays, so that the copy can be trained further.
    Kernels smaller than 3×3 are padded with zeros.

    Args:
        net: A repvgg or repghost.

    Raises:
        InputError: If the network has no re-parameterisable convolution, or has BatchNorm in its branches.

    >>> import torch
    >>> from fullrank.models import build
    >>> net = build("repghost-0.5", num_classes=10, mode="csla").eval()
    >>> x = torch.randn(2, 3, 32, 32)
    >>> torch.allclose(to_plain(net)(x), net(x), atol=1e-5)
    True
    """
    return _converted(net, keep_scales=False)


def to_repopt(net: Module) -> Module:
    """Return a plain copy that keeps the constant scales as frozen entries: from "csla" or "hs" to "repopt".

    Trained by the method `fedrepopt`, it stays equal to the "csla" network trained by any other method.

    Args:
        net: A repvgg or repghost in the mode "csla" or "hs".

    Raises:
        InputError: If the network has another mode.
    """
    return _converted(net, keep_scales=True)


def to_deploy(net: Module) -> Module:
    """Return a copy for evaluation in which each re-parameterisable block is one convolution with a bias.

    BatchNorm is fused into it. Any mode can be converted. Other layers, such as RepGhost's 1×1 convolutions, are
    unchanged.

    Args:
        net: A repvgg or repghost in any mode.

    Raises:
        InputError: If the network has no re-parameterisable convolution.
    """
    fused = _copied(net)
    for _, operator in operators(fused):
        kernel, bias = operator.sum_of_branches()
        if operator.norm is not None:
            times, plus = affine(operator.norm)
            kernel, bias = times.view(-1, 1, 1, 1) * kernel, times * bias + plus
        operator.become_plain_(kernel, bias)
    return fused.eval()


def collapse_(net: nn.Module, keep_scales: bool) -> None:
    """Convert every operator of a network to its plain form in place.

    Args:
        net: The network.
        keep_scales: Whether constant scales stay as frozen entries, which gives the mode "repopt".

    Raises:
        InputError: If branches have BatchNorm, or there are no scales to keep.
    """
    for name, operator in operators(net):
        if operator.has_norms_in_branches:
            raise InputError(
                f'"{name}" has BatchNorm in its branches, which cannot become one convolution that trains further; '
                "use to_deploy for evaluation"
            )
        scales, identity = operator.scales_by_branch(), operator.identity is not None
        if keep_scales and not scales:
            raise InputError(f'"{name}" has no scales to keep; build the network with mode = "csla" or "hs"')
        operator.become_plain_(operator.sum_of_branches()[0])
        if keep_scales:
            operator.register_scales_(scales["kernel"], scales.get("pointwise"), identity)
    if isinstance(net, Net):
        net.made_for = MADE_FOR if keep_scales else ""


def _converted(net: Module, keep_scales: bool) -> Module:
    made = _copied(net)
    collapse_(made, keep_scales)
    return made


def _copied(net: Module) -> Module:
    if not any(isinstance(part, RepConv) for part in net.modules()):
        raise InputError(
            f"the network ({type(net).__name__}) has no re-parameterisable convolution; build a repvgg or a repghost"
        )
    return copy.deepcopy(net)
