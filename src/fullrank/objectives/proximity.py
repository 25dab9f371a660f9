"""FedProx's proximal term: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, *Federated Optimization in Heterogeneous
Networks* (MLSys 2020).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fullrank.errors import InputError
from fullrank.objectives.dtypes import at_least_float32


def proximal(w: Mapping[str, Tensor], w0: Mapping[str, Tensor]) -> Tensor:
    """Compute FedProx's proximal term (Eq. 2 without μ), ½ Σ ‖w − w0‖² over the named weights, whose gradient is w −
    w0.

    Args:
        w: The weights that are trained, by name.
        w0: The weights as received, by name. They must be copies: with the tensors that are being trained the term
            would stay zero. No gradient flows to them.

    Returns:
        The term, a scalar.

    Raises:
        InputError: If the names or the shapes of the weights differ.

    >>> w, w0 = {"a": torch.tensor([3.0, 1.0])}, {"a": torch.tensor([1.0, 1.0])}
    >>> proximal(w, w0)
    tensor(2.)
    """
    for name in [*w, *w0]:
        if name not in w or name not in w0:
            raise InputError(f'proximal: "{name}" is in {"w" if name in w else "w0"} only')
        if w[name].shape != w0[name].shape:
            raise InputError(f'proximal: "{name}" has shape {tuple(w[name].shape)} in w, {tuple(w0[name].shape)} in w0')
    squares = [(at_least_float32(x) - at_least_float32(w0[name].detach())).square().sum() for name, x in w.items()]
    return torch.stack(squares).sum() / 2 if squares else torch.zeros(())
