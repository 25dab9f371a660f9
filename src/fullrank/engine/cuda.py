"""Clients on a CUDA device, their local steps replayed from a captured graph.

A step of a deep network is a thousand short kernels, and launching them from Python takes longer than running them. The
whole step (gather, augmentation, forward, criterion, method terms, backward, corrections, optimiser) is captured once
for each kind of fit and replayed for every full batch of every client; shorter last batches run eagerly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import Refusal
from ..local.loop import Eager, Samples, Stepper
from ..local.step import Context, State, Step
from ..site import Site
from ..trees import Tree, clone, flatten
from .serial import Serial

WARM_UP = 3
"""Eager steps before a capture, in which libraries choose their kernels and allocate their memory."""


class Cuda(Serial):
    """The reference engine with steps that are replayed."""

    def __init__(self, site: Site):
        if site.device.type != "cuda":
            raise Refusal('engine.name = "cuda" needs engine.device = "cuda"')
        super().__init__(site)
        self.captured = Captured()
        site.stepper_of = self.captured.stepper


class Captured:
    """Captured steps by kind of fit; what cannot be captured runs eagerly, and the reason is kept."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Graph | None] = {}
        self.reasons: list[str] = []

    def stepper(self, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype) -> Stepper:
        """For one fit. Terms that a method gives for this fit alone may close over anything: they are not captured."""
        eager = Eager(step, state, context, samples, dtype)
        return eager if step.criterion is not None or step.loss is not None else Replayed(self, eager)

    def graph(self, eager: Eager, rows: Tensor, draws: Tensor | None) -> Graph | None:
        """The graph for a fit like this one and batches like these, captured if it is the first."""
        step, context = eager.step, eager.context
        key = (step.settings, step.side, tuple(eager.state.trained), _shape(context), eager.dtype)
        if key not in self.graphs:
            try:
                self.graphs[key] = Graph(eager, rows, draws)
            except RuntimeError as error:
                self.graphs[key] = None
                self.reasons.append(str(error).splitlines()[0])
        return self.graphs[key]


class Replayed:
    """The steps of one fit: full batches from the graph, the others eagerly on the same tensors."""

    def __init__(self, captured: Captured, eager: Eager):
        self.captured, self.eager = captured, eager
        self.graph: Graph | None = None

    def __call__(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """One step."""
        if len(rows) != self.eager.step.settings.batch_size:
            return (self.graph.eager if self.graph is not None else self.eager)(rows, draws)
        if self.graph is None:
            self.graph = self.captured.graph(self.eager, rows, draws)
            if self.graph is None:
                return self.eager(rows, draws)
            self.graph.take(self.eager.state, self.eager.context)
        return self.graph.replay(rows, draws)

    def finish(self) -> None:
        """The optimiser's memory goes back to the client."""
        if self.graph is not None:
            _copy(self.eager.state.memory, self.graph.eager.state.memory)


class Graph:
    """One captured step, with the tensors that it reads and writes.

    Weights and buffers are the network's own, which every client's fit uses; optimiser and context are copies.
    """

    def __init__(self, eager: Eager, rows: Tensor, draws: Tensor | None):
        state, context = eager.state, eager.context
        self.eager = Eager(
            eager.step,
            State(state.trained, state.rest, state.buffers, clone(state.memory)),
            Context(clone(context.received), clone(context.own), clone(context.sent), context.counts.clone()),
            eager.samples,
            eager.dtype,
        )
        self.rows = rows.clone()
        self.draws = None if draws is None else draws.clone()
        self.graph = torch.cuda.CUDAGraph()
        with _unchanged(self.eager.state):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), _chosen_kernels():
                for _ in range(WARM_UP):
                    self.eager(self.rows, self.draws)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                self.terms = self.eager(self.rows, self.draws)

    def take(self, state: State, context: Context) -> None:
        """Bring another client's optimiser and context to where the graph looks for them."""
        mine = self.eager
        _copy(mine.state.memory, state.memory)
        for part in ("received", "own", "sent"):
            _copy(getattr(mine.context, part), getattr(context, part))
        mine.context.counts.copy_(context.counts)

    def replay(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """One step on a full batch; the values are overwritten by the next."""
        self.rows.copy_(rows)
        if self.draws is not None and draws is not None:
            self.draws.copy_(draws)
        self.graph.replay()
        return self.terms


def _shape(context: Context) -> tuple[Any, ...]:
    trees: tuple[Tree, ...] = (context.received, context.own, context.sent)
    return tuple(tuple((name, t.shape, t.dtype) for name, t in flatten(tree).items()) for tree in trees)


@torch.no_grad()
def _copy(into: Tree, values: Tree) -> None:
    flat, given = flatten(into), flatten(values)
    names = [name for name, tensor in flat.items() if tensor.numel()]
    if names:
        torch._foreach_copy_([flat[name] for name in names], [given[name] for name in names])


@contextmanager
def _unchanged(state: State) -> Iterator[None]:
    """Whatever happens inside to a state's tensors and to the generator is undone."""
    trees: list[Tree] = [state.trained, state.buffers, state.memory]
    saved = [clone(tree) for tree in trees]
    generator = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        for tree, before in zip(trees, saved, strict=True):
            _copy(tree, before)
        torch.cuda.set_rng_state(generator)


@contextmanager
def _chosen_kernels() -> Iterator[None]:
    """cuDNN tries its kernels out: worth it for a shape that is replayed a thousand times."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
