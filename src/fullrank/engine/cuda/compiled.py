"""A network's training forward, compiled once for all slots.

Only the network is compiled: the terms of a method run uncompiled in the same recorded step. Its entries are arguments,
so that one compilation serves every slot.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.engine.cuda.mixed_precision import HalfWeights
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Tensors


class Forward:
    """A compiled function of entries and inputs that returns an output. Buffers among the entries change in place.

    Args:
        network: The network.
        stats: The mode of the norm layers.
        backend: The backend of `torch.compile`.
    """

    def __init__(self, network: Network, stats: str, backend: str = "inductor"):
        self.template = copy.deepcopy(network)
        self.template.flat = None
        self.template.set_mode(train=True, stats=stats)
        self.counters = _without_counters_(self.template)
        self.template.settle()  # the compiler cannot trace the search for entries
        self.function: Any = torch.compile(self._plain, dynamic=False, fullgraph=True, backend=backend)

    def _plain(self, tensors: Tensors, x: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        out = self.template.at(tensors, x)
        return out.logits, out.z, out.extras

    def __call__(self, entries: Tensors, x: Tensor) -> Output:
        """Run the compiled network. BatchNorm's counters of batches change in place, as the other buffers do."""
        counted = set(self.counters)
        out = self.function({name: value for name, value in entries.items() if name not in counted}, x)
        if counted:
            torch._foreach_add_([entries[name] for name in self.counters], 1)
        return Output(*out)


class Compiled(HalfWeights):
    """A backend that runs the compiled network in every step.

    Args:
        network: The network.
        trained: The entries that are trained.
        forward: The compiled network.
    """

    def __init__(self, network: Network, trained: Tensors, forward: Forward):
        super().__init__(network, trained)
        self.forward = forward

    def run(self, entries: Tensors, x: Tensor) -> Output:
        """Run the compiled network with the given entries."""
        return self.forward(entries, x)


def _without_counters_(network: Network) -> list[str]:
    """Remove BatchNorm's counters of batches from a network if nothing depends on them, and return their names.

    Counting takes one kernel per layer, which would be a tenth of the kernels of a step.
    """
    found = []
    for name, part in network.module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is not None and part.training:
            part.num_batches_tracked = None
            found.append(f"{name}.num_batches_tracked" if name else "num_batches_tracked")
    return found
