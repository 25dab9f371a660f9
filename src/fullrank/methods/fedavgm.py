"""FedAvgM: Hsu et al., *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification*
(2019).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fullrank.methods._method import Method, Momentum
from fullrank.trees import Tree, pointwise, zeros

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView


@dataclass(frozen=True)
class FedAvgM(Method):
    """Momentum on the server: the update Δ = w̄ − w of the clients is combined with previous steps.

    `ema` (as in FedDecorr and MOON): m ← ρm + (1−ρ)Δ, w ← w + m. `hsu` (the paper's): v ← ρv − Δ, w ← w − v, a step
    1/(1−ρ) times larger in the long run. Buffers are averaged, without momentum.
    """

    paper = "Hsu et al., 2019"
    neutral = {"momentum": 0.0}

    momentum: Momentum = 0.9
    form: Literal["ema", "hsu"] = "ema"

    def server_state(self, server: "ServerView") -> Tree:
        """Return zeros as the previous step of the server."""
        return {"m": zeros(server.w)}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Return the weights after one step of the server.

        It is computed as w̄ + ρ(m − Δ) or w̄ − ρv, so that ρ = 0 is FedAvg to the bit.
        """
        rho, old, w = self.momentum, server.own["m"], server.w
        delta = pointwise(new, lambda mean, w: mean - w, w)
        if self.form == "ema":
            server.own = {"m": pointwise(old, lambda m, d: rho * m + (1 - rho) * d, delta)}
            return pointwise(new, lambda mean, m, d: mean + rho * (m - d), old, delta)
        server.own = {"m": pointwise(old, lambda v, d: rho * v - d, delta)}
        return pointwise(new, lambda mean, v: mean - rho * v, old)
