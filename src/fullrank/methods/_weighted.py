"""The exchange of class counts for `train.criterion = "weighted"`, which is added to the run's method as a further
part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullrank.channels import Sum
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method
from fullrank.objectives.criteria import inverse_frequencies, weighted
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class Weighted(Method):
    """Cross-entropy in which each class has the weight N / (C · n_c), with n_c its samples at all clients together.

    Before the first round the server asks all clients for their class counts; every round it sends the weights.
    """

    name = "criterion"
    uploads = {"counts": "once, before the first round: how many samples of each class it has"}
    broadcast = ("weights",)
    receives = "the weight of each class in the loss"

    def server_state(self, server: ServerView) -> Tree:
        """Return weights of zero until the clients have been asked."""
        like = next(iter(server.model.values()))
        dtype = torch.promote_types(server.net.dtype, torch.float32)
        return {"weights": torch.zeros(server.net.num_classes, dtype=dtype, device=like.device)}

    def begin(self, server: ServerView) -> None:
        """Compute the weights from the sum of the clients' counts."""
        counts = server.ask(self.class_counts)["counts"]["samples"]
        server.own = {"weights": inverse_frequencies(counts).to(server.own["weights"])}

    def class_counts(self, client: ClientView) -> Mapping[str, Sum]:
        """Return the number of samples of each class at a client."""
        return {"counts": Sum({"samples": client.counts.long()})}

    def criterion(self, b: Batch) -> Tensor:
        """Return the weighted cross-entropy."""
        return weighted(b.logits, b.y, b.sent["weights"])
