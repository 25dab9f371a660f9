"""What a round costs in each mode of a re-parameterisable network, in turns: FedRepOpt's Table 1, time and memory.

Modes play their rounds one after the other, round by round, and a mode is compared with another in the same turn, so
that a machine that slows down meanwhile slows all. On a CPU the process's CPU time counts, which other processes do
not stretch as much as the clock's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fullrank.bench import machine
from fullrank.bench.eager import synchronise
from fullrank.bench.figures import Figure, table
from fullrank.bench.overheads import open_engine_of
from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import Federation, given
from fullrank.errors import InputError, RunFailed, nearest
from fullrank.methods.fedrepopt import FedRepOpt
from fullrank.plugins import GIVEN
from fullrank.runs.assemble import assemble
from fullrank.runs.result import threads

BASE = "inf"
MODES = (BASE, "repopt", "csla", "tr")
SMALL = {"name": "fullrank.models.reparam.repvgg:repvgg", "widths": [16, 16, 32, 64, 256], "blocks": [2, 2, 4, 1]}
MODELS: dict[str, dict[str, Any]] = {
    "repvgg-small": SMALL,
    **{name: {"name": name} for name in ("repvgg-a0", "repvgg-b0", "repvgg-b1", "repghost-0.5")},
}
"""What can be measured, by the name that a user gives; the first is made for a CPU."""
PAPER = {
    "repvgg": {"tr": 74, "inf": 46, "csla": 78, "repopt": 47},
    "repghost": {"tr": 57, "inf": 52, "csla": 54, "repopt": 51},
}
"""Seconds a round in the paper's Table 1 (RepVGG-B1 and RepGhost 0.5×, on six RTX 3090): ratios may be compared."""
CLASSES = 200
"""Of TinyImageNet."""


@dataclass(frozen=True)
class Size:
    """How much is outcome, and where."""

    device: str = "cpu"
    clients: int = 2
    samples: int = 64
    """Of each client."""
    batch_size: int = 32
    pixels: int = 64
    """The side of an image; TinyImageNet's is 64."""
    rounds: int = 10
    """Of each turn, whose mean counts, after one that warms up."""
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("repeats", 1), ("clients", 1), ("samples", self.batch_size)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} {getattr(self, name)}: {least} at least")

    @property
    def steps(self) -> int:
        """Of a round."""
        return self.clients * (self.samples // self.batch_size)

    @property
    def clock(self) -> str:
        """What is counted."""
        return "seconds" if self.device.startswith("cuda") else "CPU-seconds"


ON_A_GPU = Size(device="cuda", clients=10, samples=960)
TINY = Size(clients=1, samples=4, batch_size=4, pixels=32, rounds=1, repeats=1)


def experiment(model: str, mode: str, size: Size) -> Experiment:
    """A mode of a network with the paper's local training; images are random, and not augmented."""
    return Experiment.of(
        {
            "data": {"name": GIVEN, "partition": GIVEN, "clients": size.clients},
            "model": {**MODELS[model], "mode": mode},
            "method.name": FedRepOpt.name if mode == "repopt" else "fedavg",
            "train": {
                "rounds": 1 + size.rounds * size.repeats,
                "batch_size": size.batch_size,
                "last_batch": "drop",
                "lr": 0.01,
                "momentum": 0.0,
                "weight_decay": 4e-5,
                "decay_on": "matrices",
                "label_smoothing": 0.1,
            },
            "engine": {"name": "cuda" if size.device.startswith("cuda") else "serial", "device": size.device},
        }
    )


def federation(size: Size) -> Federation:
    """Clients with random images."""
    noise = torch.Generator().manual_seed(0)
    number = size.clients * size.samples
    x = torch.randint(256, (number, 3, size.pixels, size.pixels), generator=noise, dtype=torch.uint8)
    y = torch.randint(CLASSES, (number,), generator=noise)
    data = DataSet("random images", Split(x, y), None, tuple(map(str, range(CLASSES))))
    return given(data, Pipeline(), [size.samples] * size.clients)


def measure(
    models: Sequence[str],
    size: Size,
    modes: Sequence[str] = MODES,
    *,
    memory: bool = True,
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Rounds of each mode of each network; `keep` gets what is known after each turn."""
    modes = list(dict.fromkeys([BASE, *modes]))
    for what, names, known in (("--models", models, list(MODELS)), ("--modes", modes, list(MODES))):
        for name in names:
            if name not in known:
                raise InputError(f'{what} "{name}" is not known; {nearest(name, known)}')
    result: dict[str, Any] = {"machine": machine.describe(size.device), "size": asdict(size), "models": {}}
    result |= {"clock": size.clock, "steps": size.steps}
    for model in models:
        found: dict[str, Any] = {"rounds": {mode: [] for mode in modes}, "memory": {}}
        result["models"][model] = found
        for mode in modes if memory else ():
            found["memory"][mode] = peak_in_own_process(model, mode, size)
            say(f"{model} {mode}: {_mebibytes(found['memory'][mode])} MiB at most")
        with threads(1):
            for turn in _turns(model, modes, size, found):
                found |= compared(found["rounds"])
                say(f"{model}: {turn}/{size.repeats} turns, {_likeness(found)}")
                keep(result)
    return result


def _turns(model: str, modes: Sequence[str], size: Size, found: dict[str, Any]) -> Iterator[int]:
    """Play all turns, the order of modes moving on with each round; gives the number of each when it is over."""
    clients = federation(size)
    players = {mode: _Player(experiment(model, mode, size), clients, size.device) for mode in modes}
    try:
        found["parameters"] = {mode: player.parameters for mode, player in players.items()}
        for player in players.values():
            player.play()
        for turn in range(size.repeats):
            for rounds in found["rounds"].values():
                rounds.append([])
            for number in range(size.rounds):
                for index in range(len(modes)):
                    mode = modes[(index + number) % len(modes)]
                    found["rounds"][mode][turn].append(players[mode].play())
            yield turn + 1
    finally:
        for player in players.values():
            player.close()


def compared(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """By mode the mean of a turn's rounds, how many times the plain network's, and by how much "repopt" is faster.

    >>> found = compared({"inf": [[1.0, 1.0]], "repopt": [[1.0, 1.2]], "tr": [[1.5, 1.8]]})
    >>> round(found["of_inf"]["repopt"]["median"], 2), round(found["repopt_faster"]["tr"]["median"], 1)
    (1.1, 50.0)
    """
    means = {mode: [sum(turn) / len(turn) for turn in turns if turn] for mode, turns in rounds.items()}

    def over(mode: str, base: str) -> list[float]:
        return [own / other for own, other in zip(means[mode], means[base], strict=True)]

    faster = {
        mode: Figure.of([100 * (times - 1) for times in over(mode, "repopt")]).as_dict()
        for mode in means
        if "repopt" in means and mode not in ("repopt", BASE)
    }
    return {
        "seconds": {mode: Figure.of(values).as_dict() for mode, values in means.items()},
        "of_inf": {mode: Figure.of(over(mode, BASE)).as_dict() for mode in means},
        "repopt_faster": faster,
    }


def paper_of(model: str) -> dict[str, int]:
    """The paper's seconds a round for a network's family."""
    return PAPER[model.partition("-")[0]]


def report(result: Mapping[str, Any]) -> str:
    """The result as a person reads it."""
    size = Size(**result["size"])
    lines = [machine.sentence(result["machine"])]
    for model, found in result["models"].items():
        paper = paper_of(model)
        rows = []
        for mode, values in found["seconds"].items():
            times = f"{paper[mode] / paper[BASE]:.2f}"
            row = [mode, f"{found['parameters'][mode]:,}", _text(values, 3), _text(found["of_inf"][mode], 3), times]
            rows.append([*row, *([_mebibytes(found["memory"][mode])] if found["memory"] else [])])
        headers = ["mode", "trained parameters", f"{result['clock']} a round", "of inf", "paper's"]
        lines += [
            "",
            f"{model}: {size.clients} clients × {size.samples} images of {size.pixels}×{size.pixels}, batch "
            f"{size.batch_size} ({result['steps']} steps a round); median [least, most] of n = {size.repeats} turns, "
            f"each the mean of {size.rounds} interleaved rounds after one to warm up",
            table([*headers, *(["peak MiB"] if found["memory"] else [])], rows),
        ]
        for mode, values in found["repopt_faster"].items():
            theirs = 100 * (paper[mode] / paper["repopt"] - 1)
            lines.append(f"repopt is {_text(values, 1)} % faster than {mode} (paper {theirs:.1f} %)")
        lines.append(_likeness(found))
    return "\n".join(lines)


def _likeness(found: Mapping[str, Any]) -> str:
    if "repopt" not in found["of_inf"]:
        return "no repopt"
    times = _figure(found["of_inf"]["repopt"])
    return f"repopt takes {times.text(3)} times the plain network's round"


def _text(values: Mapping[str, Any], digits: int) -> str:
    return _figure(values).text(digits)


def _figure(values: Mapping[str, Any]) -> Figure:
    return Figure(values["median"], values["min"], values["max"], values["n"])


class _Player:
    """One mode with everything that it needs, ready to play round after round."""

    def __init__(self, described: Experiment, clients: Federation, device: str):
        self.device = torch.device(device)
        self.assembly = assemble(described, federation=clients)
        self.engine = open_engine_of(self.assembly)
        self.clock = time.perf_counter if self.device.type == "cuda" else time.process_time

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.assembly.network.module.parameters() if p.requires_grad)

    def play(self) -> float:
        """The seconds of one round's training."""
        synchronise(self.device)
        start = self.clock()
        self.assembly.server.run_round(self.engine)
        synchronise(self.device)
        return self.clock() - start

    def close(self) -> None:
        self.engine.close()


# Memory


def peak_in_own_process(model: str, mode: str, size: Size) -> dict[str, int]:
    """Bytes that a process which plays this mode alone holds at most, and those that it held before: libraries."""
    task = json.dumps({"model": model, "mode": mode, "size": asdict(size)})
    done = subprocess.run([sys.executable, "-m", __name__, task], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"the process that measures the memory of {model} {mode} failed", done.stderr)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _mebibytes(found: Mapping[str, int]) -> str:
    return f"{(found['peak'] - found['before']) / 2**20:.0f}"


def _resident_at_most() -> int:
    """Of this process since it began.

    From /proc where there is one: getrusage also counts what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="utf-8").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _alone(model: str, mode: str, size: Size) -> dict[str, int]:
    """Two rounds of a mode, and the most memory that it took: on a GPU, the GPU's."""
    on_gpu = size.device.startswith("cuda")
    with threads(1):
        clients = federation(size)
        before = 0 if on_gpu else _resident_at_most()
        player = _Player(experiment(model, mode, replace(size, rounds=1, repeats=1)), clients, size.device)
        player.play()
        player.play()
        peak = torch.cuda.max_memory_allocated() if on_gpu else _resident_at_most()
        player.close()
    return {"peak": peak, "before": before}


if __name__ == "__main__":
    given_task = json.loads(sys.argv[1])
    print(json.dumps(_alone(given_task["model"], given_task["mode"], Size(**given_task["size"]))))
