"""A federation as its server sees it: how many samples each client has, and none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Split
from fullrank.data.federation import Federation, keep_unseen
from fullrank.data.heterogeneity import earth_movers_distance, label_entropy
from fullrank.errors import InputError
from fullrank.runs.assemble import pipeline
from fullrank.runs.recorded import data_facts


@dataclass(frozen=True)
class ClientFacts:
    """Facts about a client that its site has told the server."""

    client: int
    name: str = ""
    samples: int = 0
    holdout: int = 0
    test: int = 0
    classes: tuple[int, ...] | None = None
    """The number of training samples of each class, as far as the site tells it."""


@dataclass(frozen=True)
class RemoteFederation(Federation):
    """A federation whose samples are at its sites. Clients whose sites have not joined have no samples yet."""

    known: dict[int, ClientFacts] = field(default_factory=dict)
    """The known facts about each client; a site that joins late adds to them."""
    total: int = 0
    """The number of clients."""

    @classmethod
    def of(
        cls, experiment: Experiment, described: Mapping[str, Any], known: Mapping[int, ClientFacts], test: Split | None
    ) -> RemoteFederation:
        """Return the federation of an experiment.

        Args:
            experiment: The experiment, whose `data.clients` is the number of clients.
            described: The form of the samples, as `SiteData.facts` returns it under "data".
            known: What the sites have told of the clients.
            test: A test set that the server has itself.

        Raises:
            InputError: If the experiment cannot run with data at sites.
        """
        if experiment.data.validation:
            raise InputError(
                "data.validation: the samples are at the sites, so nothing can be kept back of all of them; set it to "
                "0, and evaluate on hold-outs (data.holdout) or on a test set at the server"
            )
        shape, dtype = described["input_shape"], getattr(torch, described["dtype"])
        zeros = Split(torch.zeros(2, *shape, dtype=dtype), torch.zeros(2, dtype=torch.int64))
        mean, std = (tuple(described[name]) if described[name] else None for name in ("mean", "std"))
        data = DataSet(
            described["name"],
            zeros,
            test,
            tuple(described["classes"]),
            mean=mean,
            std=std,
            augment=tuple(described["augment"]),
        )
        nothing = np.empty(0, np.int64)
        total = experiment.data.clients
        named = [known[k].name if k in known else "" for k in range(total)]
        made = cls(
            data,
            [nothing] * total,
            [nothing] * total,
            nothing,
            pipeline(experiment, data),
            names=tuple(name or f"client {k}" for k, name in enumerate(named)) if any(named) else (),
            known=dict(known),
            total=total,
        )
        seed = experiment.seed if experiment.data.seed < 0 else experiment.data.seed
        found = keep_unseen(made, experiment.data.unseen, seed)
        assert isinstance(found, RemoteFederation)
        return found

    def add(self, facts: ClientFacts) -> None:
        """Note a client whose site has joined."""
        self.known[facts.client] = facts

    def for_sites(self) -> dict[str, Any]:
        """Return the facts that sites need: the form of the samples, and the number of clients."""
        return {"data": data_facts(self), "clients": self.total, "unseen": self.unseen.tolist()}

    def size(self, client: int) -> int:
        """Return the number of training samples of a client."""
        return self.known[client].samples if client in self.known else 0

    def held_out(self, client: int) -> int:
        """Return the number of held-out samples of a client."""
        return self.known[client].holdout if client in self.known else 0

    @property
    def has_holdouts(self) -> bool:
        """Whether any client has held-out samples."""
        return any(facts.holdout for facts in self.known.values())

    @property
    def has_tests(self) -> bool:
        """Whether any site has test samples."""
        return any(facts.test for facts in self.known.values())

    @property
    def hash(self) -> str:
        """A hash of the form of the federation; the samples themselves are not available to the server."""
        form = [self.total, self.data.classes, self.data.input_shape, str(self.data.train.x.dtype)]
        return hashlib.sha256(json.dumps(form).encode()).hexdigest()

    @property
    def class_counts(self) -> np.ndarray:
        """The number of training samples by client and class, with zeros where sites do not tell it."""
        none = (0,) * self.data.num_classes
        rows = [facts.classes if (facts := self.known.get(k)) and facts.classes else none for k in range(self.total)]
        return np.array(rows, dtype=np.int64).reshape(self.total, self.data.num_classes)

    @property
    def untrained(self) -> list[str]:
        """The classes without training samples, which sites do not tell."""
        return []

    @property
    def orphaned(self) -> list[str]:
        """The classes that no client has, which sites do not tell."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return the sizes, and what the sites tell of their classes, for `partition.json`."""
        sizes = np.array([self.size(client) for client in range(self.total)])
        found: dict[str, Any] = {
            "hash": self.hash,
            "clients": self.total,
            "samples": int(sizes.sum()),
            "size": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
            "sizes": sizes.tolist(),
            "holdout": sum(facts.holdout for facts in self.known.values()),
            "validation": 0,
            "unseen": self.unseen.tolist(),
            "at_sites": True,
        }
        if self.names:
            found |= {"names": list(self.names), "sites": list(self.names)}
        if self.known and all(facts.classes is not None for facts in self.known.values()):
            counts = self.class_counts
            for name, values in (("entropy", label_entropy(counts)), ("emd", earth_movers_distance(counts))):
                found[name] = {"mean": float(values[sizes > 0].mean()), "per_client": values.tolist()}
        return found
