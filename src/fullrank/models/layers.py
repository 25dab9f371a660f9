"""Layers that several convolutional networks share."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fullrank.errors import InputError


def conv_bn(in_width: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Build a convolution without bias that keeps the map's size at stride 1, followed by BatchNorm.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        kernel: The side of the kernels.
        stride: The stride.
        groups: The number of groups of channels that are convolved separately.
    """
    return nn.Sequential(
        nn.Conv2d(in_width, width, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
    )


def global_pool() -> nn.Sequential:
    """Build layers that average a map of any size into one vector per sample."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


class FromSize(nn.Sequential):
    """A sequence of layers that rejects images below a minimum size.

    Args:
        model: The name of the network, for the error.
        smallest: The smallest side of an image, in pixels.
        layers: The layers by name.
    """

    def __init__(self, model: str, smallest: int, layers: OrderedDict[str, nn.Module]):
        super().__init__(layers)
        self.model, self.smallest = model, smallest

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer.

        Raises:
            InputError: If the images are too small.
        """
        if x.dim() == 4 and min(x.shape[2:]) < self.smallest:
            raise InputError(
                f'model.name = "{self.model}" needs images of at least {self.smallest}×{self.smallest} pixels, but '
                f"these have {x.shape[2]}×{x.shape[3]}; choose a model for small images, as the library's cnn is"
            )
        for layer in self:
            x = layer(x)
        return x
