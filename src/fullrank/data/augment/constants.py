"""Numbers that operations need on a device, put there once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_constants: dict[tuple[Hashable, torch.device, torch.dtype], Tensor] = {}


def constant(
    key: Hashable, make: Callable[[], npt.NDArray[np.generic]], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The array that `make` gives, as a tensor: made once, because copying it to a device every step would stall it.

    The key must tell apart everything that the array depends on.
    """
    place = (key, device, dtype)
    if place in _constants:
        return _constants[place]
    # by way of NumPy and outside inference mode, so that the tensor is an ordinary one whoever asks first
    with torch.inference_mode(False):
        made = torch.from_numpy(make()).to(device, dtype)
    if type(made) is Tensor:  # not the stand-in of a tracer
        _constants[place] = made
    return made
