"""A data set divided among clients: training samples and hold-out of each client, validation share, test set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.data import partition
from fullrank.data.augment.pipeline import Pipeline, Statistics
from fullrank.data.dataset import DataSet
from fullrank.data.heterogeneity import counts, describe, partition_hash
from fullrank.data.hosted import HostedData, positions
from fullrank.data.named_partitions import call_partition, takes
from fullrank.data.partition_files import StoredPartition, as_bytes, divided, read_partition
from fullrank.data.registry import SITE_PARTITIONS, is_file
from fullrank.data.split import keep_share, split_by_class
from fullrank.data.standardise import standardisation
from fullrank.errors import InputError
from fullrank.randomness import generator, key

CLASSES_NAMED = 10


@dataclass(frozen=True)
class Federation:
    """A data set divided among clients, as index arrays into its training split."""

    data: DataSet
    parts: list[np.ndarray]
    """Training samples of each client."""
    holdouts: list[np.ndarray]
    """Held-out samples of each client, on which its own model is evaluated."""
    validation: np.ndarray
    """The validation share, which belongs to no client and serves to choose settings and rounds."""
    pipeline: Pipeline
    unseen: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Clients that never train, on which models are evaluated as on new clients."""
    names: tuple[str, ...] = ()
    """The name of each client's site, where clients are domains or natural clients of the data."""
    tests: list[np.ndarray] = field(default_factory=list)
    """Samples of the test split that come from each client's own site, where clients are sites with a test part."""
    validations: list[np.ndarray] = field(default_factory=list)
    """The part of the validation share that comes from each client's own site, where clients are sites."""

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.parts)

    @cached_property
    def seen(self) -> np.ndarray:
        """The clients that may train."""
        return np.setdiff1d(np.arange(self.clients), self.unseen)

    def size(self, client: int) -> int:
        """Return the number of training samples of a client."""
        return len(self.parts[client])

    def held_out(self, client: int) -> int:
        """Return the number of held-out samples of a client."""
        return len(self.holdouts[client])

    def hosted(self, clients: Collection[int] | None = None) -> HostedData:
        """Return the data of some clients for a site that hosts them.

        Args:
            clients: Their ids. Tensors of these clients' samples are made, and nothing of other clients is in them.
                None hosts all clients, on the tensors of the data set themselves.
        """
        train, classes = self.data.train, self.data.num_classes
        if clients is None:
            training, holdouts = dict(enumerate(self.parts)), dict(enumerate(self.holdouts))
            tested = self._tests(range(self.clients), copied=False)
            file = self.data.file
            return HostedData(
                train.x, train.y, training, holdouts, self.pipeline, classes, self.seen, file=file, **tested
            )
        samples = {k: (self.parts[k], self.holdouts[k]) for k in clients}
        index = torch.from_numpy(_joined([piece for pair in samples.values() for piece in pair]))
        sizes = {k: (len(own), len(held)) for k, (own, held) in samples.items()}
        tested = self._tests(samples, copied=True)
        return HostedData(
            train.x[index], train.y[index], *positions(sizes), self.pipeline, classes, self.seen, **tested
        )

    def _tests(self, clients: Collection[int], copied: bool) -> dict[str, Any]:
        """Return the fields of `HostedData` about the test samples of the clients' own sites."""
        test = self.data.test
        own = {k: self.tests[k] for k in clients} if self.tests else {}
        if test is None or not any(map(len, own.values())):
            return {}
        if not copied:
            return {"test_x": test.x, "test_y": test.y, "tests": own}
        index = torch.from_numpy(_joined([*own.values()]))
        tests, _ = positions({k: (len(places), 0) for k, places in own.items()})
        return {"test_x": test.x[index], "test_y": test.y[index], "tests": tests}

    @cached_property
    def has_holdouts(self) -> bool:
        """Whether any client has held-out samples."""
        return any(map(len, self.holdouts))

    def validation_of(self, client: int) -> np.ndarray:
        """Return the validation samples on which a client's own model is evaluated.

        They are the samples of its site. Where clients are not sites, the samples are divided in turn, so that each
        belongs to one client and the evaluation of all clients takes no longer than that of one global model.
        """
        return self.validations[client] if self.validations else self.validation[client :: self.clients]

    @cached_property
    def has_tests(self) -> bool:
        """Whether clients are sites, and any of these has test samples."""
        return any(map(len, self.tests))

    @cached_property
    def hash(self) -> str:
        """The hash of the partition: equal hashes mean equal training samples, hold-outs and validation share."""
        return partition_hash([*self.parts, *self.holdouts, self.validation])

    @cached_property
    def class_counts(self) -> np.ndarray:
        """The number of training samples by client and class (K, C)."""
        return counts(self.data.train.y.numpy(), self.parts, self.data.num_classes)

    @cached_property
    def unassigned(self) -> int:
        """The number of training samples that belong to no client and not to the validation share."""
        used = np.unique(np.concatenate([*self.parts, *self.holdouts, self.validation]))
        return len(self.data.train) - len(used)

    @cached_property
    def orphaned(self) -> list[str]:
        """The classes of the training set that no client has."""
        there = np.bincount(self.data.train.y.numpy(), minlength=self.data.num_classes)
        return [self.data.classes[c] for c in np.flatnonzero((there > 0) & (self.class_counts.sum(0) == 0))]

    @cached_property
    def untrained(self) -> list[str]:
        """The classes that have test samples and no training samples."""
        if self.data.test is None:
            return []
        trained, tested = (
            torch.bincount(of.y, minlength=self.data.num_classes) > 0 for of in (self.data.train, self.data.test)
        )
        return [self.data.classes[c] for c in (tested & ~trained).nonzero().flatten().tolist()]

    @cached_property
    def groups(self) -> np.ndarray | None:
        """The number of groups among the training samples of each client, or None if the data have no groups."""
        if self.data.train.group is None:
            return None
        groups = self.data.train.group.numpy()
        return np.array([len(np.unique(groups[part])) for part in self.parts], dtype=np.int64)

    def shared_groups(self) -> int:
        """Return the number of groups that have training samples at several clients."""
        if self.data.train.group is None:
            return 0
        groups = self.data.train.group.numpy()
        at_clients = [np.unique(groups[part]) for part in self.parts if len(part)]
        _, clients = np.unique(np.concatenate(at_clients), return_counts=True) if at_clients else ([], np.empty(0))
        return int((clients > 1).sum())

    def left_out(self) -> str:
        """Describe the unassigned training samples and the classes without a client; empty if there are none."""
        samples = f"{self.unassigned} of {len(self.data.train)} training samples are unassigned"
        named = ", ".join(self.orphaned[:CLASSES_NAMED]) + (", …" if len(self.orphaned) > CLASSES_NAMED else "")
        classes = f"{len(self.orphaned)} of {self.data.num_classes} classes have no client ({named})"
        return ", ".join([samples] * bool(self.unassigned) + [classes] * bool(self.orphaned))

    def describe(self) -> dict[str, Any]:
        """Return sizes, entropy and distances of the partition, for `partition.json`."""
        facts = describe(self.data.train.y.numpy(), self.parts, self.data.num_classes)
        groups = self.groups
        return {
            **facts,
            **({"names": list(self.names)} if self.names else {}),
            **({"groups": groups.tolist()} if groups is not None else {}),
            "hash": self.hash,
            "holdout": sum(map(len, self.holdouts)),
            "validation": len(self.validation),
            "unseen": self.unseen.tolist(),
            **({"sites": list(self.names)} if self.names else {}),
            "unassigned": self.unassigned,
            "classes_without_client": self.orphaned,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of `partition.safetensors`."""
        names = {"names": torch.from_numpy(as_bytes(self.names))} if self.names else {}
        return {
            "train": torch.from_numpy(_joined(self.parts)),
            "train_sizes": torch.from_numpy(_sizes(self.parts)),
            "holdout": torch.from_numpy(_joined(self.holdouts)),
            "holdout_sizes": torch.from_numpy(_sizes(self.holdouts)),
            "validation": torch.from_numpy(self.validation),
            "fingerprint": torch.tensor(list(bytes.fromhex(self.data.fingerprint())), dtype=torch.uint8),
            **names,
        }

    def __getstate__(self) -> dict[str, Any]:
        # Two arrays instead of one per client, because there may be very many clients.
        lists = {"parts": self.parts, "holdouts": self.holdouts, **({"tests": self.tests} if self.tests else {})}
        return {**self.__dict__, **{name: (_joined(of), _sizes(of)) for name, of in lists.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        lists = ("parts", "holdouts", *(["tests"] if state["tests"] else []))
        self.__dict__.update(state, **{name: divided(*state[name]) for name in lists})


def divide(
    data: DataSet, pipeline: Pipeline, how: str, keys: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> Federation:
    """Divide a data set: first the validation share, then the clients' parts, then each client's hold-out.

    Args:
        data: The data set.
        pipeline: How its batches are prepared.
        how: The name of a partition, `package.module:function`, or the path of a partition in a file.
        keys: The values of the keys of [data], with the seed of the partition.
        options: Further arguments of the partition.

    Raises:
        InputError: If the data cannot be divided in this way.

    Returns:
        The data set with the samples of each client.
    """
    seed, holdout, validation, share = (keys[name] for name in ("seed", "holdout", "validation", "share"))
    if is_file(how):
        return _from_file(data, pipeline, Path(how), keys)
    train = data.train
    itself = takes(how, "validation")
    there = np.arange(len(train)) if share == 1 else keep_share(train.y, share, seed, train.group)
    groups = None if train.group is None else train.group[there]
    pair = split_by_class(train.y[there], 0.0 if itself else validation, seed, groups)
    keep, kept_back = (there[part] for part in pair)
    samples = {"labels": train.y, "domains": train.domain, "groups": train.group, "natural": train.client}
    columns = {name: column.numpy()[keep] for name, column in samples.items() if column is not None}
    found = call_partition(how, columns, keys, options or {})
    parts = [keep[part] for part in found]
    if itself:
        kept_back = np.sort(keep[_joined(found.validation)])
    if not any(map(len, parts)):
        raise InputError("no client has any sample")
    of_sites = _sites(data, how, keep, np.asarray(kept_back))
    return replace(_held_out(data, parts, kept_back, pipeline, holdout, seed), **of_sites)


def _sites(data: DataSet, how: str, samples: np.ndarray, kept_back: np.ndarray) -> dict[str, Any]:
    """Return the fields of a federation about the sites that the clients of a partition of samples are."""
    column = SITE_PARTITIONS.get(how)
    train = None if column is None else getattr(data.train, column)
    if train is None:
        return {}
    assert column is not None
    there = np.unique(train.numpy()[samples])
    names = site_names(data, column)
    return {"names": tuple(names[int(k)] for k in there), **_of_sites(data, column, there, kept_back)}


def site_names(data: DataSet, column: str) -> tuple[str, ...]:
    """Return the names of the sites that a column of the data set numbers; a site without a name has its number.

    Args:
        data: The data set.
        column: "domain" or "client".

    Returns:
        The names; empty if the data set does not have the column.
    """
    found: torch.Tensor | None = getattr(data.train, column)
    if found is None:
        return ()
    known = data.domains if column == "domain" else data.clients
    return known or tuple(map(str, range(int(found.max()) + 1)))


def _of_sites(data: DataSet, column: str, sites: np.ndarray, kept_back: np.ndarray) -> dict[str, Any]:
    """Return the test samples and the validation samples of sites, as fields of a federation."""
    train, test = getattr(data.train, column), None if data.test is None else getattr(data.test, column)
    return {
        "tests": [] if test is None else _positions(test.numpy(), sites),
        "validations": [kept_back[places] for places in _positions(train.numpy()[kept_back], sites)],
    }


def _sites_in_file(data: DataSet, stored: StoredPartition) -> dict[str, Any]:
    """Return the fields of a federation about names and sites.

    The clients of a file are sites if they have the names of sites of the data, and samples of these sites only.
    """
    for column in SITE_PARTITIONS.values():
        number = {name: k for k, name in enumerate(site_names(data, column))}
        if not stored.names or not set(stored.names) <= set(number):
            continue
        sites = np.array([number[name] for name in stored.names])
        site_of = getattr(data.train, column).numpy()
        clients = zip(sites, stored.parts, stored.holdouts, strict=True)
        if all((site_of[np.concatenate([part, held])] == site).all() for site, part, held in clients):
            return {"names": stored.names, **_of_sites(data, column, sites, stored.validation)}
    return {"names": stored.names}


def _positions(values: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    """Return the ascending positions of each wanted value."""
    order = np.argsort(values, kind="stable")
    starts, ends = (np.searchsorted(values[order], wanted, side) for side in ("left", "right"))
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def _from_file(data: DataSet, pipeline: Pipeline, path: Path, keys: Mapping[str, Any]) -> Federation:
    """Return the federation that a file divides the data into."""
    seed, holdout, validation = (keys[name] for name in ("seed", "holdout", "validation"))
    if keys["share"] != 1:
        raise InputError("data.share: a partition in a file says which samples are used; leave it at 1.0")
    stored = read_partition(path, data, keys["clients"], repeats=keys["passes"] > 1)
    if stored.complete:
        if holdout or validation:
            raise InputError(
                "data.holdout and data.validation: a saved partition, or a CSV with a column part, brings its own; "
                "leave both at 0"
            )
        sites = _sites_in_file(data, stored)
        return Federation(data, stored.parts, stored.holdouts, stored.validation, pipeline, **sites)
    parts, kept_back = _without_validation(data, stored.parts, validation, seed)
    sites = _sites_in_file(data, replace(stored, validation=kept_back))
    return replace(_held_out(data, parts, kept_back, pipeline, holdout, seed), **sites)


def _without_validation(
    data: DataSet, parts: list[np.ndarray], validation: float, seed: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw the validation share from the samples of clients; return what the clients keep, and the share."""
    used = np.sort(_joined(parts))
    groups = None if data.train.group is None else data.train.group[used]
    kept_back = used[split_by_class(data.train.y[used], validation, seed, groups)[1]]
    kept = np.ones(len(data.train), dtype=bool)
    kept[kept_back] = False
    return [part[kept[part]] for part in parts], kept_back


def divide_by_sizes(
    data: DataSet, pipeline: Pipeline, sizes: list[int], holdout: float = 0.0, validation: float = 0.0, seed: int = 0
) -> Federation:
    """Make a federation of clients whose data are consecutive pieces of the training split.

    Args:
        data: The data set.
        pipeline: How its batches are prepared.
        sizes: The number of samples of each client, in the order of the training split.
        holdout: The share of each client's samples that is held out.
        validation: The share of all samples that is kept back for validation.
        seed: The seed of both shares.
    """
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end, dtype=np.int64) for size, end in zip(sizes, ends, strict=True)]
    parts, kept_back = _without_validation(data, parts, validation, seed)
    return _held_out(data, parts, kept_back, pipeline, holdout, seed)


def keep_unseen(federation: Federation, share: float, seed: int) -> Federation:
    """Exclude a share of the clients from training, so that models are evaluated on them as on new clients.

    Args:
        federation: The federation.
        share: The share of the clients.
        seed: The seed by which they are drawn.

    Returns:
        A copy of the federation with the drawn clients as `unseen`.

    Raises:
        InputError: If no client or every client would be excluded.
    """
    number = round(share * federation.clients)
    if not share:
        return federation
    if not 0 < number < federation.clients:
        raise InputError(
            f"data.unseen = {share}: of {federation.clients} clients {number} would never train; at "
            "least one must not train, and at least one must"
        )
    chosen = generator(seed, "unseen").choice(federation.clients, number, replace=False)
    return replace(federation, unseen=np.sort(chosen))


def table_statistics(federation: Federation) -> Statistics:
    """Return mean and standard deviation of a table's features over the samples of the clients that may train."""
    data = federation.data
    return standardisation(data.columns, data.train.x, [federation.parts[client] for client in federation.seen])


def _held_out(
    data: DataSet, parts: list[np.ndarray], kept_back: np.ndarray, pipeline: Pipeline, holdout: float, seed: int
) -> Federation:
    held = [part[:0] for part in parts]
    if holdout:
        groups = data.train.group
        parts, held = map(list, partition.hold_out(parts, holdout, key(seed, "holdout") % 2**32, groups))
    return Federation(data, parts, held, kept_back, pipeline)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def _sizes(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts], dtype=np.int64)
