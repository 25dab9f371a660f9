"""The classifier as the measures of neural collapse see it: rows of weights, and the features that they multiply."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fullrank.models.net import Output
from fullrank.models.network import Network

FRAME, IN_FRAME = "frame", "mu"
"""FedETF's head: its fixed rows, and the name under which it returns what they act on."""


@dataclass(frozen=True)
class Classifier:
    """Rows W (C, d) and a bias."""

    rows: Tensor
    bias: Tensor | None
    on: str = ""
    """What they act on: z itself, or something that the head returns under this name."""

    def features(self, out: Output) -> Tensor:
        """What the rows act on, of one forward."""
        return out.extras[self.on] if self.on else out.z


def classifier_of(network: Network) -> Classifier | None:
    """The network's linear classifier as it is now; None where scores are not linear in anything that is known."""
    head = network.head
    if isinstance(head, nn.Linear):
        bias = head.bias.detach().clone() if head.bias is not None else None
        return Classifier(head.weight.detach().clone(), bias)
    frame = getattr(head, FRAME, None)
    return Classifier(frame.detach().clone(), None, IN_FRAME) if isinstance(frame, Tensor) else None
