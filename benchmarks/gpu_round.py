"""A round of FedDecorr's CIFAR-10 experiment under the cuda engine, compared with an eager loop in one process.

Run `python benchmarks/gpu_round.py --root DATA --rounds 3 --json gpu.json`. The JSON is written after every stage, and
a stage that fails does not stop the next one. `--device cpu --tiny` runs all stages without a GPU.
"""

from __future__ import annotations

import argparse
import sys

from fullrank.bench import gpu, machine
from fullrank.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="", help="folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds after the first")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default=",".join(gpu.METHODS))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--eager-fraction", type=float, default=1.0, help="fraction of the eager loop's steps to run")
    parser.add_argument("--eager-feddecorr", action="store_true", help="time the eager loop with the term as well")
    parser.add_argument("--tiny", action="store_true", help="run a few steps on random images, as a test")
    parser.add_argument("--json", default="", metavar="FILE")
    arguments = parser.parse_args()
    try:
        result = gpu.measure(
            gpu.feddecorr_round(arguments.device, arguments.root, arguments.tiny),
            rounds=arguments.rounds,
            methods=arguments.methods.split(","),
            overrides=arguments.overrides,
            eager_fraction=arguments.eager_fraction,
            eager_decorrelation=arguments.eager_feddecorr,
            say=lambda text: print(text, flush=True),
            keep=lambda found: machine.write_result(arguments.json, found) if arguments.json else None,
        )
    except InputError as problem:
        sys.exit(f"gpu_round: {problem}")
    print(f"\n{gpu.report(result)}")
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
