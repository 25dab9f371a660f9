"""Batches that are smaller than the others, padded so that they have the same shape.

Libraries such as cuDNN take seconds to plan for every new shape. A smaller batch is therefore padded with copies of its
last sample. Layers that treat samples separately are unaffected, BatchNorm computes its statistics over the real
samples only, and everything after the network sees only these. No gradient flows into the copies.
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
"""The types of layers in which no sample of a batch affects another."""


class Counted:
    """A mixin for BatchNorm layers whose statistics can be limited to the first samples of a batch."""

    live = 0
    """The number of samples that the statistics are computed over; 0 means all."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the first `live` samples as a batch; the output of the others is zero."""
        if not self.live or not self.training:  # type: ignore[attr-defined]
            return super().forward(x)  # type: ignore[misc,no-any-return]
        out: Tensor = super().forward(x[: self.live])  # type: ignore[misc]
        return torch.cat(
            [out, out.new_zeros(len(x) - self.live, *out.shape[1:])]
        )  # the output of the copies is not used


class CountedBatchNorm1d(Counted, nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose statistics can be limited to the first samples of a batch."""


class CountedBatchNorm2d(Counted, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose statistics can be limited to the first samples of a batch."""


COUNTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: CountedBatchNorm1d,
    nn.BatchNorm2d: CountedBatchNorm2d,
}


def can_be_padded(network: Network) -> bool:
    """Return whether batches can be padded: every layer of the network treats samples separately or is a BatchNorm."""
    leaves = [part for part in network.module.modules() if not list(part.children())]
    return all(type(leaf) in (*SAMPLEWISE, *COUNTED, *COUNTED.values()) for leaf in leaves)


def count_samples_(network: Network) -> None:
    """Replace BatchNorm layers by layers whose statistics can be limited; the names of layers and entries stay the
    same."""
    for part in network.module.modules():
        if type(part) in COUNTED:
            part.__class__ = COUNTED[type(part)]


class PaddedBatches(HalfWeights):
    """A backend that pads every batch to a fixed number of samples.

    Args:
        network: The network.
        trained: The entries that are trained.
        width: The number of samples.
    """

    def __init__(self, network: Network, trained: Tensors, width: int):
        super().__init__(network, trained)
        self.width = width

    def at(self, tensors: Tensors, x: Tensor) -> Output:
        """Run the network on the padded batch with the given entries, and return the output of the real samples."""
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
