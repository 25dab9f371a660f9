"""The GPU benchmark: FedDecorr's CIFAR-10 round under the `cuda` engine, compared with an eager loop."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fullrank import models
from fullrank.bench import eager, machine
from fullrank.bench.figures import Figure
from fullrank.config.experiment import Experiment, merged, nested, parse_overrides
from fullrank.data import DataSet, Split
from fullrank.data.federation import Federation
from fullrank.engine.machine import threads
from fullrank.errors import InputError
from fullrank.runs.assemble import federate
from fullrank.runs.display import Display
from fullrank.runs.run import execute

METHODS = ("fedavg", "fedavg+feddecorr")
Say = Callable[[str], None]


def feddecorr_round(device: str, root: str = "", tiny: bool = False) -> dict[str, Any]:
    """Return the experiment of the FedDecorr papers on CIFAR-10.

    Args:
        device: The device.
        root: The folder of the data.
        tiny: Whether the experiment is one that takes seconds on a CPU instead.
    """
    values: dict[str, Any] = {
        "data": {"name": "cifar10", "root": root, "alpha": 0.05, "variant": "balanced", "clients": 10},
        "model": {"name": "mobilenetv2"},
        "train": {
            "epochs": 10,
            "batch_size": 64,
            "last_batch": "keep",
            "lr": 0.01,
            "momentum": 0.9,
            "weight_decay": 1e-5,
        },
        "engine": {"name": "cuda" if device.startswith("cuda") else "serial", "device": device},
    }
    if tiny:
        small: dict[str, Any] = {
            "data": {"name": f"{__name__}:tiny_images", "root": "", "partition": "iid", "clients": 2},
            "model": {"name": "cnn", "norm": "batch", "width": 4, "features": 16},
            "train": {"epochs": 1, "batch_size": 16},
        }
        values = merged(values, {**small, "data": {**small["data"], "augment": ["crop", "flip"]}})
    return values


def tiny_images(root: str = "", seed: int = 0) -> DataSet:
    """Return a few random images of the shape of CIFAR's."""
    noise = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (90, 3, 32, 32), generator=noise, dtype=torch.uint8)
    y = torch.arange(90) % 10
    halves = Split(x[:70], y[:70]), Split(x[70:], y[70:])
    return DataSet("tiny", *halves, tuple("0123456789"), mean=(0.5,) * 3, std=(0.25,) * 3)


def measure(
    values: Mapping[str, Any],
    *,
    rounds: int = 3,
    methods: Sequence[str] = METHODS,
    overrides: Sequence[str] = (),
    eager_fraction: float = 1.0,
    eager_decorrelation: bool = False,
    say: Say = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure the eager loop for a round, then each method.

    A stage that fails is recorded and the next one starts, because time on a GPU is expensive.

    Args:
        values: The keys of the experiment.
        rounds: The number of rounds after the first.
        methods: The methods.
        overrides: Further keys, as `key=value`.
        eager_fraction: The share of the steps of the eager loop that is run.
        eager_decorrelation: Whether the eager loop is timed with FedDecorr's term as well.
        say: Called with each line of progress.
        keep: Called with the result so far after each stage.

    Returns:
        The result.

    Raises:
        InputError: If an option is out of range.
    """
    if rounds < 1:
        raise InputError(f"--rounds {rounds}: must be at least 1, not counting the first round")
    if not 0 < eager_fraction <= 1:
        raise InputError(f"--eager-fraction {eager_fraction}: must be above 0 and at most 1")
    described = {
        name: Experiment(**merged(merged(values, parse_overrides(overrides)), _of(name, rounds))) for name in methods
    }
    first = next(iter(described.values()))
    device = first.engine.device or "cpu"
    facts = machine.describe(device)
    federation = federate(first)
    result: dict[str, Any] = {
        "machine": facts,
        "experiment": first.model_dump(),
        "clients": [len(part) for part in federation.parts],
        "failed": [],
    }
    say(machine.sentence(result["machine"]))
    betas = {"eager": 0.0} | ({"eager+feddecorr": 0.1} if eager_decorrelation else {})
    for name, beta in betas.items():
        with _Stage(name, result, say, keep):
            with threads(first.engine.threads):  # as many as in fullrank's run
                timed = eager_round(first, federation, torch.device(device), eager_fraction, beta)
            result[name] = timed.as_dict()
            part = " (from a share of the steps)" if timed.steps != timed.round_steps else ""
            say(f"{name}: {timed.round_seconds:.2f} s a round of {timed.round_steps} steps{part}")
    for name, experiment in described.items():
        with _Stage(name, result, say, keep):
            result.setdefault("methods", {})[name] = rows = _Rows(name, say)
            execute(experiment, None, callbacks=[rows], federation=federation)
        if isinstance(result.get("methods", {}).get(name), _Rows):
            result["methods"][name] = rows.as_dict(result.get("eager"))
            keep(result)
            if rows.rows[1:]:
                say(f"{name}: {_outcome(result['methods'][name])}")
    return result


def eager_round(
    experiment: Experiment, federation: Federation, device: torch.device, fraction: float = 1.0, beta: float = 0.0
) -> eager.Timed:
    """Time the eager loop on an experiment's data, model and settings.

    Args:
        experiment: The experiment.
        federation: The data, divided among clients.
        device: The device.
        fraction: The share of the steps that is run.
        beta: The weight of FedDecorr's term.

    Raises:
        InputError: If the data have no mean and standard deviation.
    """
    data, train = federation.data, experiment.train
    if data.mean is None or data.std is None:
        raise InputError(f'the eager loop normalises images, but the data set "{data.name}" has no mean and std')
    torch.manual_seed(experiment.seed)
    network: Any = models.build(experiment.model.name, data.num_classes, data.in_channels, **experiment.model.options)
    network.to(device)
    images = eager.Images(data.train.x, data.train.y, data.mean, data.std, device)
    recipe = eager.Recipe(
        train.epochs, train.batch_size, train.lr, train.momentum, train.weight_decay, border=4, beta=beta
    )
    return eager.time_round(network, network.features, network.head, images, federation.parts, recipe, fraction)


def report(result: Mapping[str, Any]) -> str:
    """Format the result of the benchmark as text."""
    lines = [machine.sentence(result["machine"])]
    for name in ("eager", "eager+feddecorr"):
        if name in result:
            found = result[name]
            note = ", extrapolated from a share of the steps" if found["extrapolated"] else ""
            lines.append(f"{name}: {found['round_seconds']:.2f} s a round, {found['round_steps']} steps{note}, n = 1")
    for name, found in result.get("methods", {}).items():
        lines.append(f"{name}: {_outcome(found)}")
    lines += [f"FAILED: {failure['stage']}: {failure['error']}" for failure in result["failed"]]
    return "\n".join(lines)


def _of(method: str, rounds: int) -> dict[str, Any]:
    return nested({"method.name": method, "train.rounds": rounds + 1})


def _outcome(found: Mapping[str, Any]) -> str:
    if "later" not in found:
        return "no round after the first was run"
    figure = Figure(*(found["later"][key] for key in ("median", "min", "max", "n")))
    text = f"{figure.text()} s a round for training, n = {figure.n}; first round, with set-up, {found['first']:.2f} s"
    text += f"; {found['steps']} steps"
    return text + (f"; {found['times_eager']:.2f} times as fast as eager" if "times_eager" in found else "")


class _Rows(Display):
    """A callback that collects and prints the rows of a run."""

    def __init__(self, name: str, say: Say):
        self.name, self.say = name, say
        self.rows: list[Mapping[str, Any]] = []
        self.began = time.perf_counter()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Keep and print a row."""
        self.rows.append(row)
        score = f", accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
        self.say(f"{self.name}: round {row['round']}, {row['training_seconds']:.2f} s of training{score}")

    def as_dict(self, eager: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a summary of the rows so far as a dict that JSON can represent."""
        found: dict[str, Any] = {
            "training_seconds": [row["training_seconds"] for row in self.rows],
            "accuracy": [row.get("accuracy") for row in self.rows],
        }
        if self.rows:
            found["first"] = self.rows[0]["training_seconds"]
            found["steps"] = sum(client["steps"] for client in self.rows[-1]["clients"])
        if self.rows[1:]:
            later = Figure.of(found["training_seconds"][1:])
            found["later"] = later.as_dict()
            if eager is not None:
                found["times_eager"] = eager["round_seconds"] / later.median
        return found


class _Stage:
    """A stage of the benchmark, which records errors and keeps the result so far."""

    def __init__(self, name: str, result: dict[str, Any], say: Say, keep: Callable[[dict[str, Any]], None]):
        self.name, self.result, self.say, self.keep = name, result, say, keep

    def __enter__(self) -> None:
        self.say(f"{self.name} …")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if error is None:
            if self.name.startswith("eager"):
                self.keep(self.result)
            return True
        if not isinstance(error, Exception):
            return False
        text = "".join(traceback.format_exception(error))
        failure = {"stage": self.name, "error": f"{type(error).__name__}: {error}", "traceback": text}
        self.result["failed"].append(failure)
        self.say(f"{text}{self.name} failed: {failure['error']}")
        return True
