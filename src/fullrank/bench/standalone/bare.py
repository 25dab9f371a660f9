"""A bare training loop for a task, as one writes it with care in PyTorch without a framework.

There is one model; global weights are copied in one call, each step is one optimiser call, and the weighted mean is a
running sum. Run as a file (`python bare.py TASK`), it imports nothing of fullrank.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

if __package__:
    from fullrank.bench.standalone.task import RaceTask, mark
else:
    from task import RaceTask, mark  # type: ignore[import-not-found, no-redef]


def main(path: str) -> None:
    """Run the task, and mark the end of each round."""
    torch.set_num_threads(1)
    task = RaceTask(path)
    network = task.network().train()
    local: list[Tensor] = list(network.parameters())
    current = [parameter.detach().clone() for parameter in local]
    mean = [torch.empty_like(weight) for weight in current]
    for number, cohort in enumerate(task.cohorts):
        torch._foreach_zero_(mean)
        steps = 0
        for client in cohort:
            x, y = task.client(client)
            with torch.no_grad():
                torch._foreach_copy_(local, current)
            for _ in range(task.epochs):
                for rows in torch.split(torch.randperm(len(y)), task.batch_size):
                    loss = cross_entropy(network(x[rows]), y[rows])
                    slopes = torch.autograd.grad(loss, local)
                    with torch.no_grad():
                        torch._foreach_add_(local, slopes, alpha=-task.lr)
                    steps += 1
            with torch.no_grad():  # clients of a task have equal size
                torch._foreach_add_(mean, local, alpha=1 / len(cohort))
        current, mean = mean, current
        mark(round=number + 1, steps=steps)
    with torch.no_grad():
        torch._foreach_copy_(local, current)
    mark(loss=task.loss(network), versions={"torch": str(torch.__version__)})


if __name__ == "__main__":
    main(sys.argv[1])
