"""CPU-seconds of a round compared with a bare PyTorch loop, pfl-research and Flower, on pfl-research's CIFAR-10 task.

Run `python benchmarks/cpu_round.py --with pfl,flwr --json cpu.json`. The other frameworks come from PyPI into separate
virtual environments under build/, which are created when they are first needed. Linux is required (/proc).

`python benchmarks/cpu_round.py --with PATH` races this checkout of the repository against the one in PATH: every
engine, and the cost of a checkpoint. With this checkout's own path it measures the checkout's spread against itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.bench import cpu, machine
from fullrank.bench.figures import Figure, table
from fullrank.bench.race import ONE_THREAD, Contestant, Lap, race
from fullrank.bench.standalone import task
from fullrank.bench.workload import TINY, Workload
from fullrank.errors import InputError, RunFailed, nearest

ROOT = Path(__file__).resolve().parent
ENVIRONMENTS = ROOT.parent / "build" / "benchmarks"
TORCH = "torch==2.13.0"  # unpinned, pip would take one with CUDA
PACKAGES = {"pfl": ["pfl[pytorch]"], "flwr": ["flwr[simulation]", "torch"]}
NAMES = {"pfl": "pfl, one process", "flwr": "flwr simulation, two actors"}
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_HOME": str(ENVIRONMENTS / "flower-home"),
}


def contestant(name: str) -> Contestant:
    python = install(name)
    # The task's module and, for Ray's actors, the client's; nothing else of this environment.
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(task.__file__).parent), str(ROOT / "foreign")])}
    environment |= FLOWER if name == "flwr" else {}
    return Contestant(NAMES[name], (str(python), str(ROOT / "foreign" / f"{name}_round.py"), "{task}"), environment)


def install(name: str) -> Path:
    """Return the Python of a framework's environment, which is created if it is missing."""
    home = ENVIRONMENTS / name
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.exists():
        print(f"installing {', '.join(PACKAGES[name])} in {home}", flush=True)
        venv.create(home, with_pip=True)
        constraints = home / "constraints.txt"
        constraints.write_text(f"{TORCH}\n")
        command = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *PACKAGES[name]]
        if subprocess.run(command, check=False).returncode:
            raise InputError(f"{name} could not be installed; pip says why above")
        complete.touch()
    return python


# Another checkout

ENGINES = {"serial": ("serial",), "vectorised": ("vectorised",), "processes": ("processes", "2")}
"""The engines that are raced against another checkout, with their arguments of `fullrank.bench.ours`."""
SIDES = ("this", "other")


def sources(path: Path) -> dict[str, str]:
    """Return the environment in which a process imports the fullrank of a checkout."""
    found = path.resolve() / "src"
    if not (found / "fullrank" / "bench" / "ours.py").is_file():
        raise InputError(
            f'--with "{path}": no framework of that name ({", ".join(PACKAGES)}) and no checkout of fullrank'
        )
    return {"PYTHONPATH": str(found)}


def measure_checkouts(
    other: Path, networks: Sequence[str], engines: Sequence[str], repeats: int, workload: Workload | None
) -> dict[str, Any]:
    """Race this checkout against another one, one engine after the other, and time their checkpoints."""
    cpu.check(networks, repeats)
    for engine in engines:
        if engine not in ENGINES:
            raise InputError(f'--engines "{engine}" is not known; {nearest(engine, ENGINES)}')
    imports = dict(zip(SIDES, (sources(ROOT.parent), sources(other)), strict=True))
    result: dict[str, Any] = {"machine": machine.describe(), "other": str(other), "repeats": repeats, "networks": {}}
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch:
        path = Path(scratch)
        (workload or Workload()).write(path)
        for network in networks:
            chosen = workload or Workload(rounds=1 + cpu.LATER_ROUNDS[network])
            replace(chosen, network=network).describe(path)
            laps = [lap for engine in engines for lap in race(pair(engine, imports), path, repeats, say)]
            saves = checkpoints(imports, path, repeats)
            result["networks"][network] = {
                "laps": [lap.as_dict() for lap in laps],
                "checkpoints": saves,
                "rows": [*(_engine_row(engine, laps) for engine in engines), _checkpoint_row(saves)],
                "unlike": cpu.differences(laps),
            }
    return result


def pair(engine: str, imports: dict[str, dict[str, str]]) -> list[Contestant]:
    """Return both checkouts under one engine: a pair, so that the laps that are compared follow each other."""
    command = (sys.executable, "-m", "fullrank.bench.ours", "{task}", *ENGINES[engine])
    return [Contestant(f"{engine}: {side}", command, place) for side, place in imports.items()]


def checkpoints(imports: dict[str, dict[str, str]], path: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Measure `RunDirectory.save` under each checkout, alternately and each time in a new process."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in imports}
    for repeat in range(repeats):
        for side in SIDES[:: 1 if repeat % 2 == 0 else -1]:
            command = [sys.executable, str(ROOT / "checkpoint_cost.py"), str(path)]
            environment = {**os.environ, **ONE_THREAD, **imports[side]}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RunFailed(f"the checkpoints of the {side} checkout could not be timed", done.stderr[-4000:])
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
        say(f"{repeat + 1}/{repeats} checkpoints")
    return found


def _engine_row(engine: str, laps: Sequence[Lap]) -> list[str]:
    """Return the CPU-seconds of a round on both sides, and the ratios of the laps that ran one after the other."""
    this, other = ([lap for lap in laps if lap.contestant == f"{engine}: {side}"] for side in SIDES)
    return [
        f"{engine}, round",
        *_compared([lap.cpu for lap in this], [lap.cpu for lap in other]),
        _ratios([lap.wall for lap in this], [lap.wall for lap in other]),
    ]


def _checkpoint_row(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the same row for a checkpoint: for each process the median over its saves."""
    seconds = {
        (side, key): [statistics.median(save[key] for save in process["saves"]) for process in processes]
        for side, processes in found.items()
        for key in ("cpu", "wall")
    }
    this, other = SIDES
    size = found[this][0]["bytes"] / 1e6
    wall = _ratios(seconds[this, "wall"], seconds[other, "wall"])
    return [f"checkpoint, {size:.1f} MB", *_compared(seconds[this, "cpu"], seconds[other, "cpu"]), wall]


def _compared(this: Sequence[float], other: Sequence[float]) -> list[str]:
    return [Figure.of(this).text(3), Figure.of(other).text(3), _ratios(this, other)]


def _ratios(this: Sequence[float], other: Sequence[float]) -> str:
    return Figure.of([a / b if b else float("inf") for a, b in zip(this, other, strict=True)]).text(3)


def report_checkouts(result: dict[str, Any]) -> str:
    """Format the race between two checkouts as text."""
    lines = [machine.sentence(result["machine"]), f"this checkout against {result['other']}"]
    headers = ["", "this, CPU-s", "other, CPU-s", "this / other, CPU", "this / other, wall"]
    for network, found in result["networks"].items():
        lines += ["", f"{network}: median [least, most] of n = {result['repeats']} pairs of processes, 1 thread each"]
        lines += [table(headers, found["rows"]), *(f"NOT ALIKE: {text}" for text in found["unlike"])]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print progress immediately."""
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told = "other frameworks (pfl, flwr), or the path of another checkout of this repository"
    parser.add_argument("--with", dest="others", default="", metavar="A,B or PATH", help=told)
    parser.add_argument("--networks", default="cnn,linear", help="networks, of cnn and linear")
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help="with PATH: engines, of serial, vectorised and processes"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="run a few steps as a test; the numbers are meaningless")
    parser.add_argument("--json", default="", metavar="FILE")
    arguments = parser.parse_args()
    networks, workload = arguments.networks.split(","), TINY if arguments.tiny else None
    try:
        others = [name for name in arguments.others.split(",") if name]
        if any(name not in PACKAGES for name in others):
            result = measure_checkouts(
                Path(arguments.others), networks, arguments.engines.split(","), arguments.repeats, workload
            )
            text = report_checkouts(result)
            if arguments.json:
                machine.write_result(arguments.json, result)
        else:
            result = cpu.measure(
                networks,
                arguments.repeats,
                [contestant(name) for name in others],
                workload=workload,
                say=say,
                keep=lambda found: machine.write_result(arguments.json, found) if arguments.json else None,
            )
            text = cpu.report(result)
    except InputError as problem:
        sys.exit(f"cpu_round: {problem}")
    except RunFailed as failure:
        sys.exit(f"{failure.traceback}cpu_round: {failure}")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
