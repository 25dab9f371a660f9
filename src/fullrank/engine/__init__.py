"""Engines run client jobs. `serial` defines what is correct; every other must reproduce it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.processes.engine import Processes
from fullrank.engine.serial import Serial
from fullrank.engine.vectorised import Vectorised
from fullrank.errors import InputError
from fullrank.federated.site import Job, Result, Site

__all__ = ["Engine", "choose", "open_engine"]

WORTH_PROCESSES = 2e10
"""Parameters × samples from which on starting processes, some seconds each, pays."""


class Engine(Protocol):
    """What the server asks of an engine."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Do the jobs, in whatever order and place; give the results in the jobs' order."""

    def notes(self) -> dict[str, Any]:
        """What a round's row of the metrics should say of how it was outcome."""

    def close(self) -> None:
        """Give back whatever the engine holds."""


def choose(device: str, clients_a_round: int, work: float, workers: int = 0) -> str:
    """The engine that `auto` stands for where clients are not mapped; `work` is parameters × samples of the whole run.

    On a CPU it is processes where there is more than one core, `engine.workers` is not 1, more than one client trains
    at a time and the work is worth their start. Cores and workers choose between processes and serial only, which
    give the same bits: what can change a bit depends on the experiment alone.
    """
    if device.startswith("cuda"):
        return "cuda"
    several = cores() > 1 and workers != 1 and clients_a_round > 1
    return "processes" if several and device in ("", "cpu") and work > WORTH_PROCESSES else "serial"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_engine(
    name: str,
    site: Site,
    *,
    workers: int = 0,
    threads: int = 1,
    clients_a_round: int = 1,
    slots: int = 0,
    compile: bool = False,
    last: Mapping[str, Any] | None = None,
) -> Engine:
    """An engine by its name; `workers=0` means one per core or device, and never more than clients take part.

    `last` is the row of the round before, of a run that is resumed: what its engine had found out holds still.
    """
    if name == "processes":
        if site.device.type != "cpu":
            raise InputError(f'engine.name = "processes" trains on the CPU, not on engine.device = "{site.device}"')
        return Processes(site, min(workers or cores(), clients_a_round), threads)
    if name == "vectorised":
        return Vectorised(site, clients_a_round, (last or {}).get("one_by_one", ()))
    if name == "cuda":
        return Cuda(site, _devices(site.device, workers), slots, compile, clients_a_round)
    return Serial(site)


def _devices(device: torch.device, workers: int) -> list[torch.device]:
    """The one that was named; without a number, as many as there are or as `workers` says, the site's own first."""
    first = torch.cuda.current_device() if device.index is None else device.index
    others: list[int] = [] if device.index is not None else [k for k in range(torch.cuda.device_count()) if k != first]
    if workers > 1 + len(others):
        raise InputError(f"engine.workers = {workers}: there are only {1 + len(others)} CUDA devices to work on")
    chosen = [first, *others][: workers or None]
    return [device if index == first else torch.device("cuda", index) for index in chosen]
