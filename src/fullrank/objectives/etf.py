"""The simplex equiangular tight frame: Li, Shang, He, Lin and Wu, *No Fear of Classifier Biases: Neural Collapse
Inspired Federated Learning with Synthetic and Fixed Classifier* (ICCV 2023), after Papyan, Han and Donoho (2020).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fullrank.errors import InputError


def simplex_etf(num_classes: int, dim: int | None = None, seed: int = 0) -> Tensor:
    """Return a simplex equiangular tight frame: C unit vectors, any two of which have the cosine −1/(C−1).

    V = √(C/(C−1)) · U·(I − 11ᵀ/C), with U (dim, C) the orthonormal columns from the QR decomposition of uniform random
    numbers. In C−1 dimensions, the fewest that hold C such vectors, V = √(C/(C−1)) · Q·Eᵀ, with E the eigenvectors of I
    − 11ᵀ/C whose eigenvalue is 1 and Q a random rotation. VᵀV does not depend on `dim`.

    Args:
        num_classes: The number of vectors C, at least 2.
        dim: The number of dimensions, at least C − 1; C by default.
        seed: The seed of the random numbers.

    Returns:
        The vectors as the columns of a float64 matrix of shape (dim, C).

    Raises:
        InputError: If there are fewer than two classes or too few dimensions.

    >>> v = simplex_etf(4, 6)
    >>> bool(torch.allclose(v.mT @ v, (4 * torch.eye(4) - 1).double() / 3))
    True
    """
    dim = num_classes if dim is None else dim
    if num_classes < 2:
        raise InputError(f"a simplex needs at least 2 classes, not {num_classes}")
    if dim < num_classes - 1:
        raise InputError(
            f"{num_classes} vectors with equal angles need at least {num_classes - 1} dimensions, not {dim}"
        )
    rng = np.random.default_rng(seed)
    centring = np.eye(num_classes) - 1 / num_classes
    if dim >= num_classes:
        frame = np.linalg.qr(rng.random((dim, num_classes)))[0] @ centring
    else:
        inside = np.linalg.eigh(centring)[1][:, 1:]  # in ascending order, so that the first belongs to the eigenvalue 0
        frame = np.linalg.qr(rng.random((dim, dim)))[0] @ inside.T
    return torch.from_numpy(np.sqrt(num_classes / (num_classes - 1)) * frame)
