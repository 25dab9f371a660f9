"""The registry of aggregators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fullrank.lazy import OnFirstUse
from fullrank.plugins import Registry

if TYPE_CHECKING:
    from fullrank.federated.aggregation import Aggregator

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregators", "train.aggregator", OnFirstUse({"mean": "fullrank.federated.aggregation:RunningMean"}), "Class"
)
"""The aggregators that an experiment can name."""
