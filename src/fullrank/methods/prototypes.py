"""What methods with global class prototypes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from ..channels import Sum
from ..trees import Tree
from .method import Method

if TYPE_CHECKING:
    from ..local.client import Client
    from ..server import Server


@dataclass(frozen=True)
class WithPrototypes(Method):
    """The mean of z over all samples of a class, under the models that clients trained, is sent to all of them.

    Clients send sums and counts of the classes of which they have at least `min_count` samples. A class that nobody
    sent keeps its prototype; as long as it has none it is not `available`, which is not a prototype of zeros.
    """

    broadcast: ClassVar[tuple[str, ...]] = ("prototypes", "available")
    receives: ClassVar[str] = "the mean features of every class over all clients, and which classes have any"

    min_count: Annotated[int, Field(ge=0)] = field(default=0, kw_only=True)

    def server_state(self, server: "Server") -> Tree:
        """No prototypes yet."""
        like = next(iter(server.model.values()))
        none = like.new_zeros(server.net.num_classes, server.net.feature_dim, dtype=server.net.dtype)
        return {"prototypes": none, "available": torch.zeros_like(none[:, 0], dtype=torch.bool)}

    def after(self, client: "Client") -> Mapping[str, Sum]:
        """Class sums and counts under the trained model, in eval mode and without augmentation."""
        sums, counts = client.prototypes()
        enough = counts >= self.min_count
        return {"classes": Sum({"sums": sums * enough[:, None], "counts": counts * enough})}

    def aggregate(self, server: "Server", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """The mean of each class that somebody sent."""
        sums, counts = up["classes"]["sums"], up["classes"]["counts"]
        old, has = server.own, counts > 0
        means = (sums / counts.clamp(min=1)[:, None]).to(old["prototypes"].dtype)
        prototypes = torch.where(has[:, None], means, old["prototypes"])
        server.own = {**old, "prototypes": prototypes, "available": old["available"] | has}
        return new
