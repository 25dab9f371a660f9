"""The registry of data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fullrank.data.sources.cifar import CIFAR10, CIFAR100
from fullrank.data.sources.digits import digits
from fullrank.data.sources.folder import folder
from fullrank.data.sources.idx import FASHION_MNIST, MNIST
from fullrank.data.sources.stored import Stored
from fullrank.data.sources.tiny_imagenet import tiny_imagenet
from fullrank.plugins import Registry

DATA_SETS: Registry[Callable[..., Any]] = Registry(
    "datasets",
    "data.name",
    {
        "digits": digits,
        **{stored.name: stored for stored in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)},
        "tiny-imagenet": tiny_imagenet,
        "folder": folder,
    },
    or_else="the path of an .npz file",
)
"""The data sets that `data.name` can name: functions of `root` and `seed` that return what `load_dataset` accepts.

>>> DATA_SETS.names()[:2]
('digits', 'mnist')
"""


def stored() -> dict[str, Stored]:
    """Return the data sets whose files can be downloaded and checked, by name."""
    return {name: found for name, found in DATA_SETS.own.items() if isinstance(found, Stored)}
