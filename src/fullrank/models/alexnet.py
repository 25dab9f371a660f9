"""AlexNet with BatchNorm, as FedBN (Li et al., ICLR 2021) trains it on images of several domains."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fullrank.models.layers import FromSize
from fullrank.models.net import Net

SMALLEST = 63  # pixels; with smaller images the third pooling has no window
POOLED, FEATURES = 6, 4096


class PoolToSix(nn.Module):
    """A layer that averages a map to 6×6.

    A 7×7 map, that of 256×256 images, is averaged by 2×2 windows with stride 1. Adaptive pooling uses the same windows,
    but on a GPU it sums its gradient in an order that changes from run to run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.AvgPool2d(2, stride=1)
        self.adaptive = nn.AdaptiveAvgPool2d(POOLED)

    def forward(self, x: Tensor) -> Tensor:
        """Return the 6×6 map."""
        pool = self.pairs if x.shape[-2:] == (POOLED + 1, POOLED + 1) else self.adaptive
        pooled: Tensor = pool(x)
        return pooled


def alexnet_bn(num_classes: int, in_channels: int = 3) -> Net:
    """AlexNet with BatchNorm after every layer but the last, as in FedBN.

    Krizhevsky et al.'s network (NeurIPS 2012) in torchvision's widths, without dropout, as Li et al. (ICLR 2021) train
    it on 256×256 images; images need at least 63×63 pixels. z is the second dense layer's output after its ReLU, in
    4096 dimensions. The dense layers have BatchNorm as well, so the network cannot be trained on a batch of one sample.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        layer1=_convolved(in_channels, 64, 11, stride=4, padding=2),
        pool1=nn.MaxPool2d(3, 2),
        layer2=_convolved(64, 192, 5, padding=2),
        pool2=nn.MaxPool2d(3, 2),
        layer3=_convolved(192, 384, 3, padding=1),
        layer4=_convolved(384, 256, 3, padding=1),
        layer5=_convolved(256, 256, 3, padding=1),
        pool5=nn.MaxPool2d(3, 2),
        pool=nn.Sequential(PoolToSix(), nn.Flatten()),
        dense6=_dense(256 * POOLED**2, FEATURES),
        dense7=_dense(FEATURES, FEATURES),
    )
    return Net(FromSize("alexnet-bn", SMALLEST, layers), FEATURES, num_classes)


def _convolved(in_width: int, width: int, kernel: int, *, padding: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_width, width, kernel, stride, padding), nn.BatchNorm2d(width), nn.ReLU())


def _dense(in_width: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(in_width, width), nn.BatchNorm1d(width), nn.ReLU())
