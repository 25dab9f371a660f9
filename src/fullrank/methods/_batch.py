"""The batch that criterion, losses and gradient corrections receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullrank.trees import Tensors, Tree


class Batch:
    """One batch of a client's samples, as `criterion`, `loss`, `grad` and `predict` see it.

    N is the number of samples, d the width of the representation, C the number of classes. Tensors that a head returns
    in addition to logits are attributes by their names (`b.mu` of FedETF). `predict` has no `base`, `grad_at` and
    `label_smoothing`.

    Args:
        extras: The tensors that the head returned in addition to logits, by name.
        **values: The values of the attributes. An attribute that is not given raises an `AttributeError` when it is
            read.

    >>> import torch
    >>> from fullrank import methods
    >>> b = Batch({}, z=torch.tensor([[1.0, 1, 0], [2, 3, 1], [3, 2, -1], [4, 6, 0]]))
    >>> round(methods.build("feddecorr").loss(b).item(), 6)
    0.062679
    """

    x: Tensor
    """Inputs (N, …), normalised and augmented."""
    y: Tensor
    """Labels (N,) as whole numbers."""
    z: Tensor
    """The representation (N, d): the head's input, before dropout."""
    logits: Tensor
    """Scores (N, C)."""
    base: Tensor
    """The value of the criterion, a scalar. It is available in `loss` and `grad`."""
    w: Tensors
    """The current values of the shared entries by name."""
    model: Tensors
    """The current values of all entries by name. Names differ between models: use `head` for the classifier."""
    w0: Tensors
    """The shared entries by name, as received in this round."""
    own: Tree
    """This method's state at the client, as it was when the fit began."""
    sent: Tree
    """The entries of this method's server state that `broadcast` names."""
    fixed: Tree
    """The tensors that this method's `before` hook returned for this fit."""
    counts: Tensor
    """The client's number of samples of each class (C,), as floating numbers."""
    label_smoothing: float
    """The value of `train.label_smoothing`, for criteria that support it."""
    head: Callable[[Tensor], Tensor]
    """`head(z)`: logits (M, C) of the current classifier for any representations (M, d), without dropout. Gradients
    pass to the classifier and to z."""
    features: Callable[[Tree], Tensor]
    """`features(tree)`: z of this batch under other weights, in eval mode, without gradient. Entries that are not in
    the tree are as received."""
    logits_at: Callable[[Tree], Tensor]
    """`logits_at(tree)`: logits of this batch under other weights, such as a teacher's; otherwise like `features`."""
    grad_at: Callable[[Tensors], Tensors]
    """`grad_at(w)`: the gradient before this correction, at other values of some or all trained entries; for `grad`."""

    def __init__(self, extras: Tensors, **values: Any):
        self.extras = extras
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        extras = self.__dict__.get("extras", {})
        if name in extras:
            return extras[name]
        raise AttributeError(f"a batch has no {name}" + (f"; the head gives {', '.join(extras)}" if extras else ""))

    def but(self, **values: Any) -> Batch:
        """Return a copy with other values of some attributes, as in `b.but(y=other)`. Other attributes are not
        computed again."""
        other = object.__new__(Batch)
        other.__dict__ = {**self.__dict__, **values}
        return other
