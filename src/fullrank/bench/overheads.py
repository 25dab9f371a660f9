"""The cost of each method compared with FedAvg. All methods run their rounds alternately, in one process.

A round is compared with FedAvg's round of the same repeat, so that a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fullrank import methods
from fullrank.bench import machine
from fullrank.bench.eager import synchronise
from fullrank.bench.figures import Figure, table
from fullrank.bench.gpu import feddecorr_round
from fullrank.config.experiment import Experiment, merged, parse_overrides
from fullrank.engine import Engine, open_engine
from fullrank.engine.machine import threads
from fullrank.errors import ClientFailed, InputError
from fullrank.runs.assemble import Assembly, assemble, federate

BASE = "fedavg"
GPU_EPOCHS = 2


def default_methods() -> list[str]:
    """Return every method of the library, FedAvg first, and FedDecorr on top of FedAvg.

    Methods that need their own network are left out.
    """
    others = (name for name, method in methods.available().items() if name != BASE and not method.tried_on)
    return [BASE, *others, f"{BASE}+feddecorr"]


def default_experiment(device: str, root: str = "", tiny: bool = False) -> dict[str, Any]:
    """Return the experiment of the benchmark: the embedded digits and a small CNN, or FedDecorr's round on a GPU.

    Args:
        device: The device.
        root: The folder of the data.
        tiny: Whether the experiment is one that takes seconds.
    """
    if tiny or device.startswith("cuda"):
        values = feddecorr_round(device, root, tiny)
        return values if tiny else merged(values, {"train": {"epochs": GPU_EPOCHS}})
    return {"train": {"epochs": 5}, "engine": {"name": "serial", "device": device}}


def measure(
    values: Mapping[str, Any],
    names: Sequence[str],
    repeats: int = 5,
    *,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure the training seconds of a round of each method, after a warm-up round.

    Args:
        values: The keys of the experiment.
        names: The methods.
        repeats: The number of rounds of each method, which alternate.
        overrides: Further keys, as `key=value`.
        say: Called with each line of progress.
        keep: Called with the result so far after each repeat.

    Returns:
        The result.

    Raises:
        InputError: If there is no repeat.
    """
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: must be at least 1")
    names = list(dict.fromkeys([BASE, *names]))
    settings = merged(values, parse_overrides(overrides))
    described = {
        name: Experiment(**merged(settings, {"method": {"name": name}, "train": {"rounds": repeats + 1}}))
        for name in names
    }
    first = described[BASE]
    device = torch.device(first.engine.device or "cpu")
    result: dict[str, Any] = {"machine": machine.describe(str(device)), "experiment": first.model_dump()}
    result |= {"rounds": {}, "failed": {}}
    federation = federate(first)
    with threads(first.engine.threads):
        contestants = {name: _Contestant(experiment, federation, device) for name, experiment in described.items()}
        try:
            for name, contestant in contestants.items():
                try:
                    result["rounds"][name] = {"first": contestant.run_round(), "later": []}
                except (InputError, ClientFailed) as problem:  # time on a GPU is expensive: the other methods continue
                    if name == BASE:
                        raise
                    result["failed"][name] = str(problem)
                    say(f"{name} failed: {problem}")
                    continue
                say(f"{name}: first round, with set-up, {result['rounds'][name]['first']:.3f} s")
            names = list(result["rounds"])
            for repeat in range(repeats):
                for index in range(len(names)):
                    name = names[(index + repeat) % len(names)]
                    result["rounds"][name]["later"].append(contestants[name].run_round())
                say(f"{repeat + 1}/{repeats} repeats")
                result["overheads"] = overheads({name: rounds["later"] for name, rounds in result["rounds"].items()})
                keep(result)
        finally:
            for contestant in contestants.values():
                contestant.engine.close()
    return result


def overheads(rounds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Return the seconds of a round, and the excess over FedAvg's round of the same repeat in percent and seconds, by
    method.

    >>> overheads({"fedavg": [1.0, 2.0], "other": [1.5, 3.0]})["other"]["percent"]["median"]
    50.0
    """
    base = rounds[BASE]
    found = {}
    for name, seconds in rounds.items():
        pairs = list(zip(seconds, base, strict=True))
        found[name] = {
            "seconds": Figure.of(list(seconds)).as_dict(),
            "percent": Figure.of([100 * (own / bare - 1) for own, bare in pairs]).as_dict(),
            "beyond": Figure.of([own - bare for own, bare in pairs]).as_dict(),
        }
    return found


def report(result: Mapping[str, Any]) -> str:
    """Format the result of the benchmark as text."""
    n = statistics.mode(len(rounds["later"]) for rounds in result["rounds"].values())
    rows = []
    for name, found in result["overheads"].items():
        seconds, percent, beyond = (Figure(*found[key].values()) for key in ("seconds", "percent", "beyond"))
        rest = ["", ""] if name == BASE else [percent.text(1), beyond.text(4)]
        rows.append([name, seconds.text(4), *rest])
    headers = ["method", "seconds a round", "beyond fedavg, %", "beyond fedavg, s"]
    title = f"training time of a round, median [least, most] of n = {n} interleaved repeats, without the first round"
    failed = "".join(f"\nFAILED: {name}: {problem}" for name, problem in result["failed"].items())
    return f"{machine.sentence(result['machine'])}\n\n{title}\n{table(headers, rows)}{failed}"


class _Contestant:
    """A method with everything that it needs to run rounds."""

    def __init__(self, experiment: Experiment, federation: Any, device: torch.device):
        self.device = device
        self.assembly: Assembly = assemble(experiment, federation=federation)
        self.engine: Engine = open_engine_of(self.assembly)

    def run_round(self) -> float:
        """Run a round, and return the seconds of its training."""
        synchronise(self.device)
        start = time.perf_counter()
        self.assembly.server.run_round(self.engine)
        synchronise(self.device)
        return time.perf_counter() - start


def open_engine_of(assembly: Assembly) -> Engine:
    """Open the engine that a run of these parts would have."""
    return open_engine(assembly.engine.name, assembly.site, assembly.engine.options(len(assembly.server.sample(0))))
