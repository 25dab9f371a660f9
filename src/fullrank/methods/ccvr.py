"""CCVR: Luo et al., *No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data*
(NeurIPS 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fullrank.channels import Sum
from fullrank.errors import Conflict, InputError
from fullrank.methods._method import Method, Positive
from fullrank.methods._prototypes import single_samples
from fullrank.models.entries import select
from fullrank.trees import Tree

if TYPE_CHECKING:
    from fullrank.federated.views import ServerView
    from fullrank.local.views import ClientView

JITTER = 1e-6
"""A constant that is added to every variance."""
Array: TypeAlias = NDArray[np.float64]


def gaussian(n: float, z: Array, zz: Array) -> tuple[Array, Array]:
    """Compute the moments of the features of a class. The covariance of a single sample is zero.

    Args:
        n: The number of samples.
        z: The sum of the features, Σz.
        zz: The sum of their products, Σzzᵀ.

    Returns:
        The mean and the unbiased covariance.
    """
    mean = z / n
    return mean, (zz - n * np.outer(mean, mean)) / (n - 1) if n > 1 else np.zeros_like(zz)


def draw(rng: np.random.Generator, samples: int, n: float, z: Array, zz: Array) -> Array:
    """Draw virtual features of one class from a normal distribution.

    The symmetric root is used because a covariance of few samples is singular, and rounding must not turn its small
    axes.

    Args:
        rng: The generator.
        samples: The number of features to draw.
        n: The number of samples of the class.
        z: The sum of their features.
        zz: The sum of the features' products.

    Returns:
        The features, of shape (samples, d).
    """
    mean, covariance = gaussian(n, z, zz)
    variances, axes = np.linalg.eigh(covariance + JITTER * np.eye(len(z)))
    drawn: Array = mean + rng.standard_normal((samples, len(z))) @ (axes * np.sqrt(variances.clip(0)) @ axes.T)
    return drawn


@dataclass(frozen=True)
class CCVR(Method):
    """FedAvg; after the last round, the classifier is retrained on features drawn from a Gaussian per class.

    All clients send once, for each class, n, Σz and Σzzᵀ under the final model. A client sends nothing about a class of
    which it has fewer than `min_count` samples: with 0 or 1, the sum of a single sample is that sample's feature. With
    μ_c and Σ_c over all clients, `samples` virtual features per class are drawn from N(μ_c, Σ_c + 1e-6·I), and only the
    head is trained on them (SGD, momentum 0.9).
    """

    paper = "Luo et al., NeurIPS 2021"
    uploads = {
        "moments": "once, after the last round, for every class that it has, the number of samples, the sum of their "
        "features and the sum of the features' products"
    }

    samples: Annotated[int, Field(ge=1)] = 200
    epochs: Annotated[int, Field(ge=1)] = 10
    lr: Positive = 0.01
    min_count: Annotated[int, Field(ge=0)] = 0

    def caution_of_data(self, counts: np.ndarray, clients: np.ndarray) -> str:
        """Warn about clients that would send the feature of a single sample."""
        return single_samples(self.name, counts, clients, self.min_count)

    def server_state(self, server: "ServerView") -> Tree:
        """Return no state, but reject a model without a common classifier before the first round.

        Raises:
            Conflict: If an entry of the classifier is personal or frozen.
        """
        if apart := sorted(select(server.net, "head") - server.w.keys()):
            raise Conflict(f"ccvr retrains the common classifier, but {apart[0]} is personal or frozen")
        return {}

    def moments(self, client: "ClientView") -> Mapping[str, Sum]:
        """Return n, Σz and Σzzᵀ of each class, in float64."""
        z, y = client.features()
        z, n = z.double(), (client.counts * (client.counts >= self.min_count)).double()
        of_class = [z[y == c] * (n[c] > 0) for c in range(len(n))]
        first = torch.stack([some.sum(0) for some in of_class])
        return {"moments": Sum({"n": n, "z": first, "zz": torch.stack([some.mT @ some for some in of_class])})}

    def finish(self, server: "ServerView") -> None:
        """Ask clients for their statistics, draw features, and train the head on them.

        Raises:
            InputError: If no client has enough samples of any class.
        """
        moments = {name: value.cpu().numpy() for name, value in server.ask(self.moments)["moments"].items()}
        rng = server.generator("features")
        known = np.flatnonzero(moments["n"])
        if not len(known):
            raise InputError(f"ccvr: no client has min_count = {self.min_count} samples of any class")
        drawn = [draw(rng, self.samples, *(moments[name][c] for name in ("n", "z", "zz"))) for c in known]
        like = next(iter(server.w.values()))
        z = torch.from_numpy(np.concatenate(drawn)).to(like)
        y = torch.from_numpy(known.repeat(self.samples)).to(like.device)
        server.w = server.fit_head(z, y, epochs=self.epochs, lr=self.lr)
