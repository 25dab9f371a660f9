"""The registry of data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fullrank.lazy import OnFirstUse
from fullrank.plugins import Registry

if TYPE_CHECKING:
    from fullrank.data.dataset import DataSet
    from fullrank.data.sources.stored import Stored

DATA_SETS: Registry[Callable[..., Any]] = Registry(
    "datasets",
    "data.name",
    OnFirstUse(
        {
            "digits": "fullrank.data.sources.digits:digits",
            "mnist": "fullrank.data.sources.idx:MNIST",
            "fashion-mnist": "fullrank.data.sources.idx:FASHION_MNIST",
            "cifar10": "fullrank.data.sources.cifar:CIFAR10",
            "cifar100": "fullrank.data.sources.cifar:CIFAR100",
            "svhn": "fullrank.data.sources.svhn:SVHN",
            "emnist": "fullrank.data.sources.idx:EMNIST",
            "emnist-byclass": "fullrank.data.sources.idx:EMNIST_BYCLASS",
            "emnist-letters": "fullrank.data.sources.idx:EMNIST_LETTERS",
            "tiny-imagenet": "fullrank.data.sources.tiny_imagenet:tiny_imagenet",
            "femnist": "fullrank.data.sources.leaf:femnist",
            "office-caltech10": "fullrank.data.sources.domains:office_caltech10",
            "domainnet": "fullrank.data.sources.domains:domainnet",
            "domainnet-345": "fullrank.data.sources.domains:domainnet345",
            "ham10000": "fullrank.data.sources.skin_lesions:ham10000",
            "isic2019": "fullrank.data.sources.skin_lesions:isic2019",
            "folder": "fullrank.data.sources.folder:folder",
        }
    ),
    or_else="the path of an .npz, .csv or .parquet file",
)
"""The data sets that `data.name` can name: functions of `root` and `seed` that return what `load_dataset` accepts.

>>> DATA_SETS.names()[:2]
('digits', 'mnist')
"""


FORMATS: OnFirstUse[Callable[..., DataSet]] = OnFirstUse(
    {
        ".npz": "fullrank.data.sources.npz:from_npz",
        ".csv": "fullrank.data.sources.table:from_file",
        ".parquet": "fullrank.data.sources.table:from_file",
    }
)
"""The files that `data.name` can be the path of, by suffix: functions of the path, the seed of the test split and the
number of classes; further arguments are the keys of [data] that they can use."""


def stored() -> dict[str, Stored]:
    """Return the data sets whose files can be downloaded and checked, by name."""
    from fullrank.data.sources.stored import Stored

    return {name: found for name, found in DATA_SETS.own.items() if isinstance(found, Stored)}
