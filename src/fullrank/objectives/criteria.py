"""The criteria that `train.criterion` names: losses of logits and labels that can replace cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.errors import InputError
from fullrank.objectives.registry import CRITERIA, CROSS_ENTROPY
from fullrank.plugins import called

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of logits (N, C) and labels (N,) that returns a scalar tensor. It is a pure function of tensors: no
`.item()`, no boolean indexing and no Python branch on data."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch.

    Args:
        logits: Scores of shape (N, C).
        labels: Labels of shape (N,).

    >>> import torch
    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))), 4)
    1.3863
    """
    return F.cross_entropy(logits, labels)


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Return the focal loss (Lin et al., ICCV 2017), the mean of (1 − p)^γ · (−log p), p the probability of the label.

    Samples that are classified well count less. As `train.criterion = "focal"`, γ is 2, the value of the paper; for
    another one, name a function of your own that calls this one.

    Args:
        logits: Scores of shape (N, C).
        labels: Labels of shape (N,).
        gamma: The exponent γ.

    >>> import torch
    >>> round(float(focal(torch.zeros(2, 4), torch.tensor([0, 3]))), 4)
    0.7798
    """
    losses = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** gamma * losses).mean()


def weighted(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over a batch of the cross-entropy of each sample times the weight of its class.

    The sum is divided by the number of samples, not by the sum of their weights as in torch.nn.CrossEntropyLoss, in
    which weights have no effect on a client with a single class.

    Args:
        logits: Scores of shape (N, C).
        labels: Labels of shape (N,).
        weights: The weight of each class, of shape (C,), as `inverse_frequencies` returns them.

    >>> import torch
    >>> round(float(weighted(torch.zeros(2, 4), torch.tensor([0, 3]), torch.tensor([1.0, 0, 0, 2]))), 4)
    2.0794
    """
    return (F.cross_entropy(logits, labels, reduction="none") * weights[labels]).mean()


def inverse_frequencies(counts: Tensor) -> Tensor:
    """Return the weight of each class from its number of samples: N / (C · n_c), for C classes that occur.

    So all classes that occur have the same share of the loss, and the mean weight of the N samples is 1. The weight of
    a class without samples is 0.

    Args:
        counts: The number of samples of each class, of shape (C,).

    Returns:
        The weights in float64, of shape (C,).

    >>> import torch
    >>> inverse_frequencies(torch.tensor([6, 2, 0])).tolist()
    [0.6666666666666666, 2.0, 0.0]
    """
    counts = counts.double()
    occurs = counts > 0
    return torch.where(occurs, counts.sum() / (occurs.sum() * counts.clamp(min=1)), 0)


@dataclass(frozen=True)
class UserCriterion:
    """A criterion that a user wrote.

    Args:
        name: The name by which `train.criterion` has it.
        function: The user's function of logits and labels.
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Call the user's function.

        Args:
            logits: Scores of shape (N, C).
            labels: Labels of shape (N,).

        Raises:
            CallFailed: If the function raises an exception.
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


def find_criterion(name: str) -> Criterion | None:
    """Return the criterion that an experiment names.

    Args:
        name: The value of `train.criterion`.

    Returns:
        The criterion, or None if the name stands for cross-entropy.

    Raises:
        InputError: If the name is unknown or cannot be imported.
    """
    if name in CROSS_ENTROPY:
        return None
    found = CRITERIA.find(name)
    return found if found in CRITERIA.own.values() else UserCriterion(name, found)
