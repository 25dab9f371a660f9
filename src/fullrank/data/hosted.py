"""The data of the clients that a site hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.data.augment.pipeline import Pipeline
from fullrank.data.dataset import Split
from fullrank.errors import InputError

LISTS = ("training", "holdouts", "tests")
"""The fields of `HostedData` that hold positions by client."""


@dataclass(frozen=True, eq=False)
class HostedData:
    """Samples of some clients of a federation, and the plain facts of the federation that local training needs.

    In a simulation one site hosts all clients and shares the tensors of the data set. In a deployment each site hosts
    its own client, and has no data of any other.

    >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> data = HostedData.of({7: (split, None)}, Pipeline(), num_classes=2, peers=np.arange(10))
    >>> data.clients, data.size(7)
    ((7,), 3)
    """

    x: Tensor
    """The inputs of all samples that are hosted."""
    y: Tensor
    """Their labels."""
    training: dict[int, np.ndarray]
    """Positions of each hosted client's training samples."""
    holdouts: dict[int, np.ndarray]
    """Positions of the samples on which each hosted client's own model is evaluated."""
    pipeline: Pipeline
    """How inputs are prepared."""
    num_classes: int
    peers: np.ndarray
    """The ids of all clients of the federation that may train."""
    file: Path | None = None
    """The safetensors file that `x` and `y` are a map of (as `train.x` and `train.y`), if they are."""
    test_x: Tensor | None = None
    """The inputs of the test samples of the clients' own sites, where there are any."""
    test_y: Tensor | None = None
    """Their labels."""
    tests: dict[int, np.ndarray] = field(default_factory=dict)
    """Positions of each hosted client's test samples in `test_x`; none for a client that is not in it."""
    count_holdouts: bool = False
    """Whether a client's weight in a mean counts its hold-out too (`train.weight_by`)."""

    @classmethod
    def of(
        cls,
        clients: Mapping[int, Sequence[Split | None]],
        pipeline: Pipeline,
        num_classes: int,
        peers: np.ndarray,
    ) -> HostedData:
        """Join the data of clients.

        Args:
            clients: The training samples, the hold-out and, where a client is a site with a test part, the test samples
                of each client, by its id; None for samples that a client does not have.
            pipeline: How inputs are prepared.
            num_classes: The number of classes of the federation, which these clients need not all have.
            peers: The ids of all clients of the federation that may train.

        Raises:
            InputError: If there is no client with samples.
        """
        sizes = {
            client: tuple(0 if split is None else len(split) for split in own[:2]) for client, own in clients.items()
        }
        splits = [split for own in clients.values() for split in own[:2] if split is not None]
        if not splits:
            raise InputError("a site needs at least one client with samples")
        x, y = torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits])
        tested = {client: own[2] for client, own in clients.items() if len(own) > 2}
        return cls(x, y, *positions(sizes), pipeline, num_classes, peers, **_tests(tested))

    @property
    def clients(self) -> tuple[int, ...]:
        """The ids of the hosted clients."""
        return tuple(self.training)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def largest(self) -> int:
        """The number of training samples of the largest client."""
        return max(map(len, self.training.values()), default=0)

    def size(self, client: int) -> int:
        """Return a client's number of training samples."""
        return len(self.of_client(client)[0])

    def weight(self, client: int) -> int:
        """Return the number of samples that count as a client's weight in a mean."""
        training, held = self.of_client(client)
        return len(training) + len(held) * self.count_holdouts

    def of_client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of a client's samples in `x` and `y`.

        Args:
            client: The id of the client.

        Returns:
            The positions of its training samples, and those of its hold-out.

        Raises:
            InputError: If the client is not hosted here.
        """
        if client not in self.training:
            hosted = ", ".join(map(str, self.clients[:5])) + (", …" if len(self.training) > 5 else "")
            raise InputError(f"this site has no data of client {client}; it hosts the clients {hosted}")
        return self.training[client], self.holdouts[client]

    def test_of(self, client: int) -> np.ndarray:
        """Return the positions of a client's test samples in `test_x`; empty where its site has no test part."""
        return self.tests.get(client, np.empty(0, np.int64))

    def __getstate__(self) -> dict[str, Any]:
        # Two arrays in place of one per client, of which there may be very many.
        lists = {name: _joined(getattr(self, name)) for name in LISTS}
        return {**self.__dict__, **lists}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, **{name: _divided(*state[name]) for name in LISTS})


def positions(sizes: Mapping[int, Sequence[int]]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Return the positions of clients' samples that are stored client by client, training samples before the hold-out.

    Args:
        sizes: The numbers of training samples and of held-out samples of each client.

    Returns:
        The positions of the training samples, and those of the hold-out, by client.

    >>> positions({5: (2, 1)})
    ({5: array([0, 1])}, {5: array([2])})
    """
    training, holdouts = {}, {}
    used = 0
    for client, (own, held) in sizes.items():
        training[client] = np.arange(used, used + own, dtype=np.int64)
        holdouts[client] = np.arange(used + own, used + own + held, dtype=np.int64)
        used += own + held
    return training, holdouts


def _tests(clients: Mapping[int, Split | None]) -> dict[str, Any]:
    """Return the fields of `HostedData` about test samples."""
    there = {client: split for client, split in clients.items() if split is not None}
    if not there:
        return {}
    tests, _ = positions({client: (len(split), 0) for client, split in there.items()})
    x, y = torch.cat([split.x for split in there.values()]), torch.cat([split.y for split in there.values()])
    return {"test_x": x, "test_y": y, "tests": tests}


def _joined(arrays: Mapping[int, np.ndarray]) -> tuple[list[int], np.ndarray, np.ndarray]:
    sizes = np.array([len(array) for array in arrays.values()], dtype=np.int64)
    return list(arrays), np.concatenate([*arrays.values(), np.empty(0, np.int64)]).astype(np.int64), sizes


def _divided(clients: list[int], joined: np.ndarray, sizes: np.ndarray) -> dict[int, np.ndarray]:
    return dict(zip(clients, np.split(joined, np.cumsum(sizes)[:-1]) if clients else [], strict=True))
