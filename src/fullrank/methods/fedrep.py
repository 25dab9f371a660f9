"""FedRep: Collins et al., *Exploiting Shared Representations for Personalized Federated Learning* (ICML 2021)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fullrank.methods._method import Method

if TYPE_CHECKING:
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedRep(Method):
    """A personal classifier for each client on a common representation: the head is trained first, then the rest.

    Each client trains its head for `head_epochs` (0: as many as train.epochs) with the rest frozen, then the rest for
    the round's epochs with the head frozen; the rest is averaged. Statistics of norm layers move in both fits. The head
    never leaves a site, so there is no global model to evaluate.
    """

    paper = "Collins et al., ICML 2021"
    sends = "weights and statistics of all but the classifier, the number of samples"
    keeps = "its classifier"
    personal = ("head",)

    head_epochs: Annotated[int, Field(ge=0)] = 0

    def train(self, client: "ClientView") -> None:
        """Run two fits, first of the head and then of the rest."""
        client.fit("head", epochs=self.head_epochs or None)
        client.fit(("backbone", "neck") if list(client.network.neck.parameters()) else "backbone")
