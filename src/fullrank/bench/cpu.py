"""The CPU benchmark: pfl-research's CIFAR-10 workload and a linear model, compared with a bare PyTorch loop."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.bench import machine
from fullrank.bench.figures import Figure, ratio, table
from fullrank.bench.race import Contestant, Lap, race
from fullrank.bench.standalone import bare
from fullrank.bench.workload import Workload
from fullrank.errors import InputError, nearest

BASE = "bare loop"
LATER_ROUNDS = {"cnn": 2, "linear": 20}
"""Rounds measured after the first: enough for CPU time, which /proc counts in hundredths, to be exact to a percent."""
LOSSES_DIFFER = 0.1
"""The largest accepted relative difference of final losses, which differ because the order of batches differs."""


def own_contestants(workers: int = 2) -> list[Contestant]:
    """Return the contestants that need no other framework: a bare loop, and fullrank with each engine."""
    ours = (sys.executable, "-m", "fullrank.bench.ours", "{task}")
    return [
        Contestant(BASE, (sys.executable, str(bare.__file__), "{task}")),
        Contestant("fullrank serial", (*ours, "serial")),
        Contestant("fullrank vectorised", (*ours, "vectorised")),
        Contestant(f"fullrank processes, {workers} workers", (*ours, "processes", str(workers))),
        Contestant("fullrank auto", (*ours, "auto")),
    ]


def measure(
    networks: Sequence[str],
    repeats: int,
    others: Sequence[Contestant] = (),
    *,
    workload: Workload | None = None,
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Race every contestant on every network.

    Args:
        networks: The names of the networks.
        repeats: The number of laps of each contestant.
        others: Contestants in addition to those of fullrank.
        workload: A workload in place of the published one.
        say: Called with each line of progress.
        keep: Called with the result so far after each network.

    Returns:
        The result.
    """
    check(networks, repeats)
    result: dict[str, Any] = {"machine": machine.describe(), "repeats": repeats, "networks": {}}
    contestants = [*own_contestants(), *others]
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch:
        path = Path(scratch)
        (workload or Workload()).write(path)
        for network in networks:
            chosen = replace(workload or Workload(rounds=1 + LATER_ROUNDS[network]), network=network)
            chosen.describe(path)
            say(f"{network}: {chosen.clients} clients × {chosen.samples} samples, {chosen.cohort} a round")
            laps = race(contestants, path, repeats, say)
            result["networks"][network] = {"laps": [lap.as_dict() for lap in laps], **summary(laps)}
            keep(result)
    return result


def check(networks: Sequence[str], repeats: int) -> None:
    """Check the options of the benchmark.

    Args:
        networks: The names of the networks.
        repeats: The number of laps.

    Raises:
        InputError: If a network is not known, or if there are no laps.
    """
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: must be at least 1")
    for network in networks:
        if network not in LATER_ROUNDS:
            raise InputError(f'--networks "{network}" is not known; {nearest(network, LATER_ROUNDS)}')


def summary(laps: Sequence[Lap]) -> dict[str, Any]:
    """Return medians by contestant, in the order of their first lap, and whether all did the same work."""
    systems: dict[str, Any] = {}
    for name in dict.fromkeys(lap.contestant for lap in laps):
        own = [lap for lap in laps if lap.contestant == name]
        figures = {key: Figure.of([getattr(lap, key) for lap in own]) for key in ("cpu", "wall", "first_wall", "loss")}
        systems[name] = {
            **{key: figure.as_dict() for key, figure in figures.items()},
            "memory": max(lap.memory for lap in own),
            "steps": own[0].steps,
            "facts": own[0].facts,
        }
    return {"systems": systems, "unlike": differences(laps)}


def differences(laps: Sequence[Lap]) -> list[str]:
    """Return the differences which show that contestants did not do the same work; nothing if all did."""
    found = []
    if len({lap.steps for lap in laps}) > 1:
        counts = sorted({f"{lap.contestant} {lap.steps}" for lap in laps})
        found.append(f"the numbers of steps differ: {', '.join(counts)}")
    middle = Figure.of([lap.loss for lap in laps]).median
    for lap in laps:
        if not abs(lap.loss - middle) <= LOSSES_DIFFER * middle:
            found.append(f"{lap.contestant} ended with loss {lap.loss:.3f}, the median is {middle:.3f}")
    return list(dict.fromkeys(found))


def report(result: dict[str, Any]) -> str:
    """Format the result of the benchmark as text."""
    lines = [machine.sentence(result["machine"])]
    for network, found in result["networks"].items():
        lines += [
            "",
            f"{network}: median [least, most] of n = {result['repeats']} interleaved processes, 1 thread each",
        ]
        lines += [_systems(found["systems"]), *(f"NOT ALIKE: {text}" for text in found["unlike"])]
    return "\n".join(lines)


def _systems(systems: dict[str, Any]) -> str:
    rows = []
    base = _figure(systems[BASE]["cpu"])
    for name, found in systems.items():
        engine = found["facts"].get("engine", "")
        label = f"{name} ({engine})" if name.endswith("auto") else name
        cpu, wall, first = (_figure(found[key]) for key in ("cpu", "wall", "first_wall"))
        times = f"{ratio(cpu, base):.2f}×"
        size = f"{found['memory'] / 2**20:.0f}"
        loss = f"{found['loss']['median']:.3f}"
        rows.append([label, cpu.text(3), times, wall.text(3), first.text(1), size, str(found["steps"]), loss])
    headers = ["system", "CPU-s a round", "of bare", "wall s a round", "first round, s", "peak MiB", "steps", "loss"]
    return table(headers, rows)


def _figure(values: dict[str, Any]) -> Figure:
    return Figure(values["median"], values["min"], values["max"], values["n"])
