"""The samples of a site: its own, or its part of the data that an experiment names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Split, load_dataset, partition
from fullrank.data.federation import Federation
from fullrank.data.sources.registry import DATA_SETS
from fullrank.deploy.sites.settings import SiteSettings
from fullrank.errors import InputError
from fullrank.plugins import SITES
from fullrank.randomness import key
from fullrank.runs.assemble import federate

KEPT_FEDERATIONS = 2
PARTS = ("train", "holdout", "test")
"""The parts of a client's data, in the order in which `SiteData.clients` has them."""
FROM_FILES = ("folder", "npz")
"""The names of data sets that read whatever files an experiment names."""


@dataclass(frozen=True)
class SiteData:
    """The samples of the clients of a site, and what the server is told of their form.

    >>> own = DataSet("scans", Split(torch.zeros(3, 2), torch.tensor([0, 1, 1])), None, ("a", "b"))
    >>> SiteData.own(own, Experiment(), client=4, name="north").facts()["clients"]
    [{'client': 4, 'name': 'north', 'samples': 3, 'holdout': 0, 'test': 0}]
    """

    data: DataSet
    """The data set from which the samples come. Its inputs and labels never leave the site, and its form does."""
    clients: Mapping[int, tuple[Split | None, Split | None, Split | None]]
    """The training samples, the hold-out and the test part of each client, by its number."""
    names: Mapping[int, str]
    """The name of the site of each client; empty where sites have no names."""

    def __post_init__(self) -> None:
        if self.data.columns:
            raise InputError(
                f'the samples of "{self.data.name}" are the rows of a table, whose columns a simulation encodes and '
                "standardises by sums over all clients; sites do not exchange such sums, so encode and scale the "
                "columns with numbers that all sites agree on, and give them as an .npz"
            )

    @classmethod
    def own(cls, data: DataSet, experiment: Experiment, client: int, name: str) -> SiteData:
        """Return the data of a site that is one client.

        The training part is divided into training samples and hold-out as `data.holdout` says, and the test part of the
        data set is that of the site.

        Args:
            data: The data set.
            experiment: The experiment.
            client: The number of the client.
            name: The name of the site.
        """
        everything = np.arange(len(data.train))
        parts, held = [everything], [everything[:0]]
        if experiment.data.holdout:
            seed = key(experiment.seed, "holdout", client) % 2**32
            parts, held = partition.hold_out(parts, experiment.data.holdout, seed, data.train.group)
        splits = (*(_taken(data.train, places[0]) for places in (parts, held)), data.test)
        return cls(replace(data, name=SITES), {client: (splits[0], splits[1], splits[2])}, {client: name})

    @classmethod
    def part(cls, experiment: Experiment, clients: Sequence[int]) -> SiteData:
        """Return the parts of some clients of the data that an experiment names.

        Args:
            experiment: The experiment.
            clients: The numbers of the clients.

        Raises:
            InputError: If there is no such client.
        """
        federation = _federated(experiment)
        for client in clients:
            if not 0 <= client < federation.clients:
                raise InputError(
                    f"there is no client {client}; the experiment has the clients 0 to {federation.clients - 1}"
                )
        own = {
            client: (
                _taken(federation.data.train, federation.parts[client]),
                _taken(federation.data.train, federation.holdouts[client]),
                _taken(federation.data.test, federation.tests[client]) if federation.tests else None,
            )
            for client in clients
        }
        names = {client: federation.names[client] for client in clients} if federation.names else {}
        return cls(federation.data, own, names)

    @property
    def form(self) -> dict[str, Any]:
        """The form of the samples."""
        data = self.data
        return {
            "name": data.name,
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "dtype": str(data.train.x.dtype).removeprefix("torch."),
            "mean": list(data.mean) if data.mean is not None else None,
            "std": list(data.std) if data.std is not None else None,
            "augment": list(data.augment),
        }

    def facts(self, min_count: int | None = None) -> dict[str, Any]:
        """Return what the server is told: the form of the samples, and their numbers.

        Args:
            min_count: The smallest number of samples of a class that is told. None tells nothing about classes.
        """
        return {"data": self.form, "clients": [self._facts_of(client, min_count) for client in self.clients]}

    def _facts_of(self, client: int, min_count: int | None) -> dict[str, Any]:
        sizes = dict(zip(("samples", "holdout", "test"), map(_size, self.clients[client]), strict=True))
        found: dict[str, Any] = {"client": client, "name": self.names.get(client, ""), **sizes}
        if min_count is not None:
            found["classes"] = [count if count >= min_count else 0 for count in self.counts(client)]
        return found

    def counts(self, client: int, part: str = "train") -> list[int]:
        """Return the number of samples of each class in a part of a client's data: "train", "holdout" or "test"."""
        split = self.clients[client][PARTS.index(part)]
        if split is None:
            return [0] * self.data.num_classes
        counts: list[int] = torch.bincount(split.y, minlength=self.data.num_classes).tolist()
        return counts


def load_site(experiment: Experiment, settings: SiteSettings, clients: Sequence[int]) -> SiteData:
    """Load the samples of a site: those at `data.path` of its `site.toml`, or its part of the experiment's data.

    Args:
        experiment: The experiment, which says how images are resized and how much is held out.
        settings: The site's settings.
        clients: The number of the site among the clients; where the experiment's data are used, several numbers.

    Raises:
        InputError: If the samples cannot be read or do not fit the settings.
    """
    if not clients:
        raise InputError("the site has no number; set client = 0, 1, … under [site] in its site.toml")
    path = settings.samples
    if path is None:
        name = experiment.data.name
        if settings.from_file and (name in FROM_FILES or name not in DATA_SETS.own):
            raise InputError(
                f'data.path in its site.toml is empty, and it does not read "{name[:80]}" for the server; with an '
                "empty path, a site takes part in trials with the data sets of the library only"
            )
        if settings.from_file and experiment.data.root:
            raise InputError(
                "data.path in its site.toml is empty, and it does not read the folder that data.root of the experiment "
                "names; with an empty path, a site takes part in trials with data that the library finds itself"
            )
        found = SiteData.part(experiment, clients)
        named = settings.site.name and len(clients) == 1
        return replace(found, names={clients[0]: settings.site.name}) if named else found
    if len(clients) > 1:
        raise InputError("a site whose data.path is set is one client; give it one number")
    source = "npz" if path.is_file() else "folder"
    data = load_dataset(source, path, seed=experiment.seed, size=experiment.data.size)
    return SiteData.own(in_order(data, settings.data.classes), experiment, clients[0], settings.site.name)


def in_order(data: DataSet, classes: Sequence[str]) -> DataSet:
    """Return a data set with the classes of the federation, among which its classes must be.

    Args:
        data: The data set.
        classes: The names of all classes of the federation, in their order.

    Raises:
        InputError: If a class is named twice, or the data set has another class.

    >>> split = Split(torch.zeros(2, 1), torch.tensor([0, 1]))
    >>> in_order(DataSet("d", split, None, ("b", "c")), ["a", "b", "c"]).train.y
    tensor([1, 2])
    """
    if not classes:
        return data
    if len(set(classes)) < len(classes):
        raise InputError("data.classes in site.toml names a class twice")
    unknown = [name for name in data.classes if name not in classes]
    if unknown:
        hint = "; the name of a class whose label is a number is that number" if unknown[0].isdecimal() else ""
        raise InputError(f'the data have the class "{unknown[0]}", which data.classes in site.toml does not name{hint}')
    place = torch.tensor([classes.index(name) for name in data.classes])
    train, test = (None if split is None else replace(split, y=place[split.y]) for split in (data.train, data.test))
    assert train is not None
    return replace(data, train=train, test=test, classes=tuple(classes), file=None)


def _taken(split: Split | None, places: np.ndarray) -> Split | None:
    """Return some samples of a split with their labels; None if there are none."""
    if split is None or not len(places):
        return None
    index = torch.from_numpy(places)
    return Split(split.x[index], split.y[index], missing=split.missing)


def _size(split: Split | None) -> int:
    return 0 if split is None else len(split)


_federations: dict[str, Federation] = {}


def _federated(experiment: Experiment) -> Federation:
    """Return the data that an experiment names, divided; several sites of a simulation share them in a process."""
    name = repr((experiment.seed, experiment.data))
    if name not in _federations:
        while len(_federations) >= KEPT_FEDERATIONS:
            del _federations[next(iter(_federations))]
        _federations[name] = federate(experiment)
    return _federations[name]
