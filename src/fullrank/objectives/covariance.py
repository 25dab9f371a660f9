"""Losses on the covariance of a representation's dimensions: Cogswell, Ahmed, Girshick, Zitnick and Batra, *Reducing
Overfitting in Deep Networks by Decorrelating Representations* (ICLR 2016), and Xiong, Du, Zhang, Hu and Tao,
*Regularizing Deep Convolutional Neural Networks with a Structured Decorrelation Constraint* (ICDM 2016).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.errors import InputError
from fullrank.objectives.correlation import _centred, _gram, _shape, _zero


def decov(z: Tensor) -> Tensor:
    """Compute DeCov, ½(‖Σ‖_F² − ‖diag Σ‖²), with Σ the biased covariance of the columns of the features.

    Multiplying the features by a multiplies the loss by a⁴. Only the smaller of the two Gram matrices is computed.

    Args:
        z: Features of shape (N, d).

    Returns:
        The loss, a scalar; in float32 for half-precision features. For a single sample it is 0.

    Raises:
        InputError: If the features are not of shape (N, d).

    >>> z = torch.tensor([[1.0, 1, 0], [2, 3, 1], [3, 2, -1], [4, 6, 0]])
    >>> decov(z).item()
    3.1875
    """
    n, d = _shape(z)
    if n < 2:
        return _zero(z)
    z = _centred(z)
    gram = _gram(z) / n
    if d < n:
        return gram.triu(1).square().sum()
    return (gram.square().sum() - z.square().mean(0).square().sum()) / 2


def structured_decov(z: Tensor, groups: int = 8) -> Tensor:
    """Compute Structured-DeCov, ½ Σ Σ_ij² over pairs of columns in different groups; within a group they may correlate.

    The groups are contiguous and of equal width; if their number does not divide d, the first ones are wider by one
    column.

    Args:
        z: Features of shape (N, d).
        groups: The number of groups. One group gives 0; d groups or more give `decov`.

    Returns:
        The loss, a scalar; in float32 for half-precision features. For a single sample it is 0.

    Raises:
        InputError: If the features are not of shape (N, d), or `groups` is less than 1.

    >>> z = torch.tensor([[1.0, 1, 0, 2], [2, 3, 1, 0], [3, 2, -1, 1], [4, 6, 0, 1]])
    >>> structured_decov(z, groups=2).item(), structured_decov(z, groups=4).item()
    (0.4375, 3.5625)
    """
    n, d = _shape(z)
    if groups < 1:
        raise InputError(f"structured_decov: groups = {groups}: must be at least 1")
    if n < 2:
        return _zero(z)
    z = _centred(z)
    with torch.autocast(z.device.type, enabled=False):
        covariance = z.mT @ z / n
    width, wider = divmod(d, min(groups, d))
    column = torch.arange(d, device=z.device)
    edge = wider * (width + 1)
    group = torch.where(column < edge, column // (width + 1), wider + (column - edge) // width)
    across = (group[:, None] != group).to(z.dtype)
    return (covariance.square() * across).sum() / 2
