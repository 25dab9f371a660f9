"""A race of programs that run the same task alternately, each in a new process, and are measured from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fullrank.bench import proctree
from fullrank.bench.standalone.task import SOCKET
from fullrank.errors import InputError, RunFailed

MEMORY_INTERVAL = 1.0
"""The number of seconds between two measurements of memory."""
PATIENCE_SECONDS = 1800.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Contestant:
    """A program that runs a task; `{task}` in its command is replaced by the task's directory."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Lap:
    """Measurements of one contestant's process: costs of a later round, and of all until the end of the first."""

    contestant: str
    cpu: float
    """The CPU-seconds per round of the whole process tree."""
    wall: float
    first_cpu: float
    first_wall: float
    memory: int
    """The peak memory of the process tree in bytes."""
    rounds: int
    """The number of later rounds, over which `cpu` and `wall` are means."""
    steps: int
    """The number of optimiser steps in all rounds."""
    loss: float
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a dict that JSON can represent."""
        return asdict(self)


@dataclass(frozen=True)
class _Usage:
    """The resources that a process tree has used since its start."""

    cpu: float
    wall: float


def race(
    contestants: Sequence[Contestant],
    task: Path,
    repeats: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Lap]:
    """Run every contestant several times, alternately, so that changes of the machine's load affect all equally.

    Args:
        contestants: The contestants.
        task: The directory of the task.
        repeats: The number of laps of each contestant.
        say: Called with each line of progress.

    Returns:
        The measurements of each lap.
    """
    proctree.require()
    laps: list[Lap] = []
    for repeat in range(repeats):
        # Another contestant starts each time, so that none always profits from the caches of the same predecessor.
        for index in range(len(contestants)):
            contestant = contestants[(index + repeat) % len(contestants)]
            laps.append(lap(contestant, task))
            last = laps[-1]
            say(
                f"{repeat + 1}/{repeats} {contestant.name}: {last.cpu:.3f} CPU-s and {last.wall:.3f} s a round, "
                f"first {last.first_wall:.1f} s, {last.memory / 2**20:.0f} MiB, loss {last.loss:.3f}"
            )
    return laps


def lap(contestant: Contestant, task: Path) -> Lap:
    """Run one contestant's process from its start to its end.

    Args:
        contestant: The contestant.
        task: The directory of the task.

    Raises:
        RunFailed: If the process ends before its last round.
    """
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch, socket.socket(socket.AF_UNIX) as marks:
        address = os.path.join(scratch, "marks")
        marks.bind(address)
        marks.listen()
        marks.settimeout(0.5)
        errors = Path(scratch) / "errors"
        with errors.open("wb") as file:
            start = time.perf_counter()
            process = subprocess.Popen(
                [part.format(task=task) for part in contestant.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, **ONE_THREAD, **contestant.environment, SOCKET: address},
            )
        watch = _Memory(process.pid)
        try:
            found = _follow(process, marks, start)
        except _Gone:
            process.wait()
            message = errors.read_text(encoding="utf-8", errors="replace")
            raise RunFailed(f"{contestant.name} ended before its last round", message[-4000:]) from None
        finally:
            watch.stop()
            if process.poll() is None:
                process.kill()
                process.wait()
    return _summed(contestant.name, *found, watch.most)


class _Gone(Exception):
    """Raised if a contestant's process has ended or was silent for too long."""


def _follow(
    process: subprocess.Popen[bytes], marks: socket.socket, start: float
) -> tuple[list[_Usage], list[dict[str, Any]], dict[str, Any]]:
    """Return the measurements after each round, the facts reported with each, and the final facts."""
    usages: list[_Usage] = []
    said: list[dict[str, Any]] = []
    paused, heard = 0.0, start
    while True:
        try:
            connection, _ = marks.accept()
        except TimeoutError:
            if process.poll() is not None or time.perf_counter() - heard > PATIENCE_SECONDS:
                raise _Gone from None
            continue
        with connection:
            heard = time.perf_counter()
            facts: dict[str, Any] = json.loads(connection.makefile().readline())
            if "loss" in facts:
                connection.sendall(b"\n")
                break
            usages.append(_Usage(proctree.cpu_seconds(process.pid), heard - start - paused))
            said.append(facts)
            paused += time.perf_counter() - heard
            connection.sendall(b"\n")
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    return usages, said, facts


def _summed(
    name: str, usages: Sequence[_Usage], said: Sequence[dict[str, Any]], facts: dict[str, Any], memory: int
) -> Lap:
    if len(usages) < 2:
        raise InputError(
            f"{name} ran {len(usages)} rounds; at least two are needed to separate the first from the others"
        )
    first, last, later = usages[0], usages[-1], len(usages) - 1
    return Lap(
        name,
        (last.cpu - first.cpu) / later,
        (last.wall - first.wall) / later,
        first.cpu,
        first.wall,
        memory,
        later,
        sum(row["steps"] for row in said),
        facts.pop("loss"),
        facts,
    )


class _Memory:
    """Measures a tree's memory at intervals, and keeps the maximum."""

    def __init__(self, pid: int):
        self.most = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        while not self._end.wait(MEMORY_INTERVAL):
            self.most = max(self.most, proctree.memory(self._pid))

    def stop(self) -> None:
        """Stop the measurement."""
        self._end.set()
        self._thread.join()
