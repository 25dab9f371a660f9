"""Partitions: functions that divide training samples among clients, and the registry of their names.

A partition returns one array of sample indices per client. Its random numbers depend on ``seed`` only, so equal
arguments give equal arrays. The partitions of the papers use NumPy's legacy generator, as the released code does:
their splits have the same number of samples of each class at each client.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.groups import Together, members, nearly
from fullrank.data.registry import BY_LABEL, COLUMNS, PARTITIONS, SITE_PARTITIONS, VARIANTS
from fullrank.errors import InputError, nearest
from fullrank.plugins import called

IndexArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = torch.Tensor | npt.NDArray[Any] | Sequence[Any]

_ByClass: TypeAlias = list[IndexArray]  # of each class that occurs, in the order of the labels

MAX_TRIES = 1000
MIN_SAMPLES = 10


_Named = TypeVar("_Named")


class Partition(list[IndexArray]):
    """A list with one array of sample indices per client.

    A partition that keeps back the validation share itself has it in ``validation``, one array per client.
    """

    def __init__(self, parts: Iterable[IndexArray] = (), validation: Iterable[IndexArray] = ()):
        super().__init__(np.asarray(part, dtype=np.int64) for part in parts)
        self.validation = [np.asarray(part, dtype=np.int64) for part in validation]


def iid(labels: Labels, clients: int, seed: int) -> Partition:
    """Cut a random permutation into equal parts, whose sizes differ by at most one (Shi et al. 2023).

    Only the number of labels matters, so they may be of any kind, multi-label rows included.

    Args:
        labels: The label of each sample.
        clients: The number of clients.
        seed: The seed of the permutation.

    Returns:
        The samples of each client.

    Raises:
        InputError: If there are more clients than samples.

    >>> [len(part) for part in iid([0, 0, 1, 1, 1], clients=2, seed=0)]
    [3, 2]
    """
    samples = len(labels)
    _check_clients(clients, samples)
    return Partition(np.array_split(_generator(seed).permutation(samples), clients))


def dirichlet(labels: Labels, clients: int, alpha: float, seed: int, variant: str = "balanced") -> Partition:
    """Divide each class among the clients in proportions drawn from a symmetric Dirichlet(alpha).

    The smaller ``alpha``, the fewer classes a client sees; ``alpha=inf`` is :func:`iid`. Variants:

    - ``balanced``: Shi et al. 2023, the split of their released code to the sample (as Li et al. 2021, MOON):
      a client that has its even share N/K gets no samples of later classes, except for single ones that
      rounding leaves to the last client, and the split is redrawn until every client has ten samples. No
      sample is left out; except for these single ones, the largest client has fewer than N/K plus the largest
      class.
    - ``plain``: the same without the cap and without a minimum.
    - ``fedetf``: Li et al. 2023 (FedETF), the split of their released code: rounded counts, no cap and no
      minimum.
    - ``fedrepopt``: Lau et al. 2024 (FedRepOpt), the split of their released code: counts rounded down,
      consecutive slices of the unshuffled class, and the remainder dropped. Their code assumes classes of
      equal size, for which the split is the same; here each class is divided by its own size.

    Only ``balanced`` guarantees that no client is empty.

    Args:
        labels: The label of each sample.
        clients: The number of clients.
        alpha: The concentration of the distribution, above 0.
        seed: The seed of the proportions and of the order of samples.
        variant: One of the variants.

    Returns:
        The samples of each client.

    Raises:
        InputError: If a value is out of range, if the variant is unknown, or if ``balanced`` does not find a split in
            which every client has ten samples.
    """
    divide = _look_up(variant, VARIANTS["dirichlet"], "Dirichlet variant")
    if not alpha > 0:
        raise InputError(f"alpha of a Dirichlet partition is {alpha}; it must be above 0 (inf for an IID split)")
    if math.isinf(alpha):
        return iid(labels, clients, seed)
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    return Partition(divide(by_class, clients, alpha, _generator(seed)))


def pathological(labels: Labels, clients: int, classes: int, seed: int, variant: str = "balanced") -> Partition:
    """Give each client samples of ``classes`` classes only, after McMahan et al. 2017.

    - ``balanced``: exactly that many distinct classes, every class with as many owners as any other, give
      or take one, and divided evenly among them. No sample is left out. This is our reading of Shi et al.
      2023, who released no code for this setting.
    - ``niid-bench``: Li et al. 2022: client k gets class k modulo the number of classes and others at
      random. Exactly that many classes; a class that no client drew is dropped.
    - ``shards``: McMahan et al. 2017: the samples sorted by label are cut into equal shards, ``classes`` per
      client. No sample is left out, and clients are equal in size. A client may have fewer classes, or
      more if a shard contains the end of one class and the start of the next.

    Args:
        labels: The label of each sample.
        clients: The number of clients.
        classes: The number of classes of each client.
        seed: The seed of the choice of classes and samples.
        variant: One of the variants.

    Returns:
        The samples of each client.

    Raises:
        InputError: If a value is out of range, or if the variant is unknown.
    """
    deal = _look_up(variant, VARIANTS["pathological"], "pathological variant")
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    _check_classes(classes, len(by_class))
    return Partition(deal(by_class, clients, classes, seed))


def class_disjoint(labels: Labels, clients: int, classes: int, seed: int, passes: int = 1) -> Partition:
    """Make partially class-disjoint data, PϱCς of Fan et al. 2023 (FedMR), with classes assigned as in their code.

    Clients take the classes in order until all are owned, then draw at random among those they lack; each
    class is divided evenly among its owners. If clients·classes is below the number of classes, the rest
    is owned by no client. With ``classes`` equal to all of them the split is :func:`iid`.

    The released code divides the data twice, so that samples occur twice and at several clients: ``passes=2``
    does the same, ``passes=1`` gives the disjoint clients that the paper describes.

    Args:
        labels: The label of each sample.
        clients: The number of clients.
        classes: The number of classes of each client.
        seed: The seed of the choice of classes and samples.
        passes: How often the data are divided.

    Returns:
        The samples of each client.

    Raises:
        InputError: If a value is out of range.
    """
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    _check_classes(classes, len(by_class))
    _check_whole("passes", passes, 1)
    if classes == len(by_class):
        return iid(labels, clients, seed)
    rng, draw = _generator(seed), random.Random(int(seed))
    unowned = iter(range(len(by_class)))
    owned = [_fill_up(list(islice(unowned, classes)), classes, len(by_class), draw) for _ in range(clients)]
    return Partition(_collect(_divide_evenly(by_class, owned, rng) for _ in range(passes)))


def by_domain(
    domains: Labels,
    equal: bool | float = False,
    validation: float = 0.0,
    seed: int = 0,
    groups: Labels | None = None,
) -> Partition:
    """Make each domain a client, in sorted order, with its samples shuffled (Li et al. 2021, FedBN).

    ``equal=f`` gives every client ⌊f·L⌋ samples, where L is the size of the smallest domain (True means 1;
    with False a client has all samples of its domain). ``validation=v`` holds back ⌊v·L⌋ others, or ⌊v·n⌋
    of the n samples of the domain without ``equal``, in the attribute ``validation``. FedBN uses .5 and .4
    (Office-Caltech) and .05 and .05 (DomainNet).

    Groups stay whole: both numbers are met as nearly as whole groups allow, and each domain has at least one group to
    train on. A group with samples in several domains is not held back.

    Args:
        domains: The domain of each sample.
        equal: The number of samples of each client, as a share of those of the smallest domain.
        validation: The share of the samples that is held back.
        seed: The seed of the order of samples.
        groups: The group of each sample, if some belong together.

    Returns:
        The training samples of each client, and in the attribute ``validation`` those that are held back.

    Raises:
        InputError: If a share is out of range, or is less than one sample of the smallest domain.

    >>> [len(part) for part in by_domain([1, 0, 1, 1])]
    [1, 3]
    """
    share = float(equal)
    _check_shares(share, validation)
    by_value = _indices_by_value(_as_array(domains, "domains"))
    smallest = min(map(len, by_value))
    if share and not _floor_share(share, smallest):
        raise InputError(
            f"equal={equal} of the smallest domain's {smallest} samples is less than one sample; "
            f"it must be at least 1/{smallest}"
        )
    rng = _generator(seed)
    together = None if groups is None else Together(_as_array(groups, "groups"), by_value)
    training, kept_back = [], []
    for indices in by_value:
        base = smallest if share else len(indices)
        kept = _floor_share(validation, base)
        wanted = _floor_share(share, base) if share else len(indices) - kept
        if together is None:
            shuffled = rng.permutation(indices)
            training.append(shuffled[:wanted])
            kept_back.append(shuffled[len(indices) - kept :])
            continue
        pieces = _shuffled(together.pieces(indices), rng)
        last = nearly(_sizes(pieces)[::-1], kept, len(pieces) - 1, together.at_one_client(pieces)[::-1])[::-1]
        rest = [piece for piece, back in zip(pieces, last, strict=True) if not back]
        first = nearly(_sizes(rest), wanted, len(rest)) if share else np.ones(len(rest), dtype=bool)
        training.append(_chosen(rest, first))
        kept_back.append(_chosen(pieces, last))
    return Partition(training, kept_back)


def natural_clients(natural: Labels) -> Partition:
    """Make each natural client of the data a client, in sorted order, with its samples in the order of the data.

    Args:
        natural: The natural client of each sample.

    Returns:
        The samples of each client.

    >>> natural_clients([4, 7, 4])
    [array([0, 2]), array([1])]
    """
    return Partition(_indices_by_value(_as_array(natural, "natural clients")))


def hold_out(
    parts: Sequence[IndexArray], share: float, seed: int, groups: Labels | None = None
) -> tuple[Partition, Partition]:
    """Split the samples of each client at random into training and a personal test set of ⌊share·n⌋ samples.

    Li et al. 2023 (FedETF) hold out 30 % in this way. Classes may be missing on either side.

    Groups stay whole: the number is met as nearly as whole groups allow, at least one group is held out unless the
    number is 0, and at least one is left to train on. A group with samples at several clients is not held out.

    Args:
        parts: The samples of each client.
        share: The share to hold out.
        seed: The seed of the draw.
        groups: The group of each sample of the data, if some belong together.

    Returns:
        The training samples and the held-out samples of each client.

    Raises:
        InputError: If the share is out of range, or if a client has a sample twice.
    """
    if not 0 <= share < 1:
        raise InputError(f"the hold-out share is {share}; it must be at least 0 and below 1")
    rng = _generator(seed)
    together = None if groups is None else Together(_as_array(groups, "groups"), parts)
    training, held_out = Partition(validation=getattr(parts, "validation", ())), Partition()
    for client, part in enumerate(parts):
        if len(np.unique(part)) < len(part):
            raise InputError(
                f"client {client} holds samples twice, so a hold-out would be trained on; "
                "a class-disjoint partition needs passes=1 for a hold-out"
            )
        held = _floor_share(share, len(part))
        if together is None:
            shuffled = rng.permutation(part)
            held_out.append(shuffled[:held])
            training.append(shuffled[held:])
            continue
        pieces = _shuffled(together.pieces(part), rng)
        own = nearly(_sizes(pieces), held, len(pieces) - 1, together.at_one_client(pieces))
        held_out.append(_chosen(pieces, own))
        training.append(_chosen(pieces, ~own))
    return training, held_out


def _shuffled(pieces: Sequence[IndexArray], rng: np.random.RandomState) -> list[IndexArray]:
    return [pieces[int(place)] for place in rng.permutation(len(pieces))]


def _sizes(pieces: Sequence[IndexArray]) -> list[int]:
    return [len(piece) for piece in pieces]


def _chosen(pieces: Sequence[IndexArray], chosen: npt.NDArray[np.bool_]) -> IndexArray:
    """Join the pieces that are chosen."""
    return np.concatenate([np.empty(0, np.int64), *(pieces[place] for place in np.flatnonzero(chosen).tolist())])


def call(name: str, data: Mapping[str, Any], keys: Mapping[str, Any], options: Mapping[str, Any]) -> Partition:
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
    _reject_torn(name, np.asarray(data["groups"]), found)
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


def _reject_torn(name: str, groups: npt.NDArray[Any], found: Partition) -> None:
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
    trained, evaluated = _times(parts, samples), _times(kept_back, samples)
    repeated = (trained if keys.get("passes", 1) == 1 else np.minimum(trained, 1)) + evaluated > 1
    if repeated.any():
        sample = int(np.flatnonzero(repeated)[0])
        raise InputError(
            f"{where}: sample {sample} occurs {trained[sample] + evaluated[sample]} times; each sample may belong to "
            "one client only, or to the validation share"
        )
    return Partition(parts, kept_back)


def _times(arrays: Sequence[IndexArray], samples: int) -> IndexArray:
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


def whole_labels(labels: Labels) -> IndexArray:
    """Convert class labels to an array of whole numbers.

    Args:
        labels: One label per sample.

    Returns:
        The labels as int64.

    Raises:
        InputError: If they are not whole numbers.
    """
    y = _as_array(labels, "labels")
    if y.dtype.kind not in "biu":
        raise InputError(f"labels are of type {y.dtype}; one whole number per sample is needed")
    return y.astype(np.int64)


def _capped(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    samples = sum(map(len, by_class))
    if clients * MIN_SAMPLES > samples:
        raise InputError(
            f"a balanced Dirichlet partition gives each client {MIN_SAMPLES} samples at least, too many for "
            f"{clients} clients and {samples} samples; take {samples // MIN_SAMPLES} clients at most"
        )
    return _try_passes(by_class, clients, alpha, rng, cap=samples / clients, minimum=MIN_SAMPLES)


def _uncapped(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    return _try_passes(by_class, clients, alpha, rng, cap=math.inf, minimum=0)


def _try_passes(
    by_class: _ByClass,
    clients: int,
    alpha: float,
    rng: np.random.RandomState,
    cap: float,
    minimum: int,
) -> list[IndexArray]:
    """Return the first pass that gives each client ``minimum`` samples; the generator continues between passes."""
    largest_minimum = 0
    for _ in range(MAX_TRIES):
        parts = _dirichlet_pass(by_class, clients, alpha, rng, cap)
        if parts is None:
            continue
        smallest = min(map(len, parts))
        if smallest >= minimum:
            return [rng.permutation(part) for part in parts]
        largest_minimum = max(largest_minimum, smallest)
    raise _gave_up(by_class, clients, alpha, f"{minimum} samples for every client", largest_minimum)


def _dirichlet_pass(
    by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState, cap: float
) -> list[IndexArray] | None:
    """Deal one class after the other; return None if the draws of all clients below the cap vanish in rounding."""
    sizes = np.zeros(clients, dtype=np.int64)
    dealt = []
    for indices in by_class:
        shuffled = rng.permutation(indices)
        shares = rng.dirichlet(np.full(clients, alpha)) * (sizes < cap)
        total = shares.sum()
        if not total > 0:  # nan as well: all draws underflowed
            return None
        dealt.append(_cut(shuffled, shares / total))
        sizes += [len(piece) for piece in dealt[-1]]
    return _collect(dealt)


def _cut(indices: IndexArray, shares: npt.NDArray[np.float64]) -> list[IndexArray]:
    # Where the cumulative sum ends below 1, the released code gives the sample that is left over to the last client,
    # even to a full one, and later draws depend on it.
    return np.split(indices, np.floor(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64))


def _rounded(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    shuffled = [rng.permutation(indices) for indices in by_class]
    shares = _dirichlet_rows(by_class, clients, alpha, rng)
    return _collect(_consecutive(one, np.round(row * len(one))[:-1]) for row, one in zip(shares, shuffled, strict=True))


def _floored(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    shares = _dirichlet_rows(by_class, clients, alpha, rng)
    # Normalised by the total of the whole matrix, as released, for the same rounding.
    shares /= shares.sum()
    return _collect(
        _consecutive(one, np.floor(row * (len(by_class) * len(one))))[:-1]
        for row, one in zip(shares, by_class, strict=True)
    )


def _consecutive(indices: IndexArray, counts: npt.NDArray[np.float64]) -> list[IndexArray]:
    """Return a slice for each count and one for the rest; slices beyond the end are empty."""
    return np.split(indices, np.cumsum(counts).astype(np.int64))


def _dirichlet_rows(
    by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState
) -> npt.NDArray[np.float64]:
    """Draw a row of proportions for each class, all at once, and again if a row vanishes."""
    for _ in range(MAX_TRIES):
        shares = rng.dirichlet(np.full(clients, alpha), len(by_class))
        if (shares.sum(axis=1) > 0).all():
            return shares
    raise _gave_up(by_class, clients, alpha, "proportions for every class", 0)


def _gave_up(by_class: _ByClass, clients: int, alpha: float, aim: str, largest_minimum: int) -> InputError:
    return InputError(
        f"{MAX_TRIES} Dirichlet draws over N={sum(map(len, by_class))} samples, K={clients} clients, "
        f"alpha={alpha} did not give {aim} (the largest minimum reached was {largest_minimum}); "
        "take fewer clients or a less extreme alpha"
    )


def _balanced(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    if clients * classes < len(by_class):
        raise InputError(
            f"{clients} clients of {classes} classes cannot own all {len(by_class)} classes; "
            f"clients times classes must be at least {len(by_class)}"
        )
    rng = _generator(seed)
    return _divide_evenly(by_class, _balanced_owners(clients, classes, len(by_class), rng), rng)


def _balanced_owners(clients: int, classes: int, total: int, rng: np.random.RandomState) -> list[set[int]]:
    """Deal every class to nearly equally many clients, no class twice to one client.

    A class that must still go to as many clients as are left is due to each of them. As long as none must
    go to more, the deal cannot fail: with R clients left R·classes slots remain, so at most ``classes``
    classes are due, and more than enough others have slots for the rest of the hand.
    """
    slots = np.full(total, clients * classes // total)
    slots[rng.permutation(total)[: clients * classes % total]] += 1
    owned: dict[int, set[int]] = {}
    for left, client in zip(range(clients, 0, -1), rng.permutation(clients), strict=True):
        with np.errstate(divide="ignore"):
            wait = rng.standard_exponential(total) / slots  # the more slots, the likelier; none: never
        wait[slots == left] = 0.0
        hand = np.argsort(wait, kind="stable")[:classes]
        slots[hand] -= 1
        owned[int(client)] = set(hand.tolist())
    return [owned[client] for client in range(clients)]


def _niid_bench(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    rng, draw = _generator(seed), random.Random(int(seed))
    total = len(by_class)
    owned = [_fill_up([client % total], classes, total, draw) for client in range(clients)]
    return _divide_evenly(by_class, owned, rng)


def _shards(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    shards = np.array_split(np.concatenate(by_class), clients * classes)
    hands = _generator(seed).permutation(len(shards)).reshape(clients, classes)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


def _fill_up(owned: list[int], classes: int, total: int, draw: random.Random) -> set[int]:
    """Add random classes until there are ``classes``: drawn uniformly, those already owned drawn again."""
    hand = set(owned)
    while len(hand) < classes:
        hand.add(draw.randint(0, total - 1))
    return hand


def _divide_evenly(by_class: _ByClass, owned: Sequence[set[int]], rng: np.random.RandomState) -> list[IndexArray]:
    held: list[list[IndexArray]] = [[] for _ in owned]
    for number, indices in enumerate(by_class):
        owners = [client for client, hand in enumerate(owned) if number in hand]
        if len(owners) > len(indices):
            raise InputError(
                f"a class of {len(indices)} samples cannot be divided among its {len(owners)} owners; "
                "take fewer clients or fewer classes per client"
            )
        if owners:
            pieces = np.array_split(rng.permutation(indices), len(owners))
            for client, piece in zip(owners, pieces, strict=True):
                held[client].append(piece)
    return [np.concatenate(pieces) for pieces in held]


def _collect(dealt: Iterable[Sequence[IndexArray]]) -> list[IndexArray]:
    """Join the pieces of each client, of which every deal has one."""
    return [np.concatenate(pieces) for pieces in zip(*dealt, strict=True)]


def _indices_by_class(labels: Labels) -> _ByClass:
    return _indices_by_value(whole_labels(labels))


def _indices_by_value(values: npt.NDArray[Any]) -> list[IndexArray]:
    """Return the ascending indices of each value, in the sorted order of the values that occur."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _as_array(values: Labels, what: str) -> npt.NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{what} have the shape {array.shape}; one value per sample is needed")
    return array


def _floor_share(share: float, of: int) -> int:
    """Return ⌊share·of⌋ of the decimal number as written: 0.29 of 100 is 29, though the nearest binary is below."""
    return math.floor(share * of + 1e-9)


def _generator(seed: int) -> np.random.RandomState:
    _check_whole("seed", seed, 0)
    if seed >= 2**32:
        raise InputError(f"seed is {seed}; it must be below 2**32")
    return np.random.RandomState(seed)


def _look_up(name: str, known: Mapping[str, _Named], what: str) -> _Named:
    if name not in known:
        raise InputError(f'unknown {what} "{name}"; {nearest(str(name), known)}')
    return known[name]


def _check_clients(clients: int, samples: int) -> None:
    _check_whole("clients", clients, 1)
    if clients > samples:
        raise InputError(f"{clients} clients cannot share {samples} samples; take {samples} clients at most")


def _check_classes(classes: int, total: int) -> None:
    _check_whole("classes per client", classes, 1)
    if classes > total:
        raise InputError(f"{classes} classes per client are wanted, but the labels have {total}; take at most {total}")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name}: {value!r} must be a whole number of at least {least}")


def _check_shares(equal: float, validation: float) -> None:
    if not 0 <= equal <= 1:
        raise InputError(f"equal={equal} must be between 0 and 1 (0 or False: all samples of each domain)")
    if not 0 <= validation < 1:
        raise InputError(f"validation={validation} must be at least 0 and below 1")
    if equal + validation > 1 + 1e-9:
        raise InputError(f"equal={equal} and validation={validation} together must not exceed 1")
