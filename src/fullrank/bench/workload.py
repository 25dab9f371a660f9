"""The task of a CPU race: synthetic images of CIFAR's shape, and fullrank's sampling of clients."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fullrank.randomness import generator


@dataclass(frozen=True)
class Workload:
    """The settings of a task, by default those of pfl-research's published CIFAR-10 benchmark."""

    network: str = "cnn"
    clients: int = 1000
    samples: int = 50
    cohort: int = 50
    rounds: int = 4
    epochs: int = 1
    batch_size: int = 10
    lr: float = 0.1
    seed: int = 0

    def write(self, path: Path) -> None:
        """Write the task into a directory: normalised float32 images, labels, the plan and the settings."""
        path.mkdir(parents=True, exist_ok=True)
        rng = generator(self.seed, "bench", "data")
        y = rng.integers(10, size=self.clients * self.samples)
        shades = rng.standard_normal((10, 3, 1, 1), dtype=np.float32)
        x = rng.standard_normal((len(y), 3, 32, 32), dtype=np.float32)
        for label in range(10):  # class by class, so that there is no second copy of all the images
            x[y == label] += 0.3 * shades[label]
        np.save(path / "x.npy", x)
        np.save(path / "y.npy", y.astype(np.int64))
        self.describe(path)

    def describe(self, path: Path) -> None:
        """Write only the plan and the settings, into a directory that has the data."""
        facts = {**asdict(self), "cohorts": [self.taking_part(number) for number in range(self.rounds)]}
        (path / "task.json").write_text(json.dumps(facts), encoding="utf-8")

    def taking_part(self, round: int) -> list[int]:
        """Return the clients that the server samples for a round, counted from 0."""
        chosen = generator(self.seed, "clients", round).choice(self.clients, self.cohort, replace=False)
        return sorted(map(int, chosen))


TINY = Workload(clients=8, samples=20, cohort=2, rounds=2)
"""A workload of seconds that only shows that everything works."""
