"""EfficientNet-B0 (Tan and Le, ICML 2019)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fullrank.models.layers import conv_bn, global_pool
from fullrank.models.net import Net

STEM, FEATURES = 32, 1280
STAGES = (
    # expansion, width, blocks, kernel, stride of the first block
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
SQUEEZE = 4  # squeeze-and-excitation has a quarter of the width of a block's input


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (Hu et al., CVPR 2018), which weights channels by a small network on their means.

    Args:
        width: The number of channels.
        squeezed: The width of the small network.
    """

    def __init__(self, width: int, squeezed: int):
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, width, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the map with its channels weighted."""
        weighed: Tensor = x * self.weigh(x)
        return weighed


class StochasticDepth(nn.Module):
    """Stochastic depth (Huang et al., ECCV 2016), which drops a branch for some samples of a training batch.

    Branches that are kept are scaled by 1 / (1 − rate). The layer applies `nn.Dropout` to one number per sample, so
    that `Network.has_dropout` recognises it.

    Args:
        rate: The probability that a sample's branch is dropped.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch times 0 or 1 / (1 − rate)."""
        stays: Tensor = self.dropout(x.new_ones(len(x), 1, 1, 1))
        return x * stays


class MBConv(nn.Module):
    """A mobile inverted bottleneck with squeeze-and-excitation.

    A 1×1 convolution widens the map, each channel is convolved, the channels are weighted, and a 1×1 convolution
    without an activation narrows the map. The input is added if the shape stays the same.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        expansion: The factor by which the map is widened; with 1 it is not.
        kernel: The side of the kernels of the middle convolution.
        stride: The stride of the middle convolution.
        drop_rate: The probability of stochastic depth.
    """

    def __init__(self, in_width: int, width: int, expansion: int, kernel: int, stride: int, drop_rate: float):
        super().__init__()
        inner = expansion * in_width
        widened = nn.Sequential(conv_bn(in_width, inner, 1), nn.SiLU())
        self.expand: nn.Module = widened if expansion > 1 else nn.Identity()
        self.depthwise = nn.Sequential(conv_bn(inner, inner, kernel, stride, groups=inner), nn.SiLU())
        self.squeeze = SqueezeExcite(inner, in_width // SQUEEZE)
        self.project = conv_bn(inner, width, 1)
        self.added = stride == 1 and in_width == width
        self.depth: nn.Module = StochasticDepth(drop_rate) if self.added and drop_rate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, with its input added if the shape stays the same."""
        out: Tensor = self.project(self.squeeze(self.depthwise(self.expand(x))))
        return x + self.depth(out) if self.added else out


def efficientnet_b0(
    num_classes: int,
    in_channels: int = 3,
    *,
    bottleneck: Annotated[int, Field(ge=0)] = 0,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.2,
) -> Net:
    """The smallest EfficientNet, for large images; `bottleneck` = 640 gives FedMR's network for ISIC-2019.

    Tan and Le's EfficientNet-B0 (ICML 2019). As in the paper, a block that keeps its input's shape is skipped in
    training with a probability that grows with its depth towards `drop_path`, and `dropout` is applied between z and
    the head. BatchNorm's constants and the initialisation are PyTorch's defaults. z is the mean of the last map, which
    is 32 times smaller than the image, in 1280 dimensions; with a `bottleneck`, a linear layer without an activation
    narrows it.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        bottleneck: The number of dimensions to which a linear layer narrows z; 0 for no such layer.
        dropout: The probability of dropout between z and the head.
        drop_path: The probability with which the last block is skipped in training.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(conv_bn(in_channels, STEM, 3, stride=2), nn.SiLU())
    )
    last, built, total = STEM, 0, sum(blocks for _, _, blocks, _, _ in STAGES)
    for number, (expansion, width, blocks, kernel, first) in enumerate(STAGES, start=1):
        stage = nn.Sequential()
        for stride in [first] + [1] * (blocks - 1):
            stage.append(MBConv(last, width, expansion, kernel, stride, drop_path * built / total))
            last, built = width, built + 1
        layers[f"layer{number}"] = stage
    layers["tail"] = nn.Sequential(conv_bn(last, FEATURES, 1), nn.SiLU())
    layers["pool"] = global_pool()
    if bottleneck:
        layers["bottleneck"] = nn.Linear(FEATURES, bottleneck)
    return Net(nn.Sequential(layers), bottleneck or FEATURES, num_classes, dropout)
