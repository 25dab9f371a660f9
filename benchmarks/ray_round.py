"""A round of the engine `ray` compared with one of `processes`, each with two workers, on the CPU benchmark's workload.

Run `python benchmarks/ray_round.py --json ray.json`. The engines run in turns, each time in a fresh process, and the
ratios are those of laps that followed each other. It needs Ray and Linux (/proc).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.bench import cpu, machine
from fullrank.bench.figures import Figure, table
from fullrank.bench.race import Contestant, Lap, race
from fullrank.bench.workload import TINY, Workload
from fullrank.errors import InputError, RunFailed

ENGINES = ("processes", "ray")
WORKERS = 2


def contestants() -> list[Contestant]:
    command = (sys.executable, "-m", "fullrank.bench.ours", "{task}")
    return [Contestant(engine, (*command, engine, str(WORKERS))) for engine in ENGINES]


def measure(networks: list[str], repeats: int, rounds: int, workload: Workload | None = None) -> dict[str, Any]:
    """The laps of both engines on each network, with figures of each and of their ratios."""
    cpu.check(networks, repeats)
    result: dict[str, Any] = {"machine": machine.describe(), "repeats": repeats, "networks": {}}
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch:
        path = Path(scratch)
        (workload or Workload()).write(path)
        for network in networks:
            replace(workload or Workload(rounds=1 + rounds), network=network).describe(path)
            laps = race(contestants(), path, repeats, lambda text: print(text, flush=True))
            result["networks"][network] = {
                "laps": [lap.as_dict() for lap in laps],
                "rows": rows(laps),
                "unlike": cpu.differences(laps),
            }
    return result


def rows(laps: list[Lap]) -> list[list[str]]:
    """Seconds per round of both engines and of the first round, and the ratios of ray to processes."""
    found = []
    for key, title in (("wall", "wall s a round"), ("cpu", "CPU-s a round"), ("first_wall", "first round, s")):
        theirs = {name: [getattr(lap, key) for lap in laps if lap.contestant == name] for name in ENGINES}
        ratios = [ray / processes for processes, ray in zip(*theirs.values(), strict=True)]
        found.append([title, *(Figure.of(values).text(3) for values in theirs.values()), Figure.of(ratios).text(3)])
    return found


def report(result: dict[str, Any]) -> str:
    lines = [machine.sentence(result["machine"])]
    for network, found in result["networks"].items():
        lines += [
            "",
            f"{network}: median [least, most] of n = {result['repeats']} pairs of runs, {WORKERS} workers each",
        ]
        lines += [table(["", *ENGINES, "ray / processes"], found["rows"])]
        lines += [f"NOT ALIKE: {text}" for text in found["unlike"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="cnn", help="of cnn, linear")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4, help="rounds that are measured after the first")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to see that it works; measures nothing")
    parser.add_argument("--json", default="", metavar="FILE")
    given = parser.parse_args()
    try:
        result = measure(given.networks.split(","), given.repeats, given.rounds, TINY if given.tiny else None)
    except InputError as problem:
        sys.exit(f"ray_round: {problem}")
    except RunFailed as failure:
        sys.exit(f"{failure.traceback}ray_round: {failure}")
    if given.json:
        machine.write_result(given.json, result)
    print(f"\n{report(result)}")


if __name__ == "__main__":
    main()
