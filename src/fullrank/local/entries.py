"""The values of a client's entries, in the network or detached from it."""

from __future__ import annotations

from collections.abc import Iterable

from fullrank.models.network import Network
from fullrank.trees import Tensors, clone


class ClientEntries:
    """The values of a client's entries, in the network or detached from it.

    An engine that trains several clients in one network keeps their entries detached.

    Args:
        network: The network.
        tensors: The values of all entries.
        detached: Whether the values stay out of the network until `enter` is called.
    """

    def __init__(self, network: Network, tensors: Tensors, detached: bool):
        self._network = network
        self._detached: Tensors | None = tensors
        if not detached:
            self.enter()

    def enter(self) -> Network:
        """Load the entries into the network and return it."""
        if self._detached is not None:
            self._network.load(self._detached)
            self._detached = None
        return self._network

    def leave(self) -> None:
        """Detach the entries, so that the network is free for another client."""
        if self._detached is None:
            self._detached = clone(self._network.tensors())

    def move(self, tensors: Tensors) -> None:
        """Replace the values of all entries by others, detached from the network."""
        self._detached = tensors

    def all(self) -> Tensors:
        """Return all entries, in the network or detached, without gradients."""
        own = self._network.tensors() if self._detached is None else self._detached
        return {name: own[name].detach() for name in self._network.names}

    def some(self, names: Iterable[str]) -> Tensors:
        """Return some of the entries, in the network or detached."""
        if self._detached is None:
            return self._network.some(names)
        return {name: self._detached[name] for name in names}

    def copied(self, names: Iterable[str]) -> Tensors:
        """Return some of the entries in tensors that no later step changes."""
        return clone({**self.some(names)}) if self._detached is None else self.some(names)
