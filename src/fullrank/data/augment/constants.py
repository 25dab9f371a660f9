"""Constants of operations, copied to each device once."""

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
    """Return an array as a tensor that is copied to each device only once, because a copy would stall the device.

    Args:
        key: What identifies the array; it must include everything that the array depends on.
        make: A function that returns the array, called if it is not on the device yet.
        device: The device of the tensor.
        dtype: The dtype of the tensor.
    """
    place = (key, device, dtype)
    if place in _constants:
        return _constants[place]
    # through NumPy and outside inference mode, so that the tensor is always an ordinary one
    with torch.inference_mode(False):
        made = torch.from_numpy(make()).to(device, dtype)
    if type(made) is Tensor:  # not a tracer's proxy
        _constants[place] = made
    return made
