"""The server as a method's hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from fullrank.channels import Mean, Sum
from fullrank.errors import InputError
from fullrank.local.head import fit_head
from fullrank.local.settings import Settings
from fullrank.local.views import ClientView
from fullrank.methods._method import Method
from fullrank.models.network import Network
from fullrank.randomness import generator
from fullrank.trees import Tensors, Tree, by_name, clone

if TYPE_CHECKING:
    from fullrank.federated.server import Questions, Server

Query: TypeAlias = Callable[[ClientView], Mapping[str, Sum | Mean]]
"""A function of a method, which a client calls to compute its answer, in the form of an upload."""


class ServerView:
    """The server as the hooks of one method see it. Its public name is `fullrank.Server`.

    All views show the same server, so what one method assigns is what the next one reads. Only `own` differs: each
    method has its own state.

    >>> import torch
    >>> import fullrank
    >>> class Halfway(fullrank.Method):
    ...     def aggregate(self, server: fullrank.Server, new, up):
    ...         print(f"round {server.round} of {server.clients} clients: {sorted(server.w)}")
    ...         return {name: (server.w[name] + value) / 2 for name, value in new.items()}
    >>> clients = [(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))] * 2
    >>> run = fullrank.fit(torch.nn.Linear(3, 2), clients, method=Halfway(), rounds=2)
    round 0 of 2 clients: ['bias', 'weight']
    round 1 of 2 clients: ['bias', 'weight']
    """

    __slots__ = ("_part", "_questions", "_read_only", "_server")

    def __init__(self, server: Server, part: Method, questions: Questions | None = None, read_only: bool = False):
        self._server, self._part, self._questions, self._read_only = server, part, questions, read_only

    @property
    def net(self) -> Network:
        """The network, for its sizes and names: `net.num_classes`, `net.feature_dim`, `net.head_name`, `net.dtype`.

        Its values are those of any client; the global model's are in `w` and `model`.
        """
        return self._server.net

    @property
    def clients(self) -> int:
        """The number of clients that may take part in a round."""
        return self._server.clients

    @property
    def own(self) -> Tree:
        """The server's state of this method: what `server_state` returned, until a hook assigns another tree.

        Assign a new tree to change it, as in `server.own = {**server.own, "c": c}`; a copy of it is kept. It is part of
        checkpoints. Entries named in `broadcast` are sent to every client of the next round.
        """
        return self._server.own.get(self._part.name, {})

    @own.setter
    def own(self, tree: Mapping[str, Any]) -> None:
        self._reject_change()
        self._server.own[self._part.name] = by_name(clone(tree))

    @property
    def w(self) -> Tensors:
        """The shared entries of the global model. In `finish`, assign some or all of them to change the result.

        Frozen entries can be assigned as well; they are then sent to the clients again.
        """
        return self._server.w

    @w.setter
    def w(self, new: Tensors) -> None:
        """The shared entries of the global model. In `finish`, assign some or all of them to change the result.

        Frozen entries can be assigned as well; they are then sent to the clients again.
        """
        self._reject_change()
        self._server.update_model(new)

    def _reject_change(self) -> None:
        if self._read_only:
            raise InputError(f'"{self._part.name}": the hook receive cannot change the server; do it in aggregate')

    @property
    def model(self) -> Tensors:
        """All entries of the global model; personal entries have their initial values."""
        return self._server.model

    @property
    def round(self) -> int:
        """The number of the round, from 0; in `finish` the number of all rounds."""
        return self._server.round

    @property
    def taking_part(self) -> tuple[int, ...]:
        """The clients whose uploads are in the means of this round."""
        return self._server.taking_part

    def ask(self, query: Query) -> dict[str, Tree]:
        """Ask all clients a query under the current model. This is possible in `begin`, `aggregate` and `finish` only.

        In `begin` clients have not received the model, nor anything else: a query sees their data only, such as
        `client.n`, `client.counts` and `client.samples`.

        Args:
            query: A function of the method itself, so that a client elsewhere can find it by name. It takes the client
                and returns what the client uploads.

        Returns:
            The aggregated answers by name.

        Raises:
            InputError: If the query is not a function of the method, or clients cannot be asked in this hook.
        """
        if self._questions is None:
            raise InputError(
                f'"{self._part.name}": clients answer server.ask in the hooks begin, aggregate and finish only'
            )
        return self._server.ask(query, self._questions)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a NumPy generator whose numbers depend on seed, method, purpose and round, and on nothing else.

        Args:
            purpose: A word that distinguishes this generator from others of the same method.
        """
        return generator(self._server.seed, "server", self._part.name, purpose, self.round)

    def fit_head(self, z: Tensor, y: Tensor, *, epochs: int, batch_size: int = 64, **optimiser: Any) -> Tensors:
        """Train a copy of the classifier on features, by the loop that clients use.

        Args:
            z: Features (N, d).
            y: Their labels (N,).
            epochs: The number of epochs.
            batch_size: The number of features per step.
            **optimiser: Further settings of the fit, such as `lr` and `momentum`.

        Returns:
            The trained entries of the classifier under their names in the network.
        """
        settings = Settings(epochs=epochs, batch_size=batch_size, **optimiser)
        return fit_head(self.net, self.model, z, y, settings, seed=self._server.seed, round=self.round)
