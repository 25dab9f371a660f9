"""FedSAM: Qu et al., *Generalized Federated Learning via Sharpness Aware Minimization* (ICML 2022)."""

from dataclasses import dataclass

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.trees import Tree, norm, pointwise


@dataclass(frozen=True)
class FedSAM(Method):
    """Clients descend along the gradient at w + ρ·g/‖g‖, where the loss nearby is largest, to find flat minima.

    The norm is over all trained entries, without weight decay. BatchNorm's statistics move in the first pass only. Each
    step costs two. Clients send the same as in FedAvg.
    """

    paper = "Qu et al., ICML 2022; Caldarola et al., ECCV 2022"
    neutral = {"rho": 0.0}

    rho: NotNegative = 0.05

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Return the gradient at w + ρ·g/‖g‖."""
        uphill = self.rho / (norm(g) + 1e-12)
        here = b.w if b.w.keys() == g.keys() else b.model  # the same entries, as one vector if they are one
        return b.grad_at(pointwise(g, lambda g, w: w + uphill * g, here))
