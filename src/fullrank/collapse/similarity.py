"""Linear CKA: the similarity of two representations of the same samples, up to rotation, scale and shift.

Kornblith, Norouzi, Lee and Hinton, *Similarity of Neural Network Representations Revisited* (ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement, zip_longest

import numpy as np
import torch
from torch import Tensor

from fullrank.collapse.arrays import ROWS_AT_ONCE, Array, Features, Numbers, is_whole, no_samples, pooled, wide
from fullrank.errors import InputError


def cka(a: Features, b: Features) -> float:
    """Compute linear CKA, ‖XᵀY‖_F² / (‖XᵀX‖_F ‖YᵀY‖_F), of two feature matrices with centred columns.

    For few samples it is biased upwards: independent Gaussians give .33 at N = 64, d = 32, and .03 at N = 1,000.

    Args:
        a: Features of shape (N, d), or a convolution's maps (N, channels, height, width), which are averaged over
            positions; in one piece or as a stream of batches.
        b: Features of the same samples in the same order, of any width; as a stream, in batches of the same sizes.

    Returns:
        A number between 0 and 1; nan if either matrix has constant columns only.

    Raises:
        InputError: If the numbers of samples or batches differ, or there are none.

    >>> x = np.array([[1.0, 0], [2, 1], [3, 1], [4, 4]])
    >>> round(cka(x, [[1.0], [0], [0], [1]]), 6), round(cka(x, x @ [[0, -2], [2, 0]] + 5), 6)
    (0.074953, 1.0)
    """
    if is_whole(a) and is_whole(b):
        x, y = pooled(a), pooled(b)  # type: ignore[arg-type]
        if len(x) == len(y) and 0 < len(x) < max(x.shape[1], y.shape[1]):
            return _from_rows(x, y)
    similarity = Similarity()
    for x, y in zip_longest(_parts(a), _parts(b)):
        if x is None or y is None:
            raise InputError(
                "the two streams have different numbers of batches; give the same samples in the same order"
            )
        similarity.add([{"": x}, {"": y}])
    return float(similarity.matrices()[""][0, 1])


def cka_by_layer(clients: Sequence[Mapping[str, Array]]) -> dict[str, Numbers]:
    """Compute linear CKA of every pair of clients at every layer.

    For more samples than fit into memory, give `Similarity` one batch after another.

    Args:
        clients: The features of each client by the layer's name, for the same samples in the same order.

    Returns:
        A (clients, clients) matrix for each layer.

    Raises:
        InputError: If the numbers of samples or the layers differ, or there are no samples.

    >>> x = np.array([[1.0, 0], [2, 1], [3, 1], [4, 4]])
    >>> cka_by_layer([{"conv": x}, {"conv": x[:, :1]}])["conv"].round(6).tolist()
    [[1.0, 0.914429], [0.914429, 1.0]]
    """
    similarity = Similarity()
    similarity.add(clients)
    return similarity.matrices()


class Similarity:
    """Linear CKA over batches, for several clients and layers at once, in one pass over the samples.

    The object keeps XᵀY for every pair of clients at every layer, so its memory does not grow with the samples.

    >>> similarity = Similarity()
    >>> for rows in ([[1.0, 0], [2, 1]], [[3.0, 1]], [[4.0, 4]]):
    ...     similarity.add([{"z": np.array(rows)}, {"z": np.array(rows)[:, :1]}])
    >>> round(float(similarity.matrices()["z"][0, 1]), 6)
    0.914429
    """

    def __init__(self) -> None:
        self.samples = 0
        self._layers: list[str] = []
        self._origins: list[dict[str, Tensor]] = []
        self._means: list[dict[str, Tensor]] = []
        self._products: dict[tuple[str, int, int], Tensor] = {}

    def add(self, clients: Sequence[Mapping[str, Array]]) -> None:
        """Add one batch.

        Args:
            clients: The features of each client by the layer's name, for the same samples in the same order.

        Raises:
            InputError: If the numbers of samples differ, or the clients or layers are not those of the first batch.
        """
        batch = [{layer: wide(pooled(x)) for layer, x in client.items()} for client in clients]
        device = next((x.device for client in batch for x in client.values()), None)
        batch = [{layer: x.to(device) for layer, x in client.items()} for client in batch]
        sizes = {len(x) for client in batch for x in client.values()}
        if len(sizes) > 1:
            raise InputError(
                f"clients' features are of {' and '.join(map(str, sorted(sizes)))} samples; give the same ones"
            )
        n = sizes.pop() if sizes else 0
        if n == 0:
            return
        if not self.samples:
            self._begin(batch)
        if [client.keys() for client in batch] != [client.keys() for client in self._means]:
            raise InputError("the clients or their layers are not those of the first batch")
        together = self.samples + n
        for layer in self._layers:
            centred, steps = [], []
            for k, client in enumerate(batch):
                x = client[layer] - self._origins[k][layer]
                mean = x.mean(0)
                centred.append(x - mean)
                steps.append(mean - self._means[k][layer])
                self._means[k][layer] = self._means[k][layer] + steps[k] * (n / together)
            for k, m in combinations_with_replacement(range(len(batch)), 2):
                between = torch.outer(steps[k], steps[m]) * (self.samples * n / together)
                key = layer, k, m
                self._products[key] = self._products.get(key, 0) + centred[k].mT @ centred[m] + between
        self.samples = together

    def matrices(self) -> dict[str, Numbers]:
        """Return the (clients, clients) matrix of each layer; nan where a client's features are constant.

        Raises:
            InputError: If no samples were added.
        """
        if not self.samples:
            raise no_samples("cka")
        number = len(self._means)
        found: dict[str, Numbers] = {}
        for layer in self._layers:
            table = np.full((number, number), np.nan)
            size = [float(self._products[layer, k, k].norm()) for k in range(number)]
            for k, m in combinations_with_replacement(range(number), 2):
                table[k, m] = table[m, k] = _share(float(self._products[layer, k, m].norm()), size[k], size[m])
            found[layer] = table
        return found

    def _begin(self, batch: list[dict[str, Tensor]]) -> None:
        # The first sample is subtracted from all, so that deviations of constant features are exactly 0.
        self._layers = list(batch[0])
        self._origins = [{layer: x[0].clone() for layer, x in client.items()} for client in batch]
        self._means = [{layer: torch.zeros_like(x[0]) for layer, x in client.items()} for client in batch]


def _from_rows(x: Tensor, y: Tensor) -> float:
    """Compute CKA from the N×N Gram matrices, by ‖XᵀY‖_F² = ⟨XXᵀ, YYᵀ⟩, for fewer samples than features."""
    grams = []
    for features in (wide(x), wide(y)):
        centred = features - features[:1]
        centred = centred - centred.mean(0)
        grams.append(centred @ centred.mT)
    a, b = grams[0], grams[1].to(grams[0].device)
    return _share(float((a * b).sum().clamp(min=0).sqrt()), float(a.norm()), float(b.norm()))


def _share(product: float, a: float, b: float) -> float:
    # divided before squaring, because the product of three squares could overflow
    if not (math.isfinite(product) and math.isfinite(a) and math.isfinite(b)) or a <= 0 or b <= 0:
        return math.nan
    return min(1.0, (product / a) * (product / b))


def _parts(features: Features) -> Iterable[Tensor]:
    if is_whole(features):
        return torch.split(pooled(features), ROWS_AT_ONCE)  # type: ignore[arg-type]
    return (pooled(batch) for batch in features)
