"""A round on a GPU in plain PyTorch, as one writes it with care without a library.

The images are on the device as bytes; batches are gathered, cropped and flipped there; TF32 is on; the optimiser is the
fused one. There are no graphs and no compilation, and weights are float32.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fullrank.objectives import decorrelation

WARM_UP = 3
"""The number of steps before the measurement, in which libraries are loaded and memory is allocated."""


@dataclass(frozen=True)
class Recipe:
    """The settings of local training."""

    epochs: int = 10
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    border: int = 4
    """Width of the border of zeros around the image, for the random crop."""
    beta: float = 0.0
    """The weight of FedDecorr's term; 0 leaves it out."""


@dataclass(frozen=True)
class Timed:
    """The measured time of a round, or of a fraction of its steps."""

    seconds: float
    steps: int
    """The number of steps that were run."""
    round_steps: int
    """The number of steps of a whole round."""
    loss: float

    @property
    def round_seconds(self) -> float:
        """Seconds of a whole round, in proportion to the steps if only a share was run."""
        return self.seconds * self.round_steps / self.steps

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a dict that JSON can represent."""
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            "round_steps": self.round_steps,
            "round_seconds": self.round_seconds,
            "extrapolated": self.steps != self.round_steps,
            "loss": self.loss,
        }


class Images:
    """Images and labels on a device, from which batches are made there.

    Args:
        x: 8-bit images of shape (N, C, H, W).
        y: Labels of shape (N,).
        mean: The mean of each channel.
        std: The standard deviation of each channel.
        device: The device.
    """

    def __init__(self, x: Tensor, y: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device):
        self.x, self.y = x.to(device), y.to(device)
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1) * 255
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1) * 255

    def batch(self, rows: Tensor, border: int) -> tuple[Tensor, Tensor]:
        """Crop and flip images at random, and normalise them.

        Args:
            rows: The positions of the images.
            border: The width of the border of zeros.

        Returns:
            The images and their labels.
        """
        x, device = self.x[rows], self.x.device
        count, _, height, width = x.shape
        corner = torch.randint(2 * border + 1, (2, count, 1), device=device)
        down = corner[0] + torch.arange(height, device=device)
        across = corner[1] + torch.arange(width, device=device)
        across = torch.where(torch.rand(count, 1, device=device) < 0.5, across.flip(1), across)
        framed = pad(x, (border,) * 4)
        one = torch.arange(count, device=device)[:, None, None]
        # Contiguous again: indexing leaves the channels last, which would select other convolution algorithms.
        cut = framed[one, :, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).contiguous()
        return (cut.float() - self.mean) / self.std, self.y[rows]


def time_round(
    network: nn.Module,
    features: Callable[[Tensor], Tensor],
    head: nn.Module,
    images: Images,
    parts: Sequence[np.ndarray],
    recipe: Recipe,
    fraction: float = 1.0,
) -> Timed:
    """Time one round: clients train from the same start, and their weights and buffers are averaged by numbers of
    samples.

    Args:
        network: The network.
        features: Computes the representation of inputs.
        head: The classifier.
        images: The images of all clients.
        parts: The positions of each client's images.
        recipe: The settings of local training.
        fraction: The share of the steps that is run.
    """
    device = images.x.device
    plans = [batches(len(part), recipe) for part in parts]
    start = {name: value.clone() for name, value in network.state_dict().items()}
    mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in start.items()}
    total = sum(map(len, parts))
    network.train()
    with tf32():
        _warm_up(network, features, head, images, parts[0], recipe)
        synchronise(device)
        began, steps, last = time.perf_counter(), 0, torch.zeros((), device=device)
        for part, plan in zip(parts, plans, strict=True):
            network.load_state_dict(start)
            optimizer = _optimiser(network, recipe, device)
            for rows in _on_device(part, plan[: _share(len(plan), fraction)], device):
                last = _step(features, head, optimizer, *images.batch(rows, recipe.border), recipe)
                steps += 1
            for name, value in network.state_dict().items():
                mean[name] += value * (len(part) / total)
        network.load_state_dict({name: value.to(start[name].dtype) for name, value in mean.items()})
        synchronise(device)
        seconds = time.perf_counter() - began
    return Timed(seconds, steps, sum(map(len, plans)), float(last))


def batches(samples: int, recipe: Recipe) -> list[Tensor]:
    """Plan the batches of shuffled epochs. A last batch of a single sample is left out, because BatchNorm cannot use
    it.

    Args:
        samples: The number of samples.
        recipe: The settings of local training.

    Returns:
        The positions of the samples of each batch.
    """
    split = [rows for _ in range(recipe.epochs) for rows in torch.split(torch.randperm(samples), recipe.batch_size)]
    return [rows for rows in split if len(rows) > 1]


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions inside the block, and restore the setting afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def _on_device(part: np.ndarray, plan: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return the rows of each batch, copied to the device at once, because a copy in each step would stall it."""
    rows = torch.from_numpy(part)[torch.cat(list(plan))].to(device)
    return torch.split(rows, [len(chosen) for chosen in plan])


def _share(steps: int, fraction: float) -> int:
    return steps if fraction >= 1 else max(1, round(fraction * steps))


def _optimiser(network: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        network.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=device.type == "cuda",
    )


def _step(
    features: Callable[[Tensor], Tensor],
    head: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    z = features(x)
    loss = cross_entropy(head(z), y)
    if recipe.beta:
        loss = loss + recipe.beta * decorrelation(z)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def _warm_up(
    network: nn.Module,
    features: Callable[[Tensor], Tensor],
    head: nn.Module,
    images: Images,
    part: np.ndarray,
    recipe: Recipe,
) -> None:
    rows = torch.from_numpy(part[: recipe.batch_size]).to(images.x.device)
    optimizer = _optimiser(network, recipe, images.x.device)
    for _ in range(WARM_UP):
        _step(features, head, optimizer, *images.batch(rows, recipe.border), recipe)
