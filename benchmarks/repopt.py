"""Time and memory of a round in each mode of a re-parameterisable network, as in FedRepOpt's Table 1.

The modes alternate round by round, and a mode is compared with another in the same repeat, so that a machine that slows
down meanwhile slows all of them. On a CPU the CPU time of the process counts, which other processes distort less than
wall-clock time. `repopt_round.py` is the command.
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
from fullrank.data.federation import Federation, divide_by_sizes
from fullrank.engine.machine import threads
from fullrank.errors import InputError, RunFailed, nearest
from fullrank.methods.fedrepopt import FedRepOpt
from fullrank.plugins import GIVEN
from fullrank.runs.assemble import assemble

BASE = "inf"
MODES = (BASE, "repopt", "csla", "tr")
SMALL = {"name": "fullrank.models.reparam.repvgg:repvgg", "widths": [16, 16, 32, 64, 256], "blocks": [2, 2, 4, 1]}
MODELS: dict[str, dict[str, Any]] = {
    "repvgg-small": SMALL,
    **{name: {"name": name} for name in ("repvgg-a0", "repvgg-b0", "repvgg-b1", "repghost-0.5")},
}
"""The networks that can be measured, by name; the first is small enough for a CPU."""
PAPER = {
    "repvgg": {"tr": 74, "inf": 46, "csla": 78, "repopt": 47},
    "repghost": {"tr": 57, "inf": 52, "csla": 54, "repopt": 51},
}
"""Seconds a round in the paper's Table 1 (RepVGG-B1 and RepGhost 0.5×, on six RTX 3090): ratios may be compared."""
CLASSES = 200
"""The number of classes of TinyImageNet."""


@dataclass(frozen=True)
class Size:
    """The size of the measured round, and its device."""

    device: str = "cpu"
    clients: int = 2
    samples: int = 64
    """Samples per client."""
    batch_size: int = 32
    pixels: int = 64
    """Side length of the images; 64 in TinyImageNet."""
    rounds: int = 10
    """Rounds per turn, of which the mean counts, after one round to warm up."""
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("repeats", 1), ("clients", 1), ("samples", self.batch_size)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} {getattr(self, name)}: must be at least {least}")

    @property
    def steps(self) -> int:
        """Steps per round."""
        return self.clients * (self.samples // self.batch_size)

    @property
    def clock(self) -> str:
        """The unit of the measured time."""
        return "seconds" if self.device.startswith("cuda") else "CPU-seconds"


ON_A_GPU = Size(device="cuda", clients=10, samples=960)
TINY = Size(clients=1, samples=4, batch_size=4, pixels=32, rounds=1, repeats=1)


def experiment(model: str, mode: str, size: Size) -> Experiment:
    """Return the experiment of one mode with the paper's local training, on random images without augmentation."""
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
    """Return clients that have random images."""
    noise = torch.Generator().manual_seed(0)
    number = size.clients * size.samples
    x = torch.randint(256, (number, 3, size.pixels, size.pixels), generator=noise, dtype=torch.uint8)
    y = torch.randint(CLASSES, (number,), generator=noise)
    data = DataSet("random images", Split(x, y), None, tuple(map(str, range(CLASSES))))
    return divide_by_sizes(data, Pipeline(), [size.samples] * size.clients)


def measure(
    models: Sequence[str],
    size: Size,
    modes: Sequence[str] = MODES,
    *,
    memory: bool = True,
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure rounds of each mode of each network; `keep` is called with the results after each turn."""
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
    """Run all turns, rotating the order of the modes in each round; yield the number of each turn after it."""
    clients = federation(size)
    running = {mode: _Mode(experiment(model, mode, size), clients, size.device) for mode in modes}
    try:
        found["parameters"] = {mode: one.parameters for mode, one in running.items()}
        for one in running.values():
            one.run_round()
        for turn in range(size.repeats):
            for rounds in found["rounds"].values():
                rounds.append([])
            for number in range(size.rounds):
                for index in range(len(modes)):
                    mode = modes[(index + number) % len(modes)]
                    found["rounds"][mode][turn].append(running[mode].run_round())
            yield turn + 1
    finally:
        for one in running.values():
            one.close()


def compared(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Compare the modes: the mean of each turn, its ratio to the plain network, and by how much "repopt" is faster.

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
    """Return the seconds per round that the paper has for the family of a network."""
    return PAPER[model.partition("-")[0]]


def report(result: Mapping[str, Any]) -> str:
    """Format the results as tables."""
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


class _Mode:
    """One mode with its own server and engine."""

    def __init__(self, described: Experiment, clients: Federation, device: str):
        self.device = torch.device(device)
        self.assembly = assemble(described, federation=clients)
        self.engine = open_engine_of(self.assembly)
        self.clock = time.perf_counter if self.device.type == "cuda" else time.process_time

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.assembly.network.module.parameters() if p.requires_grad)

    def run_round(self) -> float:
        """Run one round and return the seconds that it took."""
        synchronise(self.device)
        start = self.clock()
        self.assembly.server.run_round(self.engine)
        synchronise(self.device)
        return self.clock() - start

    def close(self) -> None:
        self.engine.close()


# Memory


def peak_in_own_process(model: str, mode: str, size: Size) -> dict[str, int]:
    """Measure the peak memory in bytes of a process that runs only this mode, and its memory before the first round."""
    task = json.dumps({"model": model, "mode": mode, "size": asdict(size)})
    done = subprocess.run([sys.executable, __file__, task], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"the process that measures the memory of {model} {mode} failed", done.stderr)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _mebibytes(found: Mapping[str, int]) -> str:
    return f"{(found['peak'] - found['before']) / 2**20:.0f}"


def _resident_at_most() -> int:
    """Return the peak resident memory of this process in bytes.

    It is read from /proc if possible, because getrusage also counts the memory of the parent at the start.
    """
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="utf-8").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _in_this_process(model: str, mode: str, size: Size) -> dict[str, int]:
    """Run two rounds of a mode and return the peak memory, on a GPU that of the GPU."""
    on_gpu = size.device.startswith("cuda")
    with threads(1):
        clients = federation(size)
        before = 0 if on_gpu else _resident_at_most()
        one = _Mode(experiment(model, mode, replace(size, rounds=1, repeats=1)), clients, size.device)
        one.run_round()
        one.run_round()
        peak = torch.cuda.max_memory_allocated() if on_gpu else _resident_at_most()
        one.close()
    return {"peak": peak, "before": before}


if __name__ == "__main__":
    given_task = json.loads(sys.argv[1])
    print(json.dumps(_in_this_process(given_task["model"], given_task["mode"], Size(**given_task["size"]))))
