"""The classifier of a network as the measures of neural collapse need it: rows of weights, and their features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fullrank.models.net import Output
from fullrank.models.network import Network

FRAME, IN_FRAME = "frame", "mu"
"""FedETF's head: the attribute with its fixed rows, and the name under which it returns their features."""


@dataclass(frozen=True)
class Classifier:
    """A linear classifier with rows W (C, d) and a bias."""

    rows: Tensor
    bias: Tensor | None
    on: str = ""
    """The name under which the head returns the features that the rows multiply; empty if they multiply z."""

    def features(self, out: Output) -> Tensor:
        """Return the features that the rows multiply, from the output of a forward pass."""
        return out.extras[self.on] if self.on else out.z


def classifier_of(network: Network) -> Classifier | None:
    """Return a copy of the network's linear classifier; None if its scores are not linear in known features."""
    head = network.head
    if isinstance(head, nn.Linear):
        bias = head.bias.detach().clone() if head.bias is not None else None
        return Classifier(head.weight.detach().clone(), bias)
    frame = getattr(head, FRAME, None)
    return Classifier(frame.detach().clone(), None, IN_FRAME) if isinstance(frame, Tensor) else None
