"""SCAFFOLD: Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning* (ICML 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from fullrank.channels import Sum
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method
from fullrank.trees import Tree, pointwise, zeros

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class Scaffold(Method):
    """Control variates against drift: a client's gradient g becomes g + (c − c_k), before weight decay and momentum.

    c_k ← c_k − c + (w − w_k)/travel estimates the client's gradient (option II), c is the mean of all clients' c_k.
    Travel is how far a constant unit gradient would have moved a weight, which is not defined for Adam. `uniform` gives
    clients equal weight, as in the paper. The change of c_k leaves the site as well, which doubles the uploads.
    """

    paper = "Karimireddy et al., ICML 2020, option II"
    uploads = {"change": "the change of its control variate, as large as the weights"}
    keeps = "its control variate, as large as the weights"
    broadcast, drift = ("c",), True
    receives = "the mean control variate of all clients, as large as the weights"

    weights: Literal["samples", "uniform"] = "samples"

    def server_state(self, server: "ServerView") -> Tree:
        """Return zeros as the mean of all clients' variates."""
        return {"c": zeros(server.w)}

    def client_state(self, client: "ClientView") -> Tree:
        """Return zeros as the client's variate."""
        return {"c": zeros(client.w0)}

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Correct the gradient, such that equal variates leave it unchanged to the bit."""
        return pointwise(g, lambda g, c, ck: g + (c - ck), b.sent["c"], b.own["c"])

    def weight(self, client: "ClientView") -> float:
        """Return the number of samples, or equal weights with `uniform`."""
        return client.n if self.weights == "samples" else 1.0

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Keep the new variate, and send its change."""
        old, travel = client.own["c"], client.travel
        new = pointwise(old, lambda ck, c, w0, w: ck - c + (w0 - w) / travel, client.sent["c"], client.w0, client.w)
        client.own = {"c": new}
        return {"change": Sum(pointwise(new, torch.sub, old))}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Update the mean variate; variates of absent clients did not change, so the sum is divided by all clients."""
        server.own = {"c": pointwise(server.own["c"], lambda c, change: c + change / server.clients, up["change"])}
        return new
