"""Partitions: functions that divide training samples among clients.

A partition returns one array of sample indices per client. Its random numbers depend on ``seed`` only, so equal
arguments give equal arrays. The partitions of the papers use NumPy's legacy generator, as the released code does:
their splits have the same number of samples of each class at each client.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.groups import ClientGroups, choose_groups
from fullrank.data.registry import VARIANTS
from fullrank.errors import InputError, nearest

IndexArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = torch.Tensor | npt.NDArray[Any] | Sequence[Any]

_ByClass: TypeAlias = list[IndexArray]  # of each class that occurs, in the order of the labels

MAX_TRIES = 1000
MIN_SAMPLES = 10

_Named = TypeVar("_Named")


class Partition(list[IndexArray]):
    """A list with one array of sample indices per client.

    Args:
        parts: The samples of each client.
        validation: The samples of each client that a partition keeps back itself, as the validation share.

    >>> parts = Partition([[0, 2], [1]], validation=[[3], []])
    >>> len(parts), parts[0], parts.validation[0]
    (2, array([0, 2]), array([3]))
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

    >>> [len(part) for part in dirichlet([0, 1] * 50, clients=4, alpha=0.5, seed=0)]
    [37, 18, 28, 17]
    """
    divide = _find_variant(variant, VARIANTS["dirichlet"], "Dirichlet variant")
    if not alpha > 0:
        raise InputError(f"alpha of a Dirichlet partition is {alpha}; it must be above 0 (inf for an IID split)")
    if math.isinf(alpha):
        return iid(labels, clients, seed)
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    return Partition(divide(by_class, clients, alpha, _generator(seed)))


def pathological(labels: Labels, clients: int, classes: int, seed: int, variant: str = "balanced") -> Partition:
    """Give each client samples of ``classes`` classes only, after McMahan et al. 2017.

    - ``balanced``: exactly that many distinct classes, every class with as many owners as any other, plus
      or minus one, and divided evenly among them. No sample is left out. This is our reading of Shi et al.
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

    >>> parts = pathological([0, 1, 2, 3] * 6, clients=4, classes=2, seed=0)
    >>> [sorted({index % 4 for index in part.tolist()}) for part in parts]
    [[0, 1], [1, 3], [2, 3], [0, 2]]
    """
    divide = _find_variant(variant, VARIANTS["pathological"], "pathological variant")
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    _check_classes(classes, len(by_class))
    return Partition(divide(by_class, clients, classes, seed))


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

    >>> parts = class_disjoint([0, 1, 2, 3] * 6, clients=4, classes=2, seed=0)
    >>> [sorted({index % 4 for index in part.tolist()}) for part in parts]
    [[0, 1], [2, 3], [0, 3], [2, 3]]
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
    return Partition(_joined_by_client(_divide_evenly(by_class, owned, rng) for _ in range(passes)))


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
    together = None if groups is None else ClientGroups(_as_array(groups, "groups"), by_value)
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
        last = choose_groups(_sizes(pieces)[::-1], kept, len(pieces) - 1, together.at_one_client(pieces)[::-1])[::-1]
        rest = [piece for piece, back in zip(pieces, last, strict=True) if not back]
        first = choose_groups(_sizes(rest), wanted, len(rest)) if share else np.ones(len(rest), dtype=bool)
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

    >>> training, held_out = hold_out([np.arange(10), np.arange(10, 14)], share=0.3, seed=0)
    >>> [len(part) for part in training], [len(part) for part in held_out]
    ([7, 3], [3, 1])
    """
    if not 0 <= share < 1:
        raise InputError(f"the hold-out share is {share}; it must be at least 0 and below 1")
    rng = _generator(seed)
    together = None if groups is None else ClientGroups(_as_array(groups, "groups"), parts)
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
        own = choose_groups(_sizes(pieces), held, len(pieces) - 1, together.at_one_client(pieces))
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


def whole_labels(labels: Labels) -> IndexArray:
    """Convert class labels to an array of whole numbers.

    Args:
        labels: One label per sample.

    Returns:
        The labels as int64.

    Raises:
        InputError: If they are not whole numbers.

    >>> whole_labels(torch.tensor([1, 0])).tolist()
    [1, 0]
    """
    y = _as_array(labels, "labels")
    if y.dtype.kind not in "biu":
        raise InputError(f"labels are of type {y.dtype}; one whole number per sample is needed")
    return y.astype(np.int64)


def _dirichlet_balanced(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    samples = sum(map(len, by_class))
    if clients * MIN_SAMPLES > samples:
        raise InputError(
            f"a balanced Dirichlet partition gives each client {MIN_SAMPLES} samples at least, too many for "
            f"{clients} clients and {samples} samples; take {samples // MIN_SAMPLES} clients at most"
        )
    return _try_passes(by_class, clients, alpha, rng, cap=samples / clients, minimum=MIN_SAMPLES)


def _dirichlet_plain(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
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
    raise _no_split_found(by_class, clients, alpha, f"{minimum} samples for every client", largest_minimum)


def _dirichlet_pass(
    by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState, cap: float
) -> list[IndexArray] | None:
    """Divide one class after the other; return None if the draws of all clients below the cap vanish in rounding."""
    sizes = np.zeros(clients, dtype=np.int64)
    divided = []
    for indices in by_class:
        shuffled = rng.permutation(indices)
        shares = rng.dirichlet(np.full(clients, alpha)) * (sizes < cap)
        total = shares.sum()
        if not total > 0:  # nan as well: all draws underflowed
            return None
        divided.append(_cut(shuffled, shares / total))
        sizes += [len(piece) for piece in divided[-1]]
    return _joined_by_client(divided)


def _cut(indices: IndexArray, shares: npt.NDArray[np.float64]) -> list[IndexArray]:
    # Where the cumulative sum ends below 1, the released code gives the sample that is left over to the last client,
    # even to a full one, and later draws depend on it.
    return np.split(indices, np.floor(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64))


def _dirichlet_fedetf(by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState) -> list[IndexArray]:
    shuffled = [rng.permutation(indices) for indices in by_class]
    shares = _dirichlet_rows(by_class, clients, alpha, rng)
    return _joined_by_client(
        _consecutive(one, np.round(row * len(one))[:-1]) for row, one in zip(shares, shuffled, strict=True)
    )


def _dirichlet_fedrepopt(
    by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState
) -> list[IndexArray]:
    shares = _dirichlet_rows(by_class, clients, alpha, rng)
    # Normalised by the total of the whole matrix, as released, for the same rounding.
    shares /= shares.sum()
    return _joined_by_client(
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
    raise _no_split_found(by_class, clients, alpha, "proportions for every class", 0)


def _no_split_found(by_class: _ByClass, clients: int, alpha: float, aim: str, largest_minimum: int) -> InputError:
    return InputError(
        f"{MAX_TRIES} Dirichlet draws over N={sum(map(len, by_class))} samples, K={clients} clients, "
        f"alpha={alpha} did not give {aim} (the largest minimum reached was {largest_minimum}); "
        "take fewer clients or a less extreme alpha"
    )


def _pathological_balanced(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    if clients * classes < len(by_class):
        raise InputError(
            f"{clients} clients of {classes} classes cannot own all {len(by_class)} classes; "
            f"clients times classes must be at least {len(by_class)}"
        )
    rng = _generator(seed)
    return _divide_evenly(by_class, _balanced_owners(clients, classes, len(by_class), rng), rng)


def _balanced_owners(clients: int, classes: int, total: int, rng: np.random.RandomState) -> list[set[int]]:
    """Assign every class to nearly equally many clients, no class twice to one client.

    A class that must still go to as many clients as remain goes to each of them. As long as none must go to more,
    the assignment cannot fail: with R clients left R·classes places remain, so at most ``classes`` classes must be
    chosen, and more than enough others have places for the rest of the client's classes.
    """
    slots = np.full(total, clients * classes // total)
    slots[rng.permutation(total)[: clients * classes % total]] += 1
    owned: dict[int, set[int]] = {}
    for left, client in zip(range(clients, 0, -1), rng.permutation(clients), strict=True):
        with np.errstate(divide="ignore"):
            wait = rng.standard_exponential(total) / slots  # the more slots, the likelier; none: never
        wait[slots == left] = 0.0
        chosen = np.argsort(wait, kind="stable")[:classes]
        slots[chosen] -= 1
        owned[int(client)] = set(chosen.tolist())
    return [owned[client] for client in range(clients)]


def _pathological_niid_bench(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    rng, draw = _generator(seed), random.Random(int(seed))
    total = len(by_class)
    owned = [_fill_up([client % total], classes, total, draw) for client in range(clients)]
    return _divide_evenly(by_class, owned, rng)


def _pathological_shards(by_class: _ByClass, clients: int, classes: int, seed: int) -> list[IndexArray]:
    shards = np.array_split(np.concatenate(by_class), clients * classes)
    assigned = _generator(seed).permutation(len(shards)).reshape(clients, classes)
    return [np.concatenate([shards[shard] for shard in own]) for own in assigned]


def _fill_up(owned: list[int], classes: int, total: int, draw: random.Random) -> set[int]:
    """Add random classes until there are ``classes``. They are drawn uniformly, and again if they are owned already."""
    chosen = set(owned)
    while len(chosen) < classes:
        chosen.add(draw.randint(0, total - 1))
    return chosen


def _divide_evenly(by_class: _ByClass, owned: Sequence[set[int]], rng: np.random.RandomState) -> list[IndexArray]:
    held: list[list[IndexArray]] = [[] for _ in owned]
    for number, indices in enumerate(by_class):
        owners = [client for client, chosen in enumerate(owned) if number in chosen]
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


def _joined_by_client(divided: Iterable[Sequence[IndexArray]]) -> list[IndexArray]:
    """Join the pieces of each client; every item has one piece per client."""
    return [np.concatenate(pieces) for pieces in zip(*divided, strict=True)]


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


def _find_variant(name: str, known: Mapping[str, _Named], what: str) -> _Named:
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
