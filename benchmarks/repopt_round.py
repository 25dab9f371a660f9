"""Time and memory of a round in each mode of RepVGG and RepGhost, with the ratios of FedRepOpt's Table 1.

Run `python benchmarks/repopt_round.py` (CPU-seconds, one thread, a reduced round) or `python
benchmarks/repopt_round.py --device cuda --json repopt.json`. The modes alternate round by round; the mode repopt is
trained by fedrepopt, the others by fedavg. `--tiny` runs everything in seconds, to see that it works.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace

import repopt
from fullrank.bench import machine
from fullrank.errors import InputError, RunFailed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", metavar="A,B", help=f"of {', '.join(repopt.MODELS)}")
    parser.add_argument("--modes", default=",".join(repopt.MODES), metavar="A,B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--samples", type=int, help="samples of a client")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--pixels", type=int, help="the side of an image")
    parser.add_argument("--rounds", type=int, help="of a turn, after one to warm up")
    parser.add_argument("--repeats", type=int, help="turns")
    parser.add_argument("--no-memory", action="store_true", help="measure time only")
    parser.add_argument("--tiny", action="store_true", help="run a step of a small network, as a test")
    parser.add_argument("--json", default="", metavar="FILE")
    arguments = parser.parse_args()
    start = repopt.TINY if arguments.tiny else repopt.ON_A_GPU if arguments.device != "cpu" else repopt.Size()
    asked = {field.name: getattr(arguments, field.name) for field in fields(start)}
    models = arguments.models or ("repvgg-small" if arguments.tiny else "repvgg-a0,repghost-0.5")
    try:
        result = repopt.measure(
            models.split(","),
            replace(start, **{name: value for name, value in asked.items() if value is not None}),
            arguments.modes.split(","),
            memory=not arguments.no_memory,
            say=lambda text: print(text, flush=True),
            keep=lambda found: machine.write_result(arguments.json, found) if arguments.json else None,
        )
    except InputError as problem:
        sys.exit(f"repopt_round: {problem}")
    except RunFailed as failure:
        sys.exit(f"{failure.traceback}repopt_round: {failure}")
    print(f"\n{repopt.report(result)}")


if __name__ == "__main__":
    main()
