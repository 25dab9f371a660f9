"""Maps of features in two dimensions."""

from __future__ import annotations

import torch

from fullrank.collapse.arrays import Array, Numbers, matrix, no_samples, plain, wide


def principal_map(features: Array) -> Numbers:
    """Project features onto the two directions of their largest variance (principal component analysis).

    The sign of a direction is chosen so that its entry of the largest absolute value is positive: equal features have
    the same map. A direction without variance gives zeros.

    Args:
        features: Features of shape (N, d).

    Returns:
        The coordinates, of shape (N, 2). They are nan if a feature is not finite.

    Raises:
        InputError: If there are no samples, or the features have another shape.

    >>> principal_map([[3.0, 0, 1], [-3, 0, 1], [0, 1, 1], [0, -1, 1]]).tolist()
    [[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    """
    found = matrix(features)
    if not len(found):
        raise no_samples("map")
    z = wide(found)
    z = z - z.mean(0)
    if not torch.isfinite(z).all():
        return plain(torch.full((len(z), 2), torch.nan, dtype=torch.float64))
    values, vectors = torch.linalg.eigh(z.mT @ z)
    leading = vectors[:, values.argsort(descending=True, stable=True)[:2]]
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    places = z @ (leading * torch.where(largest < 0, -1.0, 1.0))
    if places.shape[1] < 2:
        places = torch.cat([places, torch.zeros_like(places)], 1)
    return plain(places + 0.0)
