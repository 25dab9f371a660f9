"""FedExP: Jhunjhunwala et al., *FedExP: Speeding Up Federated Averaging via Extrapolation* (ICLR 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fullrank.channels import Mean
from fullrank.methods._method import Method, Positive
from fullrank.trees import Tree, norm, pointwise

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedExP(Method):
    """The server goes further than the mean w̄ where clients disagree: w ← w + s(w̄ − w).

    s = max(1, Σ p_k‖Δ_k‖² / (2(‖w̄ − w‖² + ε))), with Δ_k = w_k − w and p_k the share of samples. Buffers are averaged.
    ‖Δ_k‖² leaves the site in addition to the weights.
    """

    paper = "Jhunjhunwala et al., ICLR 2023"
    uploads = {"step": "the squared length of its update"}

    epsilon: Positive = 1e-3

    def after(self, client: "ClientView") -> Mapping[str, Mean]:
        """Return the squared length of the client's step."""
        length = norm(pointwise(client.w, torch.sub, client.w0))
        return {"step": Mean({"square": length**2}, client.n)}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Extrapolate with `lerp`, whose result at s = 1 is the mean to the bit."""
        step = pointwise(server.w, lambda w, mean: mean.double() - w.double(), new)
        s = max(1.0, float(up["step"]["square"]) / (2 * (float(norm(step)) ** 2 + self.epsilon)))
        return pointwise(server.w, lambda w, mean: torch.lerp(w, mean, s), new)
