"""FedProto: Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients* (AAAI 2022)."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import NotNegative
from fullrank.methods._prototypes import WithPrototypes


class NearestPrototype:
    """The prediction of FedProto, in a separate class because FedProto has a hyper-parameter with the name of the
    hook."""

    def predict(self, b: Batch) -> Tensor:
        """Return the negative squared distance to each prototype; the logits as long as there are no prototypes.

        A class without a prototype has a lower score than all others.
        """
        if vars(self)["predict"] == "logits":
            return b.logits
        prototypes, available = b.sent["prototypes"], b.sent["available"]
        wide = torch.promote_types(b.z.dtype, torch.float32)
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(b.z.to(wide), prototypes.to(wide), compute_mode=exact).square()
        nearest = -torch.where(available, distance, distance.amax(1, keepdim=True) + 1)
        return torch.where(available.any(), nearest, b.logits.to(wide))


@dataclass(frozen=True)
class FedProto(NearestPrototype, WithPrototypes):
    """Clients exchange class prototypes instead of weights, and add λ·mean‖z − g_y‖²/d to their losses.

    After training a client sends the sum of z and the number of samples of each class, and all clients receive g = Σ
    sums / Σ counts. A client sends nothing about a class of which it has fewer than `min_count` samples: with 0 or 1,
    the sum of a single sample is that sample's feature. A class that no client sent keeps its prototype; without a
    prototype it adds nothing to the loss. Clients predict by the nearest prototype, or by their own `logits`; there is
    no global model.
    """

    paper = "Tan et al., AAAI 2022"
    sends = "no weights and no statistics"
    keeps = "its whole model"
    personal = ("all",)

    lam: NotNegative = 1.0
    predict: Literal["nearest", "logits"] = field(default_factory=lambda: "nearest")  # type: ignore[assignment]

    def loss(self, b: Batch) -> Tensor:
        """Return λ times the mean squared deviation from prototypes; samples without a prototype count as 0."""
        off: Tensor = (b.z - b.sent["prototypes"][b.y]) * b.sent["available"][b.y][:, None]
        return self.lam * off.square().mean()
