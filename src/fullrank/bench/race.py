"""A race: contestants one after the other, each in a fresh process, in turns, measured from outside."""

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
from fullrank.bench.alone.task import SOCKET
from fullrank.errors import InputError, RunFailed

LOOK_SECONDS = 1.0
"""Between two looks at the tree's memory."""
PATIENCE_SECONDS = 1800.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Contestant:
    """A program that plays a task; its command is given the task's directory as a further argument at `{task}`."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Lap:
    """One contestant's process: costs of a later round, and of everything up to the end of the first."""

    contestant: str
    cpu: float
    """CPU-seconds a round, of the whole tree."""
    wall: float
    first_cpu: float
    first_wall: float
    memory: int
    """The most bytes that the tree held."""
    rounds: int
    """Later rounds, over which `cpu` and `wall` are means."""
    steps: int
    """Optimiser steps in all rounds together."""
    loss: float
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Look:
    """What was used up to a moment."""

    cpu: float
    wall: float


def race(
    contestants: Sequence[Contestant],
    task: Path,
    repeats: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Lap]:
    """Every contestant `repeats` times, in turns, so that what changes on the machine meanwhile strikes all alike."""
    proctree.require()
    laps: list[Lap] = []
    for repeat in range(repeats):
        # Another one begins each time: whoever follows a certain neighbour always would have its caches.
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
    """One contestant's process from its start to its end."""
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
    """The process ended or was silent for too long."""


def _follow(
    process: subprocess.Popen[bytes], marks: socket.socket, start: float
) -> tuple[list[_Look], list[dict[str, Any]], dict[str, Any]]:
    """The looks taken after each round, what was said of each, and what was said last."""
    looks: list[_Look] = []
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
            looks.append(_Look(proctree.cpu_seconds(process.pid), heard - start - paused))
            said.append(facts)
            paused += time.perf_counter() - heard
            connection.sendall(b"\n")
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    return looks, said, facts


def _summed(
    name: str, looks: Sequence[_Look], said: Sequence[dict[str, Any]], facts: dict[str, Any], memory: int
) -> Lap:
    if len(looks) < 2:
        raise InputError(f"{name} played {len(looks)} rounds; it takes two at least to tell the first from the others")
    first, last, later = looks[0], looks[-1], len(looks) - 1
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
    """Looks at a tree's memory now and then, and keeps the most."""

    def __init__(self, pid: int):
        self.most = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self.most = max(self.most, proctree.memory(self._pid))

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()
