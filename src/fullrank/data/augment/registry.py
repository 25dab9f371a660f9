"""The registry of augmentations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fullrank.lazy import OnFirstUse
from fullrank.plugins import Registry

if TYPE_CHECKING:
    from fullrank.data.augment.operation import Operation
    from fullrank.data.dataset import DataSet

AUGMENTATIONS: Registry[Callable[[str, DataSet], Operation] | type[Operation]] = Registry(
    "augmentations",
    "data.augment",
    OnFirstUse(
        {
            "crop": "fullrank.data.augment.pipeline:Crop",
            "crop-reflect": "fullrank.data.augment.pipeline:reflected_crop",
            "random-crop": "fullrank.data.augment.pipeline:RandomCrop",
            "flip": "fullrank.data.augment.pipeline:Flip",
            "rotate": "fullrank.data.augment.geometry:Rotate",
            "resized-crop": "fullrank.data.augment.resize:ResizedCrop",
            "autoaugment": "fullrank.data.augment.autoaugment:AutoAugment",
            "randaugment": "fullrank.data.augment.autoaugment:RandAugment",
            "raug": "fullrank.data.augment.raug:Raug",
        }
    ),
    "Class",
    or_else='"none" in place of the list',
)
"""The augmentations that `data.augment` can name.

An entry is a subclass of `Operation`, or a function of the arguments, the text after the colon, and the data set that
returns an operation.
"""


def is_import_path(text: str) -> bool:
    """Return whether an augmentation is named by an import path, not by a name of the registry with arguments.

    >>> is_import_path("crop:4"), is_import_path("mine:Cutout"), is_import_path("mine:Cutout:8")
    (False, True, True)
    """
    first, _, rest = text.partition(":")
    named = first in AUGMENTATIONS.own or not rest.partition(":")[0].isidentifier()
    return not named and first not in AUGMENTATIONS.names()
