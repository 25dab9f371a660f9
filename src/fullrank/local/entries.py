"""A client's entries, in the network or beside it."""

from __future__ import annotations

from collections.abc import Iterable

from fullrank.models.network import Network
from fullrank.trees import Flat, Tensors, clone, copied_together


class ClientEntries:
    """Where a client's entries are: in the network, or aside as long as nobody needs them there."""

    def __init__(self, network: Network, tensors: Tensors, aside: bool, w0: Tensors):
        self._network = network
        self._aside: Tensors | None = tensors
        self._laid_out = w0 if isinstance(w0, Flat) else {}
        """Some of them once more, where one copy brings them all."""
        if not aside:
            self.enter()

    def enter(self) -> Network:
        """The network, holding the entries."""
        if self._aside is not None:
            self._network.load(self._laid_out)
            self._network.load({name: t for name, t in self._aside.items() if name not in self._laid_out})
            self._aside, self._laid_out = None, {}
        return self._network

    def leave(self) -> None:
        """Make room in the network for others."""
        if self._aside is None:
            self._aside = clone(self._network.tensors())

    def move(self, tensors: Tensors) -> None:
        """Other values of all entries, aside."""
        self._aside, self._laid_out = tensors, {}

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
        return copied_together(self.some(names)) if self._aside is None else self.some(names)
