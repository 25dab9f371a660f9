"""The structure of the library's networks (a backbone, a neck and a head), and the output of a forward."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from fullrank.trees import Tensors


class Output(NamedTuple):
    """The output of a forward: logits (N, C), the representation z (N, d), and further tensors that the head names."""

    logits: Tensor
    z: Tensor
    extras: Tensors


class Net(nn.Module):
    """A backbone that gives the representation, a neck (the identity unless a method sets one), and a linear head."""

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
        """Return logits and representation of one forward."""
        z = self.features(x)
        return output_of(self.head(self.dropout(z)), z)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.represent(x).logits


def output_of(result: Any, z: Tensor) -> Output:
    """Return a head's result, which may have more than logits, together with the representation that it received."""
    logits, extras = result if isinstance(result, tuple) else (result, {})
    return Output(logits, z, extras)
