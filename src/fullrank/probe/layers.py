"""The outputs of a network's layers, which are collected to compare networks layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fullrank.collapse.arrays import pooled
from fullrank.models.network import Network

MOST_LAYERS = 8
"""Maximum number of layers that are compared; each costs memory for every pair of clients."""
WIDEST = 2048
"""Maximum number of features d of a layer that is compared; a pair of clients takes 8·d² bytes."""
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
REPRESENTATION, CLASSIFIER = "z", "classifier"
"""The names of the representation and of the classifier's scores in comparisons; they come after all layers."""


def layers_of(network: Network) -> list[str]:
    """Return the names of the layers to compare: linear layers and convolutions in their order, without the head."""
    head = network.head_name
    names = [
        name
        for name, part in network.module.named_modules()
        if isinstance(part, LAYERS) and name != head and not name.startswith(f"{head}.") and _width(part) <= WIDEST
    ]
    return evenly(names, MOST_LAYERS)


def evenly(names: Sequence[str], most: int) -> list[str]:
    """Return evenly spread names, including the first and the last.

    Args:
        names: The names.
        most: The largest number of names to return.

    >>> evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if len(names) <= most:
        return list(names)
    return [names[round(place * (len(names) - 1) / (most - 1))] for place in range(most)]


@contextmanager
def caught(network: Network, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the outputs of named layers during the block; feature maps are averaged over positions.

    Args:
        network: The network.
        names: The names of the layers.

    Yields:
        The outputs of each call of each layer, by the layer's name.
    """
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
