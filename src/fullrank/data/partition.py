"""Who gets which training samples: the federated splits of the papers, each a list of index arrays.

Every split draws from generators of its own, seeded by ``seed`` alone, so that equal arguments give equal
arrays. The legacy NumPy generator is used because the released code of the papers uses it: their splits
come out sample count by sample count.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fullrank.errors import InputError, nearest

IndexArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = torch.Tensor | npt.NDArray[Any] | Sequence[Any]

_ByClass: TypeAlias = list[IndexArray]  # of each class that occurs, in the order of the labels

MAX_TRIES = 1000
MIN_SAMPLES = 10

_Named = TypeVar("_Named")


class Partition(list[IndexArray]):
    """One array of sample indices per client; ``validation`` has as many where samples are kept back."""

    def __init__(self, parts: Iterable[IndexArray] = (), validation: Iterable[IndexArray] = ()):
        super().__init__(np.asarray(part, dtype=np.int64) for part in parts)
        self.validation = [np.asarray(part, dtype=np.int64) for part in validation]


def iid(labels: Labels, clients: int, seed: int) -> Partition:
    """A random permutation cut into equal parts, whose sizes differ by one at most (Shi et al. 2023).

    Only the number of labels matters, so they may be of any kind, multi-label rows included.
    """
    samples = len(labels)
    _check_clients(clients, samples)
    return Partition(np.array_split(_generator(seed).permutation(samples), clients))


def dirichlet(labels: Labels, clients: int, alpha: float, seed: int, variant: str = "balanced") -> Partition:
    """Each class is divided over the clients in proportions drawn from a symmetric Dirichlet(alpha).

    The smaller ``alpha``, the fewer classes a client sees; ``alpha=inf`` is :func:`iid`. Variants:

    - ``balanced``: Shi et al. 2023, the split of their released code (as Li et al. 2021, MOON): a client
      that holds its even share N/K gets nothing of later classes, and all is redrawn until every client
      has ten samples. Complete; the largest client has fewer than N/K plus the largest class.
    - ``plain``: the same without the cap and without a minimum.
    - ``fedetf``: Li et al. 2023 (FedETF), the split of their released code: rounded counts, no cap and no
      minimum.
    - ``fedrepopt``: Lau et al. 2024 (FedRepOpt), the split of their released code: counts rounded down,
      consecutive slices of the unshuffled class, what is left over dropped. Theirs supposes classes of
      equal size, for which this is the same; here a class of another size is divided by its own size.

    Only ``balanced`` guarantees that no client is empty.
    """
    divide = _look_up(variant, _DIRICHLET_VARIANTS, "Dirichlet variant")
    if not alpha > 0:
        raise InputError(f"alpha of a Dirichlet partition is {alpha}; it must be above 0 (inf for an IID split)")
    if math.isinf(alpha):
        return iid(labels, clients, seed)
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    return Partition(divide(by_class, clients, alpha, _generator(seed)))


def pathological(labels: Labels, clients: int, classes: int, seed: int, variant: str = "balanced") -> Partition:
    """Each client gets samples of ``classes`` classes only, after McMahan et al. 2017.

    - ``balanced``: exactly that many distinct classes, every class with as many owners as any other, give
      or take one, and divided evenly among them. Complete. Our reading of the setting of Shi et al. 2023,
      who released no code for it.
    - ``niid-bench``: Li et al. 2022: client k gets class k modulo the number of classes and others at
      random. Exactly that many classes; a class that nobody drew is dropped.
    - ``shards``: McMahan et al. 2017: the samples sorted by label are cut into equal shards, ``classes`` a
      client. Complete and equal in size; a client may hold fewer classes, or more where a shard straddles.
    """
    deal = _look_up(variant, _PATHOLOGICAL_VARIANTS, "pathological variant")
    by_class = _indices_by_class(labels)
    _check_clients(clients, len(labels))
    _check_classes(classes, len(by_class))
    return Partition(deal(by_class, clients, classes, seed))


def class_disjoint(labels: Labels, clients: int, classes: int, seed: int, passes: int = 1) -> Partition:
    """Partially class-disjoint data, PϱCς of Fan et al. 2023 (FedMR), as their released code assigns classes.

    Clients take the classes in order until all are owned, then draw at random among those they lack; each
    class is divided evenly among its owners. Where clients·classes is below the number of classes the rest
    is owned by nobody; with ``classes`` equal to all of them the split is :func:`iid`.

    The released code divides twice over, so that clients hold samples twice and share them: ``passes=2``
    does the same, ``passes=1`` gives the disjoint clients that the paper describes.
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


def by_domain(domains: Labels, equal: bool | float = False, validation: float = 0.0, seed: int = 0) -> Partition:
    """One client per domain, in sorted order, each domain shuffled first (Li et al. 2021, FedBN).

    ``equal=f`` gives every client ⌊f·L⌋ samples, L the smallest domain's size (True is 1; False: all that
    the domain has). ``validation=v`` keeps ⌊v·L⌋ others back, or ⌊v·n⌋ of the domain's own n without
    ``equal``, in the attribute ``validation``. FedBN's values: .5 and .4 (Office-Caltech), .05 and .05
    (DomainNet).
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
    training, kept_back = [], []
    for indices in map(rng.permutation, by_value):
        base = smallest if share else len(indices)
        kept = _floor_share(validation, base)
        rest = len(indices) - kept
        training.append(indices[: _floor_share(share, base) if share else rest])
        kept_back.append(indices[rest:])
    return Partition(training, kept_back)


def hold_out(parts: Sequence[IndexArray], share: float, seed: int) -> tuple[Partition, Partition]:
    """Split every client's samples at random into training and a personal test set of ⌊share·n⌋ samples.

    Li et al. 2023 (FedETF) hold out 30 % so. Classes may be missing on either side.
    """
    if not 0 <= share < 1:
        raise InputError(f"the hold-out share is {share}; it must be at least 0 and below 1")
    rng = _generator(seed)
    training, held_out = Partition(validation=getattr(parts, "validation", ())), Partition()
    for client, part in enumerate(parts):
        if len(np.unique(part)) < len(part):
            raise InputError(
                f"client {client} holds samples twice, so a hold-out would be trained on; "
                "a class-disjoint partition needs passes=1 for a hold-out"
            )
        shuffled = rng.permutation(part)
        held = _floor_share(share, len(part))
        held_out.append(shuffled[:held])
        training.append(shuffled[held:])
    return training, held_out


def whole_labels(labels: Labels) -> IndexArray:
    """Class labels as an array of whole numbers, or a error."""
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
    """The first pass that leaves every client ``minimum`` samples; the generator runs on between passes."""
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
    """Deal class after class; None where the draws of all clients below the cap vanish in floating point."""
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
    ends = np.floor(np.cumsum(shares) * len(indices)).astype(np.int64)
    # The cumulative sum may end below 1; the sample this leaves over must not go to a capped last client.
    ends[np.flatnonzero(shares)[-1] :] = len(indices)
    return np.split(indices, ends[:-1])


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
    """A slice for each count and one for what is left; slices beyond the end are empty."""
    return np.split(indices, np.cumsum(counts).astype(np.int64))


def _dirichlet_rows(
    by_class: _ByClass, clients: int, alpha: float, rng: np.random.RandomState
) -> npt.NDArray[np.float64]:
    """One row of proportions per class, all drawn at once; drawn again where a row vanishes."""
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
    """From one list of clients' pieces per deal to all the pieces of each client."""
    return [np.concatenate(pieces) for pieces in zip(*dealt, strict=True)]


def _indices_by_class(labels: Labels) -> _ByClass:
    return _indices_by_value(whole_labels(labels))


def _indices_by_value(values: npt.NDArray[Any]) -> list[IndexArray]:
    """The ascending indices of each value, in the sorted order of the values that occur."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _as_array(values: Labels, what: str) -> npt.NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{what} have the shape {array.shape}; one value per sample is needed")
    return array


def _floor_share(share: float, of: int) -> int:
    """⌊share·of⌋ of the decimal number as written: 0.29 of 100 is 29, though the nearest binary is below."""
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


_Divide: TypeAlias = Callable[[_ByClass, int, float, np.random.RandomState], list[IndexArray]]
_Deal: TypeAlias = Callable[[_ByClass, int, int, int], list[IndexArray]]

_DIRICHLET_VARIANTS: dict[str, _Divide] = {
    "balanced": _capped,
    "plain": _uncapped,
    "fedetf": _rounded,
    "fedrepopt": _floored,
}
_PATHOLOGICAL_VARIANTS: dict[str, _Deal] = {
    "balanced": _balanced,
    "niid-bench": _niid_bench,
    "shards": _shards,
}
