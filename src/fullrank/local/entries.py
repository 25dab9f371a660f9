"""A client's entries, in the network or beside it."""

from __future__ import annotations

from collections.abc import Iterable

from fullrank.models.network import Network
from fullrank.trees import Tensors, clone


class ClientEntries:
    """Where a client's entries are: in the network, or aside as long as nobody needs them there."""

    def __init__(self, network: Network, tensors: Tensors, aside: bool):
        self._network = network
        self._aside: Tensors | None = tensors
        if not aside:
            self.enter()

    def enter(self) -> Network:
        """The network, holding the entries."""
        if self._aside is not None:
            self._network.load(self._aside)
            self._aside = None
        return self._network

    def leave(self) -> None:
        """Make room in the network for others."""
        if self._aside is None:
            self._aside = clone(self._network.tensors())

    def move(self, tensors: Tensors) -> None:
        """Other values of all entries, aside."""
        self._aside = tensors

    def all(self) -> Tensors:
        """All entries, where they are, detached."""
        own = self._network.tensors() if self._aside is None else self._aside
        return {name: own[name].detach() for name in self._network.names}

    def some(self, names: Iterable[str]) -> Tensors:
        """Some of the entries, where they are."""
        if self._aside is None:
            return self._network.some(names)
        return {name: self._aside[name] for name in names}

    def copied(self, names: Iterable[str]) -> Tensors:
        """Some of the entries, as nobody will change them."""
        return clone({**self.some(names)}) if self._aside is None else self.some(names)
