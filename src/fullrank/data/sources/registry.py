"""The registry of data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fullrank.data.dataset import DataSet
from fullrank.data.sources.cifar import CIFAR10, CIFAR100
from fullrank.data.sources.digits import digits
from fullrank.data.sources.domains import domainnet, domainnet345, office_caltech10
from fullrank.data.sources.folder import folder
from fullrank.data.sources.idx import EMNIST, EMNIST_BYCLASS, EMNIST_LETTERS, FASHION_MNIST, MNIST
from fullrank.data.sources.leaf import femnist
from fullrank.data.sources.npz import from_npz
from fullrank.data.sources.skin_lesions import ham10000, isic2019
from fullrank.data.sources.stored import Stored
from fullrank.data.sources.svhn import SVHN
from fullrank.data.sources.table import from_file
from fullrank.data.sources.tiny_imagenet import tiny_imagenet
from fullrank.plugins import Registry

DATA_SETS: Registry[Callable[..., Any]] = Registry(
    "datasets",
    "data.name",
    {
        "digits": digits,
        **{
            stored.name: stored
            for stored in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN, EMNIST, EMNIST_BYCLASS, EMNIST_LETTERS)
        },
        "tiny-imagenet": tiny_imagenet,
        "femnist": femnist,
        "office-caltech10": office_caltech10,
        "domainnet": domainnet,
        "domainnet-345": domainnet345,
        "ham10000": ham10000,
        "isic2019": isic2019,
        "folder": folder,
    },
    or_else="the path of an .npz, .csv or .parquet file",
)
"""The data sets that `data.name` can name: functions of `root` and `seed` that return what `load_dataset` accepts.

>>> DATA_SETS.names()[:2]
('digits', 'mnist')
"""


FORMATS: Mapping[str, Callable[..., DataSet]] = {".npz": from_npz, ".csv": from_file, ".parquet": from_file}
"""The files that `data.name` can be the path of, by suffix: functions of the path, the seed of the test split and the
number of classes; further arguments are the keys of [data] that they can use."""


def stored() -> dict[str, Stored]:
    """Return the data sets whose files can be downloaded and checked, by name."""
    return {name: found for name, found in DATA_SETS.own.items() if isinstance(found, Stored)}
