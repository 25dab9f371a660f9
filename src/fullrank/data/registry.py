"""The registry of partitions, and the values of keys of [data] that go with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.lazy import OnFirstUse
from fullrank.plugins import FILES, Registry

if TYPE_CHECKING:
    from fullrank.data.partition import IndexArray

PARTITIONS: Registry[Callable[..., Sequence[IndexArray]]] = Registry(
    "partitions",
    "data.partition",
    OnFirstUse(
        {
            "iid": "fullrank.data.partition:iid",
            "dirichlet": "fullrank.data.partition:dirichlet",
            "pathological": "fullrank.data.partition:pathological",
            "class-disjoint": "fullrank.data.partition:class_disjoint",
            "domain": "fullrank.data.partition:by_domain",
            "natural": "fullrank.data.partition:natural_clients",
        }
    ),
    or_else="the path of a saved partition.safetensors or of a .csv",
)
"""The functions that `data.partition` can name.

A function is called with those of these arguments that its signature names: `labels`, `domains`, `groups` and
`natural`, the natural client, arrays with one number per sample; the keys of [data], of which `clients`, `seed` and
`alpha` are some; and the user's own options, `data.partition_options`. It returns a list with one array of sample
indices per client. A function that takes `validation` keeps back the validation share itself and returns it in a
:class:`fullrank.data.partition.Partition`; for others the share is drawn beforehand, and they see the rest of the
samples, numbered from 0.

>>> import numpy as np
>>> def halves(labels, clients, seed, stop=1.0):
...     order = np.random.default_rng(seed).permutation(len(labels))
...     return np.array_split(order[: int(stop * len(labels))], clients)
>>> [part.tolist() for part in halves([0, 0, 1, 1], clients=2, seed=0, stop=0.5)]
[[2], [0]]
"""
COLUMNS = ("labels", "domains", "groups", "natural")
"""The arrays with one number per sample that a partition may take."""
SITE_PARTITIONS = {"domain": "domain", "natural": "client"}
"""The partitions whose clients are the values of a column of the data, and the column."""
BY_LABEL = ("iid", "dirichlet", "pathological", "class-disjoint")
"""The library's partitions that only use the labels of samples, and so can divide groups in the same way."""
VARIANTS: dict[str, OnFirstUse[Callable[..., Any]]] = {
    "dirichlet": OnFirstUse(
        {
            "balanced": "fullrank.data.partition:_dirichlet_balanced",
            "plain": "fullrank.data.partition:_dirichlet_plain",
            "fedetf": "fullrank.data.partition:_dirichlet_fedetf",
            "fedrepopt": "fullrank.data.partition:_dirichlet_fedrepopt",
        }
    ),
    "pathological": OnFirstUse(
        {
            "balanced": "fullrank.data.partition:_pathological_balanced",
            "niid-bench": "fullrank.data.partition:_pathological_niid_bench",
            "shards": "fullrank.data.partition:_pathological_shards",
        }
    ),
}
"""The values of `data.variant` that a partition knows, with the functions that divide the samples."""


def is_file(partition: str) -> bool:
    """Return whether the value of `data.partition` is the path of a file.

    >>> is_file("mine.csv"), is_file("runs/a/partition.safetensors"), is_file("dirichlet")
    (True, True, False)
    """
    return partition.endswith(FILES["data.partition"])
