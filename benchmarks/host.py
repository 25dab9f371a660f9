"""The cost of a client for the host in the `cuda` engine, without its steps: clients train by replays that do nothing.

Run `python benchmarks/host.py`: milliseconds of CPU time for each client of a round, one slot, one thread, on a CPU.
Copies are included, although a GPU copies faster; the work of Python is the same. If clients make few steps, or if the
device is fast, a round takes this time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import repopt
from fullrank.bench import machine
from fullrank.bench.figures import Figure, table
from fullrank.config.experiment import Experiment
from fullrank.config.schema import GIVEN
from fullrank.engine.base import EngineOptions
from fullrank.engine.cuda.engine import Cuda
from fullrank.runs.assemble import assemble
from fullrank.trees import elements

CASES: list[tuple[str, dict[str, Any]]] = [
    ("mobilenetv2", {"method.name": "fedavg", "model": {"name": "mobilenetv2"}}),
    ("mobilenetv2, scaffold", {"method.name": "scaffold", "model": {"name": "mobilenetv2"}}),
    ("repghost-0.5, inf", {"method.name": "fedavg", "model": {"name": "repghost-0.5", "mode": "inf"}}),
    ("repghost-0.5, repopt", {"method.name": "fedrepopt", "model": {"name": "repghost-0.5", "mode": "repopt"}}),
]
SIZE = repopt.Size(clients=10, samples=160, pixels=32)


def recorded(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Run the step once, so that every tensor has its shape, and return a replay that does nothing."""
    step()
    return lambda: None


def milliseconds(values: dict[str, Any], repeats: int) -> tuple[int, int, list[float]]:
    """Return the network's entries and numbers, and the time of each client by round, after two rounds to warm up."""
    keys = {"data": {"name": GIVEN, "partition": GIVEN, "clients": SIZE.clients}, "engine.name": "serial"}
    experiment = Experiment.of({**keys, "train.batch_size": SIZE.batch_size, **values})
    parts = assemble(experiment, federation=repopt.federation(SIZE))
    engine = Cuda(parts.site, EngineOptions(slots=1), record=recorded, devices=[torch.device("cpu")])
    found = []
    try:
        for _ in range(repeats + 2):
            start = time.process_time()
            parts.server.run_round(engine)
            found.append(1000 * (time.process_time() - start) / SIZE.clients)
    finally:
        engine.close()
    model = parts.server.model
    return len(model), elements(model), found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, values in CASES:
        entries, numbers, found = milliseconds(values, arguments.repeats)
        rows.append([name, f"{entries}", f"{numbers:,}", Figure.of(found).text(1)])
    print(machine.sentence(machine.describe("cpu")))
    print(f"CPU-milliseconds a client, median [least, most] of n = {arguments.repeats} rounds\n")
    print(table(["network", "entries", "numbers", "ms a client"], rows))


if __name__ == "__main__":
    main()
