"""MOON's contrastive loss: Li, He and Song, *Model-Contrastive Federated Learning* (CVPR 2021)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fullrank.errors import InputError
from fullrank.objectives.dtypes import at_least_float32


def contrastive(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float = 0.5) -> Tensor:
    """Compute MOON's contrastive loss (Eq. 3), which attracts features to the global model's and repels them from the
    client's previous ones.

    The loss is the mean over samples of −log e^{s_g} / (e^{s_g} + e^{s_p}), where s_g and s_p are the cosines of z with
    the features of the global and of the previous model, divided by the temperature. If those are equal, it is log 2.

    Args:
        z: Features of the model that is trained, of shape (N, d).
        z_global: Features of the global model for the same samples. No gradient flows to them.
        z_previous: Features of the client's previous model for the same samples. No gradient flows to them.
        temperature: The temperature τ by which the cosines are divided.

    Returns:
        The loss, a scalar; in float32 for half-precision features.

    Raises:
        InputError: If the three shapes differ or are not (N, d).

    >>> import torch
    >>> z, near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(contrastive(z, near, far).item(), 6), round(contrastive(z, near, far, temperature=1.0).item(), 6)
    (0.217622, 0.400834)
    """
    if not z.shape == z_global.shape == z_previous.shape or z.ndim != 2:
        shapes = ", ".join(str(tuple(features.shape)) for features in (z, z_global, z_previous))
        raise InputError(f"contrastive: z, z_global and z_previous must have one shape (samples, width), not {shapes}")
    near, far = (
        F.cosine_similarity(at_least_float32(z), at_least_float32(other.detach())) for other in (z_global, z_previous)
    )
    return F.softplus((far - near) / temperature).mean()
