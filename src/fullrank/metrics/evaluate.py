"""Evaluation of predictions: of one model on a set of samples, and of the models of many clients together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.pipeline import Pipeline
from fullrank.metrics.registry import ALWAYS, BY_DOMAIN, DOMAIN_ACCURACY, METRICS, Metric

ON_A_GPU, ELSEWHERE = 512, 128
"""Batch sizes of evaluation: large for a GPU, and what fits the caches of a CPU."""

DEAD = 1e-6
"""A feature is dead if its range is at most this fraction of the widest feature's: after a ReLU, if it is always 0."""

DYING, DEAD_ALREADY = 0.25, 0.75
"""Shares of dead features from which a warning is given: among those that were alive once, and among all."""

Scores = Callable[[Tensor, Tensor], Tensor]
"""A function from a batch of prepared inputs and its labels to scores (N, C)."""


@torch.no_grad()
def evaluate(
    scores: Scores,
    x: Tensor,
    y: Tensor,
    prepare: Pipeline,
    dtype: torch.dtype,
    metrics: Sequence[Metric] = (),
    domain: Tensor | None = None,
    batch_size: int = 0,
    keep: list[Tensor] | None = None,
) -> dict[str, Any]:
    """Evaluate a model on samples, in batches and without augmentation.

    Args:
        scores: The model.
        x: The samples.
        y: Their labels (N,).
        prepare: Converts samples into inputs of the model.
        dtype: The floating-point type of the inputs.
        metrics: Metrics in addition to accuracy and cross-entropy.
        domain: The domain of each sample (N,), if samples come from domains.
        batch_size: The number of samples per batch; 0 chooses it for the device.
        keep: A list to which the scores of each batch are appended.

    Returns:
        The value of each metric by its key, always with accuracy and loss. With domains, each metric that is a number
        also by domain (`accuracy_by_domain`), and the mean of the accuracies of the domains.
    """
    loss = torch.zeros((), dtype=torch.float64, device=y.device)
    right: list[Tensor] = []
    kept: list[Tensor] = [] if keep is None else keep
    others = [metric for metric in metrics if metric.key not in ALWAYS]
    for some, live in batches(len(y), batch_size or at_once(y.device), y.device):
        given = scores(prepare(x[some], None, dtype), y[some])[:live]
        truth = y[some[:live]]
        right.append(given.argmax(1) == truth)
        loss += torch.nn.functional.cross_entropy(given, truth, reduction="sum").double()
        if others or domain is not None or keep is not None:
            kept.append(given)
    hits = torch.cat(right)
    number, total = torch.stack([hits.sum().double(), loss]).tolist()  # one transfer from a GPU, not two
    found: dict[str, Any] = {"accuracy": number / len(y), "loss": total / len(y)}
    for metric in others:
        assert metric.function is not None
        found[metric.key] = metric.function(torch.cat(kept), y)
    if domain is not None:
        numbers = [metric for metric in others if not isinstance(found[metric.key], list)]
        found |= _by_domain([*(METRICS.own[key] for key in ALWAYS), *numbers], torch.cat(kept), y, domain)
    return found


def _by_domain(metrics: Sequence[Metric], scores: Tensor, y: Tensor, domain: Tensor) -> dict[str, Any]:
    places = [(str(int(k)), domain == k) for k in torch.unique(domain).tolist()]
    found: dict[str, Any] = {}
    for metric in metrics:
        assert metric.function is not None
        found[f"{metric.key}{BY_DOMAIN}"] = {k: metric.function(scores[here], y[here]) for k, here in places}
    found[DOMAIN_ACCURACY.key] = float(np.mean(list(found[f"accuracy{BY_DOMAIN}"].values())))
    return found


class FeatureRange:
    """Tracks the smallest and the largest value of each feature over batches of a representation z (N, d).

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
        """Add a batch; nothing is read back from the device."""
        low, high = z.amin(0), z.amax(0)  # a tenth of the time of torch.aminmax with a dimension
        self._low = low if self._low is None else torch.minimum(self._low, low)
        self._high = high if self._high is None else torch.maximum(self._high, high)

    def dead_share(self) -> float:
        """Return the share of features that are constant over all samples (see `DEAD`)."""
        if self._low is None or self._high is None:
            return 0.0
        spread = self._high - self._low
        return float((spread <= DEAD * spread.max()).double().mean())


def dying(shares: Sequence[float]) -> bool:
    """Return whether the last of these shares of dead features is the first that requires a warning.

    A warning is required if a quarter of the features that were alive at the evaluation with the fewest dead ones have
    died since, or if three quarters of all features are dead, for example because they died in the first round. Fewer
    dead features mean little: a network has some when it is initialised, and it has more the wider it is and the
    smaller the test set.

    >>> dying([0.21, 0.04, 0.05]), dying([0.2, 0.1, 0.4]), dying([0.2, 0.1, 0.4, 0.5])
    (False, True, False)
    """
    lowest = accumulate(shares, min)
    calls = [k >= DEAD_ALREADY or k - low >= DYING * (1 - low) for k, low in zip(shares, lowest, strict=True)]
    return bool(calls) and calls[-1] and not any(calls[:-1])


def at_once(device: torch.device) -> int:
    """Return the number of samples that are evaluated at once on a device."""
    return ON_A_GPU if device.type == "cuda" else ELSEWHERE


def batches(number: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, int]]:
    """Yield the positions of samples in batches.

    On a GPU all batches have the same size, and the last is filled up with its last sample: for each new shape, cuDNN
    takes seconds to choose its algorithms, and in evaluation no sample depends on another.

    Args:
        number: The number of samples.
        size: The size of the batches.
        device: The device of the model.

    Yields:
        The positions of a batch, and the number of its first positions that count.

    >>> [(some.tolist(), live) for some, live in batches(3, 2, torch.device("cpu"))]
    [([0, 1], 2), ([2], 1)]
    """
    for start in range(0, number, size):
        live = min(size, number - start)
        positions = torch.arange(start, start + (size if device.type == "cuda" else live), device=device)
        yield positions.clamp(max=number - 1), live


def over_clients(values: Sequence[float], samples: Sequence[int], lower_is_better: bool = False) -> dict[str, Any]:
    """Summarise a metric over clients.

    The clients are the whole population, so the variance is divided by their number. The worst decile is the mean over
    the worst tenth of the clients, of at least one client.

    Args:
        values: The value of each client.
        samples: The number of samples on which each client was evaluated.
        lower_is_better: Whether the highest values are the worst.

    Returns:
        The number of clients, the plain and the sample-weighted mean, the standard deviation, and the worst decile.

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
