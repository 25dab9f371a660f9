"""FedDecorr: Shi et al., *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning* (ICLR 2023).
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.objectives import decorrelation


@dataclass(frozen=True)
class FedDecorr(Method):
    """Adds β·L_decorr(z) to each client's loss, so that the representation's dimensions stay uncorrelated.

    L is computed from the correlations r_ij of the features i and j of z (N samples of a batch, d features). The papers
    and their code define it in three scales, whose gradients differ by a factor only:

    scale = "code" (default): (N−1)²/N · mean of r_ij² over i ≠ j, as in the authors' released code. Their β = 0.1 is
    meant in this scale. It grows with the batch size.

    scale = "paper": (1/d²) · Σ r_ij² over all i and j, as in ICLR Eq. 8 and TPAMI Eq. 9. β = 0.1 in "code" is β = 0.1 ·
    (N−1)²/N · d/(d−1) here, about 6.2 at a batch of 64, so that the same β is about 62 times weaker.

    scale = "algorithm": ((N−1)/N)² times "paper", as in Algorithm 1. It is NaN as soon as a feature is constant in a
    batch, so it serves to check numbers, not to train.

    Which to choose: the published values (β = 0.1, "code"; 0.05 on CIFAR-100) are for large networks with BatchNorm,
    such as MobileNetV2 and ResNet, and many local epochs. On a small network whose z comes from a dense layer and a
    ReLU (lenet, cnn, mlp) they switch off most features, since a constant feature correlates with none, and cost
    accuracy in the first rounds. There take scale = "paper" with β = 0.1, which keeps most features alive, or leave
    FedDecorr out: at the end of the runs that were measured no choice was better than FedAvg by more than seeds differ.
    docs/feddecorr-small-networks.md has the numbers.
    """

    paper = "Shi et al., ICLR 2023 and TPAMI 2023, Eq. 9"
    neutral = {"beta": 0.0}

    beta: NotNegative = 0.1
    scale: Literal["code", "paper", "algorithm"] = "code"

    def loss(self, b: Batch) -> Tensor:
        """Return β · L_decorr(z)."""
        return self.beta * decorrelation(b.z, scale=self.scale)
