"""The library's one training loop: a plan of batches, a step, and what is measured on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


def train(
    step: Step,
    state: State,
    context: Context,
    samples: Samples,
    plan: Plan,
    dtype: torch.dtype,
) -> Report:
    """Run a plan, changing `state` in place."""
    device = samples.index.device
    index = torch.from_numpy(plan.index).to(device)
    draws = torch.from_numpy(plan.draws).to(device) if plan.draws.shape[1] else None
    report = Report(skipped=plan.skipped)
    measured: list[dict[str, Tensor]] = []
    start = 0
    for number, (size, epoch) in enumerate(zip(plan.sizes, plan.epochs, strict=True)):
        interrupt.check()
        window = slice(start, start + size)
        x, y = samples.batch(index[window], draws[window] if draws is not None else None, dtype)
        measured.append(step.advance_(state, context, x, y))
        start += size
        if number + 1 == plan.steps or plan.epochs[number + 1] != epoch:
            report.epochs.append(_summary(measured, _drift(step, state, context)))
            measured = []
    report.steps = plan.steps
    return report


def _drift(step: Step, state: State, context: Context) -> Tensor:
    with torch.no_grad():
        return norm({n: value - context.received[n] for n, value in state.trained.items() if n in step.shared})


def _summary(measured: list[dict[str, Tensor]], drift: Tensor) -> dict[str, float]:
    names = list(measured[0])
    table = torch.stack([torch.stack([row[name].double() for name in names]) for row in measured]).mean(0)
    return {**dict(zip(names, table.tolist(), strict=True)), "drift": float(drift)}
