"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016), as FedMR trains one on CIFAR-100."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.models.layers import global_pool
from fullrank.models.net import Net

STEM, WIDTHS = 16, (160, 320, 640)  # ten times the widths of He et al.'s ResNets for CIFAR
BLOCKS = 4  # in each stage: with two convolutions a block, three shortcuts and the stem, 28 layers
LAST_MOMENTUM = 0.9  # FedMR's value, with which running statistics are nearly those of the last batch


class WideBlock(nn.Module):
    """BatchNorm and ReLU before each of two 3×3 convolutions, with dropout between the convolutions.

    The input is added unchanged or, if the shape changes, through a 1×1 convolution without BatchNorm.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        stride: The stride of the second convolution.
        dropout: The probability of dropout.
    """

    def __init__(self, in_width: int, width: int, stride: int, dropout: float):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_width)
        self.conv1 = nn.Conv2d(in_width, width, 3, padding=1)
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1)
        same = stride == 1 and in_width == width
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(in_width, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of branch and shortcut, without an activation after it."""
        out = self.dropout(self.conv1(F.relu(self.norm1(x))))
        out = self.conv2(F.relu(self.norm2(out)))
        added: Tensor = out + self.shortcut(x)
        return added


def wrn_28_10(num_classes: int, in_channels: int = 3, *, dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3) -> Net:
    """WRN-28-10 for CIFAR, as in FedMR: with dropout inside its blocks.

    Zagoruyko and Komodakis's network (BMVC 2016) of depth 28 and ten times the width. As in FedMR's code, convolutions
    have biases, a block's stride is at its second convolution, and the last BatchNorm has momentum 0.9. Layers have
    PyTorch's default initialisation. The last map is 8×8 for 32×32 images; its mean, in 640 dimensions, is z.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        dropout: The probability of dropout inside a block.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Conv2d(in_channels, STEM, 3, padding=1))
    last = STEM
    for number, width in enumerate(WIDTHS, start=1):
        stage = nn.Sequential()
        for stride in [1 if number == 1 else 2] + [1] * (BLOCKS - 1):
            stage.append(WideBlock(last, width, stride, dropout))
            last = width
        layers[f"layer{number}"] = stage
    layers["tail"] = nn.Sequential(nn.BatchNorm2d(last, momentum=LAST_MOMENTUM), nn.ReLU())
    layers["pool"] = global_pool()
    return Net(nn.Sequential(layers), last, num_classes)
