"""Local steps that are recorded once for each kind of fit and replayed for every batch of every client.

A recorded step reads and writes tensors that stay where they are: the network's own entries, and copies of optimiser
and context in `StaticBuffers`. The rows of many batches are copied at once, and the step itself counts which batch is
next, so that the host only has to start the replays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fullrank.local import interrupt
from fullrank.local.loop import Eager, Samples, Stepper
from fullrank.local.step import Bound, Context, State, Step
from fullrank.methods._method import Method
from fullrank.trees import Flat, FlatLayout, Tensors, Tree, clone, copy_, outline, part_of, pointwise

AHEAD = 128
"""The number of batches whose rows are copied at once."""
WORTH_RECORDING = 4
"""The number of steps on batches of one size from which on recording is worth its cost."""

BackendOf: TypeAlias = Callable[[Step, State, int], Bound]
"""A function that returns the backend of steps on batches of a given size."""


class CaptureBackend(Protocol):
    """The protocol of objects that record steps, and keep other threads from disturbing the recording."""

    def record(self, step: Callable[[], None], changed: list[Tree]) -> Callable[[], None]:
        """Record a step.

        Args:
            step: The step.
            changed: The trees that the step changes, which have their former values afterwards.

        Returns:
            The replay of the step.
        """

    def eagerly(self, work: Callable[[], Any]) -> Any:
        """Call a function that uses the network outside a recorded step, and return its result."""

    def released(self) -> AbstractContextManager[None]:
        """Let other threads record steps inside the block, in which this thread only replays and waits."""

    def wait(self) -> None:
        """Wait until the device has finished the work of this thread."""


class StepRecorder:
    """Records the steps of one slot, one for each kind of fit and batch size.

    Steps that cannot be recorded run eagerly.

    Args:
        backend: Records the steps.
        backend_of: Returns the backend of a step.
    """

    def __init__(self, backend: CaptureBackend, backend_of: BackendOf):
        self.backend = backend
        self.backend_of = backend_of
        self.static_buffers: dict[Hashable, StaticBuffers] = {}
        self.reasons: list[str] = []
        """The reasons why steps ran eagerly."""

    def stepper(self, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype) -> Stepper:
        """Return the stepper of a fit, which replays recorded steps if there are any.

        Args:
            step: The step.
            state: The tensors that the step changes.
            context: The tensors that it reads.
            samples: The samples.
            dtype: The dtype of the inputs.
        """
        own = _key_of(step.criterion), _key_of(step.loss)
        if None in own:
            self._say(
                "a term that a method passes to one fit closes over an object; keep its values in the client's state"
            )
            return Eager(step, state, context, samples, dtype)
        # The learning rate and the length of a fit are no part of a step.
        settings = dataclasses.replace(step.settings, lr=0.0, moving=None, epochs=0, steps=0)
        key = (settings, step.side, step.stats, step.space, own, tuple(state.trained), _shape(context), dtype)
        if key not in self.static_buffers:
            self.static_buffers[key] = StaticBuffers(self, step, state, context, samples, dtype)
        buffers = self.static_buffers[key]
        buffers.take(state, context, samples, step.settings.lr)
        return Replayed(buffers, state)

    def recorded(self, step: Callable[[], None], changed: list[Tree]) -> Callable[[], None] | None:
        """Return the replay of a step, or None if it cannot be recorded."""
        try:
            return self.backend.record(step, changed)
        except RuntimeError as error:
            self._say(str(error).strip().splitlines()[0])
            return None

    def _say(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


class StaticBuffers:
    """The tensors on which the steps of one kind of fit are recorded, and these steps by batch size.

    Args:
        recorder: Records the steps.
        step: The step.
        state: The state of the first client, whose entries are those of the network.
        context: The context of the first client.
        samples: The samples of the first client.
        dtype: The dtype of the inputs.
    """

    def __init__(
        self, recorder: StepRecorder, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype
    ):
        self.recorder = recorder
        self.step, self.samples, self.dtype = step, samples, dtype
        # In the memory order of the entries, which the kernel that updates all of them at once needs.
        self.state = State(state.trained, state.rest, state.buffers, pointwise(state.memory, torch.clone))
        self.context = _static(context, state, step)
        self.seen: dict[int, int] = {}
        self.recordings: dict[int, RecordedStep | None] = {}
        self._eager: dict[int, Eager] = {}

    def take(self, state: State, context: Context, samples: Samples, lr: float) -> None:
        """Copy a client's optimiser memory and context into the tensors that the recorded steps read.

        Args:
            state: The client's state.
            context: The client's context.
            samples: The client's samples.
            lr: The learning rate.
        """
        mine = self.context
        copy_(self.state.memory, state.memory)
        copy_(mine.received, context.received)  # w0 is a view of some of these
        for part in ("own", "sent", "fixed"):
            copy_(getattr(mine, part), getattr(context, part))
        mine.counts.copy_(context.counts)
        assert mine.lr is not None
        mine.lr.fill_(lr)
        self.samples = samples

    def give(self, state: State) -> None:
        """Copy the optimiser's memory back into the client's tensors."""
        copy_(state.memory, self.state.memory)

    def recording(self, size: int, steps: int) -> RecordedStep | None:
        """Return the recorded step for a batch size, or None if recording is not worth its cost.

        Args:
            size: The batch size.
            steps: The number of steps of this size that are to be run.
        """
        self.seen[size] = self.seen.get(size, 0) + steps
        if size not in self.recordings and self.seen[size] >= WORTH_RECORDING:
            made = RecordedStep(self.eager(size), size, self.recorder.backend)
            self.recordings[size] = made if made.prepare(self.recorder) else None
        return self.recordings.get(size)

    def eager(self, size: int) -> Eager:
        """Return a stepper on the same tensors that runs steps of a batch size eagerly."""
        if size not in self._eager:
            backend = self.recorder.backend_of(self.step, self.state, size)
            step = dataclasses.replace(self.step, backend=backend)
            self._eager[size] = Eager(step, self.state, self.context, self.samples, self.dtype)
        return self._eager[size]


class RecordedStep:
    """A recorded step on batches of one size, with the tensors for their rows and for the terms that it measures.

    Args:
        eager: Runs the step eagerly.
        size: The batch size.
        backend: Records the step.
    """

    def __init__(self, eager: Eager, size: int, backend: CaptureBackend):
        self.eager, self.size, self.backend = eager, size, backend
        samples = eager.samples
        device = samples.index.device
        self.rows = torch.zeros(AHEAD, size, dtype=torch.int64, device=device)
        self.draws = torch.zeros(AHEAD, size, samples.prepare.draws, device=device) if samples.prepare.draws else None
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64, device=device)
        self.replay: Callable[[], None] | None = None

    def prepare(self, recorder: StepRecorder) -> bool:
        """Record the step and return whether that succeeded."""
        state = self.eager.state
        changed: list[Tree] = [state.trained, state.buffers, state.memory, {"at": self.at}]
        self.replay = recorder.recorded(self.step, changed)
        self.sums.zero_()
        return self.replay is not None

    def step(self) -> None:
        """Run the step on the next rows, and add its terms to the sums."""
        rows = self.rows.index_select(0, self.at).view(-1)
        draws = None if self.draws is None else self.draws.index_select(0, self.at).view(self.size, -1)
        terms = self.eager.one(rows, draws)
        if not self.names:
            self.names = list(terms)
            self.sums = torch.zeros(len(terms), dtype=torch.float64, device=self.sums.device)
        self.sums.add_(torch.stack(list(terms.values())))
        self.at.add_(1)

    def run(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """Replay the step on several batches.

        Args:
            rows: The positions of the samples of each batch, of shape (steps, size).
            draws: The random numbers of their augmentation.

        Returns:
            The sum of each term.
        """
        assert self.replay is not None
        self.sums.zero_()
        for start in range(0, len(rows), AHEAD):
            some = rows[start : start + AHEAD]
            self.rows[: len(some)].copy_(some)
            if self.draws is not None and draws is not None:
                self.draws[: len(some)].copy_(draws[start : start + AHEAD])
            self.at.zero_()
            with self.backend.released():
                for _ in range(len(some)):
                    interrupt.check()
                    self.replay()
        return dict(zip(self.names, self.sums.clone(), strict=True))


class Replayed:
    """Runs the steps of one fit by replaying recorded ones.

    Args:
        buffers: The tensors of this kind of fit.
        state: The client's state.
    """

    def __init__(self, buffers: StaticBuffers, state: State):
        self.buffers, self.state = buffers, state

    def __call__(self, rows: Tensor, draws: Tensor | None, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Run the steps, grouped by equal batch sizes, and return the mean of each term."""
        totals: list[dict[str, Tensor]] = []
        start = 0
        for size, alike in itertools.groupby(sizes):
            steps = len(list(alike))
            span = slice(start, start + steps * size)
            totals.append(self._span(rows[span], draws[span] if draws is not None else None, size, steps))
            start = span.stop
        return {name: torch.stack([part[name] for part in totals]).sum(0) / len(sizes) for name in totals[0]}

    def _span(self, rows: Tensor, draws: Tensor | None, size: int, steps: int) -> dict[str, Tensor]:
        if (recording := self.buffers.recording(size, steps)) is not None:
            shaped = draws.view(steps, size, -1) if draws is not None else None
            return recording.run(rows.view(steps, size), shaped)
        eager = self.buffers.eager(size)
        means: dict[str, Tensor] = self.buffers.recorder.backend.eagerly(lambda: eager(rows, draws, [size] * steps))
        return {name: mean * steps for name, mean in means.items()}

    def take_rate(self, lr: float) -> None:
        """Write the learning rate into the tensor from which the recorded steps read it."""
        assert self.buffers.context.lr is not None
        self.buffers.context.lr.fill_(lr)

    def finish(self) -> None:
        """Wait for the last step, and copy the optimiser's memory back to the client."""
        backend = self.buffers.recorder.backend
        with backend.released():
            backend.wait()
        self.buffers.give(self.state)


def _static(context: Context, state: State, step: Step) -> Context:
    """Return a copy of a context, whose tensors recorded steps read at fixed addresses.

    Trees with the names and shapes of the trained or the shared entries become vectors with the same layout, so that a
    correction of the gradient is one operation for any number of entries.
    """
    near = part_of(state.trained, step.shared)
    shared = near.layout if isinstance(near, Flat) and len(near) == len(step.shared) else None
    trained = state.trained.layout if isinstance(state.trained, Flat) else None
    w0: Tensors = Flat.copied(context.received, shared) if shared is not None else {}
    weight = next(iter(state.trained.values()))
    return Context(
        {**clone({name: tensor for name, tensor in context.received.items() if name not in w0}), **w0},
        _laid_out(context.own, shared),
        _laid_out(context.sent, shared),
        context.counts.clone(),
        w0,
        torch.zeros((), dtype=weight.dtype, device=weight.device),
        _laid_out(context.fixed, trained),
    )


def _laid_out(tree: Mapping[str, Any], layout: FlatLayout | None) -> Tree:
    """Return a copy of a tree in which every subtree with a layout's names and shapes is one vector."""
    if layout is None:
        return clone(tree)
    if tree and layout.fits(tree) and len({tensor.dtype for tensor in tree.values()}) == 1:
        return Flat.copied(tree, layout)
    return {
        name: _laid_out(value, layout) if isinstance(value, Mapping) else value.detach().clone()
        for name, value in tree.items()
    }


def _shape(context: Context) -> tuple[Any, ...]:
    return tuple(tuple(outline(tree).items()) for tree in (context.own, context.sent, context.fixed))


def _key_of(term: Any) -> Hashable:
    """Return a key by which a term that a method passes to one fit can be recognised, or None if there is none.

    Two functions are the same term if they have the same code and close over equal methods and plain values.
    """
    if term is None:
        return ()
    bound = getattr(term, "__self__", None)
    function = getattr(term, "__func__", term)
    code = getattr(function, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held = [*cells, *(getattr(function, "__defaults__", None) or ()), *([bound] if bound is not None else [])]
    if code is None or not all(isinstance(value, (Method, int, float, str, bool, type(None))) for value in held):
        return None
    return (code, *held)
