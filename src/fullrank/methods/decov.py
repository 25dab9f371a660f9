"""DeCov: Cogswell et al., *Reducing Overfitting in Deep Networks by Decorrelating Representations* (ICLR 2016)."""

from dataclasses import dataclass

from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.objectives import decov


@dataclass(frozen=True)
class DeCov(Method):
    """Adds λ·½(‖Σ‖_F² − ‖diag Σ‖²) to each client's loss, Σ the covariance of the representation in the batch.

    Unlike FedDecorr's term it grows with the scale of the representation. Clients send the same as in FedAvg.
    """

    paper = "Cogswell et al., ICLR 2016"
    neutral = {"lam": 0.0}

    lam: NotNegative = 0.1

    def loss(self, b: Batch) -> Tensor:
        """Return half the sum of the squared covariances of different dimensions, times λ."""
        return self.lam * decov(b.z)
