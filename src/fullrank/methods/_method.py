"""The base class of methods. A method is everything that differs from federated averaging, at clients and at the
server, in one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import numpy as np
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.channels import Mean, Sum
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.settings import Settings
    from fullrank.local.views import ClientView
    from fullrank.methods._batch import Batch
    from fullrank.models import Network

NotNegative: TypeAlias = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
"""The type of a loss's coefficient: a finite number of at least 0."""
Positive: TypeAlias = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
"""The type of a learning rate: a finite number above 0."""
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""The type of a momentum: at least 0 and below 1."""


@dataclass(frozen=True)
class Method:
    """Federated averaging. A subclass overrides the hooks in which it differs, and nothing else.

    Hyper-parameters are dataclass fields: decorate subclasses with `@dataclass(frozen=True)`. `criterion`, `loss` and
    `grad` must be pure functions of tensors: no `.item()`, no Python branch on data, no boolean indexing. Trees are
    never written in place; a new value is a new tree.

    A hook receives a batch (`fullrank.Batch`), a client (`fullrank.Client`) or the server (`fullrank.Server`), whose
    documentation lists their members; docs/methods.md walks through a whole method.

    Hooks of composed methods are called one after the other (in order), also with the result of the one before
    (chained), are added up (summed), or can be defined by one method only (exclusive).

    >>> @dataclass(frozen=True)
    ... class WeightShrink(Method):
    ...     strength: float = 0.01
    ...
    ...     def loss(self, b):
    ...         return self.strength * sum((w**2).sum() for w in b.w.values())
    >>> (WeightShrink() + Method()).name
    'weightshrink+method'
    """

    name: ClassVar[str] = "method"
    """The method's name in files, commands and checkpoints; by default the class name in lower case."""
    paper: ClassVar[str] = ""
    """The paper that describes the method."""
    sends: ClassVar[str] = "weights, BatchNorm statistics, the number of samples"
    """The parts of the model that leave a site, in plain words."""
    uploads: ClassVar[Mapping[str, str]] = {}
    """Further uploads: the names that `after`, or a function that `server.ask` calls, returns, each with a description
    in plain words. `fullrank.testing.check` reports missing names."""
    keeps: ClassVar[str] = "nothing"
    """The state that a client keeps between rounds, in plain words."""
    personal: ClassVar[tuple[str, ...]] = ()
    """Selectors of entries that never leave a client."""
    client_only: ClassVar[tuple[str, ...]] = ()
    """Selectors of those personal entries without which the global model can predict."""
    broadcast: ClassVar[tuple[str, ...]] = ()
    """Entries of the method's server state that are sent to clients in each round."""
    receives: ClassVar[str] = ""
    """A description of the broadcast entries in plain words."""
    drift: ClassVar[bool] = False
    """Whether the gradient correction concerns the distance to the global model.

    Such a correction comes last, applies to shared entries only, and not to side fits.
    """
    evaluate_mean: ClassVar[bool] = False
    """Whether the mean of the clients' weights is evaluated as well, because `aggregate` makes another model of it."""
    neutral: ClassVar[Mapping[str, Any]] = {}
    """Field values with which the method equals FedAvg to the bit."""
    tried_on: ClassVar[Mapping[str, Any]] = {}
    """The `[model]` table of a small network for checks and tests, if the method does not work with every network."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods that this one is composed of."""
        return (self,)

    def __add__(self, other: Method) -> Method:
        from fullrank.methods._compose import Composed

        return Composed(self.parts + other.parts)

    # The network

    def model(self, net: Network) -> Network:
        """Change the body of the network.

        The hook is chained. If the width of the representation changes, a new linear head follows.

        Args:
            net: The network, as the method before this one returned it.

        Returns:
            The network to train.
        """
        return net

    def head(self, net: Network) -> nn.Module:
        """Return a classifier that replaces the linear head of the network.

        The hook is exclusive.

        Args:
            net: The network, with the width `feature_dim` and the number `num_classes` of classes.
        """
        return net.head

    def caution(self, settings: Settings) -> str:
        """Return a warning for the user if settings break a promise of the method; empty otherwise.

        Args:
            settings: The settings of local training.
        """
        return ""

    def caution_of_data(self, counts: np.ndarray, clients: np.ndarray) -> str:
        """Return a warning for the user about the data; empty if there is none.

        It is called before the first round.

        Args:
            counts: The number of training samples by client and class, of shape (K, C).
            clients: The ids of all clients that may take part.
        """
        return ""

    # State

    def server_state(self, server: ServerView) -> Tree:
        """Return the initial state that the server keeps for this method.

        Args:
            server: The server before the first round.

        Returns:
            A tree of tensors; empty by default.
        """
        return {}

    def client_state(self, client: ClientView) -> Tree:
        """Return the initial state that a client keeps for this method, when it first takes part.

        Args:
            client: The client, whose model is the one that it received.

        Returns:
            A tree of tensors; empty by default.
        """
        return {}

    def begin(self, server: ServerView) -> None:
        """Complete the server's state before the first round.

        The hooks of several methods are called in order. The method may ask clients about their data
        (`server.ask`). What is sent counts as traffic of the first round. No client has received a model yet.

        Args:
            server: The server. Assigning `server.own` changes the state.
        """

    # The local step

    def before(self, client: ClientView) -> Tree:
        """Return tensors that the steps of the next fit need and do not change, available as `b.fixed`.

        They are copied. The hook must not run a fit.

        Args:
            client: The client.
        """
        return {}

    def criterion(self, b: Batch) -> Tensor:
        """Return the base loss of a batch, by default the cross-entropy.

        The hook is exclusive.

        Args:
            b: The batch.
        """
        return F.cross_entropy(b.logits, b.y, label_smoothing=b.label_smoothing)

    def loss(self, b: Batch) -> Tensor | Mapping[str, Tensor]:
        """Return a term that is added to the criterion, whose value is `b.base`.

        The hook is summed. The mean of the term is recorded under the method's name. Several terms by name, as
        in `{"near": …, "far": …}`, are added up in their order, and each is recorded as well, as `name.near`.

        Args:
            b: The batch.

        Returns:
            A scalar, or scalars by name.
        """
        return b.base * 0

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Correct the gradient of criterion and losses, before weight decay and momentum.

        The hook is chained.

        Args:
            g: The gradient by the names of the trained entries, as the method before this one returned it.
            b: The batch.

        Returns:
            The corrected gradient, with the same names and shapes.
        """
        return g

    def pull(self) -> float:
        """Return μ if `grad` adds μ(w − w0), the pull of a proximal term.

        The hook is summed. Normalised averaging takes it into account. The value of the term at the end of each
        local epoch, (μ/2)‖w − w0‖², is recorded under the method's name.
        """
        return 0.0

    # The client's round

    def train(self, client: ClientView) -> None:
        """Run the local fits of a round, by default one `client.fit()`.

        The hook is exclusive.

        Args:
            client: The client.
        """
        client.train()

    def after(self, client: ClientView) -> Mapping[str, Sum | Mean]:
        """Update `client.own` after local training, and return further uploads.

        Args:
            client: The client.

        Returns:
            Uploads by name, each a `Sum` or a `Mean`; the class attribute `uploads` describes them.
        """
        return {}

    def weight(self, client: ClientView) -> float:
        """Return the client's weight in the mean of the models, by default its number of samples.

        The hook is exclusive.

        Args:
            client: The client.
        """
        return client.n

    def upload(self, client: ClientView, tree: Tree) -> Tree:
        """Return what the client sends in place of its shared weights: clipped, noised, shifted or compressed.

        The hook is chained. It runs after the `after` hooks of all methods, so it sees their new state, and may
        itself assign `client.own` (as error feedback does). BatchNorm statistics and what `after` returns do
        not pass through it.

        What it returns is what crosses to the server, and bytes are counted on it. If it has other names or shapes than
        the model, the method also defines `receive`. Names, shapes and kinds of numbers must be the same for every
        client and in every round.

        Args:
            client: The client.
            tree: The shared entries by name, or what the method before this one returned.

        Returns:
            A tree of tensors.
        """
        return tree

    def receive(self, server: ServerView, tree: Tree) -> Tree:
        """Return the shared weights of one client from what its `upload` sent.

        The hook is chained in reverse order. The server calls it for every upload as it arrives, before it
        checks the result against the model and aggregates it. `server.w` are still the weights that the client
        received. The hook cannot change the server's state: `aggregate` does that.

        Args:
            server: The server.
            tree: What the client sent, or what the method after this one returned.

        Returns:
            The shared entries, with the names and shapes of `server.w`.
        """
        return tree

    # The server's round

    def aggregate(self, server: ServerView, new: Tree, up: Mapping[str, Tree]) -> Tree:
        """Return the new shared entries.

        The hook is chained.

        Args:
            server: The server.
            new: The mean of the clients' weights, as the method before this one changed it.
            up: The combined uploads of this method by name, and the mean of the weights as `up["w"]`.

        Returns:
            The shared entries. Frozen entries may be among them, which are then sent to the clients again.
        """
        return new

    def finish(self, server: ServerView) -> None:
        """Change the model after the last round.

        The hooks of several methods are called in order. A run that is continued starts from the model before
        this hook.

        Args:
            server: The server. Assigning `server.w` changes the model.
        """

    # The personal model

    def personalise(self, client: ClientView) -> Tree | None:
        """Turn the global model into the client's own, by fits or by returning its entries.

        The hook is exclusive.

        Args:
            client: The client, whose model is the global one at first.

        Returns:
            The entries of the client's own model, or None if fits have changed the client's model.
        """
        return None

    def predict(self, b: Batch) -> Tensor:
        """Return the scores of the personal model, by default the logits.

        The hook is exclusive.

        Args:
            b: The batch.
        """
        return b.logits
