"""Accuracy and loss of a model on a set of samples."""

from __future__ import annotations

import torch
from torch import Tensor

from .data.augment import Pipeline
from .models.network import Network


@torch.no_grad()
def evaluate(network: Network, x: Tensor, y: Tensor, prepare: Pipeline, batch_size: int = 512) -> dict[str, float]:
    """Share of samples whose largest score is their class, and mean cross-entropy; eval mode, no augmentation."""
    right = torch.zeros((), dtype=torch.int64, device=y.device)
    loss = torch.zeros((), dtype=torch.float64, device=y.device)
    with network.mode(train=False):
        for some in torch.split(torch.arange(len(y), device=y.device), batch_size):
            logits = network(prepare(x[some], None, network.dtype)).logits
            right += (logits.argmax(1) == y[some]).sum()
            loss += torch.nn.functional.cross_entropy(logits, y[some], reduction="sum").double()
    return {"accuracy": int(right) / len(y), "loss": float(loss) / len(y)}
