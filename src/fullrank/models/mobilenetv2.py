"""MobileNetV2 for small images (Sandler et al., CVPR 2018), as FedDecorr and FedETF train it on CIFAR."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fullrank.models.layers import conv_bn, global_pool
from fullrank.models.net import Net

STEM, FEATURES = 32, 1280
STAGES = (
    # expansion, width, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """An inverted residual block.

    A 1×1 convolution widens the map, each channel is convolved by 3×3, and a 1×1 convolution without an activation
    narrows the map. At stride 1 the input is added, through a 1×1 convolution with BatchNorm if the widths differ; the
    paper adds it only if they agree.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        expansion: The factor by which the map is widened.
        stride: The stride of the 3×3 convolution.
    """

    def __init__(self, in_width: int, width: int, expansion: int, stride: int):
        super().__init__()
        inner = expansion * in_width
        self.expand = nn.Sequential(conv_bn(in_width, inner, 1), nn.ReLU())
        self.depthwise = nn.Sequential(conv_bn(inner, inner, 3, stride, groups=inner), nn.ReLU())
        self.project = conv_bn(inner, width, 1)
        self.shortcut: nn.Module | None = None
        if stride == 1:
            self.shortcut = nn.Identity() if in_width == width else conv_bn(in_width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, with its input added at stride 1."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out if self.shortcut is None else out + self.shortcut(x)


def mobilenetv2(num_classes: int, in_channels: int = 3) -> Net:
    """MobileNetV2 for 32×32 images, as in FedDecorr and FedETF.

    Unlike in Sandler et al.'s network for ImageNet (CVPR 2018), the first convolution and the stage of width 24 keep
    the image's size, activations are plain ReLU, the first block has its 1×1 expansion as well, and a block of stride 1
    has a shortcut even if it changes the width. The last map is 4×4 for 32×32 images and 8×8 for 64×64; its mean, in
    1280 dimensions, is z.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(conv_bn(in_channels, STEM, 3), nn.ReLU()))
    last = STEM
    for number, (expansion, width, blocks, first) in enumerate(STAGES, start=1):
        stage = nn.Sequential()
        for stride in [first] + [1] * (blocks - 1):
            stage.append(InvertedResidual(last, width, expansion, stride))
            last = width
        layers[f"layer{number}"] = stage
    layers["tail"] = nn.Sequential(conv_bn(last, FEATURES, 1), nn.ReLU())
    layers["pool"] = global_pool()
    return Net(nn.Sequential(layers), FEATURES, num_classes)
