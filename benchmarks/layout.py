"""Training steps of the library's convolutional networks on a CPU, on images with channels last and channels first.

Run `python benchmarks/layout.py`: CPU-seconds on one thread, medians of interleaved steps, forward and backward.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.nn.functional import cross_entropy

from fullrank.bench import machine
from fullrank.bench.figures import Figure, table
from fullrank.models import build

CASES = [
    ("cnn", 1, 8),
    ("cnn", 3, 32),
    ("resnet20", 3, 32),
    ("mobilenetv2", 3, 32),
    ("resnet18", 1, 28),
    ("repvgg-a0", 3, 32),
]
FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}


def seconds_of(name: str, channels: int, side: int, batch_size: int, repeats: int) -> dict[str, list[float]]:
    """Measure the steps of each format, alternately, after one step to warm up."""
    net = build(name, 10, channels)
    images = torch.randn(batch_size, channels, side, side)
    # by a copy: one channel is last in any order, and only strides say so
    inputs = {key: torch.empty_like(images, memory_format=form).copy_(images) for key, form in FORMATS.items()}
    y = torch.arange(batch_size) % 10
    found: dict[str, list[float]] = {key: [] for key in FORMATS}
    for _ in range(repeats + 1):
        for key, x in inputs.items():
            start = time.process_time()
            torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
            found[key].append(time.process_time() - start)
    return {key: values[1:] for key, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, channels, side in CASES:
        found = seconds_of(name, channels, side, arguments.batch_size, arguments.repeats)
        ratios = [last / first for last, first in zip(found["last"], found["first"], strict=True)]
        times = [f"{1000 * statistics.median(found[key]):.1f}" for key in FORMATS]
        rows.append([f"{name}, {channels}×{side}×{side}", *times, Figure.of(ratios).text(2)])
    print(machine.sentence(machine.describe("cpu")))
    print(
        f"a step of batch {arguments.batch_size}, median [least, most] of n = {arguments.repeats} interleaved repeats\n"
    )
    print(table(["network, input", "channels first, CPU-ms", "last, CPU-ms", "last/first"], rows))


if __name__ == "__main__":
    main()
