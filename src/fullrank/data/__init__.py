"""Data sets, their partitions among clients, and the preparation of batches."""

from __future__ import annotations

from fullrank.data import partition
from fullrank.data.augment.pipeline import Pipeline
from fullrank.data.augment.resize import resized
from fullrank.data.dataset import DataSet, Split
from fullrank.data.sources.load import load_dataset
from fullrank.data.sources.memory import as_split

__all__ = ["DataSet", "Pipeline", "Split", "as_split", "load_dataset", "partition", "resized"]
