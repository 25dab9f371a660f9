"""The client as a method's hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from fullrank.methods._batch import Batch
from fullrank.models.entries import Entries
from fullrank.models.network import Network
from fullrank.trees import Tensors, Tree, clone

if TYPE_CHECKING:
    from fullrank.local.client import Client
    from fullrank.local.loop import Samples


class ClientView:
    """A client as the hooks of one method see it: its samples, model and state, and the fits that it can run.

    Its public name is `fullrank.Client`. All views of a client show the same client; `own` and `sent` are those of the
    method whose hook is running. Tensors are on the client's device and in the model's dtype, and are never written in
    place.

    >>> import torch
    >>> import fullrank
    >>> class Shares(fullrank.Method):
    ...     def weight(self, client: fullrank.Client) -> float:
    ...         print(f"client {client.id}: {client.n} samples, by class {client.counts.tolist()}")
    ...         return client.n**0.5
    >>> clients = [(torch.rand(4, 3), torch.tensor([0, 1, 1, 0])), (torch.rand(2, 3), torch.tensor([1, 1]))]
    >>> run = fullrank.fit(torch.nn.Linear(3, 2), clients, method=Shares(), rounds=1)
    client 0: 4 samples, by class [2.0, 2.0]
    client 1: 2 samples, by class [0.0, 2.0]
    """

    def __init__(self, client: Client, space: str):
        self._client = client
        self._space = space

    @property
    def id(self) -> int:
        """The client's number, from 0; −1 is the synthetic client that shows the server what clients send."""
        return self._client.id

    @property
    def round(self) -> int:
        """The round, counted from 0."""
        return self._client.round

    @property
    def n(self) -> int:
        """The number of samples that weights the client in a mean: its training samples and, with
        `train.weight_by = "all"`, its hold-out."""
        return self._client.weight

    @property
    def counts(self) -> Tensor:
        """The number of training samples of each class (C,), as floating numbers."""
        return self._client.counts

    @property
    def samples(self) -> Samples:
        """The training samples. A method is responsible for what its uploads reveal about them."""
        return self._client.samples

    @property
    def own(self) -> Tree:
        """This method's state at this client: what `client_state` returned, until a hook assigns another tree.

        Assign a new tree to change it; a copy of it is kept until the client's next round, and is part of checkpoints.
        In the steps of a fit it is `b.own`.
        """
        state: Tree = self._client.state.get(self._space, {})
        return state

    @own.setter
    def own(self, tree: Mapping[str, Any]) -> None:
        self._client.state[self._space] = clone(tree)  # a copy, because the client's model continues to change

    @property
    def sent(self) -> Tree:
        """The entries of this method's server state that `broadcast` names, as the server sent them in this round."""
        return self._client.sent.get(self._space, {})

    @property
    def network(self) -> Network:
        """The network, with the client's entries in it.

        Its sizes and names are `network.num_classes`, `network.feature_dim`, `network.head_name` and `network.dtype`.
        """
        return self._client.network

    @property
    def entries(self) -> Entries:
        """The names of the entries by class: shared, buffers, personal, frozen."""
        return self._client.entries

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that a fit trains by default."""
        return self._client.trainable

    @property
    def model(self) -> Tensors:
        """The current values of all entries of the client's model."""
        return self._client.model

    @property
    def w(self) -> Tensors:
        """The current values of the shared entries."""
        return self._client.w

    @property
    def w0(self) -> Tensors:
        """The shared entries as received."""
        return self._client.w0

    @property
    def travel(self) -> float:
        """The distance that a constant unit gradient would have moved a shared weight in this round's fits.

        It takes every step's learning rate and the momentum into account, so (w0 − w) / travel is the mean gradient.

        Raises:
            InputError: If the optimiser is not SGD.
        """
        return self._client.travel

    @property
    def pulled_travel(self) -> float:
        """The same quantity as `travel`, under the pull of the methods' proximal terms (`Method.pull`).

        The terms hold a weight back. Without them it is equal to `travel`.
        """
        return self._client.pulled_travel

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a NumPy generator whose numbers depend on seed, method, purpose, round and client only.

        So every engine and a resumed run draw the same numbers. The steps of a fit (`criterion`, `loss`, `grad`) have
        no client: numbers for them are drawn in `before` and read as `b.fixed`.

        Args:
            purpose: A word that distinguishes this generator from others of the same method.
        """
        return self._client.generator(purpose, self._space)

    def one_of(self, share: float, purpose: str) -> bool:
        """Return whether this client is in a fixed share of those that may take part, the same in every round.

        Args:
            share: The share of the clients, above 0 and at most 1.
            purpose: A word that distinguishes this draw from others of the same method.
        """
        return self._client.one_of(share, purpose, self._space)

    def fit(
        self,
        only: str | tuple[str, ...] | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        model: Mapping[str, Tensor] | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
        criterion: Callable[[Batch], Tensor] | None = None,
        stats: Literal["move", "freeze"] = "move",
        **optimiser: Any,
    ) -> Tensors:
        """Train on this client's data and return the trained model's entries.

        Args:
            only: Selectors of what to train; a frozen entry trains only if it is named in full.
            epochs: The number of passes over the samples, in place of `train.epochs`.
            steps: The number of batches, in place of passes.
            model: The tree that a side fit starts from. A side fit leaves the client's model as it is, draws its own
                batches, and applies no drift corrections.
            loss: A function of a `Batch` that returns a further term of the loss in this fit.
            criterion: A function of a `Batch` in place of the method's criterion.
            stats: "freeze" keeps norm layers in evaluation mode.
            optimiser: Settings such as `lr` and `momentum`. If any is given, the fit has a separate optimiser;
                otherwise all fits of the round share one.

        Returns:
            All entries of the trained model by name; of a side fit, as copies.
        """
        return self._client.fit(
            only,
            epochs=epochs,
            steps=steps,
            model=model,
            loss=loss,
            criterion=criterion,
            stats=stats,
            space=self._space,
            **optimiser,
        )

    def train(self) -> None:
        """Run one fit with the client's settings, as `fit()` does, without returning the entries."""
        self._client.train()

    def mark(self) -> None:
        """Evaluate the current model on the client's hold-out, as one point in the course of a personalisation."""
        self._client.mark()

    def features(self, batch_size: int = 0) -> tuple[Tensor, Tensor]:
        """Compute the representation of all training samples, in eval mode and without augmentation.

        Args:
            batch_size: Samples per forward; 0 chooses it for the device.

        Returns:
            z (n, d) and y (n,).
        """
        return self._client.features(batch_size)

    def prototypes(self, normalise: bool = False) -> tuple[Tensor, Tensor]:
        """Compute class sums of the representation; they are zero for classes that the client lacks.

        Args:
            normalise: Whether each z is scaled to unit length first.

        Returns:
            The sums (C, d) and the class counts (C,).
        """
        return self._client.prototypes(normalise)

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """Return a batch under the current model in its current mode, as `predict` sees it.

        Args:
            x: Inputs, prepared for the model.
            y: Their labels (N,).
        """
        return self._client.batch(x, y, self._space)
