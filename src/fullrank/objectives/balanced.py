"""Cross-entropy for clients with unequal classes: Ren, Yu, Sheng, Ma, Zhao, Yi and Li, *Balanced Meta-Softmax for
Long-Tailed Visual Recognition* (NeurIPS 2020), as FedRoD and FedETF use it on each client's own class counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.errors import InputError


def balanced_cross_entropy(
    logits: Tensor, y: Tensor, counts: Tensor, gamma: float = 1.0, *, label_smoothing: float = 0.0
) -> Tensor:
    """Compute balanced softmax, the cross-entropy of logits + γ·log n with n_c the number of samples of class c.

    The shift makes up for unequal class frequencies: the model learns as if all classes were equally frequent. A class
    without samples counts as one sample: log 1 = 0. Equal counts, or γ = 0, give plain cross-entropy. For
    half-precision logits, computation and result are in float32.

    >>> zero = torch.zeros(3, 3)
    >>> round(balanced_cross_entropy(zero[:1], torch.tensor([0]), torch.tensor([8, 2, 0])).item(), 6)
    0.318454
    """
    if logits.ndim != 2 or counts.shape != logits.shape[1:]:
        raise InputError(
            f"balanced_cross_entropy: logits must be (samples, classes) and counts (classes,), "
            f"not {tuple(logits.shape)} and {tuple(counts.shape)}"
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    prior = torch.where(counts > 0, counts, 1).to(logits.dtype).log()
    return F.cross_entropy(logits + gamma * prior, y, label_smoothing=label_smoothing)
