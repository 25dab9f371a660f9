"""Data sets, their partition among clients, and the preparation of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fullrank.lazy import exports

if TYPE_CHECKING:
    from fullrank.data import partition
    from fullrank.data.augment.operation import Operation
    from fullrank.data.augment.pipeline import Pipeline
    from fullrank.data.augment.resize import resized
    from fullrank.data.dataset import DataSet, Split
    from fullrank.data.sources.load import load_dataset
    from fullrank.data.sources.memory import as_split

__all__ = ["DataSet", "Operation", "Pipeline", "Split", "as_split", "load_dataset", "partition", "resized"]
__getattr__ = exports(
    __name__,
    {
        "fullrank.data.augment.operation": ("Operation",),
        "fullrank.data.augment.pipeline": ("Pipeline",),
        "fullrank.data.augment.resize": ("resized",),
        "fullrank.data.dataset": ("DataSet", "Split"),
        "fullrank.data.sources.load": ("load_dataset",),
        "fullrank.data.sources.memory": ("as_split",),
    },
)
