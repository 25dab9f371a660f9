"""A multi-layer perceptron for inputs of any shape."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from fullrank.models.net import Net


def mlp(
    num_classes: int,
    in_channels: int = 1,
    *,
    width: Annotated[int, Field(ge=1)] = 128,
    depth: Annotated[int, Field(ge=1)] = 2,
    features: Annotated[int, Field(ge=0)] = 0,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> Net:
    """`depth` dense layers of `width` units with ReLU; z is the output of the last one (`features` wide if given).

    The first layer takes its input width from the first batch, so inputs may have any shape.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels, which every network accepts and this one ignores.
        width: The number of units of each layer.
        depth: The number of layers.
        features: The number of dimensions of z; 0 for `width`.
        dropout: The probability of dropout between z and the head.
    """
    widths = [width] * (depth - 1) + [features or width]
    layers: list[nn.Module] = [nn.Flatten()]
    for index, out in enumerate(widths):
        layers += [nn.LazyLinear(out) if index == 0 else nn.Linear(widths[index - 1], out), nn.ReLU()]
    return Net(nn.Sequential(*layers), widths[-1], num_classes, dropout)
