"""FedProx: Li et al., *Federated Optimization in Heterogeneous Networks* (MLSys 2020)."""

from dataclasses import dataclass

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.trees import Tree, pointwise


@dataclass(frozen=True)
class FedProx(Method):
    """Adds (μ/2)‖w_k − w‖² to each client's loss, as the gradient correction g + μ(w_k − w)."""

    paper = "Li et al., MLSys 2020"
    drift, neutral = True, {"mu": 0.0}

    mu: NotNegative = 0.001

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Add the gradient of the proximal term (Eq. 2 of the paper)."""
        return pointwise(g, lambda g, w, w0: g + self.mu * (w - w0), b.w, b.w0)

    def pull(self) -> float:
        """Return μ."""
        return self.mu
