"""FedDC: Gao et al., *FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction* (CVPR
2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fullrank.channels import Sum
from fullrank.methods._batch import Batch
from fullrank.methods.feddyn import FedDyn
from fullrank.trees import Tree, pointwise, zeros

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedDC(FedDyn):
    """FedDyn's drift h_k with SCAFFOLD's variates g_k: the gradient g becomes g + α(h_k + w_k − w) + (ḡ − g_k).

    g_k ← g_k − ḡ + (w − w_k)/travel estimates the client's gradient, ḡ is the mean of all clients' g_k; h_k and the new
    model as in FedDyn. Adam has no travel. The change of g_k leaves the site as well, which doubles the uploads. As in
    FedDyn, the authors' code evaluates the clients' mean, whose results have the prefix `mean_`.
    """

    paper = "Gao et al., CVPR 2022"
    uploads = {"change": "the change of its mean gradient, as large as the weights"}
    keeps = "its drift and its mean gradient, each as large as the weights"
    broadcast = ("g",)
    receives = "the mean of all clients' mean gradients, as large as the weights"

    def server_state(self, server: "ServerView") -> Tree:
        """Return the initial means of all clients' drifts and variates."""
        return {"h": zeros(server.w), "g": zeros(server.w)}

    def client_state(self, client: "ClientView") -> Tree:
        """Return the client's initial drift and variate."""
        return {"h": zeros(client.w0), "g": zeros(client.w0)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Apply FedDyn's correction, then SCAFFOLD's."""
        return pointwise(super().grad(g, b), lambda g, mean, gk: g + (mean - gk), b.sent["g"], b.own["g"])

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Keep the new drift and variate, and send the variate's change."""
        super().after(client)
        old, travel = client.own["g"], client.travel
        new = pointwise(old, lambda gk, g, w0, w: gk - g + (w0 - w) / travel, client.sent["g"], client.w0, client.w)
        client.own = {**client.own, "g": new}
        return {"change": Sum(pointwise(new, torch.sub, old))}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Update the mean variate over all clients, then return FedDyn's model."""
        g = pointwise(server.own["g"], lambda g, change: g + change / server.clients, up["change"])
        server.own = {**server.own, "g": g}
        return super().aggregate(server, new, up)
