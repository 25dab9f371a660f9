"""The precision in which the terms of a loss are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return a tensor in float32 if its precision is lower, and unchanged otherwise.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
