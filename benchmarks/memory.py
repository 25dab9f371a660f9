"""Peak memory of a run's whole process tree, with one and with more workers: the data set must be held once.

Shared pages count once (proportional set size, from /proc), so that a data set which every worker held for itself
would show as its size times the workers. Needs Linux and CIFAR-10 (`fullrank data get cifar10`, or --root).
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fullrank.data import load_dataset


def tree(pid: int) -> list[int]:
    found, frontier = [pid], [pid]
    while frontier:
        children = Path(f"/proc/{frontier.pop()}/task")
        for task in children.glob("*/children") if children.exists() else []:
            below = [int(child) for child in task.read_text().split()]
            found += below
            frontier += below
    return found


def share(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it ended meanwhile
        return 0
    return 0


def peak(command: list[str]) -> tuple[float, float]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    start, most = time.monotonic(), 0
    while process.poll() is None:
        most = max(most, sum(map(share, tree(process.pid))))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return most / 2**20, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="", help="folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    data = load_dataset("cifar10", arguments.root)
    pixels = (data.train.x.nbytes + data.test.x.nbytes) / 2**20
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}; CIFAR-10 is {pixels:.0f} MiB")
    bare, _ = peak([sys.executable, "-c", "import time, fullrank; time.sleep(1)"])
    print(f"a process that has imported fullrank and nothing else takes {bare:.0f} MiB\n")
    print(f"{'engine':<12}{'workers':>8}{'peak MiB':>10}{'seconds':>9}")
    for engine, workers in (("serial", 0), ("processes", 1), ("processes", 2), ("processes", 3)):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "fullrank", "run", "--quiet", "--out", out]
            for value in (
                "data.name=cifar10",
                f"data.root={arguments.root}",
                "train.steps=20",
                f"train.rounds={arguments.rounds}",
                f"engine.name={engine}",
                f"engine.workers={workers}",
            ):
                command += ["--set", value]
            most, seconds = peak(command)
        print(f"{engine:<12}{workers or '':>8}{most:>10.0f}{seconds:>9.1f}")


if __name__ == "__main__":
    main()
