"""What a network's layers make of a batch, for comparing networks layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fullrank.collapse.arrays import pooled
from fullrank.models.network import Network

MOST_LAYERS = 8
"""Compared, evenly over the depth: one forward serves all, but every one costs memory for each pair of clients."""
WIDEST = 2048
"""Features of a layer that is compared: a pair of clients takes 8·d² bytes."""
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
REPRESENTATION = "z"
"""The name under which the representation itself is compared, after all layers."""


def layers_of(network: Network) -> list[str]:
    """Names of the layers to compare: dense ones and convolutions in the order in which they stand, not the head."""
    head = network.head_name
    names = [
        name
        for name, part in network.module.named_modules()
        if isinstance(part, LAYERS) and name != head and not name.startswith(f"{head}.") and _width(part) <= WIDEST
    ]
    return evenly(names, MOST_LAYERS)


def evenly(names: Sequence[str], most: int) -> list[str]:
    """At most so many of some names, evenly spread, the first and the last among them.

    >>> evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if len(names) <= most:
        return list(names)
    return [names[round(place * (len(names) - 1) / (most - 1))] for place in range(most)]


@contextmanager
def caught(network: Network, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Inside, every forward leaves here what the named layers gave, maps averaged over their places."""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if isinstance(result, Tensor) and result.dim() >= 2:
                found.setdefault(name, []).append(pooled(result))

        return hook

    handles = [network.module.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _width(layer: Any) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)
