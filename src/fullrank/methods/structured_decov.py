"""Structured-DeCov."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative
from fullrank.objectives import structured_decov


@dataclass(frozen=True)
class StructuredDeCov(Method):
    """As DeCov, but only dimensions of different groups must not covary: λ·½ Σ Σ_ij² over such pairs.

    The groups are contiguous; one a dimension is DeCov. A client sends what it sends in FedAvg.
    """

    name = "structured_decov"
    paper = "Xiong et al., ICDM 2016"
    neutral = {"lam": 0.0}

    lam: NotNegative = 0.1
    groups: Annotated[int, Field(ge=1)] = 8

    def loss(self, b: Batch) -> Tensor:
        """Half the sum of the squared covariances between groups."""
        return self.lam * structured_decov(b.z, self.groups)
