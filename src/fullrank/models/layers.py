"""Pieces that several convolutional networks share."""

from __future__ import annotations

from torch import nn


def conv_bn(in_width: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias that keeps the map's size at stride 1, and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(in_width, width, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
    )


def global_pool() -> nn.Sequential:
    """The mean over a map of any size, as one vector per sample."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
