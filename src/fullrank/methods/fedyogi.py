"""FedYogi: Reddi et al., *Adaptive Federated Optimization* (ICLR 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fullrank.methods.fedadam import FedAdam


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam with v ← v − (1−β2)Δ²·sign(v − Δ²), which grows and shrinks by steps of the same size."""

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return Yogi's second moment."""
        return v - (1 - self.beta2) * delta**2 * (v - delta**2).sign()
