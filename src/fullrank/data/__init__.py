"""Data sets, the ways to divide them among clients, and what happens to a batch before a model sees it."""

from __future__ import annotations

from . import partition
from .augment import Pipeline
from .dataset import DataSet, Split
from .load import load_dataset
from .memory import as_split
from .resize import resized

__all__ = ["DataSet", "Pipeline", "Split", "as_split", "load_dataset", "partition", "resized"]
