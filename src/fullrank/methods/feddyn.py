"""FedDyn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fullrank.channels import Sum
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.trees import Tree, pointwise, zeros

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedDyn(Method):
    """A regulariser that follows each client's drift: the gradient g becomes g + α(h_k + w_k − w).

    h_k, kept at the site, adds up all its steps w_k − w; h, the mean of all clients' h_k, is added to the plain mean of
    the participants: w ← mean w_k + h, whatever their sample counts. A client sends what it sends in FedAvg.
    """

    paper = "Acar et al., ICLR 2021"
    keeps = "the sum of its weights' past changes, as large as the weights"
    drift = True

    alpha: NotNegative = 0.01

    def server_state(self, server: "ServerView") -> Tree:
        """The mean of all clients' drifts."""
        return {"h": zeros(server.w)}

    def client_state(self, client: "ClientView") -> Tree:
        """The client's drift."""
        return {"h": zeros(client.w0)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """In a client's first round this is FedProx, to the bit."""
        return pointwise(g, lambda g, h, w, w0: g + self.alpha * (h + (w - w0)), b.own["h"], b.w, b.w0)

    def weight(self, client: "ClientView") -> float:
        """All alike."""
        return 1.0

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Add this round's step to the drift."""
        step = pointwise(client.w, torch.sub, client.w0)
        client.own = {**client.own, "h": pointwise(client.own["h"], torch.add, step)}
        return {}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Those who sat out did not drift, so the mean step counts by the participants' share of all clients."""
        share = len(server.taking_part) / server.clients
        h = pointwise(server.own["h"], lambda h, mean, w: h + share * (mean - w), new, server.w)
        server.own = {**server.own, "h": h}
        return pointwise(new, torch.add, h)
