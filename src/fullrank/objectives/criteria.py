"""The criteria that `train.criterion` names: losses of logits and labels that can replace cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor

from fullrank.errors import InputError
from fullrank.plugins import Registry, called

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of logits (N, C) and labels (N,) that returns a scalar tensor. It is a pure function of tensors: no
`.item()`, no boolean indexing and no Python branch on data."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch.

    >>> import torch
    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))), 4)
    1.3863
    """
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class UserCriterion:
    """A user's criterion, under the name by which `train.criterion` has it."""

    name: str
    function: Callable[[Tensor, Tensor], Any]

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Call the user's function.

        Raises:
            CallFailed: If the function raises.
            InputError: If the function returns anything but a scalar tensor that depends on the logits.
        """
        found = called(partial(self.function, logits, labels), self.name, CRITERIA.key)
        if not isinstance(found, Tensor) or found.dim():
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f'{CRITERIA.key} = "{self.name}": it returned {what}; it must return a scalar tensor')
        if logits.requires_grad and not found.requires_grad:
            raise InputError(
                f'{CRITERIA.key} = "{self.name}": what it returned does not depend on the logits, as under '
                "torch.no_grad() or after .detach(), so there is no gradient"
            )
        return found


CRITERIA: Registry[Criterion] = Registry("criteria", "train.criterion", {"cross-entropy": cross_entropy})
"""All criteria that need no import path."""
CROSS_ENTROPY = ("", "cross-entropy")
"""The values of `train.criterion` with which local training minimises the cross-entropy."""


def find_criterion(name: str) -> Criterion | None:
    """Return the criterion that replaces cross-entropy, or None if `name` stands for cross-entropy.

    Raises:
        InputError: If the name is unknown or cannot be imported.
    """
    if name in CROSS_ENTROPY:
        return None
    found = CRITERIA.find(name)
    return found if found in CRITERIA.own.values() else UserCriterion(name, found)
