"""The structure of the library's networks (a backbone, a neck and a head), and the output of a forward."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from fullrank.trees import Tensors


class Output(NamedTuple):
    """The output of a forward.

    Attributes:
        logits: The logits (N, C).
        z: The representation (N, d).
        extras: Further tensors that a head returns by name.

    >>> import torch
    >>> from fullrank.models import build
    >>> out = build("cnn", num_classes=10, in_channels=1).represent(torch.zeros(2, 1, 8, 8))
    >>> tuple(out.logits.shape), tuple(out.z.shape), out.extras
    ((2, 10), (2, 128), {})
    """

    logits: Tensor
    z: Tensor
    extras: Tensors


class Net(nn.Module):
    """A backbone that computes the representation, a neck (the identity unless a method sets one), and a linear head.

    Args:
        backbone: A module that maps images to features (N, feature_dim).
        feature_dim: The number of dimensions of the representation.
        num_classes: The number of classes.
        dropout: The probability of dropout between the representation and the head.

    >>> import torch
    >>> net = Net(nn.Flatten(), feature_dim=12, num_classes=3)
    >>> net(torch.zeros(2, 3, 2, 2)).shape, net.features(torch.zeros(2, 3, 2, 2)).shape
    (torch.Size([2, 3]), torch.Size([2, 12]))
    """

    made_for: str = ""
    """The method that the network needs in order to train as intended; empty if it needs none."""

    def __init__(self, backbone: nn.Module, feature_dim: int, num_classes: int, dropout: float = 0.0):
        super().__init__()
        self.backbone = backbone
        self.neck: nn.Module = nn.Identity()
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head: nn.Module = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Return the representation z, the input of the head before dropout."""
        z: Tensor = self.neck(self.backbone(x))
        return z

    def represent(self, x: Tensor) -> Output:
        """Return the logits and the representation of one forward."""
        z = self.features(x)
        return output_of(self.head(self.dropout(z)), z)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.represent(x).logits


def output_of(result: Any, z: Tensor) -> Output:
    """Combine a head's result with the representation that it received.

    Args:
        result: The logits, or a pair of logits and further tensors by name.
        z: The representation.
    """
    logits, extras = result if isinstance(result, tuple) else (result, {})
    return Output(logits, z, extras)
