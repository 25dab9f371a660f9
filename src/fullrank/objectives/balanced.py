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
    """Compute the balanced softmax loss: the cross-entropy of logits + γ·log n, where class c has n_c samples.

    The shift makes up for unequal class frequencies: the model learns as if all classes were equally frequent. Equal
    counts, or γ = 0, give plain cross-entropy.

    Args:
        logits: Logits of shape (N, C).
        y: Labels of shape (N,).
        counts: The number of samples of each class, of shape (C,). A class without samples counts as one sample.
        gamma: The exponent γ of the counts.
        label_smoothing: The label smoothing of the cross-entropy.

    Returns:
        The mean over the samples, a scalar; in float32 for half-precision logits.

    Raises:
        InputError: If the shapes do not match.

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
