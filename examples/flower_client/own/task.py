"""The network and the data of the example; nothing here knows of federated methods."""

import torch
from torch import nn

CLASSES, WIDTH, FEATURES = 3, 8, 6


class Net(nn.Module):
    """A small perceptron. What its head sees is the representation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, FEATURES), nn.Tanh())
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def initial_net():
    """Return the network with which all runs start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def load_data(site):
    """Return the samples of a site: each has other numbers of samples of each class."""
    rng = torch.Generator().manual_seed(site)
    y = torch.cat([torch.full((6 + 10 * (c == site % CLASSES),), c) for c in range(CLASSES)])
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
    return centres[y] + 0.7 * torch.randn(len(y), WIDTH, generator=rng), y
