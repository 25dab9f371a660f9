"""Models that prepare their inputs, so that a program passes samples in the form of the run's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fullrank.errors import InputError

Inputs = Literal["raw", "prepared"]
INPUTS: tuple[Inputs, ...] = ("raw", "prepared")
"""The inputs of an exported model: samples in the form of the run's data, or samples that a program has prepared."""


class WithPreparation(nn.Module):
    """A model and the preparation of its inputs: the window in the middle, division by 255 (uint8 only), normalisation.

    The features of a table are standardised in float64, and a missing value (NaN) then becomes 0.

    Args:
        model: The model, which takes prepared inputs.
        dtype: The dtype of the samples.
        mean: The mean of the inputs, per channel or feature.
        std: Their standard deviation.
        crop: Height and width of the window in the middle of an image that the model sees; None for the whole image.
        table: Whether samples are the features of a table.

    >>> model = WithPreparation(nn.Flatten(), torch.uint8, mean=[0.5], std=[0.25])
    >>> model(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[-2.,  2.]])
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        crop: Sequence[int] | None = None,
        table: bool = False,
    ):
        super().__init__()
        self.model = model
        self.dtype = dtype
        """The dtype of the samples."""
        self.crop = crop
        """Height and width of the window in the middle of an image that the model sees; None for the whole image."""
        self.table = table
        for name, numbers in (("mean", mean), ("std", std)):
            constant = (
                None if numbers is None else torch.tensor(numbers, dtype=torch.float64 if table else torch.float32)
            )
            shaped = constant if constant is None or table else constant[:, None, None]
            self.register_buffer(name, shaped, persistent=False)

    @classmethod
    def described(cls, model: nn.Module, facts: Mapping[str, Any]) -> WithPreparation:
        """Return the model with the preparation that the table "input" of a model.json describes."""
        return cls(
            model,
            getattr(torch, facts["dtype"]),
            facts["mean"],
            facts["std"],
            facts["cropped_to"],
            bool(facts.get("columns")),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes (N, C) for samples (N, ...).

        Raises:
            InputError: If the samples do not have the expected dtype.
        """
        if x.dtype != self.dtype:
            name, given = (str(dtype).removeprefix("torch.") for dtype in (self.dtype, x.dtype))
            pixels = " with values 0 to 255" if self.dtype == torch.uint8 else ""
            raise InputError(f"the model takes {name}{pixels} and normalises them, but x is {given}")
        if self.crop is not None:
            top, left = (x.shape[2] - self.crop[0]) // 2, (x.shape[3] - self.crop[1]) // 2
            x = x[:, :, top : top + self.crop[0], left : left + self.crop[1]]
        if x.dtype == torch.uint8:
            x = x.to(torch.float32) / 255
        if isinstance(self.mean, Tensor) and isinstance(self.std, Tensor):
            x = (x - self.mean) / self.std
        if self.table:
            x = torch.where(torch.isnan(x), torch.zeros_like(x), x).to(torch.float32)
        result: Tensor = self.model(x)
        return result


def bare(module: nn.Module) -> nn.Module:
    """Return the network without the preparation of its inputs."""
    return module.model if isinstance(module, WithPreparation) else module


def description(facts: Mapping[str, Any]) -> str:
    """Describe the inputs of a model in a sentence.

    Args:
        facts: The table "input" of its model.json.
    """
    shape = f"({', '.join(['N', *map(str, facts['shape'])])})"
    if facts["takes"] == "raw" and facts["dtype"] == "uint8":
        return f"8-bit images {shape} with values 0 to 255 in uint8, for any N; the model normalises them itself"
    if facts.get("columns") and facts["takes"] == "raw":
        return (
            f"features {shape} in float64 of the columns of a table, encoded as columns says and NaN where a number is "
            "missing, for any N; the model standardises them itself"
        )
    what = f"{facts['dtype']} samples {shape} for any N"
    steps = [f"cropped to {facts['cropped_to']} in the middle"] if facts["cropped_to"] else []
    steps += ["divided by 255"] if facts["divide_by"] != 1 else []
    steps += [f"normalised per channel by mean {facts['mean']} and std {facts['std']}"] if facts["mean"] else []
    if facts["takes"] == "raw":
        return f"{what}, as the training data had them" + ("; the model normalises them itself" if steps else "")
    return f"{what}" + (f", {' and '.join(steps)} by the program" if steps else ", as the training data had them")
