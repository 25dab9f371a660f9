"""Ditto: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization* (ICML 2021)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.objectives import proximal
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg with an additional personal model v at each client: min f_k(v) + (λ/2)‖v − w‖², w as received.

    v starts at the model that the client first receives, is trained after the global one in every round in which the
    client takes part, for `epochs` (0: as many as the global one), and never leaves the site.
    """

    paper = "Li et al., ICML 2021"
    keeps = "a whole personal model"

    lam: NotNegative = 0.1
    epochs: Annotated[int, Field(ge=0)] = 0

    def client_state(self, client: "ClientView") -> Tree:
        """Return the personal model's initial weights."""
        return {"v": client.model}

    def near(self, b: Batch) -> Tensor:
        """Return (λ/2)‖v − w‖² over the shared entries."""
        return self.lam * proximal(b.w, b.w0)

    def train(self, client: "ClientView") -> None:
        """Train the global model as in FedAvg, then v on separate batches."""
        client.fit()
        client.own = {"v": client.fit(model=client.own["v"], loss=self.near, epochs=self.epochs or None)}

    def personalise(self, client: "ClientView") -> Tree:
        """Return the personal model v."""
        v: Tree = client.own["v"]
        return v
