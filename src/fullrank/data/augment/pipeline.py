"""From stored samples to what a model sees: augmentation and normalisation of whole batches.

Everything here is a function of tensors on any device: no loop over samples, no branch on their values, and
the random numbers come in as an argument. So it gives the same result eagerly, under `vmap` and when traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fullrank.data.augment.autoaugment import AutoAugment, RandAugment
from fullrank.data.augment.constants import constant
from fullrank.data.augment.geometry import Rotate
from fullrank.data.augment.operation import Operation, pick
from fullrank.data.augment.raug import Raug
from fullrank.data.augment.resize import ResizedCrop
from fullrank.data.dataset import DataSet, is_integer
from fullrank.errors import InputError, nearest

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Crop(Operation):
    """A window of the original size out of the image with a border, of zeros or of its own reflection."""

    pad: int
    reflect: bool = False
    draws: ClassVar[int] = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Cut one window per sample; u = (.5, .5) gives the image back."""
        height, width = x.shape[-2:]
        windows = self._bordered(x).unfold(2, height, 1).unfold(3, width, 1)
        sample = torch.arange(x.shape[0], device=x.device)
        return windows[sample, :, self._offset(u[:, 0]), self._offset(u[:, 1])]

    def _offset(self, u: Tensor) -> Tensor:
        return pick(u, 2 * self.pad + 1)

    def _bordered(self, x: Tensor) -> Tensor:
        if not self.reflect:
            return functional.pad(x, (self.pad,) * 4)
        # torch's own reflection does not know uint8
        return x[:, :, self._reflected(x, 2)][:, :, :, self._reflected(x, 3)]

    def _reflected(self, x: Tensor, axis: int) -> Tensor:
        last = x.shape[axis] - 1
        position = torch.arange(-self.pad, last + self.pad + 1, device=x.device)
        return last - (last - position.abs()).abs()


@dataclass(frozen=True)
class Flip(Operation):
    """Left and right exchanged, for half of the samples."""

    draws: ClassVar[int] = 1

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Mirror the samples whose number is below one half."""
        return torch.where(u[:, 0, None, None, None] < 0.5, x.flip(-1), x)


def _crop(argument: str, dataset: DataSet, *, reflect: bool = False) -> Crop:
    height, width = dataset.input_shape[1:]
    side = min(height, width)
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise InputError(f'the border "{argument}" of a crop must be a whole number of pixels, as in "crop:2"')
    pad = int(argument) if argument else min(4, side // 8)
    if pad == 0:
        raise InputError(f'images of {height}×{width} are too small to crop unless you say by how much, as in "crop:1"')
    if reflect and pad >= side:
        raise InputError(f"images of {height}×{width} cannot be reflected over a border of {pad}; at most {side - 1}")
    return Crop(pad, reflect)


def _crop_reflect(argument: str, dataset: DataSet) -> Crop:
    return _crop(argument, dataset, reflect=True)


def _flip(argument: str, dataset: DataSet) -> Flip:
    _reject_argument("flip", argument)
    return Flip()


def _rotate(argument: str, dataset: DataSet) -> Rotate:
    return Rotate.parse(argument)


def _resized_crop(argument: str, dataset: DataSet) -> ResizedCrop:
    _reject_argument("resized-crop", argument)
    return ResizedCrop()


def _autoaugment(argument: str, dataset: DataSet) -> AutoAugment:
    return AutoAugment.parse(argument, *_size_of_pictures("autoaugment", dataset))


def _randaugment(argument: str, dataset: DataSet) -> RandAugment:
    return RandAugment.parse(argument, *_size_of_pictures("randaugment", dataset))


def _raug(argument: str, dataset: DataSet) -> Raug:
    return Raug.parse(argument, *_size_of_pictures("raug", dataset))


def _reject_argument(name: str, argument: str) -> None:
    if argument:
        raise InputError(f'"{name}" takes no number, but "{name}:{argument}" was given')


def _size_of_pictures(name: str, dataset: DataSet) -> tuple[int, int]:
    """Height and width of images that have levels of grey or of red, green and blue."""
    if not dataset.images or dataset.in_channels not in (1, 3):
        raise InputError(f'"{name}" is for 8-bit images of 1 or 3 channels, and {_describe(dataset)}')
    _, height, width = dataset.input_shape
    return height, width


# name -> (what follows the colon, data set) -> operation
OPERATIONS: dict[str, Callable[[str, DataSet], Operation]] = {
    "crop": _crop,
    "crop-reflect": _crop_reflect,
    "flip": _flip,
    "rotate": _rotate,
    "resized-crop": _resized_crop,
    "autoaugment": _autoaugment,
    "randaugment": _randaugment,
    "raug": _raug,
}


@dataclass(frozen=True)
class Pipeline:
    """What happens to a batch before the model: augmentation, division by 255 (uint8 only), normalisation.

    >>> import fullrank.data
    >>> digits = fullrank.data.load_dataset("digits")
    >>> prepare = Pipeline.build(digits, augment=["crop", "flip"])
    >>> batch = digits.train.x[:16]
    >>> training = prepare(batch, torch.rand(16, prepare.draws))
    >>> evaluation = prepare(batch)
    """

    statistics: Statistics | None = None
    operations: tuple[Operation, ...] = ()

    @classmethod
    def build(
        cls,
        dataset: DataSet,
        normalise: str | Mapping[str, Sequence[float]] = "auto",
        augment: str | Sequence[str] = "auto",
    ) -> Pipeline:
        """The pipeline that the `[data]` keys `normalise` and `augment` ask for."""
        return cls(_statistics(dataset, normalise), _operations(dataset, augment))

    @property
    def draws(self) -> int:
        """How many uniform numbers of [0, 1) a training sample needs."""
        return sum(operation.draws for operation in self.operations)

    def place(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Put the constants on a device ahead of time, as must be done before a CUDA graph is captured."""
        for numbers in self.statistics or ():
            _per_channel(numbers, device, _exact(dtype))
        for operation in self.operations:
            operation.place(device)

    def __call__(self, x: Tensor, uniform: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The batch for training, given (N, draws) uniform numbers, or for evaluation, without."""
        if is_integer(x.dtype) and x.dtype != torch.uint8:
            return x
        if uniform is not None:
            x = self._augment(x, uniform)
        if x.dtype != torch.uint8 and self.statistics is None:
            return x.to(dtype)
        exact = _exact(dtype)
        values = x.to(exact)
        if x.dtype == torch.uint8:
            values = values / 255
        if self.statistics is not None:
            mean, std = (_per_channel(numbers, x.device, exact) for numbers in self.statistics)
            values = (values - mean) / std
        return values.to(dtype)

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


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: half precision has too few digits to subtract in, and is only handed over."""
    return torch.promote_types(dtype, torch.float32)


def _per_channel(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Numbers as a (C, 1, 1) tensor."""
    return constant(numbers, lambda: np.array(numbers)[:, None, None], device, dtype)


def _are_images(dataset: DataSet) -> bool:
    return dataset.images or (dataset.train.x.dim() == 4 and dataset.train.x.is_floating_point())


def _describe(dataset: DataSet) -> str:
    return f"samples of {dataset.name} are {dataset.train.x.dtype} of shape {dataset.input_shape}"


def _statistics(dataset: DataSet, normalise: str | Mapping[str, Sequence[float]]) -> Statistics | None:
    if isinstance(normalise, Mapping):
        mean, std = _given_numbers(normalise)
    elif normalise == "none" or (normalise == "auto" and (dataset.mean is None or dataset.std is None)):
        return None
    elif normalise == "auto":
        mean, std = dataset.mean or (), dataset.std or ()
    elif normalise == "half":
        if not dataset.images:
            raise InputError(f'normalise = "half" is for 8-bit images, and {_describe(dataset)}; use "auto" or "none"')
        mean = std = (0.5,) * dataset.in_channels
    else:
        known = nearest(str(normalise), ("auto", "none", "half"))
        raise InputError(f'unknown normalise "{normalise}": {known} (or a table of mean and std)')
    if not _are_images(dataset):
        raise InputError(f"a mean and std per channel need images (N, C, H, W), and {_describe(dataset)}")
    _reject_unusable(mean, std, dataset.in_channels)
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


def _reject_unusable(mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels:
            raise InputError(f"{name} has {len(numbers)} numbers and the images {channels} channels; give one for each")
        for number in numbers:
            if not math.isfinite(number) or (name == "std" and number <= 0):
                raise InputError(f"{name} holds {number}; it must be finite{' and above 0' if name == 'std' else ''}")


def _operations(dataset: DataSet, augment: str | Sequence[str]) -> tuple[Operation, ...]:
    if isinstance(augment, str) and augment not in ("auto", "none"):
        raise InputError(f'augment is "{augment}"; it must be "auto", "none" or a list such as ["crop", "flip"]')
    names = dataset.augment if augment == "auto" else () if augment == "none" else tuple(augment)
    if names and not _are_images(dataset):
        raise InputError(f'"{names[0]}" needs images (N, C, H, W), and {_describe(dataset)}; use augment = "none"')
    return tuple(_operation(text, dataset) for text in names)


def _operation(text: str, dataset: DataSet) -> Operation:
    name, colon, argument = str(text).partition(":")
    if name not in OPERATIONS:
        raise InputError(f'unknown augmentation "{text}": {nearest(name, OPERATIONS)}')
    if colon and not argument:
        raise InputError(f'augmentation "{text}" ends in a colon; a number must follow, or nothing')
    return OPERATIONS[name](argument, dataset)
