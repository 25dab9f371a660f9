"""The cost of FedMR's two terms, compared with a training step of ResNet18 and with a loop over classes.

Run `python benchmarks/fedmr_terms.py`. Forward and backward of each alternate; medians of n = 5 repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank import models
from fullrank.bench import machine
from fullrank.bench.figures import Figure, table
from fullrank.objectives import intra_class_decorrelation, prototype_margin

BATCH, WIDTH, CLASSES = 128, 512, (10, 100)
COEFFICIENT, EPS = 0.01, 1e-8


def loop_over_classes(z: Tensor, y: Tensor) -> Tensor:
    """Compute L_intra as it is usually written: one d×d matrix for each class of the batch."""
    total, samples = z.new_zeros(()), 0
    for label in y.unique():
        some = z[y == label]
        n, d = some.shape
        if n < 2:
            continue
        some = some - some.mean(0)
        some = some / (EPS + some.square().sum(0) / (n - 1)).sqrt()
        matrix = some.T @ some
        off_diagonal = matrix - torch.diag(torch.diagonal(matrix))
        total = total + off_diagonal.square().sum() / (d * (d - 1))
        samples += n
    return total / samples


def timed(work: Callable[[], None], times: int) -> float:
    """Return the seconds of one call, the mean over some calls."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def backward_of(term: Callable[[Tensor], Tensor], z: Tensor) -> Callable[[], None]:
    """Return a function that computes the term and its gradient."""

    def work() -> None:
        leaf = z.detach().requires_grad_()
        torch.autograd.grad(term(leaf), leaf)

    return work


def resnet_step(classes: int) -> Callable[[], None]:
    """Return a function that runs a training step on grey 28×28 images, as on Fashion-MNIST."""
    net = models.build("resnet18", classes, 1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(classes, (BATCH,))

    def work() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), y).backward()
        optimiser.step()

    return work


def contestants(classes: int) -> dict[str, tuple[Callable[[], None], int]]:
    """Return the functions to measure, and how often each is called in a repeat."""
    z, y = torch.randn(BATCH, WIDTH).relu(), torch.randint(classes, (BATCH,))
    prototypes, available = torch.randn(classes, WIDTH).relu(), torch.ones(classes, dtype=torch.bool)

    def both(z: Tensor) -> Tensor:
        margins = prototype_margin(z, y, prototypes, available)
        return COEFFICIENT * intra_class_decorrelation(z, y, classes) + margins

    torch.testing.assert_close(intra_class_decorrelation(z, y, classes), loop_over_classes(z, y))
    return {
        "ResNet18 step": (resnet_step(classes), 1),
        "both terms": (backward_of(both, z), 20),
        "intra-class term": (backward_of(lambda z: intra_class_decorrelation(z, y, classes), z), 20),
        "loop over classes": (backward_of(lambda z: loop_over_classes(z, y), z), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    print(f"{machine.sentence(machine.describe('cpu'))}; {arguments.threads} threads")
    for classes in CLASSES:
        parts = contestants(classes)
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for work, _ in parts.values():
            work()
        for _ in range(arguments.repeats):
            for name, (work, times) in parts.items():
                seconds[name].append(timed(work, times))
        shares = [100 * a / b for a, b in zip(seconds["both terms"], seconds["ResNet18 step"], strict=True)]
        factors = [a / b for a, b in zip(seconds["loop over classes"], seconds["intra-class term"], strict=True)]
        print(f"\nbatch {BATCH}, {WIDTH} features, {classes} classes; median [least, most] of n = {arguments.repeats}")
        print(
            table(
                ["", "milliseconds"],
                [[name, Figure.of([1e3 * s for s in found]).text(3)] for name, found in seconds.items()],
            )
        )
        print(f"both terms: {Figure.of(shares).text(2)} % of a step")
        print(f"the loop over classes takes {Figure.of(factors).text(1)} times as long as the intra-class term")


if __name__ == "__main__":
    main()
