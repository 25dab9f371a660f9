"""The library's only training loop, which runs a step on planned batches and reports what it measures."""

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
    """The samples of a fit: their positions in tensors, and the preparation of inputs.

    Args:
        x: The inputs of all samples that the tensors hold.
        y: Their labels.
        index: The positions of the samples of the fit.
        prepare: Prepares inputs for the model.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    prepare: Pipeline

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, chosen: Tensor, uniform: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Prepare a batch of the samples.

        Args:
            chosen: The positions of the batch's samples among those of the fit.
            uniform: The random numbers of their augmentation; None for no augmentation.
            dtype: The dtype of the inputs.

        Returns:
            The inputs and the labels.
        """
        rows = self.index[chosen]
        return self.prepare(self.x[rows], uniform, dtype), self.y[rows]


@dataclass
class Report:
    """The measurements during a fit."""

    steps: int = 0
    skipped: int = 0
    epochs: list[dict[str, float]] = field(default_factory=list)
    """Per local epoch: the mean of each term and of the gradient's norm over the batches, and the drift at its end."""


class Stepper(Protocol):
    """The protocol of objects that run the steps of one fit: `Eager`, or a faster one of an engine."""

    def __call__(self, rows: Tensor, draws: Tensor | None, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Run steps.

        Args:
            rows: The positions of the samples of all batches, concatenated.
            draws: The random numbers of their augmentation.
            sizes: The size of each batch.

        Returns:
            The mean of each term over the steps.
        """

    def take_rate(self, lr: float) -> None:
        """Set the learning rate of the steps that follow."""

    def finish(self) -> None:
        """Write the result of the last step into the state of the fit, if it is not there yet."""


class Eager:
    """Runs each step in eager mode immediately. It defines what is correct for every other stepper.

    Args:
        step: The step.
        state: The tensors that the step changes.
        context: The tensors that it reads.
        samples: The samples.
        dtype: The dtype of the inputs.
    """

    def __init__(self, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype):
        self.step, self.state, self.context, self.samples, self.dtype = step, state, context, samples, dtype

    def __call__(self, rows: Tensor, draws: Tensor | None, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Run the steps batch by batch."""
        names: list[str] = []
        measured: list[Tensor] = []
        for window in windows(sizes):
            interrupt.check()
            terms = self.one(rows[window], draws[window] if draws is not None else None)
            names = list(terms)
            measured.append(torch.stack(list(terms.values())))
        return dict(zip(names, torch.stack(measured).double().mean(0), strict=True))

    def one(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """Prepare a batch, run the step, and return the value of each term."""
        x = self.samples.prepare(self.samples.x[rows], draws, self.dtype)
        return self.step.advance_(self.state, self.context, x, self.samples.y[rows])

    def take_rate(self, lr: float) -> None:
        """Set the learning rate of the steps that follow."""
        weight = next(iter(self.state.trained.values()))
        self.context = replace(self.context, lr=weight.new_tensor(lr))

    def finish(self) -> None:
        """Do nothing: the state was changed in place."""


def windows(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield consecutive slices of the given sizes."""
    start = 0
    for size in sizes:
        yield slice(start, start + size)
        start += size


StepperOf = Callable[[Step, State, Context, Samples, torch.dtype], Stepper]


@dataclass(frozen=True)
class Fit:
    """A fit that is ready to run: its step, the step's state and context, the samples, and the plan of batches."""

    step: Step
    state: State
    context: Context
    samples: Samples
    plan: Plan
    dtype: torch.dtype
    label: str = ""
    """The label of the fit among those of the client, which also determines its random numbers."""
    fresh: bool = False
    """Whether the fit has a separate optimiser."""

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """Return what the batches are made of.

        Returns:
            The positions of the samples of all batches, concatenated, and the random numbers for their augmentation.
        """
        index, plan = self.samples.index, self.plan
        rows = index[torch.from_numpy(plan.index).to(index.device)]
        return rows, torch.from_numpy(plan.draws).to(rows.device) if plan.draws.shape[1] else None


def train(fit: Fit, stepper_of: StepperOf = Eager) -> Report:
    """Run a fit, which changes its state in place.

    Args:
        fit: The fit.
        stepper_of: Creates what runs the steps.

    Returns:
        What was measured.
    """
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
        away = drift(fit.step, fit.state, fit.context).double().to(rows.device)  # 0 on the CPU if nothing is shared
        measured.append({**means, DRIFT: away})
        start = epoch.stop
    stepper.finish()
    # Read at the end, because reading synchronises with the device.
    values = torch.stack([torch.stack(list(terms.values())) for terms in measured]).tolist() if measured else []
    return report_of(fit.plan, list(measured[0]) if measured else [], values)


def _step_by_step(
    stepper: Stepper, rows: Tensor, draws: Tensor | None, sizes: Sequence[int], rates: Iterator[float]
) -> dict[str, Tensor]:
    """Run an epoch in which the learning rate changes with every step."""
    found: list[dict[str, Tensor]] = []
    for window, size in zip(windows(sizes), sizes, strict=True):
        stepper.take_rate(next(rates))
        found.append(stepper(rows[window], draws[window] if draws is not None else None, [size]))
    return {name: torch.stack([terms[name] for terms in found]).mean(0) for name in found[0]}


def epochs_of(plan: Plan) -> list[list[int]]:
    """Return the sizes of each local epoch's batches; every epoch has at least one."""
    pairs = zip(plan.epochs, plan.sizes, strict=True)
    return [[size for _, size in batches] for _, batches in itertools.groupby(pairs, key=lambda pair: pair[0])]


def report_of(plan: Plan, names: Sequence[str], epochs: Sequence[Sequence[float]]) -> Report:
    """Create the report of a fit.

    Args:
        plan: The plan of the fit.
        names: The names of the measurements.
        epochs: Their values in each epoch.
    """
    return Report(plan.steps, plan.skipped, [dict(zip(names, row, strict=True)) for row in epochs])


DRIFT = "drift"
"""The name under which a report has the distance between the shared entries and those received."""
NO_TERMS = ("grad_norm", DRIFT)
"""The measurements of a local epoch that are not terms of the loss."""


def drift(step: Step, state: State, context: Context) -> Tensor:
    """Return the distance between the shared entries and those received.

    Args:
        step: The step.
        state: The state of the fit, with the current entries.
        context: The context of the fit, with the received entries.
    """
    with torch.no_grad():
        if alike := flats(part_of(state.trained, step.shared), context.w0):
            return norm({"": alike[0].base - alike[1].base})
        current = {**state.rest, **state.trained}
        return norm({name: current[name] - context.received[name] for name in sorted(step.shared)})
