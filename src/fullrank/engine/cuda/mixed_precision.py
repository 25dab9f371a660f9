"""Mixed precision in which all weights are converted to the shorter dtype at once, and all gradients back at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.local.step import Bound, Objective, depending
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Flat, FlatLayout, Tensors

SHORTENED = (nn.modules.conv._ConvNd, nn.Linear)
"""The types of layers that compute in the shorter dtype under autocast."""


def order_of(network: Network, names: Sequence[str]) -> list[str]:
    """Return names in an order in which those of converted weights are adjacent, so that one conversion serves all.

    Matrices come before vectors, because weight decay may apply to matrices only. Weights whose sizes would break the
    alignment of others come last.

    Args:
        network: The network.
        names: The names of its parameters.
    """
    shortened, parameters = shortened_names(network), network.parameters()

    def place(name: str) -> tuple[bool, bool, bool]:
        return name not in shortened, parameters[name].dim() < 2, parameters[name].numel() % 16 != 0

    return sorted(names, key=place)


def shortened_names(network: Network) -> set[str]:
    """Return the names of the parameters that autocast converts in every forward."""
    return {name for name in network.parameter_names if isinstance(network.owner(name), SHORTENED)}


class HalfWeights(Bound):
    """A backend that converts all weights to the shorter dtype at once, and collects their gradients in one vector.

    Autocast would convert each weight and each gradient separately.

    Args:
        network: The network.
        trained: The entries that are trained.
    """

    def __init__(self, network: Network, trained: Tensors):
        super().__init__(network, trained)
        self._names = shortened_names(network) if network.half is not None else set()
        self._short: Flat | None = None

    def run(self, entries: Tensors, x: Tensor) -> Output:
        """Run the network with the given entries. The buffers among them change in place."""
        return self.at(entries, x)

    def call(self, trained: Tensors, rest: Tensors, buffers: Tensors, x: Tensor) -> tuple[Output, Tensors]:
        """Run the network with the given entries.

        If they are not the client's own, the buffers change in copies. Arguments and results are as in
        `Functional.call`.
        """
        moved = buffers if trained is self.bound else {name: value.clone() for name, value in buffers.items()}
        self._short = self._shortened(trained)
        return self.run({**rest, **trained, **(self._short or {}), **moved}, x), moved

    def _shortened(self, trained: Tensors) -> Flat | None:
        """Return the weights that the network takes in the shorter dtype, as new leaves that were converted at once."""
        chosen = [name for name in trained if name in self._names]
        block = trained.part(chosen) if isinstance(trained, Flat) and chosen else None
        if not isinstance(block, Flat):
            return None
        short = Flat(block.base.detach().to(self.network.half), block.layout)
        return Flat(short.base, short.layout, {name: value.requires_grad_() for name, value in short.items()})

    def gradient(self, objective: Objective, trained: Tensors) -> tuple[Tensors, Any]:
        """Compute the gradient by `torch.autograd.grad`, as `Functional.gradient` does.

        Gradients of converted weights are converted back.
        """
        if trained is not self.bound:
            trained = self.leaves(trained)
        value, aux = objective(trained)
        depending(value)
        short = self._short
        if short is None or not isinstance(trained, Flat):
            return self.slopes(value, trained), aux
        wanted = [*short.values(), *trained.values()]
        slopes = torch.autograd.grad(value, wanted, allow_unused=True)
        passed = dict(zip(short, slopes, strict=False))
        direct = dict(zip(trained, slopes[len(short) :], strict=True))
        return _gathered(trained, passed, direct, short.layout), aux


@torch.no_grad()
def _gathered(
    trained: Flat, passed: Mapping[str, Tensor | None], direct: Mapping[str, Tensor | None], block: FlatLayout
) -> Flat:
    """Return the gradient of all entries as one vector.

    Args:
        trained: The trained entries.
        passed: The gradients of the converted weights, in the shorter dtype.
        direct: The gradients of the entries themselves, which converted weights have only from terms of a method.
        block: The layout of the converted weights.
    """
    layout, base = trained.layout, torch.empty_like(trained.base)
    g = Flat(base, layout)

    def filled(slopes: Mapping[str, Tensor | None], names: tuple[str, ...], like: Tensors) -> Tensors:
        found = {name: slopes[name] for name in names}
        return {name: torch.zeros_like(like[name]) if slope is None else slope for name, slope in found.items()}

    def put(part: Flat, slopes: Tensors) -> None:
        part.base.copy_(Flat.joined(slopes, part.layout).base)

    for names, inside in _runs(layout, block):
        if inside:
            some = next(slope for slope in passed.values() if slope is not None)
            like = {name: trained[name].to(some.dtype) if passed[name] is None else trained[name] for name in names}
            put(_part(g, names), filled(passed, names, like))
        else:
            put(_part(g, names), filled(direct, names, trained))
    for name in block.names:
        if (more := direct[name]) is not None:  # from a term of a method that depends on the weights directly
            g[name].add_(more)
    return g


def _part(tree: Flat, names: Sequence[str]) -> Flat:
    part = tree.part(names)
    assert isinstance(part, Flat)
    return part


def _runs(layout: FlatLayout, block: FlatLayout) -> list[tuple[tuple[str, ...], bool]]:
    """Split the names of a layout where the converted weights begin and end; return whether each part is converted."""
    start = layout.names.index(block.names[0])
    cut = layout.names[:start], block.names, layout.names[start + len(block.names) :]
    return [(names, names is block.names) for names in cut if names]
