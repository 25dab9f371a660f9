"""Structured-DeCov: Xiong et al., *Regularizing Deep Convolutional Neural Networks with a Structured Decorrelation
Constraint* (ICDM 2016).
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.objectives import structured_decov


@dataclass(frozen=True)
class StructuredDeCov(Method):
    """DeCov over pairs of dimensions in different groups only: adds λ·½ Σ Σ_ij² over such pairs to each client's loss.

    The groups are contiguous; with one per dimension it is DeCov. Clients send the same as in FedAvg.
    """

    name = "structured_decov"
    paper = "Xiong et al., ICDM 2016"
    neutral = {"lam": 0.0}

    lam: NotNegative = 0.1
    groups: Annotated[int, Field(ge=1)] = 8

    def loss(self, b: Batch) -> Tensor:
        """Return half the sum of the squared covariances between groups, times λ."""
        return self.lam * structured_decov(b.z, self.groups)
