"""The base class of augmentations."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fullrank.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

    from fullrank.data.dataset import DataSet


class Operation(ABC):
    """One random change of a batch of images, driven by uniform random numbers that are passed to it.

    A subclass is a frozen dataclass, since equal operations must be equal values, and has two members:

    - `draws`, the number of uniform numbers that it needs per sample, at least 1;
    - `apply(x, u)`, which returns the changed images.

    It must not draw random numbers itself: those in `u` come from the plan of the local training, so a run can be
    repeated and resumed, and is the same with every engine. It must work on whole batches, without branches on values,
    for a GPU. Its fields are the arguments after the colon in `data.augment = ["mine:Cutout:8"]`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Cutout(Operation):
    ...     side: int = 4
    ...     draws = 2
    ...
    ...     def apply(self, x, u):
    ...         rows, columns = (torch.arange(size) for size in x.shape[-2:])
    ...         top, left = (pick(u[:, k], x.shape[k + 2]) for k in (0, 1))
    ...         tall = (rows >= top[:, None]) & (rows < top[:, None] + self.side)
    ...         wide = (columns >= left[:, None]) & (columns < left[:, None] + self.side)
    ...         return x.masked_fill((tall[:, :, None] & wide[:, None, :])[:, None], 0)
    >>> Cutout(2).apply(torch.ones(1, 1, 3, 3), torch.tensor([[0.5, 0.9]]))
    tensor([[[[1., 1., 1.],
              [1., 1., 0.],
              [1., 1., 0.]]]])
    """

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of uniform numbers of [0, 1) that a sample needs."""

    @abstractmethod
    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        """Change a batch of images.

        Args:
            x: Images of shape (N, C, H, W).
            u: Uniform random numbers of [0, 1), of shape (N, draws).

        Returns:
            New images of the same dtype and shape, or of the shape that `crop` gives.
        """

    def crop(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the images that `apply` returns, by default those of its input.

        An operation that returns smaller images lets the model see the window of that size in the middle of each image
        when it is evaluated.

        Args:
            height: The height of the images that `apply` receives.
            width: Their width.

        Returns:
            The height and the width.
        """
        return height, width

    def place(self, device: torch.device) -> None:  # noqa: B027 - most operations have no constants
        """Put constants on a device before training, as a CUDA graph needs them."""

    @classmethod
    def parse(cls, arguments: str, dataset: DataSet) -> Self:
        """Create the operation from the text after the colon, by default the values of its fields, joined by commas.

        Args:
            arguments: The text; empty if there is no colon.
            dataset: The data set, on whose shape the operation may depend.

        Raises:
            InputError: If the operation does not take these arguments, or cannot be applied to the data set.
        """
        declared: dict[str, dataclasses.Field[Any]] = getattr(cls, "__dataclass_fields__", {})
        kinds = get_type_hints(cls)
        fields = [name for name, field in declared.items() if field.init and "ClassVar" not in str(kinds[name])]
        words = arguments.split(",") if arguments else []
        if len(words) > len(fields):
            raise InputError(f'"{arguments}": there are {len(words)} arguments, and {cls.__name__} takes {len(fields)}')
        values: dict[str, Any] = {}
        for name, word in zip(fields, words, strict=False):
            try:
                values[name] = TypeAdapter(kinds[name]).validate_strings(word.strip())
            except ValidationError as error:
                raise InputError(f'{name} = "{word}": {error.errors()[0]["msg"].lower()}') from None
        return cls(**values)


def reject_arguments(name: str, arguments: str) -> None:
    """Reject the arguments of an operation that takes none.

    Args:
        name: The name of the operation.
        arguments: The text after the colon.

    Raises:
        InputError: If the text is not empty.
    """
    if arguments:
        raise InputError(f'"{name}" takes no number, but "{name}:{arguments}" was given')


def size_of_pictures(name: str, dataset: DataSet) -> tuple[int, int]:
    """Return the size of a data set's images, which must be grey or have the channels red, green and blue.

    Args:
        name: The name of the operation that needs such images.
        dataset: The data set.

    Returns:
        The height and the width.

    Raises:
        InputError: If the samples are not such images.
    """
    if not dataset.images or dataset.in_channels not in (1, 3):
        raise InputError(f'"{name}" is for 8-bit images of 1 or 3 channels, and {describe(dataset)}')
    _, height, width = dataset.input_shape
    return height, width


def describe(dataset: DataSet) -> str:
    """Return a clause of an error message that says what the samples of a data set are."""
    return f"samples of {dataset.name} are {dataset.train.x.dtype} of shape {dataset.input_shape}"


def pick(u: Tensor, count: int) -> Tensor:
    """Return a whole number from 0 to count − 1, each equally likely, for every uniform random number."""
    # a number just below 1 may have been rounded to 1 in a shorter dtype
    return (u * count).floor().long().clamp(max=count - 1)
