"""FedRoD: Chen and Chao, *On Bridging Generic and Personalized Federated Learning for Image Classification* (ICLR
2022).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method
from fullrank.objectives import balanced_cross_entropy
from fullrank.trees import Tensors, zeros

if TYPE_CHECKING:
    from fullrank.local.views import ClientView
    from fullrank.models import Network


class TwoHeads(nn.Linear):
    """A linear classifier with a second, personal one, whose logits are added to those of the first.

    The entries of the first classifier keep their names. No gradient of the personal logits flows to the first
    classifier or to the features.

    Args:
        generic: The first classifier, of which the second is a copy initially.
    """

    def __init__(self, generic: nn.Linear):
        sizes = generic.in_features, generic.out_features, generic.bias is not None
        super().__init__(*sizes, dtype=generic.weight.dtype)
        self.load_state_dict(generic.state_dict())
        self.personal_head = nn.Linear(*sizes, dtype=generic.weight.dtype)
        self.personal_head.load_state_dict(generic.state_dict())

    def forward(self, z: Tensor) -> tuple[Tensor, Tensors]:  # type: ignore[override]
        """Compute the logits of both classifiers.

        Args:
            z: Features of shape (N, width).

        Returns:
            The generic logits, and as `both` the personal model's logits.
        """
        logits = super().forward(z)
        return logits, {"both": logits.detach() + self.personal_head(z.detach())}


@dataclass(frozen=True)
class FedRoD(Method):
    """One representation with two classifiers: a generic one for all clients, and a personal one that adds to it.

    The generic classifier and the body are trained by balanced softmax, the cross-entropy of logits + log n_c. The
    personal classifier, initially a copy of the generic one, is trained by the cross-entropy of the sum of both logits,
    without a gradient to the rest, and never leaves its site. The global model predicts by the generic logits, a client
    by the sum.
    """

    paper = "Chen and Chao, ICLR 2022"
    keeps = "its personal classifier"
    personal = client_only = ("*.personal_head.*",)

    def head(self, net: "Network") -> nn.Module:
        """Return a head with both classifiers.

        Raises:
            InputError: If the network's classifier is not linear.
        """
        generic = net.bare_head()
        if not isinstance(generic, nn.Linear):
            raise InputError(f"fedrod needs a linear classifier; this model's is a {type(generic).__name__}")
        return TwoHeads(generic)

    def criterion(self, b: Batch) -> Tensor:
        """Return the balanced softmax loss, which trains the generic classifier and the body."""
        return balanced_cross_entropy(b.logits, b.y, b.counts, label_smoothing=b.label_smoothing)

    def loss(self, b: Batch) -> Tensor:
        """Return the cross-entropy of the sum, which trains only the personal classifier."""
        return F.cross_entropy(b.both, b.y, label_smoothing=b.label_smoothing)

    def predict(self, b: Batch) -> Tensor:
        """Return the sum of generic and personal logits."""
        both: Tensor = b.both
        return both

    def personalise(self, client: "ClientView") -> Tensors:
        """Return the model with the sum of both linear classifiers as its classifier."""
        head, model = client.network.head_name, client.model
        own = {n: t for n, t in model.items() if n.startswith(f"{head}.personal_head.")}
        summed = {n.replace(".personal_head.", "."): t for n, t in own.items()}
        return {**{n: model[n] + t for n, t in summed.items()}, **zeros(own)}
