"""How good predictions are: of one model on a set of samples, and of many clients' models together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.pipeline import Pipeline
from fullrank.metrics.measures import MEASURES

ON_A_GPU, ELSEWHERE = 512, 128
"""Samples of a batch in evaluation: a GPU wants many, a CPU as many as its caches hold."""

DEAD = 1e-6
"""A feature is dead if its range is at most this share of the widest feature's: after a ReLU, if it is always 0."""

DYING, DEAD_ALREADY = 0.25, 0.75
"""For a warning: the share of the features once alive that have died since, or the share of all that are dead."""

Scores = Callable[[Tensor, Tensor], Tensor]
"""Scores (N, C) of a batch of prepared inputs; the labels are there for those who build a whole batch."""


@torch.no_grad()
def evaluate(
    scores: Scores,
    x: Tensor,
    y: Tensor,
    prepare: Pipeline,
    dtype: torch.dtype,
    metrics: Sequence[str] = (),
    domain: Tensor | None = None,
    batch_size: int = 0,
) -> dict[str, Any]:
    """Share of samples whose largest score is their class, and mean cross-entropy; no augmentation.

    `metrics` are further measures by the names of `evaluate.metrics`. Where samples come from domains, also the
    accuracy in each, and its plain mean over them. Without a batch size, the device's.
    """
    loss = torch.zeros((), dtype=torch.float64, device=y.device)
    right: list[Tensor] = []
    kept: list[Tensor] = []
    wanted = [name for name in metrics if name in MEASURES]
    for some, live in batches(len(y), batch_size or at_once(y.device), y.device):
        given = scores(prepare(x[some], None, dtype), y[some])[:live]
        truth = y[some[:live]]
        right.append(given.argmax(1) == truth)
        loss += torch.nn.functional.cross_entropy(given, truth, reduction="sum").double()
        if wanted:
            kept.append(given)
    hits = torch.cat(right)
    number, total = torch.stack([hits.sum().double(), loss]).tolist()  # one transfer from a GPU, not two
    found: dict[str, Any] = {"accuracy": number / len(y), "loss": total / len(y)}
    for name in wanted:
        key, measure = MEASURES[name]
        found[key] = measure(torch.cat(kept), y)
    if domain is not None:
        places = [(int(k), domain == k) for k in torch.unique(domain).tolist()]
        found["accuracy_by_domain"] = {str(k): int(hits[here].sum()) / int(here.sum()) for k, here in places}
        found["domain_accuracy"] = float(np.mean(list(found["accuracy_by_domain"].values())))
    return found


class FeatureRange:
    """The smallest and the largest value of each feature, over batches of a representation z (N, d).

    >>> seen = FeatureRange()
    >>> seen.add(torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 2.0]]))
    >>> seen.add(torch.tensor([[0.0, 0.5, 2.5]]))
    >>> round(seen.dead_share(), 4)
    0.3333
    """

    def __init__(self) -> None:
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def add(self, z: Tensor) -> None:
        """Take a batch into account; nothing is read back from the device."""
        low, high = z.amin(0), z.amax(0)  # a tenth of the time of torch.aminmax with a dimension
        self._low = low if self._low is None else torch.minimum(self._low, low)
        self._high = high if self._high is None else torch.maximum(self._high, high)

    def dead_share(self) -> float:
        """Share of the features that are constant over all samples, to one millionth of the widest feature's range."""
        if self._low is None or self._high is None:
            return 0.0
        spread = self._high - self._low
        return float((spread <= DEAD * spread.max()).double().mean())


def dying(shares: Sequence[float]) -> bool:
    """Whether the last of these shares of dead features is the first that calls for a warning.

    One does if a quarter of the features that were alive at the evaluation with the fewest dead ones have died since,
    or if three quarters of all are dead, as when they died in the first round. Fewer dead features by themselves mean
    little: a fresh network has some, more of them the wider it is and the smaller the test set.

    >>> dying([0.21, 0.04, 0.05]), dying([0.2, 0.1, 0.4]), dying([0.2, 0.1, 0.4, 0.5])
    (False, True, False)
    """
    lowest = accumulate(shares, min)
    calls = [k >= DEAD_ALREADY or k - low >= DYING * (1 - low) for k, low in zip(shares, lowest, strict=True)]
    return bool(calls) and calls[-1] and not any(calls[:-1])


def at_once(device: torch.device) -> int:
    """How many samples are evaluated at once on a device."""
    return ON_A_GPU if device.type == "cuda" else ELSEWHERE


def batches(number: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, int]]:
    """Positions of so many samples in batches for evaluation, and how many of each batch count.

    On a GPU all batches have the same size, the last filled up with its last sample: a library of convolutions plans
    anew for every shape that it meets, for seconds, and in evaluation no sample knows of another.

    >>> [(some.tolist(), live) for some, live in batches(3, 2, torch.device("cpu"))]
    [([0, 1], 2), ([2], 1)]
    """
    for start in range(0, number, size):
        live = min(size, number - start)
        positions = torch.arange(start, start + (size if device.type == "cuda" else live), device=device)
        yield positions.clamp(max=number - 1), live


def over_clients(values: Sequence[float], samples: Sequence[int], lower_is_better: bool = False) -> dict[str, Any]:
    """A measure over clients: plain and sample-weighted mean, standard deviation, mean of the worst tenth.

    The clients are the whole population, so the deviation is divided by their number; the worst tenth is one client
    at least, with the highest values where lower is better.

    >>> over_clients([0.5, 1.0], [30, 10])["weighted"]
    0.625
    """
    found = np.asarray(values, dtype=np.float64)
    from_worst = np.sort(found)[::-1] if lower_is_better else np.sort(found)
    worst = from_worst[: max(1, -(-len(found) // 10))]
    return {
        "mean": float(found.mean()),
        "weighted": float(np.average(found, weights=samples)),
        "std": float(found.std()),
        "worst_decile": float(worst.mean()),
        "clients": len(found),
    }
