"""The task that every contestant of a CPU race runs: data, initial weights, plan of clients, and settings.

It needs only torch and NumPy, so that it can be imported as a plain file in another framework's environment. A
contestant calls `mark` after each round, and continues when the measuring process answers.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SOCKET = "FULLRANK_BENCH_SOCKET"
"""The environment variable that names the socket for marks."""
LOSS_SAMPLES = 1000
"""The number of training samples on which contestants' final losses are compared."""


def cnn(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build the network of pfl-research's CIFAR-10 benchmark: two 3×3 convolutions, a dense layer, dropout; 1.63 M."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(14 * 14 * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )


def linear(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build a dense layer on the flattened image, whose steps are so short that all overhead is visible."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 32 * 32, num_classes))


NETWORKS = {"cnn": cnn, "linear": linear}


class RaceTask:
    """The task of a race, in a directory. Client k has `samples` samples, beginning with number k × `samples`.

    Args:
        path: The directory.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        facts = json.loads((self.path / "task.json").read_text(encoding="utf-8"))
        self.network_name: str = facts["network"]
        self.clients: int = facts["clients"]
        self.samples: int = facts["samples"]
        self.cohorts: list[list[int]] = facts["cohorts"]
        self.epochs: int = facts["epochs"]
        self.batch_size: int = facts["batch_size"]
        self.lr: float = facts["lr"]
        self.seed: int = facts["seed"]
        # Memory-mapped, so that a process holds only what it touches.
        self.x = torch.from_numpy(np.load(self.path / "x.npy", mmap_mode="c"))
        self.y = torch.from_numpy(np.load(self.path / "y.npy", mmap_mode="c"))

    @property
    def rounds(self) -> int:
        """The number of rounds, including the first."""
        return len(self.cohorts)

    @property
    def steps(self) -> int:
        """The number of optimiser steps in a round."""
        return len(self.cohorts[0]) * self.epochs * -(-self.samples // self.batch_size)

    def client(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the data of a client.

        Args:
            client: The number of the client.

        Returns:
            Its samples and their labels.
        """
        rows = slice(client * self.samples, (client + 1) * self.samples)
        return self.x[rows], self.y[rows]

    def network(self) -> nn.Sequential:
        """Build the network with the initial weights that all contestants share."""
        torch.manual_seed(self.seed)
        return NETWORKS[self.network_name]()

    def loss(self, network: nn.Module) -> float:
        """Compute the mean cross-entropy of a model on the first samples, in eval mode."""
        network.eval()
        with torch.no_grad():
            return float(nn.functional.cross_entropy(network(self.x[:LOSS_SAMPLES]), self.y[:LOSS_SAMPLES]))


def mark(**facts: Any) -> None:
    """Report the end of a round to the measuring process, and wait until it has measured."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(json.dumps(facts).encode() + b"\n")
        connection.recv(1)
