"""Odd batches in the shape of full ones, with the same arithmetic as in their own.

A library of convolutions plans for seconds for every new shape. An odd batch is therefore filled up with copies of its
last sample: layers that treat samples separately are unaffected, BatchNorm takes its statistics over the true samples
only, and everything behind the network sees only these. No gradient flows into the copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fullrank.engine.cuda.mixed_precision import HalfWeights
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Tensors

SAMPLEWISE = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Linear,
    nn.Identity,
    nn.Flatten,
    nn.ReLU,
    nn.ReLU6,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Softmax,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.InstanceNorm2d,
    nn.Dropout,
    nn.Dropout2d,
)
"""Layers in which no sample of a batch affects another."""


class Counted:
    """BatchNorm that can take its statistics over the first samples of a batch only."""

    live = 0
    """How many samples count; 0 means all."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the samples that count, as the batch that they are."""
        if not self.live or not self.training:  # type: ignore[attr-defined]
            return super().forward(x)  # type: ignore[misc,no-any-return]
        out: Tensor = super().forward(x[: self.live])  # type: ignore[misc]
        return torch.cat([out, out.new_zeros(len(x) - self.live, *out.shape[1:])])  # the others are never read


class CountedBatchNorm1d(Counted, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that can count."""


class CountedBatchNorm2d(Counted, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that can count."""


COUNTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: CountedBatchNorm1d,
    nn.BatchNorm2d: CountedBatchNorm2d,
}


def can_be_filled(network: Network) -> bool:
    """Return whether every layer is known to treat samples separately, or is a BatchNorm that can count."""
    leaves = [part for part in network.module.modules() if not list(part.children())]
    return all(type(leaf) in (*SAMPLEWISE, *COUNTED, *COUNTED.values()) for leaf in leaves)


def count_samples_(network: Network) -> None:
    """Make a network's BatchNorm layers able to count; layers and entries stay the same."""
    for part in network.module.modules():
        if type(part) in COUNTED:
            part.__class__ = COUNTED[type(part)]


class Filled(HalfWeights):
    """Makes steps on odd batches, filled up to a width."""

    def __init__(self, network: Network, trained: Tensors, width: int):
        super().__init__(network, trained)
        self.width = width

    def at(self, tensors: Tensors, x: Tensor) -> Output:
        """Run the network with other tensors."""
        with self._counting(len(x)):
            return _first(super().at(tensors, self._filled(x)), len(x), self.width)

    def _filled(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(self.width - len(x), *x.shape[1:])])

    @contextlib.contextmanager
    def _counting(self, live: int) -> Iterator[None]:
        layers = [part for part in self.network.module.modules() if isinstance(part, Counted)]
        for layer in layers:
            layer.live = live
        try:
            yield
        finally:
            for layer in layers:
                layer.live = 0


def _first(out: Output, live: int, width: int) -> Output:
    extras = {name: value[:live] if value.shape[:1] == (width,) else value for name, value in out.extras.items()}
    return Output(out.logits[:live], out.z[:live], extras)
