"""FedDecorr added to a plain PyTorch loop: one line, with nothing of the library but a loss.

    python examples/feddecorr_plain_loop.py

trains a perceptron on samples of four classes, as a client that has only a few classes does, once with cross-entropy
and once with FedDecorr's term added. It prints how many dimensions the representation of new samples uses, and how well
the model predicts them. Cross-entropy uses one dimension fewer than there are classes; the term keeps more in use.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fullrank.objectives import decorrelation

BETA = 0.1  # the weight of FedDecorr's term, the papers' default
CLASSES, INPUTS, WIDTH = 4, 32, 64


def samples(number, seed):
    """Samples around the centres of four classes."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (number,), generator=generator)
    return centres[y] + 0.5 * torch.randn(number, INPUTS, generator=generator), y


def train(beta, steps=300):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    head = nn.Linear(WIDTH, CLASSES)
    optimiser = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    x, y = samples(1024, seed=1)
    batches = torch.Generator().manual_seed(2)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,), generator=batches)
        z = backbone(x[batch])  # the representation: what the classifier sees
        loss = cross_entropy(head(z), y[batch])
        loss = loss + beta * decorrelation(z)  # FedDecorr is this line
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return backbone, head


@torch.no_grad()
def effective_rank(z):
    """The number of dimensions that features use: exp of the entropy of the spectrum of their covariance."""
    spectrum = torch.linalg.svdvals(z - z.mean(0)).square()
    shares = spectrum / spectrum.sum()
    return torch.exp(-torch.xlogy(shares, shares).sum()).item()


@torch.no_grad()
def main():
    x, y = samples(1024, seed=3)
    found = {}
    for name, beta in (("cross-entropy", 0.0), ("with FedDecorr", BETA)):
        with torch.enable_grad():
            backbone, head = train(beta)
        z = backbone(x)
        accuracy = (head(z).argmax(1) == y).float().mean().item()
        found[name] = effective_rank(z), accuracy
        print(f"{name}: {found[name][0]:.1f} of {WIDTH} dimensions, accuracy {100 * accuracy:.1f} %")
    return found


if __name__ == "__main__":
    main()
