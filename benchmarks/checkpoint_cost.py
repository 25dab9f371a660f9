"""Measure a checkpoint: seconds and CPU-seconds of each `RunDirectory.save` of a short run, as JSON.

`cpu_round.py --with PATH` starts it in a new process for each checkout. The method is SCAFFOLD, so that clients have
states to write. Files are written into Python's temporary folder (`TMPDIR`); a file system in memory hides the cost of
`fsync`.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fullrank.bench.ours import experiment, federation
from fullrank.bench.standalone.task import RaceTask

try:
    from fullrank.runs.directory import RunDirectory
    from fullrank.runs.run import execute
except ImportError:  # another checkout may be from before these packages
    RunDirectory = importlib.import_module("fullrank.rundir").RunDirectory
    execute = importlib.import_module("fullrank.run").execute

CLIENTS, ROUNDS = 4, 6


def main(path: str) -> None:
    torch.set_num_threads(1)
    task, costs = RaceTask(path), []
    save = RunDirectory.save

    def timed(*arguments: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        save(*arguments)
        costs.append({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})

    RunDirectory.save = timed  # type: ignore[method-assign]
    changes = {"method.name": "scaffold", "train.participation": min(CLIENTS, task.clients), "train.rounds": ROUNDS}
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch:
        parts: dict[str, Any] = {"federation": federation(task), "module": task.network()}
        execute(experiment(task, "serial").but(**changes), Path(scratch) / "run", **parts)
        written = sum(file.stat().st_size for file in Path(scratch).glob("run/checkpoints/*-000006.safetensors"))
    print(json.dumps({"saves": costs[1:], "bytes": written}))


if __name__ == "__main__":
    main(sys.argv[1])
