"""A small convolutional network for images of at least 8×8 pixels."""

from __future__ import annotations

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.models.net import Net


def cnn(
    num_classes: int,
    in_channels: int = 3,
    *,
    width: Annotated[int, Field(ge=1)] = 32,
    features: Annotated[int, Field(ge=1)] = 128,
    norm: Literal["none", "batch", "group"] = "none",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> Net:
    """Two 3×3 convolutions (width, 2·width) and one dense layer; z has `features` dimensions, after its ReLU.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        width: The number of channels after the first convolution.
        features: The number of dimensions of z.
        norm: The norm layer after each convolution: none, BatchNorm, or GroupNorm.
        dropout: The probability of dropout between z and the head.
    """
    backbone = nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        _norm(norm, width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        _norm(norm, 2 * width),
        nn.ReLU(),
        _PoolTo(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, features),
        nn.ReLU(),
    )
    return Net(backbone, features, num_classes, dropout)


class _PoolTo(nn.Module):
    """A layer that averages a map to side × side.

    If `side` divides the map's side, windows of equal size are used, because adaptive pooling on a GPU sums its
    gradient in an order that changes from run to run.
    """

    def __init__(self, side: int):
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % self.side or width % self.side or not (height and width):
            return F.adaptive_avg_pool2d(x, self.side)
        return F.avg_pool2d(x, (height // self.side, width // self.side))


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(max(groups for groups in range(1, 9) if channels % groups == 0), channels)
    if kind == "none":
        return nn.Identity()
    raise InputError(f'model.norm = "{kind}": must be none, batch or group')
