"""The classifier as the measures of neural collapse see it: rows of weights, and the features that they multiply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from ..models.network import Network, Output


@dataclass(frozen=True)
class Classifier:
    """Rows W (C, d) and a bias, and which features of a forward they act on."""

    rows: Tensor
    bias: Tensor | None
    features: Callable[[Output], Tensor]


def classifier_of(network: Network) -> Classifier | None:
    """The network's linear classifier as it is now; None where scores are not linear in anything that is known.

    A head with a fixed frame (FedETF's) is linear in μ, which it returns beside the scores.
    """
    head = network.head
    if isinstance(head, nn.Linear):
        bias = head.bias.detach().clone() if head.bias is not None else None
        return Classifier(head.weight.detach().clone(), bias, lambda out: out.z)
    frame = getattr(head, "frame", None)
    if isinstance(frame, Tensor):
        return Classifier(frame.detach().clone(), None, lambda out: out.extras["mu"])
    return None
