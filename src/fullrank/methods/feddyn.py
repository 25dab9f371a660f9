"""FedDyn: Acar et al., *Federated Learning Based on Dynamic Regularization* (ICLR 2021)."""

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

    h_k, kept at the site, is the sum of all the client's steps w_k − w; h, the mean of all clients' h_k, is added to
    the mean of the participants, which is not weighted by samples: w ← mean w_k + h. Clients send the same as in
    FedAvg. Results are those of w, which clients receive; the authors' code evaluates mean w_k, whose results have the
    prefix `mean_`.
    """

    paper = "Acar et al., ICLR 2021"
    keeps = "the sum of its weights' past changes, as large as the weights"
    drift = evaluate_mean = True

    alpha: NotNegative = 0.01

    def server_state(self, server: "ServerView") -> Tree:
        """Return zeros as the mean of all clients' drifts."""
        return {"h": zeros(server.w)}

    def client_state(self, client: "ClientView") -> Tree:
        """Return zeros as the client's drift."""
        return {"h": zeros(client.w0)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Correct the gradient; in a client's first round this equals FedProx to the bit."""
        return pointwise(g, lambda g, h, w, w0: g + self.alpha * (h + (w - w0)), b.own["h"], b.w, b.w0)

    def weight(self, client: "ClientView") -> float:
        """Return equal weights for all clients."""
        return 1.0

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Add the round's step to the drift."""
        step = pointwise(client.w, torch.sub, client.w0)
        client.own = {**client.own, "h": pointwise(client.own["h"], torch.add, step)}
        return {}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Return the mean plus h, after h has grown by the mean step times the share of participants.

        Clients that did not take part did not drift, so h changes by the participants' steps only.
        """
        share = len(server.taking_part) / server.clients
        h = pointwise(server.own["h"], lambda h, mean, w: h + share * (mean - w), new, server.w)
        server.own = {**server.own, "h": h}
        return pointwise(new, torch.add, h)
