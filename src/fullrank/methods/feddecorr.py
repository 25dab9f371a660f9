"""FedDecorr."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..local.batch import Batch
from ..objectives import decorrelation
from .method import Method, NotNegative


@dataclass(frozen=True)
class FedDecorr(Method):
    """Adds β·L_decorr(z) to each client's loss, so that the representation's dimensions stay uncorrelated."""

    paper = "Shi et al., ICLR 2023 and TPAMI 2023, Eq. 9"
    neutral = {"beta": 0.0}

    beta: NotNegative = 0.1
    scale: Literal["code", "paper", "algorithm"] = "code"

    def loss(self, b: Batch) -> Tensor:
        """The released code's scale by default: β = 0.1 there is β = 6.2 in Eq. 9's at a batch of 64."""
        return self.beta * decorrelation(b.z, scale=self.scale)
