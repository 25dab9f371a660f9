"""Two sites whose test parts are disjoint, and a run on them."""

import numpy as np
from torch import nn

NAMES = ("north", "south")
SETTINGS = {
    "data.partition": "domain",
    "data.clients": 2,
    "model.name": "two_sites:network",
    "train.rounds": 2,
    "train.steps": 3,
    "train.batch_size": 16,
    "train.lr": 0.05,
    "evaluate.metrics": ["accuracy", "loss", "auroc", "per-class"],
    "engine.name": "serial",
}


def network(num_classes, in_channels):
    """A perceptron with BatchNorm, which is FedBN's."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes))


def arrays(seed=0):
    """Two sites, each with its own shift of three classes, and 41 and 23 test samples."""
    rng = np.random.default_rng(seed)
    found = {}
    for split, sizes in (("train", (90, 60)), ("test", (41, 23))):
        site = np.repeat(NAMES, sizes)
        y = rng.integers(0, 3, len(site))
        x = rng.normal(size=(len(site), 4)) + np.eye(4)[y] * 2 + (site == "south")[:, None] * 3.0
        order = rng.permutation(len(site))
        found |= {f"x_{split}": x[order].astype(np.float32), f"y_{split}": y[order], f"domain_{split}": site[order]}
    return found
