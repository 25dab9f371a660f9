"""FedMR Fig. 1(c): a client with two of six classes folds the space that the others need, and FedMR keeps it open.

The paper's appendix with its details is not available; data, network and settings are our choice, and (μ1, μ2) was
chosen on samples like those drawn here, so the study is an illustration, not evidence. Over the seeds 0 to 7 the
effective rank of client 0's z has the mean 2.47 with FedAvg and 2.57 with FedMR (higher in seven of eight), 1.07 on two
classes only; its accuracy on all classes is .68 with both, from .33 to .90.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullrank import methods
from fullrank.randomness import generator, seeded
from fullrank.runs.fit import fit
from fullrank.runs.result import Run
from fullrank.theory.panels import Sphere, client_after_next_round, represented, sphere

CLASSES, INPUTS = 6, 10
HELD = ((0, 1), (2, 3), (4, 5))
"""The classes of each client."""
FEDMR = {"method.fedmr.mu1": 0.003, "method.fedmr.mu2": 1.0}


class _SteepLinear(nn.Linear):
    """A linear layer that multiplies its input by 10, because usual weights give no confident predictions on unit
    vectors."""

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(10 * z, self.weight, self.bias)


class SphereNet(nn.Module):
    """A perceptron whose representation is a point on the unit sphere.

    Args:
        inputs: The number of inputs.
        hidden: The width of the hidden layers.
        classes: The number of classes.

    >>> SphereNet()(torch.zeros(5, INPUTS)).shape
    torch.Size([5, 6])
    """

    def __init__(self, inputs: int = INPUTS, hidden: int = 64, classes: int = CLASSES):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3)
        )
        self.head = _SteepLinear(3, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return unit vectors (samples, 3)."""
        return F.normalize(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        scores: Tensor = self.head(self.features(x))
        return scores


def toy_data(samples: int, test: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw samples of six Gaussian classes in ten dimensions, whose means have the distance 4.

    Args:
        samples: The number of training samples of each class.
        test: The number of test samples of each class.
        seed: The seed.

    Returns:
        The inputs and labels for training, and those for the test.

    >>> [tuple(part.shape) for part in toy_data(5, 2)]
    [(30, 10), (30,), (12, 10), (12,)]
    """
    rng = generator(seed, "theory", "toy sphere")
    means = rng.normal(size=(CLASSES, INPUTS))
    means *= 4 / np.linalg.norm(means, axis=1, keepdims=True)
    parts: list[Tensor] = []
    for number in (samples, test):
        y = np.repeat(np.arange(CLASSES), number)
        x = means[y] + rng.normal(size=(len(y), INPUTS))
        parts += [torch.tensor(x, dtype=torch.float32), torch.tensor(y)]
    return parts[0], parts[1], parts[2], parts[3]


def toy_sphere(
    seed: int = 0,
    *,
    samples: int = 500,
    test: int = 200,
    epochs: int = 50,
    rounds: int = 30,
    local_epochs: int = 5,
    with_fedmr: bool | None = None,
) -> list[Sphere]:
    """Train the networks of FedMR Fig. 1(c), and show test samples of all six classes on the sphere.

    The clients' models are those of the last round before averaging.

    Args:
        seed: The seed of data, weights and training.
        samples: The number of training samples per class.
        test: The number of test samples per class.
        epochs: The epochs of central training.
        rounds: The rounds of federated training.
        local_epochs: The local epochs per client and round.
        with_fedmr: Whether to include FedMR; by default it is included if the library has the method.

    Returns:
        Four panels: trained centrally, on two classes only, FedAvg's first client, FedMR's first client.

    >>> panels = toy_sphere(samples=10, test=5, epochs=1, rounds=1, local_epochs=1, with_fedmr=False)
    >>> [panel.name for panel in panels]
    ['all classes', 'two classes only', "FedAvg's client"]
    """
    x, y, seen, truth = toy_data(samples, test, seed)
    clients = [(x[own], y[own]) for own in (torch.isin(y, torch.tensor(held)) for held in HELD)]
    with seeded(seed, "theory", "toy sphere"):
        net = SphereNet()

    def panel(name: str, model: nn.Module) -> Sphere:
        z, predicted = represented(model, seen)
        return sphere(name, z, truth, float((predicted == truth).double().mean()))

    def trained(data: list[tuple[Tensor, Tensor]], method: str, rounds: int, epochs: int) -> Run:
        settings = FEDMR if method == "fedmr" else {}
        return fit(net, data, method, rounds=rounds, epochs=epochs, lr=0.05, batch_size=64, seed=seed, set=settings)

    found = [
        panel("all classes", trained([(x, y)], "fedavg", 1, epochs).model()),
        panel("two classes only", trained(clients[:1], "fedavg", 1, epochs).model()),
    ]
    names = {"fedavg": "FedAvg's client", "fedmr": "FedMR's client"}
    if with_fedmr is False or (with_fedmr is None and "fedmr" not in methods.available()):
        del names["fedmr"]
    for method, name in names.items():
        run = trained(clients, method, max(1, rounds - 1), local_epochs)
        found.append(panel(name, client_after_next_round(run, 0)))
    return found
