"""Time FedDecorr's loss, forward and backward, against the d×d correlation matrix written out.

Run `python benchmarks/decorrelation.py [repeats]`. One thread, float32, repeats of both forms interleaved.
Exits with status 1 unless ours costs less than a quarter of the d×d form at N = 64, d = 1280 (MobileNetV2's).
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fullrank.objectives import decorrelation

SHAPES = [(64, 1280), (64, 256), (64, 512), (128, 512), (64, 64), (256, 64)]
REQUIRED, LIMIT = (64, 1280), 0.25


def full_matrix(z: Tensor) -> Tensor:
    n, d = z.shape
    z = z - z.mean(0)
    z = z / torch.sqrt(z.var(0) + 1e-8)
    gram = z.T @ z
    return (gram.square().sum() - gram.diagonal().square().sum()) / (d * (d - 1)) / n


def seconds(loss: Callable[[Tensor], Tensor], z: Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.grad(loss(z), z)
    return time.perf_counter() - start


def compare(n: int, d: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of our form and of the d×d form."""
    z = torch.relu(torch.randn(n, d)).requires_grad_()
    torch.testing.assert_close(decorrelation(z), full_matrix(z), rtol=1e-4, atol=0)
    for _ in range(5):
        seconds(decorrelation, z), seconds(full_matrix, z)
    pairs = [(seconds(decorrelation, z), seconds(full_matrix, z)) for _ in range(repeats)]
    ours, full = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(full)


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def main() -> int:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, float32, {cpu()}")
    print(f"forward and backward, median of n = {repeats} interleaved repeats\n")
    print(f"{'N':>5} {'d':>5} {'ours, ms':>10} {'d×d, ms':>10} {'ours / d×d':>11}")
    ratios = {}
    for n, d in SHAPES:
        ours, full = compare(n, d, repeats)
        ratios[n, d] = ours / full
        print(f"{n:>5} {d:>5} {ours * 1e3:>10.3f} {full * 1e3:>10.3f} {ours / full:>11.3f}")
    held = ratios[REQUIRED] < LIMIT
    print(f"\nless than {LIMIT} at N, d = {REQUIRED}: {'yes' if held else 'NO'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
