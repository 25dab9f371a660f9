"""ResNets for small images (He et al., CVPR 2016), in the variants that FedDecorr, FedETF and MOON train."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.models.layers import conv_bn, global_pool
from fullrank.models.net import Net

Shortcut = Callable[[int, int, int], nn.Module]
"""A function of input width, output width and stride that builds the shortcut of a block."""


class ZeroPad(nn.Module):
    """He et al.'s option A, a shortcut without parameters: every stride-th pixel, padded with zero channels.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        stride: The stride.
    """

    def __init__(self, in_width: int, width: int, stride: int):
        super().__init__()
        self.stride = stride
        self.added = (width - in_width) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the subsampled map with its zero channels."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added, self.added))


def projection(in_width: int, width: int, stride: int) -> nn.Module:
    """Build He et al.'s option B: a 1×1 convolution with BatchNorm.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        stride: The stride.
    """
    return conv_bn(in_width, width, 1, stride)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        stride: The stride of the first convolution.
        shortcut: A function that builds the shortcut of a block that changes the shape; otherwise it is the identity.
    """

    def __init__(self, in_width: int, width: int, stride: int, shortcut: Shortcut):
        super().__init__()
        self.conv1 = conv_bn(in_width, width, 3, stride)
        self.conv2 = conv_bn(width, width, 3)
        same = stride == 1 and in_width == width
        self.shortcut = nn.Identity() if same else shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, after its ReLU."""
        residual = self.conv2(F.relu(self.conv1(x)))
        return F.relu(residual + self.shortcut(x))


def resnet18(num_classes: int, in_channels: int = 3, *, init: Literal["default", "fan-out"] = "default") -> Net:
    """ResNet18 with a 3×3 stem and no max-pooling, as in FedDecorr, FedETF and MOON.

    The stem has stride 1, so that the last map of a 32×32 image is 4×4; z has 512 dimensions. FedDecorr and FedETF use
    PyTorch's default initialisation; `init="fan-out"` draws the convolutions from a normal distribution by fan-out, as
    in MOON's network and torchvision's.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        init: The initialisation of the convolutions.

    Raises:
        InputError: If there is no such initialisation.
    """
    net = _resnet(num_classes, in_channels, (64, 128, 256, 512), 2, projection)
    if init == "fan-out":
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif init != "default":
        raise InputError(f'model.init = "{init}": must be default or fan-out')
    return net


def resnet20(num_classes: int, in_channels: int = 3) -> Net:
    """ResNet20 for CIFAR, as in FedDecorr: shortcuts without parameters.

    He et al.'s network (CVPR 2016, section 4.2) with option A; z has 64 dimensions. The convolutions and the head start
    from Kaiming-normal weights.
    """
    return _kaiming(_resnet(num_classes, in_channels, (16, 32, 64), 3, ZeroPad))


def resnet32(num_classes: int, in_channels: int = 3) -> Net:
    """ResNet32 for CIFAR, as in FedDecorr: shortcuts without parameters.

    He et al.'s network (CVPR 2016, section 4.2) with option A; z has 64 dimensions. The convolutions and the head start
    from Kaiming-normal weights.
    """
    return _kaiming(_resnet(num_classes, in_channels, (16, 32, 64), 5, ZeroPad))


def resnet20_conv(num_classes: int, in_channels: int = 3) -> Net:
    """ResNet20 for CIFAR, as in FedETF: 1×1 convolutions as shortcuts.

    He et al.'s network (CVPR 2016, section 4.2) with option B if the shape changes, and PyTorch's default
    initialisation; z has 64 dimensions.
    """
    return _resnet(num_classes, in_channels, (16, 32, 64), 3, projection)


def _resnet(num_classes: int, in_channels: int, widths: Sequence[int], blocks: int, shortcut: Shortcut) -> Net:
    """Build a 3×3 stem and one stage of `blocks` blocks per width, each but the first halving the map."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(conv_bn(in_channels, widths[0], 3), nn.ReLU()))
    last = widths[0]
    for number, width in enumerate(widths, start=1):
        stage = nn.Sequential()
        for stride in [1 if number == 1 else 2] + [1] * (blocks - 1):
            stage.append(BasicBlock(last, width, stride, shortcut))
            last = width
        layers[f"layer{number}"] = stage
    layers["pool"] = global_pool()
    return Net(nn.Sequential(layers), last, num_classes)


def _kaiming(net: Net) -> Net:
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight)
    return net
