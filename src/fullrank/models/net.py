"""The form that the library's own networks have: a backbone, a neck and a head; and what a forward gives."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from fullrank.trees import Tensors


class Output(NamedTuple):
    """One forward: logits (N, C), the representation z (N, d), and whatever else the head names."""

    logits: Tensor
    z: Tensor
    extras: Tensors


class Net(nn.Module):
    """A backbone that gives the representation, a neck (the identity unless a method puts one), a linear head."""

    made_for: str = ""
    """The method without which it does not train as it is meant to, if there is one."""

    def __init__(self, backbone: nn.Module, feature_dim: int, num_classes: int, dropout: float = 0.0):
        super().__init__()
        self.backbone = backbone
        self.neck: nn.Module = nn.Identity()
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head: nn.Module = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """The representation z: what the head sees, before dropout."""
        z: Tensor = self.neck(self.backbone(x))
        return z

    def represent(self, x: Tensor) -> Output:
        """Logits and representation of one forward."""
        z = self.features(x)
        return output_of(self.head(self.dropout(z)), z)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.represent(x).logits


def output_of(result: Any, z: Tensor) -> Output:
    """A head's result, which may name more than logits, with the representation that it saw."""
    logits, extras = result if isinstance(result, tuple) else (result, {})
    return Output(logits, z, extras)
