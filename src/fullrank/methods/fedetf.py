"""FedETF: Li et al., *No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and
Fixed Classifier* (ICCV 2023).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.methods._batch import Batch
from fullrank.methods._method import Method, NotNegative, Positive
from fullrank.models.entries import select
from fullrank.objectives import balanced_cross_entropy, simplex_etf
from fullrank.trees import Tensors

if TYPE_CHECKING:
    from fullrank.local.views import ClientView
    from fullrank.models import Network

_SGD = {"optimizer": "sgd", "nesterov": False}
FRAME: dict[str, Any] = {**_SGD, "momentum": 0.0, "weight_decay": 0.0, "epochs": 3}
PROJECTION: dict[str, Any] = {**_SGD, "momentum": 0.9, "weight_decay": 5e-4, "decay_on": "all", "epochs": 3}
"""Settings of the authors' code for fine-tuning frame and projection alternately, each time with a new SGD; the rates
are hyper-parameters.
"""


class FrameHead(nn.Module):
    """A head whose logits are β times the cosines between the projected feature and the fixed vectors of a simplex ETF.

    Args:
        width: The number of features.
        classes: The number of classes.
        dim: The number of dimensions of the frame.
        beta: The initial temperature β.
        dtype: The dtype of the parameters.
    """

    def __init__(self, width: int, classes: int, dim: int, beta: float, dtype: torch.dtype):
        super().__init__()
        self.projection = nn.Linear(width, dim).to(dtype)  # the same numbers are drawn for every dtype
        self.beta = nn.Parameter(torch.tensor(beta, dtype=dtype))
        seed = int(torch.randint(2**31, ()))
        frame = simplex_etf(classes, dim, seed).mT.contiguous().to(dtype)
        self.frame = nn.Parameter(frame, requires_grad=False)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensors]:
        """Compute the logits.

        Args:
            z: Features of shape (N, width).

        Returns:
            The logits, and the normalised projection as `mu`.
        """
        mu = F.normalize(self.projection(z))
        return self.beta * F.linear(mu, self.frame), {"mu": mu}


@dataclass(frozen=True)
class FedETF(Method):
    """A fixed classifier that all clients share: the C vectors v_c of a simplex ETF, at equal angles from each other.

    logits = β·v_cᵀμ, μ = μ̂/‖μ̂‖, μ̂ a linear projection of z to `dim` dimensions (0: C), β trained from `beta` on.
    Local training minimises the balanced loss, the cross-entropy of logits + γ·log n_c with n_c the client's class
    counts (a missing class counts as 1). To personalise, a client adapts the features for one local training, then
    `repeats` times fine-tunes its own copy of the frame and the projection: by plain cross-entropy, {body, β}, {frame,
    β}, {projection, β} (`paper`); or all by the balanced loss first, then only frame and projection with β fixed, and
    statistics of norm layers moving (`repo`, as the authors' code does). `frame_lr` and `projection_lr` are the rates
    of fine-tuning.

    A client's weight in the mean is its number of training samples. The authors' code also counts its hold-out, with
    every method; in their settings no client's share differs by as much as 0.0001.
    """

    paper = "Li et al., ICCV 2023"

    gamma: NotNegative = 1.0
    beta: Positive = 1.0
    dim: Annotated[int, Field(ge=0)] = 0
    preset: Literal["paper", "repo"] = "paper"
    repeats: Annotated[int, Field(ge=0)] = 20
    frame_lr: Positive = 0.1
    projection_lr: Positive = 0.05

    def head(self, net: "Network") -> nn.Module:
        """Return a head with projection, temperature and frame.

        Raises:
            InputError: If `dim` is too small for the number of classes.
        """
        if self.dim and self.dim < net.num_classes - 1:
            raise InputError(
                f"method.fedetf.dim = {self.dim}: vectors of {net.num_classes} classes at equal angles need at least "
                f"{net.num_classes - 1} dimensions; 0 means the number of classes"
            )
        return FrameHead(net.feature_dim, net.num_classes, self.dim or net.num_classes, self.beta, net.dtype)

    def criterion(self, b: Batch) -> Tensor:
        """Return the balanced loss ℓ_g."""
        return balanced_cross_entropy(b.logits, b.y, b.counts, self.gamma, label_smoothing=b.label_smoothing)

    def plain(self, b: Batch) -> Tensor:
        """Return the cross-entropy, for fine-tuning."""
        return F.cross_entropy(b.logits, b.y, label_smoothing=b.label_smoothing)

    def personalise(self, client: "ClientView") -> None:
        """Adapt the features, then fine-tune frame and projection in turns; the model is evaluated after each stage."""
        head = client.network.head_name
        frame, projection, beta = (f"{head}.{part}" if head else part for part in ("frame", "projection", "beta"))
        if self.preset == "repo":
            client.fit()
        else:
            apart = select(client.network, "head") | set(client.entries.frozen)
            body = [name for name in client.network.parameter_names if name not in apart]
            client.fit((*body, beta), criterion=self.plain)
        client.mark()
        of_frame, of_projection = {**FRAME, "lr": self.frame_lr}, {**PROJECTION, "lr": self.projection_lr}
        for _ in range(self.repeats):
            if self.preset == "repo":
                client.fit(frame, criterion=self.plain, **of_frame)
                client.fit(projection, criterion=self.plain, **of_projection)
            else:
                client.fit((frame, beta), criterion=self.plain, stats="freeze", **of_frame)
                client.fit((projection, beta), criterion=self.plain, stats="freeze", **of_projection)
            client.mark()
