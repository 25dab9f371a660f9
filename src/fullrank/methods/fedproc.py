"""FedProc: Mu et al., *FedProc: Prototypical Contrastive Federated Learning on Non-IID Data* (2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._prototypes import WithPrototypes
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView


@dataclass(frozen=True)
class FedProc(WithPrototypes):
    """Pulls representations to the global prototypes of their classes first, and shifts to cross-entropy over rounds.

    The loss of round t is a·CE + (1−a)·ℓ with a = min(t/rounds, 1), and only CE in round 0; ℓ is the cross-entropy of
    the cosines of z with the prototypes of all classes that have one, over samples whose own class has one. A prototype
    is the mean of z over all samples of a class, under the clients' trained models; a class without samples keeps its
    last one. A client sends nothing about a class of which it has fewer than `min_count` samples: with 0 or 1, the sum
    of a single sample is that sample's feature.
    """

    paper = "Mu et al., 2021"
    broadcast = (*WithPrototypes.broadcast, "a")
    receives = f"{WithPrototypes.receives}, the share of cross-entropy in the round's loss"
    neutral = {"rounds": 0}

    rounds: Annotated[int, Field(ge=0)] = 100

    def server_state(self, server: "ServerView") -> Tree:
        """Return no prototypes and a = 1, with which the loss is the cross-entropy."""
        state = super().server_state(server)
        return {**state, "a": state["prototypes"].new_ones(())}

    def loss(self, b: Batch) -> Tensor:
        """Return the term that turns the criterion into a·CE + (1−a)·ℓ, so that a = 1 is FedAvg to the bit."""
        a: Tensor = b.sent["a"]
        return (1 - a) * (_nearest(b.z, b.y, b.sent["prototypes"], b.sent["available"]) - b.base)

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Update the prototypes of classes that clients have, and a for the next round."""
        new = super().aggregate(server, new, up)
        share = min((server.round + 1) / self.rounds, 1.0) if self.rounds else 1.0
        server.own = {**server.own, "a": torch.full_like(server.own["a"], share)}
        return new


def _nearest(z: Tensor, y: Tensor, prototypes: Tensor, available: Tensor) -> Tensor:
    """Return the cross-entropy of cosines over available classes and their samples; 0 if there are none."""
    # A finite number, because possibly no class is available; relative to a cosine its exponential is 0.
    cosines = (F.normalize(z) @ F.normalize(prototypes).mT).masked_fill(~available, -1e4)
    counted = available[y].to(z.dtype)
    return (F.cross_entropy(cosines, y, reduction="none") * counted).sum() / counted.sum().clamp(min=1)
