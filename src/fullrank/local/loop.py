"""The library's one training loop: a plan of batches, a step, and what is measured on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .. import interrupt
from ..trees import norm
from .plan import Plan
from .step import Context, State, Step

if TYPE_CHECKING:
    from ..data import Pipeline


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

    def __call__(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """One step on these rows of the data set, augmented by these numbers; each term's value."""

    def finish(self) -> None:
        """After the last step: the fit's state is where the caller looks for it."""


class Eager:
    """The reference: each step when it is asked for."""

    def __init__(self, step: Step, state: State, context: Context, samples: Samples, dtype: torch.dtype):
        self.step, self.state, self.context, self.samples, self.dtype = step, state, context, samples, dtype

    def __call__(self, rows: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
        """Gather, prepare, step."""
        x = self.samples.prepare(self.samples.x[rows], draws, self.dtype)
        return self.step.advance_(self.state, self.context, x, self.samples.y[rows])

    def finish(self) -> None:
        """Everything is in place."""


StepperOf = Callable[[Step, State, Context, Samples, torch.dtype], Stepper]


def train(
    step: Step,
    state: State,
    context: Context,
    samples: Samples,
    plan: Plan,
    dtype: torch.dtype,
    stepper_of: StepperOf = Eager,
) -> Report:
    """Run a plan, changing `state` in place."""
    stepper = stepper_of(step, state, context, samples, dtype)
    rows = samples.index[torch.from_numpy(plan.index).to(samples.index.device)]
    draws = torch.from_numpy(plan.draws).to(rows.device) if plan.draws.shape[1] else None
    report = Report(skipped=plan.skipped)
    names: list[str] = []
    measured: list[Tensor] = []
    start = 0
    for number, (size, epoch) in enumerate(zip(plan.sizes, plan.epochs, strict=True)):
        interrupt.check()
        window = slice(start, start + size)
        terms = stepper(rows[window], draws[window] if draws is not None else None)
        names = list(terms)
        measured.append(torch.stack([value.double() for value in terms.values()]))
        start += size
        if number + 1 == plan.steps or plan.epochs[number + 1] != epoch:
            means = torch.stack(measured).mean(0).tolist()
            drift = float(_drift(step, state, context))
            report.epochs.append({**dict(zip(names, means, strict=True)), "drift": drift})
            measured = []
    stepper.finish()
    report.steps = plan.steps
    return report


def _drift(step: Step, state: State, context: Context) -> Tensor:
    with torch.no_grad():
        current = {**state.rest, **state.trained}
        return norm({name: current[name] - context.received[name] for name in sorted(step.shared)})
