"""Measure the cost of each method compared with FedAvg, as the median over interleaved repeats of a round's training
time.

Run `python benchmarks/methods.py` (digits on a CPU) or `python benchmarks/methods.py --device cuda --root DATA`
(FedDecorr's CIFAR-10 round with fewer epochs). First rounds, which include the set-up, are left out.
"""

from __future__ import annotations

import argparse
import sys

from fullrank.bench import machine, overheads
from fullrank.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", help="without any, all of them")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--root", default="", help="folder of CIFAR-10")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tiny", action="store_true", help="run a few steps on random images, as a test")
    parser.add_argument("--json", default="", metavar="FILE")
    arguments = parser.parse_args()
    try:
        result = overheads.measure(
            overheads.default_experiment(arguments.device, arguments.root, arguments.tiny),
            arguments.methods or overheads.default_methods(),
            arguments.repeats,
            overrides=arguments.overrides,
            say=lambda text: print(text, flush=True),
            keep=lambda found: machine.write_result(arguments.json, found) if arguments.json else None,
        )
    except InputError as problem:
        sys.exit(f"methods: {problem}")
    print(f"\n{overheads.report(result)}")


if __name__ == "__main__":
    main()
