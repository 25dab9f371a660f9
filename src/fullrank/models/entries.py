"""The entries of a model by class (shared, buffers, personal, frozen), and the selectors that name them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fullrank.errors import InputError, nearest

if TYPE_CHECKING:
    from fullrank.models.network import Network

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # every BatchNorm and InstanceNorm, also synchronised and lazy ones
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Entries:
    """The names of a model's entries by class. Each entry is in exactly one class."""

    shared: tuple[str, ...]
    buffers: tuple[str, ...]
    personal: tuple[str, ...]
    frozen: tuple[str, ...]


def classify(
    network: Network, personal: Iterable[str] = (), freeze: Iterable[str] = (), buffers: str = "average"
) -> Entries:
    """Sort a network's entries into shared, personal and frozen ones and buffers.

    `freeze` acts on a buffer that a selector names, and on the statistics of a norm layer all of whose parameters are
    named. A parameter that requires no gradient is frozen as well; as in PyTorch, that does not freeze the statistics
    of its layer.

    Args:
        network: The network.
        personal: Selectors of the entries that each client keeps to itself.
        freeze: Selectors of the entries that do not train.
        buffers: The value of `train.buffers`: "average" or "local".

    Raises:
        InputError: If a selector names no entry.
    """
    own = select(network, personal) | (set(network.buffer_names) if buffers == "local" else set())
    named = select(network, freeze)
    frozen = {name for name, parameter in network.parameters().items() if not parameter.requires_grad or name in named}
    frozen |= _frozen_buffers(network, named) if named else set()
    own -= frozen
    return Entries(
        shared=tuple(n for n in network.parameter_names if n not in own and n not in frozen),
        buffers=tuple(n for n in network.buffer_names if n not in own and n not in frozen),
        personal=tuple(n for n in network.names if n in own),
        frozen=tuple(n for n in network.names if n in frozen),
    )


def _frozen_buffers(network: Network, named: set[str]) -> set[str]:
    """Return the named buffers, and the buffers of norm layers all of whose parameters are named."""
    parameters: dict[str, set[str]] = {}
    for name in network.parameter_names:
        parameters.setdefault(name.rpartition(".")[0], set()).add(name)
    whole = {layer for layer, names in parameters.items() if names <= named}
    return {
        name
        for name in network.buffer_names
        if name in named or (name.rpartition(".")[0] in whole and isinstance(network.owner(name), NORM_LAYERS))
    }


def select(network: Network, selectors: str | Iterable[str]) -> set[str]:
    """Return the names of the entries that selectors name.

    Args:
        network: The network.
        selectors: Selectors, each "all", "norm" (by module type), "head", "neck", "backbone", "buffers", an entry's
            name, a prefix (`backbone.layer1`) or a pattern (`*.bias`).

    Raises:
        InputError: If a selector names no entry.
    """
    chosen: set[str] = set()
    for selector in [selectors] if isinstance(selectors, str) else selectors:
        found = _one(network, selector)
        if not found:
            known = {*network.names, "all", "norm", "head", "neck", "backbone", "buffers"} - {selector}
            hint = nearest(selector, known)
            raise InputError(f'the selector "{selector}" names no entry of the model; {hint}')
        chosen |= found
    return chosen


def _one(network: Network, selector: str) -> set[str]:
    names = set(network.names)
    if selector == "all":
        return names
    if selector == "buffers":
        return set(network.buffer_names)
    if selector == "norm":
        return {name for name in names if isinstance(network.owner(name), NORM_LAYERS)}
    neck = _below(names, network.neck_name) if network.neck_name else set()
    if selector == "head":
        return _below(names, network.head_name) - neck
    if selector == "neck" and network.neck_name:
        return neck
    if selector == "backbone":
        return names - _below(names, network.head_name) - neck
    if any(sign in selector for sign in "*?["):
        return set(fnmatch.filter(names, selector))
    return _below(names, selector)


def _below(names: set[str], prefix: str) -> set[str]:
    return {name for name in names if not prefix or name == prefix or name.startswith(f"{prefix}.")}
