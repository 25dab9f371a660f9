"""The registry of criteria, the losses that can replace cross-entropy in local training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fullrank.lazy import OnFirstUse
from fullrank.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTED = "weighted"
"""The criterion whose third argument, the weights of the classes, the server and the clients exchange."""
CRITERIA: Registry[Callable[..., Tensor]] = Registry(
    "criteria",
    "train.criterion",
    OnFirstUse(
        {
            "cross-entropy": "fullrank.objectives.criteria:cross_entropy",
            "focal": "fullrank.objectives.criteria:focal",
            WEIGHTED: "fullrank.objectives.criteria:weighted",
        }
    ),
)
"""All criteria that need no import path."""
CROSS_ENTROPY = ("", "cross-entropy")
"""The values of `train.criterion` with which local training minimises the cross-entropy."""
