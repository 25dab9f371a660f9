"""FedRS: Li and Zhan, *FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data* (KDD
2021).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method


@dataclass(frozen=True)
class FedRS(Method):
    """Restricted softmax: in a client's cross-entropy, the logits of classes that it does not have are multiplied by α.

    Its training therefore pushes their classifier rows away less. Predictions use the plain logits. Clients send the
    same as in FedAvg.
    """

    paper = "Li and Zhan, KDD 2021"
    neutral = {"alpha": 1.0}

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5

    def criterion(self, b: Batch) -> Tensor:
        """Return the cross-entropy of the scaled logits, with a scaled bias."""
        return F.cross_entropy(
            b.logits * torch.where(b.counts > 0, 1.0, self.alpha).to(b.logits.dtype),
            b.y,
            label_smoothing=b.label_smoothing,
        )
