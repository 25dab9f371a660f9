"""Ditto: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization* (ICML 2021)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from fullrank.errors import InputError
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, Momentum, NotNegative
from fullrank.objectives import proximal
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.local.views import ClientView


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg with an additional personal model v at each client: min f_k(v) + (λ/2)‖v − w‖², w as received.

    v starts at the model that the client first receives, is trained after the global one in every round in which the
    client takes part, for `epochs` (0: as many as the global one), and never leaves the site.

    Its optimiser is that of the global model, unless `optimizer` names another: sgd, adam or adamw with the constant
    rate `lr` (0: the rate of the round), with `weight_decay` and, for sgd, with `momentum`. FedETF's authors train v by
    plain SGD, which is optimizer = "sgd" with the other defaults.
    """

    paper = "Li et al., ICML 2021"
    keeps = "a whole personal model"

    lam: NotNegative = 0.1
    epochs: Annotated[int, Field(ge=0)] = 0
    optimizer: Literal["global", "sgd", "adam", "adamw"] = "global"
    lr: NotNegative = 0.0
    momentum: Momentum = 0.0
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        """Check the settings of the personal model's optimiser.

        Raises:
            InputError: If they are given and not used.
        """
        given = next((name for name in ("lr", "momentum", "weight_decay") if getattr(self, name)), "")
        if self.optimizer == "global" and given:
            raise InputError(
                f'method.ditto.{given} has no effect with method.ditto.optimizer = "global"; take "sgd", or leave '
                f"{given} at 0"
            )

    @property
    def own_optimiser(self) -> dict[str, Any]:
        """The settings of the personal model's optimiser; empty if it is that of the global model."""
        if self.optimizer == "global":
            return {}
        settings = {"optimizer": self.optimizer, "momentum": self.momentum, "nesterov": False}
        return {**settings, "weight_decay": self.weight_decay, **({"lr": self.lr} if self.lr else {})}

    def client_state(self, client: "ClientView") -> Tree:
        """Return the personal model's initial weights."""
        return {"v": client.model}

    def near(self, b: Batch) -> Tensor:
        """Return (λ/2)‖v − w‖² over the shared entries."""
        return self.lam * proximal(b.w, b.w0)

    def train(self, client: "ClientView") -> None:
        """Train the global model as in FedAvg, then v on separate batches."""
        client.fit()
        v = client.fit(model=client.own["v"], loss=self.near, epochs=self.epochs or None, **self.own_optimiser)
        client.own = {"v": v}

    def personalise(self, client: "ClientView") -> Tree:
        """Return the personal model v."""
        v: Tree = client.own["v"]
        return v
