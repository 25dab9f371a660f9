"""FedNH: Dai et al., *Tackling Data Heterogeneity in Federated Learning with Class Prototypes* (AAAI 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.channels import Sum
from fullrank.errors import InputError
from fullrank.methods._method import Method, Positive
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView
    from fullrank.models import Network


class Hypersphere(nn.Module):
    """A classifier whose logits are scaled cosines between features and fixed prototypes, which start orthogonal.

    Args:
        width: The number of features.
        classes: The number of classes.
        scale: The initial scale.
        dtype: The dtype of the parameters.

    Raises:
        InputError: If there are fewer features than classes.
    """

    def __init__(self, width: int, classes: int, scale: float, dtype: torch.dtype):
        super().__init__()
        if classes > width:
            raise InputError(
                f"fednh needs at least as many features as classes: {classes} prototypes cannot be orthogonal "
                f"in {width} dimensions; choose a model with a wider representation"
            )
        frame = torch.linalg.qr(torch.randn(width, classes, dtype=torch.float64)).Q
        self.prototypes = nn.Parameter(frame.mT.contiguous().to(dtype), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(scale, dtype=dtype))

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits."""
        return self.scale * F.linear(F.normalize(z), self.prototypes)


@dataclass(frozen=True)
class FedNH(Method):
    """Class prototypes W on the unit sphere in place of a classifier: logits s·ẑWᵀ, with ẑ = z/‖z‖ and s trained.

    Clients keep W fixed and send, in addition to weights, for each class the direction of its mean ẑ times its count.
    The server turns W slowly towards them: W ← normalise(ρW + (1−ρ)·normalise(Σ directions·counts / Σ counts)). The row
    of a class that no client has does not change.
    """

    paper = "Dai et al., AAAI 2023"
    uploads = {
        "seen": "for every class that it has, the direction of its mean feature (of a single sample: of that sample's "
        "own feature) times how many samples that is, and that number"
    }

    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.9
    scale: Positive = 1.0

    def head(self, net: "Network") -> nn.Module:
        """Return a head whose logits are scaled cosines with the prototypes."""
        return Hypersphere(net.feature_dim, net.num_classes, self.scale, net.dtype)

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Return for each class the direction of the client's mean, times its count."""
        sums, counts = client.prototypes(normalise=True)
        return {"seen": Sum({"sums": counts.to(sums.dtype)[:, None] * F.normalize(sums), "counts": counts})}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Turn the prototypes towards the clients' directions."""
        sums, counts = up["seen"]["sums"], up["seen"]["counts"]
        name = f"{server.net.head_name}.prototypes"
        turned = F.normalize(torch.lerp(server.model[name], F.normalize(sums), 1 - self.smoothing))
        return {**new, name: torch.where(counts[:, None] > 0, turned, server.model[name])}
