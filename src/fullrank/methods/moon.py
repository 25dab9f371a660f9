"""MOON: Li et al., *Model-Contrastive Federated Learning* (CVPR 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from fullrank.channels import Sum
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative, Positive
from fullrank.objectives import contrastive
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.local.views import ClientView
    from fullrank.models import Network

WIDTH = 256
"""Width of the representation behind a projection head."""


@dataclass(frozen=True)
class Moon(Method):
    """Adds μ times MOON's contrastive loss, which draws z towards the global model's and away from the last local one.

    −log e^{s_g}/(e^{s_g} + e^{s_p}), s the cosine of z with that of the global (g) or previous local (p) model, divided
    by the temperature; 0 until the client has a previous model, which stays at the site with its statistics. `head`
    puts a projection before the classifier: d→d→256 (`moon`) or d→d/2→256 (`feddecorr`). Only the weights are sent.
    """

    paper = "Li et al., CVPR 2021"
    keeps = "the model it trained last"
    neutral = {"mu": 0.0}

    mu: NotNegative = 1.0
    temperature: Positive = 0.5
    head: Literal["none", "moon", "feddecorr"] = "none"  # type: ignore[assignment]

    def model(self, net: "Network") -> "Network":
        """Add the projection head if there is one."""
        if self.head != "none":
            d = net.feature_dim
            hidden = d if self.head == "moon" else d // 2
            net.neck = nn.Sequential(net.neck, nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))
        return net

    def client_state(self, client: "ClientView") -> Tree:
        """Return the current model as a placeholder, and a mark that the client has no previous model."""
        return {"model": client.model, "has": client.counts.new_zeros(())}

    def loss(self, b: Batch) -> Tensor:
        """Return μ times Eq. 3 with both other networks in eval mode, and 0 if the client has no previous model."""
        has: Tensor = b.own["has"]
        return self.mu * has * contrastive(b.z, b.features(b.w0), b.features(b.own["model"]), self.temperature)

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Keep the trained model, which is the previous one in the client's next round."""
        client.own = {"model": client.model, "has": client.counts.new_ones(())}
        return {}
