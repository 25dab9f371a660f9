"""CPU-seconds of a round beside a bare PyTorch loop, pfl-research and Flower, on pfl-research's CIFAR-10 workload.

Run `python benchmarks/cpu_round.py --with pfl,flwr --json cpu.json`. The other frameworks come from PyPI into virtual
environments of their own under build/, made when they are first asked for. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from fullrank.bench import cpu, machine
from fullrank.bench.alone import task
from fullrank.bench.race import Contestant
from fullrank.errors import Refusal, RunFailed, nearest

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
    if name not in PACKAGES:
        raise Refusal(f'--with "{name}": no such framework; {nearest(name, PACKAGES)}')
    python = install(name)
    # The task's module and, for Ray's actors, the client's; nothing else of this environment.
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(task.__file__).parent), str(ROOT / "foreign")])}
    environment |= FLOWER if name == "flwr" else {}
    return Contestant(NAMES[name], (str(python), str(ROOT / "foreign" / f"{name}_round.py"), "{task}"), environment)


def install(name: str) -> Path:
    """The python of a framework's environment, which is made if it is not there."""
    home = ENVIRONMENTS / name
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.exists():
        print(f"installing {', '.join(PACKAGES[name])} in {home}", flush=True)
        venv.create(home, with_pip=True)
        constraints = home / "constraints.txt"
        constraints.write_text(f"{TORCH}\n")
        command = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *PACKAGES[name]]
        if subprocess.run(command, check=False).returncode:
            raise Refusal(f"{name} could not be installed; pip says why above")
        complete.touch()
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="others", default="", metavar="A,B", help="other frameworks: pfl, flwr")
    parser.add_argument("--networks", default="cnn,linear", help="of cnn, linear")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="", metavar="FILE")
    arguments = parser.parse_args()
    try:
        others = [contestant(name) for name in arguments.others.split(",") if name]
        result = cpu.measure(
            arguments.networks.split(","),
            arguments.repeats,
            others,
            say=lambda text: print(text, flush=True),
            keep=lambda found: machine.write_json(arguments.json, found) if arguments.json else None,
        )
    except Refusal as problem:
        sys.exit(f"cpu_round: {problem}")
    except RunFailed as failure:
        sys.exit(f"{failure.traceback}cpu_round: {failure}")
    print(f"\n{cpu.report(result)}")


if __name__ == "__main__":
    main()
