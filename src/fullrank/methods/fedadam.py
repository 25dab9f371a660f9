"""FedAdam: Reddi et al., *Adaptive Federated Optimization* (ICLR 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullrank.methods._method import Method, Momentum, Positive
from fullrank.trees import Tree, pointwise, zeros

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView


@dataclass(frozen=True)
class FedAdam(Method):
    """Adam on the server, with Δ = w̄ − w as its gradient: m ← β1·m + (1−β1)Δ, w ← w + η·m/(√v + τ).

    v ← β2·v + (1−β2)Δ² starts at τ²; there is no bias correction. Buffers are averaged, not optimised.
    """

    paper = "Reddi et al., ICLR 2021, Algorithm 2"

    lr: Positive = 0.01
    beta1: Momentum = 0.9
    beta2: Momentum = 0.99
    tau: Positive = 1e-3

    def server_state(self, server: "ServerView") -> Tree:
        """Return the initial moments."""
        return {"m": zeros(server.w), "v": pointwise(server.w, lambda w: torch.full_like(w, self.tau**2))}

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return the new second moment, in which Adam, Yogi and Adagrad differ."""
        return self.beta2 * v + (1 - self.beta2) * delta**2

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Return the weights after one step of the server's optimiser."""
        delta = pointwise(new, lambda mean, w: mean - w, server.w)
        m = pointwise(server.own["m"], lambda m, d: self.beta1 * m + (1 - self.beta1) * d, delta)
        v = pointwise(server.own["v"], self.second_moment, delta)
        server.own = {"m": m, "v": v}
        return pointwise(server.w, lambda w, m, v: w + self.lr * m / (v.sqrt() + self.tau), m, v)
