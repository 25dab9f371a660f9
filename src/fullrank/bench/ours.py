"""The contestant that runs a task with fullrank: `python -m fullrank.bench.ours TASK ENGINE`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from fullrank._version import __version__
from fullrank.bench.standalone.task import RaceTask, mark
from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import Federation, divide_by_sizes
from fullrank.plugins import GIVEN
from fullrank.runs.assemble import assemble
from fullrank.runs.display import Display
from fullrank.runs.run import execute

PUBLISHED = 1500
"""The number of rounds of the published benchmark. `auto` chooses for as many, although fewer are run here."""


class _Marks(Display):
    """A callback that marks the end of each round."""

    def __init__(self, task: RaceTask):
        self.task = task

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Mark a round, and check that its clients were those of the plan."""
        number, clients = row["round"], sorted(client["client"] for client in row["clients"])
        if clients != self.task.cohorts[number - 1]:
            raise AssertionError(f"round {number} was run by other clients than the plan's")
        mark(round=number, steps=sum(client["steps"] for client in row["clients"]))


def experiment(task: RaceTask, engine: str, workers: int = 0, rounds: int = 0) -> Experiment:
    """Return the experiment that runs the task with an engine.

    Args:
        task: The task.
        engine: The name of the engine.
        workers: The number of worker processes.
        rounds: The number of rounds; 0 for that of the task.
    """
    train = {
        "rounds": rounds or task.rounds,
        "participation": len(task.cohorts[0]),
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "lr": task.lr,
        "momentum": 0.0,
    }
    return Experiment.of(
        {
            "seed": task.seed,
            "data": {"name": GIVEN, "partition": GIVEN, "clients": task.clients},
            "model.name": GIVEN,
            "train": train,
            "engine": {"name": engine, "workers": workers},
        }
    )


def federation(task: RaceTask) -> Federation:
    """Return the task's data, divided among its clients."""
    data = DataSet("synthetic", Split(task.x, task.y), None, tuple("0123456789"))
    return divide_by_sizes(data, Pipeline(), [task.samples] * task.clients)


def main(path: str, engine: str, workers: int = 0) -> None:
    """Run the task, and mark the end of each round.

    Args:
        path: The directory of the task.
        engine: The name of the engine.
        workers: The number of worker processes.
    """
    torch.set_num_threads(1)
    task = RaceTask(path)
    parts: dict[str, Any] = {"federation": federation(task), "module": task.network()}
    if engine == "auto":
        engine = assemble(experiment(task, engine, rounds=PUBLISHED), **parts).engine.name
    run = execute(experiment(task, engine, workers), None, callbacks=[_Marks(task)], **parts)
    mark(
        loss=task.loss(run.model()), engine=engine, versions={"fullrank": __version__, "torch": str(torch.__version__)}
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))
