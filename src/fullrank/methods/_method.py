"""A method: everything that differs from federated averaging, client half and server half, in one object."""

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
"""A finite number from 0 on: what a coefficient of a loss is."""
Positive: TypeAlias = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
"""A finite number above 0: what a learning rate is."""
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""A share of what was before."""


@dataclass(frozen=True)
class Method:
    """Federated averaging. A subclass overrides the hooks in which it differs, and nothing else.

    Hyper-parameters are dataclass fields: decorate subclasses with `@dataclass(frozen=True)`. Inside `criterion`,
    `loss` and `grad` everything is a pure function of tensors: no `.item()`, no Python branch on data, no boolean
    indexing. Trees are never written in place: a new value is a new tree.

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
    """How files, the command line and the checkpoint call it: the class name in lower case unless set."""
    paper: ClassVar[str] = ""
    """Where it comes from."""
    sends: ClassVar[str] = "weights, BatchNorm statistics, the number of samples"
    """What leaves a site of the model itself, in plain words."""
    uploads: ClassVar[Mapping[str, str]] = {}
    """Whatever else it sends: the names that `after`, or a function that `server.ask` calls, returns, each with what it
    is in plain words. `fullrank.testing.check` finds what is missing here."""
    keeps: ClassVar[str] = "nothing"
    """What a client keeps between rounds, in plain words."""
    personal: ClassVar[tuple[str, ...]] = ()
    """Selectors of entries that never leave a client."""
    aside: ClassVar[tuple[str, ...]] = ()
    """Those of them without which the global model predicts: it is complete although a client has more."""
    broadcast: ClassVar[tuple[str, ...]] = ()
    """Entries of its server state, where it has one, that travel down each round."""
    receives: ClassVar[str] = ""
    """What these are, in plain words."""
    drift: ClassVar[bool] = False
    """Its gradient correction concerns the distance to the global model: shared entries only, last, no side fits."""
    neutral: ClassVar[Mapping[str, Any]] = {}
    """Field values at which it is FedAvg to the bit."""
    tried_on: ClassVar[Mapping[str, Any]] = {}
    """The `[model]` table of a small network that it works with, where not any will do: checks and tests take it."""

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
        """Change the network's body; a fresh linear head follows if the feature width changes. Chained."""
        return net

    def head(self, net: Network) -> nn.Module:
        """Give another classifier for `net`. Exclusive."""
        return net.head

    def caution(self, settings: Settings) -> str:
        """A sentence for the user if these settings take away what the method promises."""
        return ""

    def caution_of_data(self, counts: np.ndarray, clients: np.ndarray) -> str:
        """A sentence for the user about these data: training samples by client and class (K, C), and the clients' ids.

        It is asked for before the first round, with all clients that may take part.
        """
        return ""

    # State

    def server_state(self, server: ServerView) -> Tree:
        """What the server keeps for this method, at the start."""
        return {}

    def client_state(self, client: ClientView) -> Tree:
        """What a client keeps for this method, when it is first called upon."""
        return {}

    # The local step

    def before(self, client: ClientView) -> Tree:
        """Before each fit: what its steps need and none of them changes, which they see as `b.fixed`.

        A copy is made of it; it asks for no fit itself.
        """
        return {}

    def criterion(self, b: Batch) -> Tensor:
        """The base loss of a batch. Exclusive."""
        return F.cross_entropy(b.logits, b.y, label_smoothing=b.label_smoothing)

    def loss(self, b: Batch) -> Tensor:
        """A term added to the criterion, whose value is `b.base`. Summed."""
        return b.base * 0

    def grad(self, g: Tree, b: Batch) -> Tree:
        """Correct the gradient of criterion and losses, before weight decay and momentum. Chained."""
        return g

    # The client's round

    def train(self, client: ClientView) -> None:
        """Run the local fits. Exclusive."""
        client.train()

    def after(self, client: ClientView) -> Mapping[str, Sum | Mean]:
        """After local training: update `client.own`, return further uploads."""
        return {}

    def weight(self, client: ClientView) -> float:
        """This client's weight in the mean of the weights. Exclusive."""
        return client.n

    # The server's round

    def aggregate(self, server: ServerView, new: Tree, up: Mapping[str, Tree]) -> Tree:
        """The new shared entries: `new` is the mean of the weights so far, `up` holds the reduced uploads.

        The result may also hold frozen entries, which then travel again. Chained.
        """
        return new

    def finish(self, server: ServerView) -> None:
        """After the last round. What it makes of the model is the result; further rounds go on from before it."""

    # The personal model

    def personalise(self, client: ClientView) -> Tree | None:
        """Make a client's own model from the global one, by fits or as the tree that is returned. Exclusive."""
        return None

    def predict(self, b: Batch) -> Tensor:
        """The personal model's scores. Exclusive."""
        return b.logits
