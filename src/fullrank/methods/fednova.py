"""FedNova: Wang et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization* (NeurIPS
2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fullrank.channels import Mean
from fullrank.methods._method import Method
from fullrank.trees import Tree, pointwise

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging of clients with unequal numbers of steps: w ← w − (Σ p_k a_k) · Σ p_k (w − w_k)/a_k.

    p_k is the share of samples, a_k how far a constant unit gradient would have moved a weight under the client's
    learning rates, momentum and, with FedProx, proximal term: after τ steps at the rate η without momentum, a_k is
    η·Σ (1 − ημ)^i over i < τ, as in the paper. With momentum, FedProx's term is part of the gradient that momentum
    accumulates, and of a_k in the same way. The authors' code adds the term after momentum, and with it takes a step of
    Σ p_k ητ_k in place of Σ p_k a_k, which here leaves clients that are equal with their mean. In addition to the
    weights, a_k and 1/a_k leave the site. Adam has no a_k.
    """

    paper = "Wang et al., NeurIPS 2020"
    uploads = {"travel": "how far its optimiser can have moved a weight, and the inverse of that"}

    def weight(self, client: "ClientView") -> float:
        """Return the number of samples divided by a_k."""
        return client.n / client.pulled_travel

    def after(self, client: "ClientView") -> Mapping[str, Mean]:
        """Return a_k and 1/a_k, of which the server receives the means."""
        far = torch.tensor(client.pulled_travel, dtype=torch.float64)
        return {"travel": Mean({"a": far, "inverse": 1 / far}, client.n)}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Scale the update that is weighted by n_k/a_k to the mean a_k, so that equal clients give their mean."""
        s = float(up["travel"]["a"] * up["travel"]["inverse"])
        return pointwise(server.w, lambda w, mean: torch.lerp(w, mean, s), new)
