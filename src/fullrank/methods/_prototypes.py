"""The base class of methods with global class prototypes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fullrank.channels import Sum
from fullrank.methods._method import Method
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


CLIENTS_NAMED = 5
FEATURE_SUMS = "for every class that it has, the sum of its features and how many samples that is"
"""The description of a client's uploads for prototypes, in plain words."""


def single_samples(method: str, counts: np.ndarray, clients: np.ndarray, min_count: int = 0) -> str:
    """Warn about clients that would send a statistic of a single sample, which is that sample's own feature.

    Args:
        method: The name of the method.
        counts: The number of training samples by client and class, of shape (K, C).
        clients: The ids of all clients that may take part.
        min_count: The number of samples from which a client sends a class.

    Returns:
        The warning; empty if there is no such client.
    """
    if min_count > 1:
        return ""
    found = clients[(counts == 1).any(1)]
    if not len(found):
        return ""
    named = ", ".join(map(str, found[:CLIENTS_NAMED])) + (
        f" and {len(found) - CLIENTS_NAMED} more" if len(found) > CLIENTS_NAMED else ""
    )
    return (
        f"{method} sends a statistic of a single sample, which is that sample's own feature, from every client that "
        f"has one sample of a class (clients {named}); method.{method}.min_count = 2 or more keeps it at the client"
    )


@dataclass(frozen=True)
class WithPrototypes(Method):
    """A method that sends every client the mean of z over all samples of each class, under the clients' trained models.

    Clients send sums and counts of the classes of which they have at least `min_count` samples. A class that no client
    sent keeps its prototype; a class without a prototype is not `available`, which differs from a prototype of zeros.
    """

    broadcast: ClassVar[tuple[str, ...]] = ("prototypes", "available")
    uploads: ClassVar[Mapping[str, str]] = {"classes": FEATURE_SUMS}
    receives: ClassVar[str] = "the mean features of every class over all clients, and which classes have any"

    min_count: Annotated[int, Field(ge=0)] = field(default=0, kw_only=True)

    def caution_of_data(self, counts: np.ndarray, clients: np.ndarray) -> str:
        """Warn about clients that would send the feature of a single sample."""
        return single_samples(self.name, counts, clients, self.min_count)

    def server_state(self, server: "ServerView") -> Tree:
        """Return prototypes of zeros, marked as not available."""
        like = next(iter(server.model.values()))
        none = like.new_zeros(server.net.num_classes, server.net.feature_dim, dtype=server.net.dtype)
        return {"prototypes": none, "available": torch.zeros_like(none[:, 0], dtype=torch.bool)}

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Return class sums and counts under the trained model, in eval mode and without augmentation."""
        sums, counts = client.prototypes()
        enough = counts >= self.min_count
        return {"classes": Sum({"sums": sums * enough[:, None], "counts": counts * enough})}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Set the prototypes of the classes that clients sent to their means."""
        sums, counts = up["classes"]["sums"], up["classes"]["counts"]
        old, has = server.own, counts > 0
        means = (sums / counts.clamp(min=1)[:, None]).to(old["prototypes"].dtype)
        prototypes = torch.where(has[:, None], means, old["prototypes"])
        server.own = {**old, "prototypes": prototypes, "available": old["available"] | has}
        return new
