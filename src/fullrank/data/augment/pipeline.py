"""The preparation of batches: crops and flips, and the pipeline that applies augmentations and normalises.

Everything here is a function of tensors on any device, without loops over samples or branches on their values, and
with its random numbers as an argument. So the result is the same eagerly, under `vmap` and when traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fullrank.data.augment.constants import constant
from fullrank.data.augment.operation import Operation, describe, pick, reject_arguments
from fullrank.data.augment.registry import AUGMENTATIONS, is_import_path
from fullrank.data.dataset import DataSet, is_integer
from fullrank.errors import InputError, nearest
from fullrank.plugins import called

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Crop(Operation):
    """Crop a random window of the original size from the image, which is padded with zeros or by reflection."""

    pad: int
    reflect: bool = False
    draws: ClassVar[int] = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Crop one window per sample; u = (0.5, 0.5) returns the original image."""
        height, width = x.shape[-2:]
        windows = self._bordered(x).unfold(2, height, 1).unfold(3, width, 1)
        sample = torch.arange(x.shape[0], device=x.device)
        return windows[sample, :, self._offset(u[:, 0]), self._offset(u[:, 1])]

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet, *, reflect: bool = False) -> Crop:
        """Create the operation from the padding in pixels, by default an eighth of the image, but at most 4."""
        height, width = dataset.input_shape[1:]
        side = min(height, width)
        if arguments and not (arguments.isdecimal() and int(arguments) > 0):
            raise InputError(f'the border "{arguments}" of a crop must be a whole number of pixels, as in "crop:2"')
        pad = int(arguments) if arguments else min(4, side // 8)
        if pad == 0:
            raise InputError(
                f'images of {height}×{width} are too small to crop by default; give a number of pixels, as in "crop:1"'
            )
        if reflect and pad >= side:
            raise InputError(
                f"images of {height}×{width} cannot be reflected over a border of {pad}; at most {side - 1}"
            )
        return cls(pad, reflect)

    def _offset(self, u: Tensor) -> Tensor:
        return pick(u, 2 * self.pad + 1)

    def _bordered(self, x: Tensor) -> Tensor:
        if not self.reflect:
            return functional.pad(x, (self.pad,) * 4)
        # torch's reflection padding does not support uint8
        return x[:, :, self._reflected(x, 2)][:, :, :, self._reflected(x, 3)]

    def _reflected(self, x: Tensor, axis: int) -> Tensor:
        last = x.shape[axis] - 1
        position = torch.arange(-self.pad, last + self.pad + 1, device=x.device)
        return last - (last - position.abs()).abs()


@dataclass(frozen=True)
class RandomCrop(Operation):
    """Crop a random square window from the image; the model is evaluated on the window in the middle."""

    side: int
    draws: ClassVar[int] = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Crop one window per sample."""
        windows = x.unfold(2, self.side, 1).unfold(3, self.side, 1)
        top, left = (pick(u[:, k], windows.shape[k + 2]) for k in (0, 1))
        return windows[torch.arange(x.shape[0], device=x.device), :, top, left]

    def crop(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the window."""
        return self.side, self.side

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> RandomCrop:
        """Create the operation from the side of the window in pixels."""
        height, width = dataset.input_shape[1:]
        if not (arguments.isdecimal() and int(arguments) > 0):
            raise InputError(
                f'the side "{arguments}" of a random crop must be a number of pixels, as in "random-crop:200"'
            )
        if int(arguments) > min(height, width):
            raise InputError(
                f"a random crop of {arguments}×{arguments} pixels does not fit into images of {height}×{width}; give a "
                "smaller one, or a larger data.size"
            )
        return cls(int(arguments))


@dataclass(frozen=True)
class Flip(Operation):
    """Flip half of the samples horizontally."""

    draws: ClassVar[int] = 1

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Flip the samples whose random number is below one half."""
        return torch.where(u[:, 0, None, None, None] < 0.5, x.flip(-1), x)

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> Flip:
        """Create the operation, which takes no arguments."""
        reject_arguments("flip", arguments)
        return cls()


reflected_crop = partial(Crop.parse, reflect=True)
"""A crop from the image padded by reflection."""


@dataclass(frozen=True)
class Pipeline:
    """Prepare a batch for the model: augmentation, division by 255 (uint8 only), normalisation.

    Whole numbers that are not 8-bit, such as words, stay as they are. A missing value of a table (NaN) becomes 0, which
    after normalisation is the mean.

    >>> import fullrank.data
    >>> digits = fullrank.data.load_dataset("digits")
    >>> prepare = Pipeline.build(digits, augment=["crop", "flip"])
    >>> batch = digits.train.x[:16]
    >>> training = prepare(batch, torch.rand(16, prepare.draws))
    >>> evaluation = prepare(batch)
    """

    statistics: Statistics | None = None
    operations: tuple[Operation, ...] = ()
    crop: tuple[int, int] | None = None
    """Height and width of the window that an operation leaves of an image, which the model is built for. In evaluation
    it is the one in the middle."""

    @classmethod
    def build(
        cls,
        dataset: DataSet,
        normalise: str | Mapping[str, Sequence[float]] = "auto",
        augment: str | Sequence[str] = "auto",
    ) -> Pipeline:
        """Build the pipeline that the keys `normalise` and `augment` of [data] describe.

        Args:
            dataset: The data set.
            normalise: The value of `data.normalise`.
            augment: The value of `data.augment`.

        Raises:
            InputError: If a value is invalid, or does not fit the data set.
        """
        operations, crop = _operations(dataset, augment)
        return cls(_statistics(dataset, normalise), operations, crop)

    def shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a prepared sample, given that of a stored one."""
        return tuple(input_shape) if self.crop is None else (*input_shape[:-2], *self.crop)

    @property
    def draws(self) -> int:
        """The number of uniform numbers of [0, 1) that a training sample needs."""
        return sum(operation.draws for operation in self.operations)

    def place(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Copy the constants to a device, which must be done before a CUDA graph is captured.

        Args:
            device: The device.
            dtype: The dtype of the prepared batches.
        """
        for numbers in self.statistics or ():
            _per_channel(numbers, device, _exact(dtype))
            _per_feature(numbers, device, torch.float64)
        for operation in self.operations:
            operation.place(device)

    def __call__(self, x: Tensor, uniform: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Prepare a batch.

        Args:
            x: Samples as the data set stores them.
            uniform: Uniform random numbers of [0, 1), of shape (N, draws), for training; None for evaluation.
            dtype: The dtype of the prepared batch, unless samples are whole numbers that are no images.

        Raises:
            InputError: If the random numbers have another shape.
        """
        if is_integer(x.dtype) and x.dtype != torch.uint8:
            return x
        if uniform is not None:
            x = self._augment(x, uniform)
        elif self.crop is not None:
            x = _middle(x, *self.crop)
        if x.dtype != torch.uint8 and self.statistics is None:
            return x.to(dtype)
        if x.dim() == 2 and x.is_floating_point():
            return self._of_table(x).to(dtype)
        exact = _exact(dtype)
        values = x.to(exact)
        if x.dtype == torch.uint8:
            values = values / 255
        if self.statistics is not None:
            mean, std = (_per_channel(numbers, x.device, exact) for numbers in self.statistics)
            values = (values - mean) / std
        return values.to(dtype)

    def _of_table(self, x: Tensor) -> Tensor:
        """Return the standardised features (N, F) of a table, in the precision in which it is stored."""
        mean, std = (_per_feature(numbers, x.device, x.dtype) for numbers in self.statistics or ())
        values = (x - mean) / std
        return torch.where(values.isnan(), torch.zeros_like(values), values)

    def _augment(self, x: Tensor, uniform: Tensor) -> Tensor:
        if tuple(uniform.shape) != (x.shape[0], self.draws):
            raise InputError(
                f"uniform has shape {tuple(uniform.shape)}; for {x.shape[0]} samples that need {self.draws}"
                f" numbers each it must be ({x.shape[0]}, {self.draws})"
            )
        used = 0
        for operation in self.operations:
            x = operation.apply(x, uniform[:, used : used + operation.draws])
            used += operation.draws
        return x


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    """Return the window in the middle of images (N, C, H, W)."""
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the computation, since half precision has too few digits for a subtraction."""
    return torch.promote_types(dtype, torch.float32)


def _per_channel(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return numbers as a (C, 1, 1) tensor."""
    return constant(numbers, lambda: np.array(numbers)[:, None, None], device, dtype)


def _per_feature(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return numbers as an (F,) tensor."""
    return constant((numbers, "features"), lambda: np.array(numbers), device, dtype)


def _are_images(dataset: DataSet) -> bool:
    return dataset.images or (dataset.train.x.dim() == 4 and dataset.train.x.is_floating_point())


def _statistics(dataset: DataSet, normalise: str | Mapping[str, Sequence[float]]) -> Statistics | None:
    if isinstance(normalise, Mapping):
        mean, std = _given_numbers(normalise)
    elif dataset.columns and normalise in ("auto", "none"):
        # missing values become 0 also without; the statistics of "auto" follow from the clients' parts
        mean, std = (0.0,) * dataset.input_shape[0], (1.0,) * dataset.input_shape[0]
    elif normalise == "none" or (normalise == "auto" and (dataset.mean is None or dataset.std is None)):
        return None
    elif normalise == "auto":
        mean, std = dataset.mean or (), dataset.std or ()
    elif normalise == "half":
        if not dataset.images:
            raise InputError(f'normalise = "half" is for 8-bit images, and {describe(dataset)}; use "auto" or "none"')
        mean = std = (0.5,) * dataset.in_channels
    else:
        known = nearest(str(normalise), ("auto", "none", "half"))
        raise InputError(f'unknown normalise "{normalise}": {known} (or a table of mean and std)')
    if not _are_images(dataset) and not dataset.columns:
        raise InputError(f"a mean and std per channel need images (N, C, H, W), and {describe(dataset)}")
    what = ("the table", "features") if dataset.columns else ("the images", "channels")
    _reject_unusable(mean, std, dataset.input_shape[0] if dataset.columns else dataset.in_channels, *what)
    return mean, std


def _given_numbers(normalise: Mapping[str, Sequence[float]]) -> Statistics:
    if set(normalise) != {"mean", "std"}:
        raise InputError(
            f"normalise has the keys {', '.join(sorted(normalise)) or '(none)'}; it must have mean and std"
        )
    try:
        return tuple(map(float, normalise["mean"])), tuple(map(float, normalise["std"]))
    except (TypeError, ValueError):
        raise InputError("mean and std of normalise must be lists of numbers, one per channel") from None


def _reject_unusable(mean: tuple[float, ...], std: tuple[float, ...], count: int, what: str, unit: str) -> None:
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != count:
            raise InputError(f"{name} has {len(numbers)} numbers and {what} {count} {unit}; give one for each")
        for number in numbers:
            if not math.isfinite(number) or (name == "std" and number <= 0):
                raise InputError(f"{name} holds {number}; it must be finite{' and above 0' if name == 'std' else ''}")


def _operations(dataset: DataSet, augment: str | Sequence[str]) -> tuple[tuple[Operation, ...], tuple[int, int] | None]:
    """Return the operations, each made for the images that the one before leaves, and the window that all leave."""
    if isinstance(augment, str) and augment not in ("auto", "none"):
        raise InputError(f'augment is "{augment}"; it must be "auto", "none" or a list such as ["crop", "flip"]')
    names = dataset.augment if augment == "auto" else () if augment == "none" else tuple(augment)
    if names and not _are_images(dataset):
        raise InputError(f'"{names[0]}" needs images (N, C, H, W), and {describe(dataset)}; use augment = "none"')
    operations: list[Operation] = []
    crop = None
    for text in names:
        operation = _operation(text, dataset)
        stored = dataset.input_shape[1:]
        left = operation.crop(*stored)
        if left != stored:
            crop = left
            some = dataset.train.take(torch.arange(min(TRIED, len(dataset.train))))
            dataset = replace(dataset, train=replace(some, x=_middle(some.x, *left)), test=None, file=None)
        operations.append(operation)
    return tuple(operations), crop


def _operation(text: str, dataset: DataSet) -> Operation:
    text = str(text)
    name, arguments = text, ""
    if is_import_path(text):
        module, attribute, *rest = text.split(":", 2)
        name, arguments = f"{module}:{attribute}", "".join(rest)
    else:
        name, _, arguments = text.partition(":")
    found = AUGMENTATIONS.find(name)
    if text.endswith(":"):
        raise InputError(f'augmentation "{text}" ends in a colon; a number must follow, or nothing')
    if name in AUGMENTATIONS.own:
        return _made(found, arguments, dataset)
    try:
        tried: Operation = called(
            _made_and_tried, text, "data.augment", entry=found, arguments=arguments, dataset=dataset
        )
        return tried
    except InputError as error:
        raise InputError(f'data.augment = "{text}": {error}') from None


def _made(entry: Callable[[str, DataSet], Operation] | type[Operation], arguments: str, dataset: DataSet) -> Operation:
    if isinstance(entry, type) and issubclass(entry, Operation):
        return entry.parse(arguments, dataset)
    return entry(arguments, dataset)  # type: ignore[call-arg, return-value]


TRIED = 8
"""The number of samples on which an augmentation from outside the library is tried before a run."""


def _made_and_tried(
    entry: Callable[[str, DataSet], Operation] | type[Operation], arguments: str, dataset: DataSet
) -> Operation:
    """Make an operation from outside the library and reject it if it does not fulfil the contract of its base class."""
    operation = _made(entry, arguments, dataset)
    if not isinstance(operation, Operation):
        raise InputError(f"it gave a {type(operation).__name__}; it must be or return a fullrank.data.Operation")
    if isinstance(operation.draws, bool) or not isinstance(operation.draws, int) or operation.draws < 1:
        raise InputError(f"its draws are {operation.draws!r}; they must be a whole number of at least 1")
    x = dataset.train.x[:TRIED]
    uniform = torch.rand(len(x), operation.draws, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    once, again = (operation.apply(x, uniform) for _ in range(2))
    height, width = operation.crop(*x.shape[2:])
    shape = (*x.shape[:2], height, width)
    if not isinstance(once, Tensor) or once.shape != shape or once.dtype != x.dtype:
        kind = f"{once.dtype} of shape {tuple(once.shape)}" if isinstance(once, Tensor) else type(once).__name__
        must = "it must keep both" if shape == x.shape else f"with its crop it must be of shape {shape}"
        raise InputError(f"apply gave {kind} for {x.dtype} of shape {tuple(x.shape)}; {must}")
    if not (1 <= height <= x.shape[2] and 1 <= width <= x.shape[3]):
        raise InputError(f"its crop of {height}×{width} does not fit into images of {x.shape[2]}×{x.shape[3]}")
    if not torch.equal(x, before):
        raise InputError("apply wrote into the batch that it got; it must return a new tensor")
    if not torch.equal(once, again):
        raise InputError("apply gave two results for the same numbers; all randomness must come from its argument u")
    first = operation.apply(x[:1], uniform[:1])
    rounding = 1.0 if x.dtype == torch.uint8 else 1e-4
    if not torch.allclose(once[:1].double(), first.double(), rtol=1e-4, atol=rounding):
        raise InputError("apply changed a sample differently in a larger batch; samples must not depend on each other")
    return operation
