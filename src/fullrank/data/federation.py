"""Who has which data: training samples and hold-out of each client, the validation share, the test set, all apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from ..errors import Refusal
from ..randomness import key
from . import partition
from .augment import Pipeline
from .dataset import DataSet
from .heterogeneity import counts, describe, partition_hash
from .split import split_by_class


@dataclass(frozen=True)
class Federation:
    """A data set divided among clients, as index arrays into its training split."""

    data: DataSet
    parts: list[np.ndarray]
    """Training samples of each client."""
    holdouts: list[np.ndarray]
    """Samples of each client kept for its personal test."""
    validation: np.ndarray
    """Samples kept back from everybody, to choose settings and rounds by."""
    pipeline: Pipeline

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.parts)

    def size(self, client: int) -> int:
        """A client's number of training samples."""
        return len(self.parts[client])

    @property
    def has_holdouts(self) -> bool:
        """Whether any client has samples for its personal test."""
        return any(map(len, self.holdouts))

    @cached_property
    def hash(self) -> str:
        """Of the whole division: equal hashes mean equal training samples, hold-outs and validation."""
        return partition_hash([*self.parts, *self.holdouts, self.validation])

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Training samples by client and class (K, C)."""
        return counts(self.data.train.y.numpy(), self.parts, self.data.num_classes)

    def describe(self) -> dict[str, Any]:
        """Sizes, entropy and distances of the division, for `partition.json`."""
        facts = describe(self.data.train.y.numpy(), self.parts, self.data.num_classes)
        return {
            **facts,
            "hash": self.hash,
            "holdout": sum(map(len, self.holdouts)),
            "validation": len(self.validation),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """The division as it is saved."""
        return {
            "train": _joined(self.parts),
            "train_sizes": torch.tensor([len(part) for part in self.parts]),
            "holdout": _joined(self.holdouts),
            "holdout_sizes": torch.tensor([len(part) for part in self.holdouts]),
            "validation": torch.from_numpy(self.validation),
        }


def divide(
    data: DataSet,
    pipeline: Pipeline,
    *,
    how: str = "dirichlet",
    clients: int = 10,
    seed: int = 0,
    alpha: float = 0.1,
    variant: str = "balanced",
    classes: int = 2,
    passes: int = 1,
    equal: float = 0.0,
    holdout: float = 0.0,
    validation: float = 0.0,
) -> Federation:
    """Divide a data set: first the validation share, then the clients' parts, then each client's hold-out."""
    labels = data.train.y.numpy()
    if how.endswith(".safetensors"):
        return _saved(data, pipeline, Path(how), clients)
    if how == "domain":
        if data.train.domain is None:
            raise Refusal(f'data.partition = "domain": the data set "{data.name}" has no domains')
        found = partition.by_domain(data.train.domain.numpy(), equal or False, validation, seed)
        if len(found) != clients:
            raise Refusal(f"data.clients = {clients}: the data come in {len(found)} domains, and each is one client")
        parts = list(found)
        kept_back = np.sort(np.concatenate(found.validation))
    else:
        keep, kept_back = split_by_class(labels, validation, seed)
        parts = [keep[part] for part in _parts(labels[keep], how, clients, seed, alpha, variant, classes, passes)]
    if not any(map(len, parts)):
        raise Refusal("no client has any sample")
    held = [part[:0] for part in parts]
    if holdout:
        parts, held = map(list, partition.hold_out(parts, holdout, key(seed, "holdout") % 2**32))
    return Federation(data, parts, held, kept_back, pipeline)


def given(data: DataSet, pipeline: Pipeline, sizes: list[int]) -> Federation:
    """A federation whose clients came with their own data: consecutive pieces of the training split."""
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end, dtype=np.int64) for size, end in zip(sizes, ends, strict=True)]
    nothing = np.empty(0, np.int64)
    return Federation(data, parts, [nothing] * len(parts), nothing, pipeline)


def _parts(
    labels: np.ndarray,
    how: str,
    clients: int,
    seed: int,
    alpha: float,
    variant: str,
    classes: int,
    passes: int,
) -> list[np.ndarray]:
    if how == "iid":
        return partition.iid(labels, clients, seed)
    if how == "dirichlet":
        return partition.dirichlet(labels, clients, alpha, seed, variant)
    if how == "pathological":
        return partition.pathological(labels, clients, classes, seed, variant)
    return partition.class_disjoint(labels, clients, classes, seed, passes)


def _joined(parts: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _saved(data: DataSet, pipeline: Pipeline, path: Path, clients: int) -> Federation:
    if not path.is_file():
        raise Refusal(f'data.partition: there is no file "{path}"')
    try:
        saved = {name: tensor.numpy() for name, tensor in load_file(path).items()}
        lists = {name: np.split(saved[name], np.cumsum(saved[f"{name}_sizes"])[:-1]) for name in ("train", "holdout")}
        validation = saved["validation"]
    except Exception as error:
        raise Refusal(f'data.partition: "{path}" is not a saved partition ({error})') from None
    if len(lists["train"]) != clients:
        raise Refusal(f'data.clients = {clients}, but the saved partition "{path}" has {len(lists["train"])} clients')
    highest = max(
        (int(part.max()) for part in [*lists["train"], *lists["holdout"], validation] if len(part)),
        default=-1,
    )
    if highest >= len(data.train):
        raise Refusal(
            f'data.partition: "{path}" names sample {highest}, but the data set has {len(data.train)} training samples'
        )
    return Federation(data, lists["train"], lists["holdout"], validation, pipeline)
