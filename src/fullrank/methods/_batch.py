"""The batch that criterion, losses and gradient corrections receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullrank.trees import Tensors, Tree


class Batch:
    """One batch, with everything that a method may use.

    Tensors that a head returns in addition to logits are attributes by their names (`b.mu`).
    """

    x: Tensor
    """Inputs, normalised and augmented."""
    y: Tensor
    """Labels (N,)."""
    z: Tensor
    """The representation (N, d), which is the head's input."""
    logits: Tensor
    """Scores (N, C)."""
    base: Tensor
    """The criterion's value."""
    w: Tensors
    """Current shared entries."""
    model: Tensors
    """All current entries."""
    w0: Tensors
    """Shared entries as received."""
    own: Tree
    """This method's client state."""
    sent: Tree
    """The entries that this method's server half broadcast."""
    fixed: Tree
    """The result of this method's `before` hook."""
    counts: Tensor
    """The client's number of samples of each class (C,)."""
    label_smoothing: float
    """The value of `train.label_smoothing`, for criteria that support it."""
    features: Callable[[Tree], Tensor]
    """`features(tree)`: z of this batch under other weights, in eval mode, without gradient; the rest as received."""
    grad_at: Callable[[Tensors], Tensors]
    """`grad_at(w)`: the gradient before this correction, at other values of some or all trained entries."""

    def __init__(self, extras: Tensors, **values: Any):
        self.extras = extras
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        extras = self.__dict__.get("extras", {})
        if name in extras:
            return extras[name]
        raise AttributeError(f"a batch has no {name}" + (f"; the head gives {', '.join(extras)}" if extras else ""))

    def but(self, **values: Any) -> Batch:
        """Return a copy with other values."""
        other = object.__new__(Batch)
        other.__dict__ = {**self.__dict__, **values}
        return other
