"""Partitions by name: calls with the arguments that they take, and checks of what they return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.groups import members
from fullrank.data.partition import IndexArray, Partition
from fullrank.data.registry import BY_LABEL, COLUMNS, PARTITIONS, SITE_PARTITIONS
from fullrank.errors import InputError, nearest
from fullrank.plugins import called


def call_partition(
    name: str, data: Mapping[str, Any], keys: Mapping[str, Any], options: Mapping[str, Any]
) -> Partition:
    """Call the partition of this name with the arguments that its signature names, and check what it returns.

    With groups, the partitions of `BY_LABEL` divide groups in place of samples: each group is one sample with
    the label that all its samples have.

    Args:
        name: A name of the registry, or `package.module:function`.
        data: `labels`, and `domains`, `groups` and `natural` (clients) where the data have them, one number per sample.
        keys: The keys of [data], which partitions take as arguments of the same names.
        options: Further arguments, `data.partition_options`.

    Returns:
        One array per client, and `validation` if the partition keeps back the validation share itself.

    Raises:
        InputError: If an argument is missing or an option unknown, if the arrays are not a partition, or if they would
            put samples of one group at several clients.
    """
    if data.get("groups") is None or name in SITE_PARTITIONS:
        return _called(name, data, keys, options)
    if name in BY_LABEL:
        return _called_for_groups(name, data, keys, options)
    if not takes(name, "groups"):
        raise InputError(
            f'the data have groups (samples that belong together, such as those of one patient), and data.partition = "'
            f'{name}" would put samples of one group on both sides, because the function does not take groups; let it '
            "take groups, give a file with the client of each sample, or leave the groups out of the data"
        )
    found = _called(name, data, keys, options)
    _reject_split_groups(name, np.asarray(data["groups"]), found)
    return found


def _called_for_groups(
    name: str, data: Mapping[str, Any], keys: Mapping[str, Any], options: Mapping[str, Any]
) -> Partition:
    """Call a partition with one label for each group, and return the samples of the groups."""
    where = f'data.partition = "{name}"'
    if name == "class-disjoint" and keys.get("passes", 1) > 1:
        raise InputError(
            "data.passes = 2: each sample would be at several clients, but the data have groups, which are at one "
            "client each; set data.passes = 1"
        )
    together = members(np.asarray(data["groups"]))
    labels = np.asarray(data["labels"])
    if name != "iid" and not (name == "dirichlet" and keys["alpha"] == math.inf):
        mixed = [samples for samples in together if (labels[samples] != labels[samples[0]]).any()]
        if mixed:
            raise InputError(
                f"{where}: divides each class, but {len(mixed)} of {len(together)} groups (samples that belong "
                'together, such as those of one patient) have several classes; take "iid", a partition by site '
                '("domain" or "natural"), or one of your own'
            )
    try:
        found = _called(name, {"labels": labels[[samples[0] for samples in together]]}, keys, options)
    except InputError as error:
        balanced = name == "dirichlet" and keys["variant"] == "balanced"
        advice = '; data.variant = "plain" has no minimum' if balanced else ""
        raise InputError(
            f"{error} (the data have groups: each of the {len(together)} groups counts as one sample{advice})"
        ) from None
    return Partition(np.concatenate([np.empty(0, np.int64), *(together[k] for k in part)]) for part in found)


def _reject_split_groups(name: str, groups: npt.NDArray[Any], found: Partition) -> None:
    """Reject a partition that was given the groups and still puts samples of one group on two sides."""
    sides = [(f"at client {client}", part) for client, part in enumerate(found)]
    owner: dict[int, str] = {}
    for side, part in [*sides, *(("in the validation share", part) for part in found.validation)]:
        for group in np.unique(groups[part]).tolist():
            if owner.setdefault(group, side) != side:
                raise InputError(
                    f'data.partition = "{name}": samples of group {group} are {owner[group]} and {side}; all samples '
                    "of a group must be at one client, or in the validation share"
                )


def _called(name: str, data: Mapping[str, Any], keys: Mapping[str, Any], options: Mapping[str, Any]) -> Partition:
    function = PARTITIONS.find(name)
    known = {**keys, **{column: data.get(column) for column in COLUMNS}}
    check_options(name, known, options)
    arguments = {**options}
    for parameter in _parameters(function):
        if known.get(parameter.name) is not None:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.name not in options and parameter.default is parameter.empty:
            if parameter.name in COLUMNS:
                raise InputError(f'data.partition = "{name}": the data set has no {parameter.name}')
            raise InputError(
                f'data.partition_options.{parameter.name} must be given: the function "{name}" has no default for it; '
                f"without options it may take {', '.join(COLUMNS)} and the keys of [data]"
            )
    found = called(function, name, "data.partition", **arguments)
    if "validation" in arguments and not isinstance(found, Partition):
        raise InputError(
            f'data.partition = "{name}": it takes validation, so it must return a fullrank.data.partition.Partition'
        )
    return _checked(name, found, len(data["labels"]), keys, "clients" in arguments)


def takes(name: str, argument: str) -> bool:
    """Return whether a partition takes an argument.

    Args:
        name: A name of the registry, or `package.module:function`.
        argument: The name of the argument.

    Returns:
        Whether the signature of the partition names it.

    >>> takes("dirichlet", "alpha"), takes("iid", "alpha")
    (True, False)
    """
    return argument in [parameter.name for parameter in _parameters(PARTITIONS.find(name))]


def check_options(name: str, known: Container[str], options: Iterable[str]) -> None:
    """Reject options that a partition does not take.

    Args:
        name: A name of the registry, or `package.module:function`.
        known: The names of arguments that are not options, because keys of [data] or columns of the data give them.
        options: The names of the options.

    Raises:
        InputError: If one of them is not an option of the partition.
    """
    function = PARTITIONS.find(name)
    own = [parameter.name for parameter in _parameters(function) if parameter.name not in known]
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    for key in options:
        if key in known:
            raise InputError(f"data.partition_options.{key}: this is not an option; set data.{key} instead")
        if key not in own and not open_ended:
            raise InputError(f'data.partition_options.{key}: "{name}" has no such option; {nearest(key, own)}')


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds]


def _checked(name: str, found: Any, samples: int, keys: Mapping[str, Any], told: bool) -> Partition:
    """Check that a result has one array of whole numbers in range per client, and no sample twice."""
    where, clients = f'data.partition = "{name}"', keys["clients"]
    if isinstance(found, np.ndarray) and found.ndim:
        found = list(found)
    if not isinstance(found, (list, tuple)):
        raise InputError(f"{where}: its result is of type {type(found).__name__}; it must be a list of index arrays")
    if clients and len(found) != clients:
        advice = "it must return one array per client" if told else f"set data.clients = {len(found)}"
        raise InputError(f"data.clients = {clients}: {name} divides the data among {len(found)} clients; {advice}")
    parts = [_indices(f"{where}: for client {client}", part, samples) for client, part in enumerate(found)]
    kept_back = [_indices(f"{where}: for validation", part, samples) for part in getattr(found, "validation", ())]
    trained, evaluated = _occurrences(parts, samples), _occurrences(kept_back, samples)
    repeated = (trained if keys.get("passes", 1) == 1 else np.minimum(trained, 1)) + evaluated > 1
    if repeated.any():
        sample = int(np.flatnonzero(repeated)[0])
        raise InputError(
            f"{where}: sample {sample} occurs {trained[sample] + evaluated[sample]} times; each sample may belong to "
            "one client only, or to the validation share"
        )
    return Partition(parts, kept_back)


def _occurrences(arrays: Sequence[IndexArray], samples: int) -> IndexArray:
    """Count how often each sample is in the arrays."""
    return np.bincount(np.concatenate([np.empty(0, np.int64), *arrays]), minlength=samples)


def _indices(where: str, part: Any, samples: int) -> IndexArray:
    try:
        array = part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
    except ValueError:
        array = np.empty((), object)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(
            f"{where} it returned {array.dtype} of shape {array.shape}; it must return whole numbers, one per sample"
        )
    if len(array) and not (array.min() >= 0 and array.max() < samples):
        wrong = array[(array < 0) | (array >= samples)][0]
        raise InputError(f"{where} it returned the index {wrong}; the data have {samples} samples, numbered from 0")
    return array.astype(np.int64)
