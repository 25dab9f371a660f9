"""The small LeNet (LeCun et al., Proceedings of the IEEE 1998) that MOON and FedMR call SimpleCNN."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fullrank.models.layers import FromSize
from fullrank.models.net import Net

SMALLEST = 16  # pixels; two unpadded 5×5 convolutions with pooling reduce them to one
HIDDEN, FEATURES = 120, 84


def lenet(num_classes: int, in_channels: int = 3) -> Net:
    """LeNet with ReLU and max-pooling, as MOON and FedMR train it: the SimpleCNN of their code.

    Convolutions 5×5 of 6 and 16 channels without padding, dense layers of 120 and 84 units (Li et al., CVPR 2021); z is
    the last one's output after its ReLU. The first dense layer takes its input width from the first batch: 400 for
    32×32 images, 256 for 28×28.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        layer1=nn.Sequential(nn.Conv2d(in_channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        layer2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        dense1=nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU()),
        dense2=nn.Sequential(nn.Linear(HIDDEN, FEATURES), nn.ReLU()),
    )
    return Net(FromSize("lenet", SMALLEST, layers), FEATURES, num_classes)
