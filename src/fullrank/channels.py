"""The content of messages between clients and the server: uploads, and the traffic in each direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fullrank.trees import Tree, elements, nbytes, pointwise


@dataclass(frozen=True)
class Sum:
    """An upload that the server sums over clients.

    Args:
        tree: The tensors that this client contributes.

    >>> import torch
    >>> Sum({"change": torch.ones(2)})
    Sum(tree={'change': tensor([1., 1.])})
    """

    tree: Tree


@dataclass(frozen=True)
class Mean:
    """An upload that the server averages over clients with weights. Of counters (integers) it takes the maximum.

    Args:
        tree: The tensors that this client contributes.
        weight: The weight of this client in the mean.

    >>> import torch
    >>> Mean({"w": torch.ones(2)}, weight=3.0)
    Mean(tree={'w': tensor([1., 1.])}, weight=3.0)
    """

    tree: Tree
    weight: float = 1.0


Upload: TypeAlias = dict[str, dict[str, "Sum | Mean"]]
"""The upload of one client, by space (the name of a method, or "" for the model itself) and by name."""


def upload_names(upload: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of an upload's parts as they appear in messages.

    >>> sorted(upload_names({"": {"w": Mean({})}, "scaffold": {"change": Sum({})}}))
    ['scaffold/change', 'w']
    """
    return {part_name(space, name) for space, parts in upload.items() for name in parts}


def part_name(space: str, name: str) -> str:
    """Return the name of one part of an upload as it appears in messages.

    Args:
        space: The name of the method, or "" for the model.
        name: The name of the part.

    >>> part_name("scaffold", "change"), part_name("", "w")
    ('scaffold/change', 'w')
    """
    return f"{space}/{name}" if space else name


def form_of(upload: Upload) -> Upload:
    """Return an upload without its values: tensors on the "meta" device that keep names, shapes and dtypes."""
    return {
        space: {name: type(part)(pointwise(part.tree, _without_values)) for name, part in parts.items()}
        for space, parts in upload.items()
    }


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds integers or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


@dataclass
class Traffic:
    """The numbers of elements and bytes that the server has sent (down) and received (up)."""

    elements_down: int = 0
    elements_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def count_down(self, tree: Mapping[str, Any]) -> None:
        """Count a tree that the server sends to one client."""
        self.elements_down += elements(tree)
        self.bytes_down += nbytes(tree)

    def add(self, other: Traffic) -> None:
        """Add the counts of another object."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)

    def count_up(self, upload: Upload) -> None:
        """Count one client's upload."""
        for space in upload.values():
            for part in space.values():
                self.elements_up += elements(part.tree)
                self.bytes_up += nbytes(part.tree)
