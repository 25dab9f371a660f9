"""The eager loop without fullrank: FedDecorr's CIFAR-10 round as a careful researcher writes it, timed over one round.

Run `python benchmarks/eager.py --root DATA [--feddecorr]`. The loop is fullrank.bench.eager.
"""

from __future__ import annotations

import argparse
import sys

import torch

from fullrank import Experiment
from fullrank.bench import gpu, machine
from fullrank.errors import InputError
from fullrank.runs.assemble import federate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="", help="folder of CIFAR-10")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--feddecorr", action="store_true", help="with FedDecorr's term")
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="run this fraction of the steps, for a quick estimate"
    )
    parser.add_argument("--tiny", action="store_true", help="run a few steps on random images, as a test")
    arguments = parser.parse_args()
    try:
        experiment = Experiment.of(gpu.feddecorr_round(arguments.device, arguments.root, arguments.tiny))
        device, beta = torch.device(arguments.device), 0.1 if arguments.feddecorr else 0.0
        facts = machine.describe(arguments.device)
        torch.set_num_threads(1)
        timed = gpu.eager_round(experiment, federate(experiment), device, arguments.fraction, beta)
    except InputError as problem:
        sys.exit(f"eager: {problem}")
    print(machine.sentence(facts))
    print(f"{timed.round_seconds:.2f} s a round of {timed.round_steps} steps, of which {timed.steps} were made, n = 1")


if __name__ == "__main__":
    main()
