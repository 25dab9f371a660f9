"""FedAdagrad: Reddi et al., *Adaptive Federated Optimization* (ICLR 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fullrank.methods._method import Momentum
from fullrank.methods.fedadam import FedAdam


@dataclass(frozen=True)
class FedAdagrad(FedAdam):
    """FedAdam with v ← v + Δ², which only grows; without momentum by default."""

    beta1: Momentum = 0.0

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return Adagrad's second moment."""
        return v + delta**2
