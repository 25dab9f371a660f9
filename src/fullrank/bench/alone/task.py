"""The task that every contestant of a CPU race gets: data, start, plan of clients, settings.

It needs nothing but torch and NumPy and nothing of fullrank, so that it can be imported as a plain file inside another
framework's environment. A contestant calls `mark` after each round; whoever measures it answers when it may go on.
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
"""The environment variable that names the socket on which marks are awaited."""
JUDGED = 1000
"""Training samples on which the final model's loss is compared between contestants."""


def cnn(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """The network of pfl-research's CIFAR-10 benchmark: two 3×3 convolutions, one dense layer, dropout; 1.63 M."""
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
    """One dense layer on the flattened image: a step so short that everything around it shows."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 32 * 32, num_classes))


NETWORKS = {"cnn": cnn, "linear": linear}


class Task:
    """A task as it lies in a directory: client k has the samples from k × `samples` on."""

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
        # Mapped, not read: a process holds what it touches.
        self.x = torch.from_numpy(np.load(self.path / "x.npy", mmap_mode="c"))
        self.y = torch.from_numpy(np.load(self.path / "y.npy", mmap_mode="c"))

    @property
    def rounds(self) -> int:
        """How many rounds are outcome, the first one included."""
        return len(self.cohorts)

    @property
    def steps(self) -> int:
        """Optimiser steps in a round."""
        return len(self.cohorts[0]) * self.epochs * -(-self.samples // self.batch_size)

    def client(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's samples and labels."""
        rows = slice(client * self.samples, (client + 1) * self.samples)
        return self.x[rows], self.y[rows]

    def network(self) -> nn.Sequential:
        """The network at the start that all contestants share."""
        torch.manual_seed(self.seed)
        return NETWORKS[self.network_name]()

    def loss(self, network: nn.Module) -> float:
        """Mean cross-entropy of a model on the first samples, in eval mode."""
        network.eval()
        with torch.no_grad():
            return float(nn.functional.cross_entropy(network(self.x[:JUDGED]), self.y[:JUDGED]))


def mark(**facts: Any) -> None:
    """Tell the one who measures that a round is over, and wait until it has looked."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(json.dumps(facts).encode() + b"\n")
        connection.recv(1)
