"""FedMR: Fan et al., *Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping* (TMLR 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fullrank.channels import Sum
from fullrank.errors import InputError
from fullrank.methods._batch import Batch
from fullrank.methods._method import NotNegative
from fullrank.methods._prototypes import FEATURE_SUMS, WithPrototypes
from fullrank.objectives import intra_class_decorrelation, prototype_margin, prototype_margin_literal, prototype_pull
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class FedMR(WithPrototypes):
    """Adds μ1·L_intra + μ2·L_inter: features decorrelated inside each class, classes separated by global prototypes.

    L_intra is computed from the correlations r_ij of features inside each class c of the batch, which has N_c samples
    of it; a class with a single sample is ignored. The paper and its code define it in two scales:

    scale = "code" (default): (Σ_c (N_c−1)²·mean of r_ij² over i ≠ j) / Σ_c N_c, as in the authors' released code. Their
    μ1 = 0.01 is meant in this scale.

    scale = "paper": the mean over classes of Σ r_ij² over all i and j, which is Eq. 3 with one normaliser throughout:
    as printed, Eq. 3 standardises with 1/N_c but averages with 1/(N_c−1), which multiplies each r_ij by N_c/(N_c−1).
    Its gradients are some thousand times larger (with 64 samples of each class and 512 features, μ1 = 0.01 in "code" is
    2.3e-6 here).

    L_inter is the mean over classes, samples and other classes j of max(‖z−g_y‖ − ‖z−g_j‖ + margin, 0), g the class
    prototypes of the previous round, and 0 in the first. `reading` selects a variant of L_inter: other classes only
    among the client's own (`local`), Eq. 4 as printed (`literal`), or only ‖z−g_y‖ (`pull`). `lite` limits L_inter to
    the first samples of a batch (0: all); with `share`, only a fixed share of the clients ever sends prototypes;
    `onehot` prototypes are unit vectors, and as with μ2 = 0 none are sent. A client sends nothing about a class of
    which it has fewer than `min_count` samples: with 0 or 1, the sum of a single sample is that sample's feature.
    """

    paper = "Fan et al., TMLR 2023"
    uploads = {"classes": f"unless mu2 = 0 or prototypes are onehot, {FEATURE_SUMS}"}
    neutral = {"mu1": 0.0, "mu2": 0.0}

    mu1: NotNegative = 0.01
    mu2: NotNegative = 0.1
    margin: NotNegative = 0.0
    scale: Literal["code", "paper"] = "code"
    reading: Literal["sample", "literal", "local", "pull"] = "sample"
    prototypes: Literal["means", "onehot"] = "means"
    lite: Annotated[int, Field(ge=0)] = 0
    share: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def exchanges(self) -> bool:
        """Whether prototypes are exchanged."""
        return self.mu2 > 0 and self.prototypes == "means"

    def caution_of_data(self, counts: np.ndarray, clients: np.ndarray) -> str:
        """Warn about clients that would send the feature of a single sample, if prototypes are exchanged."""
        return super().caution_of_data(counts, clients) if self.exchanges else ""

    def server_state(self, server: "ServerView") -> Tree:
        """Return prototypes of zeros, marked as not available; nothing if prototypes are not exchanged.

        Raises:
            InputError: If prototypes are `onehot` and the numbers of features and classes differ.
        """
        if self.mu2 > 0 and self.prototypes == "onehot" and server.net.feature_dim < server.net.num_classes:
            raise InputError(
                f'method.fedmr.prototypes = "onehot" needs as many features as classes; this model has '
                f"{server.net.feature_dim} for {server.net.num_classes}"
            )
        return super().server_state(server) if self.exchanges else {}

    def loss(self, b: Batch) -> Tensor | Mapping[str, Tensor]:
        """Return μ1·L_intra and μ2·L_inter; a term with a coefficient of 0 is not computed."""
        terms: dict[str, Tensor] = {}
        if self.mu1:
            terms["intra"] = self.mu1 * intra_class_decorrelation(b.z, b.y, len(b.counts), self.scale)
        if self.mu2:
            terms["inter"] = self.mu2 * self._inter(b)
        return terms or b.base * 0

    def _inter(self, b: Batch) -> Tensor:
        z, y = (b.z[: self.lite], b.y[: self.lite]) if self.lite else (b.z, b.y)
        if self.prototypes == "onehot":
            prototypes = torch.eye(len(b.counts), z.shape[1], dtype=z.dtype, device=z.device)
            available = torch.ones_like(b.counts, dtype=torch.bool)
        else:
            prototypes, available = b.sent["prototypes"], b.sent["available"]
        if self.reading == "literal":
            return prototype_margin_literal(z, y, prototypes, available)
        if self.reading == "pull":
            return prototype_pull(z, y, prototypes, available)
        here = available & (b.counts > 0) if self.reading == "local" else available
        return prototype_margin(z, y, prototypes, here, self.margin)

    def after(self, client: "ClientView") -> Mapping[str, Sum]:
        """Return the class sums and counts of a client that sends prototypes, and zeros for any other client."""
        if not self.exchanges:
            return {}
        ((name, sent),) = super().after(client).items()
        if not client.one_of(self.share, "prototypes"):
            sent = Sum({part: torch.zeros_like(value) for part, value in sent.tree.items()})
        return {name: sent}

    def aggregate(self, server: "ServerView", new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Update the prototypes if they are exchanged."""
        return super().aggregate(server, new, up) if self.exchanges else new
