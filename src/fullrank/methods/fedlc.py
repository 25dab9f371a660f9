"""FedLC: Zhang et al., *Federated Learning with Label Distribution Skew via Logits Calibration* (ICML 2022)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative


@dataclass(frozen=True)
class FedLC(Method):
    """Calibrated logits: a client's cross-entropy is that of logits − τ·n_c^(−1/4), n_c its samples of class c.

    Rare classes get a larger margin. A class that the client lacks has an infinite margin: it is left out of the
    softmax (`absent="drop"`) and of label smoothing; `absent="one"` treats it as if there were one sample. Predictions
    use the plain logits. Clients send the same as in FedAvg.
    """

    paper = "Zhang et al., ICML 2022"
    neutral = {"tau": 0.0, "absent": "one"}

    tau: NotNegative = 1.0
    absent: Literal["drop", "one"] = "drop"

    def criterion(self, b: Batch) -> Tensor:
        """Return the cross-entropy of the calibrated logits."""
        logits = b.logits - self.tau * b.counts.clamp(min=1).pow(-0.25).to(b.logits.dtype)
        if self.absent == "one":
            return F.cross_entropy(logits, b.y, label_smoothing=b.label_smoothing)
        has = b.counts > 0
        logp = logits.masked_fill(~has, -torch.inf).log_softmax(1)
        loss = F.nll_loss(logp, b.y)
        if b.label_smoothing:  # a setting, not data
            spread = -logp.masked_fill(~has, 0.0).sum(1).mean() / has.sum()
            loss = torch.lerp(loss, spread, b.label_smoothing)
        return loss
