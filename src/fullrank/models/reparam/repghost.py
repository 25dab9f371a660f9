"""RepGhostNet (Chen et al., 2022) at half width, as FedRepOpt trains it."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.models.layers import conv_bn, global_pool
from fullrank.models.net import Net
from fullrank.models.reparam.modes import CslaScales, IdentityStart, in_mode
from fullrank.models.reparam.operators import Mode, RepConv
from fullrank.models.reparam.scales import Scales

STEM, TAIL, FEATURES = 8, 480, 1280
BOTTLENECKS = (
    # inner width, width, kernel of the convolution that halves the map, stride, squeeze-and-excitation
    (4, 8, 3, 1, False),
    (12, 12, 3, 2, False),
    (20, 12, 3, 1, False),
    (20, 20, 5, 2, True),
    (32, 20, 5, 1, True),
    (60, 40, 3, 2, False),
    (52, 40, 3, 1, False),
    (60, 40, 3, 1, False),
    (60, 40, 3, 1, False),
    (120, 56, 3, 1, True),
    (168, 56, 3, 1, True),
    (168, 80, 5, 2, True),
    (240, 80, 5, 1, False),
    (240, 80, 5, 1, True),
    (240, 80, 5, 1, False),
    (240, 80, 5, 1, True),
)
"""The widths of RepGhostNet 1.0×, halved and rounded to multiples of 4."""


class GhostModule(nn.Module):
    """A 1×1 convolution with BatchNorm, followed by a re-parameterisable depthwise convolution with an identity branch.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        mode: The mode of the depthwise convolution.
        start: The initial value of its scales.
        relu: Whether a ReLU follows each convolution.
    """

    def __init__(self, in_width: int, width: int, mode: Mode, start: float, relu: bool):
        super().__init__()
        self.primary = conv_bn(in_width, width, 1)
        self.cheap = RepConv(
            width, width, mode=mode, pointwise=False, identity=True, depthwise=True, start=start, relu=relu
        )
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return the map after both convolutions."""
        out: Tensor = self.primary(x)
        out = self.cheap(F.relu(out) if self.relu else out)
        return out


class HardSqueezeExcite(nn.Module):
    """Squeeze-and-excitation with a hard sigmoid.

    It multiplies each channel by a number between 0 and 1, which two dense layers compute from the means of all
    channels.

    Args:
        width: The number of channels.
    """

    def __init__(self, width: int):
        super().__init__()
        inner = _a_quarter(width)
        self.reduce = nn.Conv2d(width, inner, 1)
        self.expand = nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map with its channels weighted."""
        gate = self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(gate)


def _a_quarter(width: int) -> int:
    """Return a quarter of a width, rounded to a multiple of 4 and never down by more than a tenth."""
    near = max(4, int(width / 4 + 2) // 4 * 4)
    return near + 4 if near < 0.9 * width / 4 else near


class Bottleneck(nn.Module):
    """Two ghost modules, at stride 2 with a depthwise convolution between them, and a shortcut around all.

    Args:
        in_width: The number of channels of the input.
        inner: The number of channels between the ghost modules.
        width: The number of channels of the output.
        kernel: The side of the kernels of the depthwise convolution.
        stride: The stride.
        excite: Whether there is a squeeze-and-excitation between the ghost modules.
        mode: The mode of the ghost modules.
        place: The position of the block, from 1, in a sequence of blocks that keep width and size. The initial values
            of trained scales decrease with it, α = √(2/(m+1)) for the m-th module. None gives 1 everywhere.
    """

    def __init__(
        self,
        in_width: int,
        inner: int,
        width: int,
        kernel: int,
        stride: int,
        excite: bool,
        mode: Mode,
        place: int | None,
    ):
        super().__init__()
        first, second = (1.0, 1.0) if place is None else (math.sqrt(2 / (2 * place)), math.sqrt(2 / (2 * place + 1)))
        self.ghost1 = GhostModule(in_width, inner, mode, first, relu=True)
        self.depthwise = conv_bn(inner, inner, kernel, stride, groups=inner) if stride > 1 else nn.Identity()
        self.excite = HardSqueezeExcite(inner) if excite else nn.Identity()
        self.ghost2 = GhostModule(inner, width, mode, second, relu=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_width != width:
            around = conv_bn(in_width, in_width, kernel, stride, groups=in_width)
            self.shortcut = nn.Sequential(around, conv_bn(in_width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.ghost2(self.excite(self.depthwise(self.ghost1(x))))
        out = out + self.shortcut(x)
        return out


def repghost(
    num_classes: int,
    in_channels: int = 3,
    *,
    bottlenecks: tuple[tuple[int, int, int, int, bool], ...] = BOTTLENECKS,
    stem: int = STEM,
    tail: int = TAIL,
    features: int = FEATURES,
    mode: Mode = "tr",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    scales: Scales = None,
    csla_scales: CslaScales = "searched",
    identity_start: IdentityStart = "authors",
    model: str = "repghost",
) -> Net:
    """RepGhostNet of any size: a convolution that halves the map, bottlenecks, and a dense layer behind their mean.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        bottlenecks: For each block its inner width, its width, the side of its kernels, its stride, and whether it has
            squeeze-and-excitation.
        stem: The width of the first convolution.
        tail: The width of the last convolution.
        features: The number of dimensions of z.
        mode: The mode, as in `repvgg`.
        dropout: The probability of dropout between z and the head.
        scales: The scales, as in `repvgg`.
        csla_scales: With "init", as in the authors' rows, scales of the mode "csla" are 1 everywhere.
        identity_start: The initial scale of identity branches.
        model: The name of the network, for errors.

    Raises:
        InputError: If there is no such mode, or the scales do not fit the network.
    """

    def made(mode: Mode) -> Net:
        first = nn.Sequential(conv_bn(in_channels, stem, 3, 2), nn.ReLU())
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=first)
        last, place = stem, 0
        flat = mode == "csla" and csla_scales == "init"
        for number, (inner, width, kernel, stride, excite) in enumerate(bottlenecks, start=1):
            place = place + 1 if stride == 1 and last == width else 1
            where = None if flat else place
            layers[f"layer{number}"] = Bottleneck(last, inner, width, kernel, stride, excite, mode, where)
            last = width
        layers["tail"] = nn.Sequential(conv_bn(last, tail, 1), nn.ReLU())
        layers["pool"] = global_pool()
        layers["widen"] = nn.Sequential(nn.Linear(tail, features), nn.ReLU())
        return Net(nn.Sequential(layers), features, num_classes, dropout)

    return in_mode(made, model, mode, scales, csla_scales, identity_start)


def repghost_half(
    num_classes: int,
    in_channels: int = 3,
    *,
    mode: Mode = "tr",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    scales: Scales = None,
    csla_scales: CslaScales = "searched",
    identity_start: IdentityStart = "authors",
) -> Net:
    """RepGhostNet 0.5×, as in FedRepOpt: 16 bottlenecks of two modules, z of 1280 dimensions.

    The depthwise 3×3 convolution of each module is re-parameterised. "tr" is RepGhostNet itself, "inf" its plain form
    with its own BatchNorm.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        mode: The mode.
        dropout: The probability of dropout between z and the head.
        scales: As in `repghost`.
        csla_scales: As in `repghost`.
        identity_start: As in `repghost`.
    """
    return repghost(
        num_classes,
        in_channels,
        mode=mode,
        dropout=dropout,
        scales=scales,
        csla_scales=csla_scales,
        identity_start=identity_start,
        model="repghost-0.5",
    )
