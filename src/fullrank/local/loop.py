"""The library's one training loop: a plan of batches, a step, and what is measured on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fullrank.local import interrupt
from fullrank.local.plan import Plan
from fullrank.local.step import Context, State, Step
from fullrank.trees import flats, norm, part_of

if TYPE_CHECKING:
    from fullrank.data import Pipeline


@dataclass(frozen=True)
class Samples:
    """What a fit trains on: positions in a data set's tensors, and how its inputs are prepared."""

    x: Tensor
    y: Tensor
    index: Tensor
    prepare: Pipeline

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, chosen: Tensor, uniform: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some of the samples; `uniform` drives their augmentation."""
        rows = self.index[chosen]
        return self.prepare(self.x[rows], uniform, dtype), self.y[rows]


@dataclass
class Report:
    """What one fit did."""

    steps: int = 0
    skipped: int = 0
    epochs: list[dict[str, float]] = field(default_factory=list)
    """Per local epoch: the mean of each term and of the gradient's norm over batches, and the drift at its end."""


class Stepper(Protocol):
    """Makes the steps of one fit: eagerly, or in whatever way an engine knows."""

    def __call__(self, rows: Tensor, draws: Tensor | None, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Steps on rows of the data set, in batches of these sizes, augmented by these numbers.

        Returns the mean of each term over the steps.
        """

    def take_rate(self, lr: float) -> None:
        """From now on another learning rate."""

    def finish(self) -> None:
        """After the last step: the fit's state is where the caller looks for it."""


class Eager:
    """The reference: each step when it is asked for."""

    def __init__(self, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype):
        self.step, self.state, self.context, self.samples, self.dtype = step, state, context, samples, dtype

    def __call__(self, rows: Tensor, draws: Tensor | None, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Batch by batch."""
        names: list[str] = []
        measured: list[Tensor] = []
        for window in windows(sizes):
            interrupt.check()
            terms = self.one(rows[window], draws[window] if draws is not None else None)
            names = list(terms)
            measured.append(torch.stack(list(terms.values())))
        return dict(zip(names, torch.stack(measured).double().mean(0), strict=True))

    def one(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """Gather, prepare, step; each term's value."""
        x = self.samples.prepare(self.samples.x[rows], draws, self.dtype)
        return self.step.advance_(self.state, self.context, x, self.samples.y[rows])

    def take_rate(self, lr: float) -> None:
        """From now on another learning rate."""
        weight = next(iter(self.state.trained.values()))
        self.context = replace(self.context, lr=weight.new_tensor(lr))

    def finish(self) -> None:
        """Everything is in place."""


def windows(sizes: Sequence[int]) -> Iterator[slice]:
    """Consecutive pieces of these sizes."""
    start = 0
    for size in sizes:
        yield slice(start, start + size)
        start += size


StepperOf = Callable[[Step, State, Context, Samples, torch.dtype], Stepper]


@dataclass(frozen=True)
class Fit:
    """One fit, ready to be run: its step, what that changes and looks at, its samples, and their batches."""

    step: Step
    state: State
    context: Context
    samples: Samples
    plan: Plan
    dtype: torch.dtype
    label: str = ""
    """Names the fit among the client's, and with it the random numbers that it draws."""
    fresh: bool = False
    """Whether it has an optimiser of its own."""

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """Positions in the data set of all batches in a row, and the random numbers of their augmentation."""
        index, plan = self.samples.index, self.plan
        rows = index[torch.from_numpy(plan.index).to(index.device)]
        return rows, torch.from_numpy(plan.draws).to(rows.device) if plan.draws.shape[1] else None


def train(fit: Fit, stepper_of: StepperOf = Eager) -> Report:
    """Run a fit, changing its state in place."""
    stepper = stepper_of(fit.step, fit.state, fit.context, fit.samples, fit.dtype)
    rows, draws = fit.rows()
    rates = iter(fit.step.settings.rates(fit.plan.steps))
    measured: list[dict[str, Tensor]] = []
    start = 0
    for sizes in epochs_of(fit.plan):
        epoch = slice(start, start + sum(sizes))
        if fit.step.settings.moving is None:
            means = stepper(rows[epoch], draws[epoch] if draws is not None else None, sizes)
        else:
            means = _step_by_step(stepper, rows[epoch], draws[epoch] if draws is not None else None, sizes, rates)
        away = drift(fit.step, fit.state, fit.context).double().to(rows.device)  # where nothing is shared, a CPU's 0
        measured.append({**means, DRIFT: away})
        start = epoch.stop
    stepper.finish()
    # Looked at when all is done: a device would stand still after every epoch otherwise.
    values = torch.stack([torch.stack(list(terms.values())) for terms in measured]).tolist() if measured else []
    return report_of(fit.plan, list(measured[0]) if measured else [], values)


def _step_by_step(
    stepper: Stepper, rows: Tensor, draws: Tensor | None, sizes: Sequence[int], rates: Iterator[float]
) -> dict[str, Tensor]:
    """An epoch whose every step has a learning rate of its own."""
    found: list[dict[str, Tensor]] = []
    for window, size in zip(windows(sizes), sizes, strict=True):
        stepper.take_rate(next(rates))
        found.append(stepper(rows[window], draws[window] if draws is not None else None, [size]))
    return {name: torch.stack([terms[name] for terms in found]).mean(0) for name in found[0]}


def epochs_of(plan: Plan) -> list[list[int]]:
    """The sizes of each local epoch's batches; no epoch is without one."""
    pairs = zip(plan.epochs, plan.sizes, strict=True)
    return [[size for _, size in batches] for _, batches in itertools.groupby(pairs, key=lambda pair: pair[0])]


def report_of(plan: Plan, names: Sequence[str], epochs: Sequence[Sequence[float]]) -> Report:
    """What a fit did, from the names of what was measured and its values in each epoch."""
    return Report(plan.steps, plan.skipped, [dict(zip(names, row, strict=True)) for row in epochs])


DRIFT = "drift"
"""Under which name a report has the distance between the shared entries and those received."""


def drift(step: Step, state: State, context: Context) -> Tensor:
    """How far the shared entries are from those received."""
    with torch.no_grad():
        if alike := flats(part_of(state.trained, step.shared), context.w0):
            return norm({"": alike[0].base - alike[1].base})
        current = {**state.rest, **state.trained}
        return norm({name: current[name] - context.received[name] for name in sorted(step.shared)})
