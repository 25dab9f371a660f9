"""Predictions of a trained model for samples in the form of its run's data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fullrank.data.augment.pipeline import Pipeline
from fullrank.data.columns import Column
from fullrank.data.dataset import Split, is_integer
from fullrank.data.sources.memory import as_tensor, channels_first
from fullrank.engine.machine import threads
from fullrank.errors import InputError
from fullrank.federated.site import Stage
from fullrank.methods import Composition
from fullrank.metrics.evaluate import at_once

if TYPE_CHECKING:
    from fullrank.runs.result import Run


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model together with the preparation of samples that its run recorded."""

    module: nn.Module
    prepare: Pipeline
    shape: tuple[int, ...]
    """The shape of one sample."""
    stored: torch.dtype
    """The dtype of the samples of the run's data: uint8 for images."""
    classes: tuple[str, ...]
    threads: int
    """The number of threads of torch's operations."""
    notes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    """The columns of the run's table, whose features the samples are, if it was trained on one."""

    @classmethod
    def of(cls, run: Run, client: int | None = None, stage: Stage | None = None) -> Predictor:
        """Return the predictor of a run's model.

        Args:
            run: The run.
            client: The number of a client, for the client's own model; None for the global model.
            stage: The stage of the client's model.

        Raises:
            InputError: If the run has no such model.
        """
        from fullrank.runs.result import chosen_model

        module = chosen_model(run, client, stage)
        parts = run._without_data()
        data = parts.federation.data
        return cls(
            module,
            parts.federation.pipeline,
            data.input_shape,
            data.train.x.dtype,
            data.classes,
            run.experiment.engine.threads,
            (note,) if client is not None and (note := note_on(parts.composition)) else (),
            data.columns,
        )

    def __call__(self, x: object) -> Tensor:
        """Return the probability of each class, (N, C), for samples (N, ...).

        Raises:
            InputError: If the samples do not have the shape or the dtype of the run's data.
        """
        return self.scores(x).softmax(1)

    def scores(self, x: object) -> Tensor:
        """Return the scores of the classes (logits), (N, C), for samples (N, ...), on the CPU.

        Raises:
            InputError: If the samples do not have the shape or the dtype of the run's data.
        """
        samples = self._checked(as_tensor("x", x))
        with threads(self.threads), torch.no_grad():
            return torch.cat([self.module(batch).cpu() for batch in self._batches(samples)])

    def _batches(self, x: Tensor) -> Iterator[Tensor]:
        some = next(self.module.parameters(), x)
        dtype = some.dtype if some.is_floating_point() else torch.get_default_dtype()
        for part in torch.split(x, at_once(some.device)):
            yield self.prepare(part.to(some.device), None, dtype)

    def _checked(self, x: Tensor) -> Tensor:
        """Check samples, and return them in the layout and with the dtype of the run's data."""
        if x.dtype == torch.uint16 and x.dim() and len(x):
            x = Split(channels_first(x), torch.zeros(len(x), dtype=torch.int64)).x
        if not self._alike(x.dtype):
            hint = ": 8-bit images with values 0 to 255" if self.stored == torch.uint8 else ""
            raise InputError(
                f"x is {_name(x.dtype)}, but the run was trained on samples of {_name(self.stored)}{hint}; "
                "give samples as they are in the run's data; predict prepares them"
            )
        if tuple(x.shape) == self.shape:
            raise InputError(f"x has the shape {_shown(x.shape)} of one sample; give a batch of samples, as in x[None]")
        if not x.dim() or not len(x):
            raise InputError(f"x has the shape {_shown(x.shape)} and no samples; its first axis must be the samples")
        labels = torch.zeros(len(x), dtype=torch.int64)
        x = Split(channels_first(x), labels, missing=bool(self.columns)).x
        if tuple(x.shape[1:]) != self.shape:
            raise InputError(
                f"samples of x have the shape {_shown(x.shape[1:])}, but the run was trained on samples of shape "
                f"{_shown(self.shape)}; resize or rearrange them"
            )
        return x if self.stored == torch.uint8 else x.to(self.stored)

    def _alike(self, dtype: torch.dtype) -> bool:
        if self.stored == torch.uint8 or dtype == torch.uint8:
            return dtype == self.stored
        return (is_integer(dtype) and is_integer(self.stored)) or (
            dtype.is_floating_point and self.stored.is_floating_point
        )


def note_on(composition: Composition) -> str:
    """Return a note if clients predict with more than the module, and no `personalise` hook adds that to the module."""
    predicting = composition.defined("predict")
    if not predicting or composition.defined("personalise"):
        return ""
    return f"{predicting[0].name} lets a client predict by more than these logits"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "()"
