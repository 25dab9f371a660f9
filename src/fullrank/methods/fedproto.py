"""FedProto."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import NotNegative
from fullrank.methods._prototypes import WithPrototypes


class NearestPrototype:
    """FedProto's prediction: a class of its own, because the method's hyper-parameter has the name of the hook."""

    def predict(self, b: Batch) -> Tensor:
        """Minus the squared distance to each prototype, a missing one farther than all; without any, the logits."""
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
    """No weights travel, class prototypes do: each client adds λ·mean‖z − g_y‖²/d to its own loss.

    After training a client sends the sum of z and the number of samples of each class, and g = Σ sums / Σ counts goes
    to all. It sends nothing of a class of which it has fewer than `min_count` samples: with 0 or 1, the sum of a single
    sample is that sample's own feature. A class that nobody sent keeps its prototype; as long as it has none it adds
    nothing. Clients predict by the nearest prototype, or by their own `logits`; there is no global model.
    """

    paper = "Tan et al., AAAI 2022"
    sends = "no weights and no statistics"
    keeps = "its whole model"
    personal = ("all",)

    lam: NotNegative = 1.0
    predict: Literal["nearest", "logits"] = field(default_factory=lambda: "nearest")  # type: ignore[assignment]

    def loss(self, b: Batch) -> Tensor:
        """The mean over all numbers of the batch; samples whose prototype is missing count with 0."""
        off: Tensor = (b.z - b.sent["prototypes"][b.y]) * b.sent["available"][b.y][:, None]
        return self.lam * off.square().mean()
