"""When FedDecorr helps and when it harms on small networks: the runs, their table and their figure.

`python study.py run DIRECTORY` makes the runs that the records lack, in that directory, and appends each to its record;
a run that was interrupted continues. `python study.py table` and `python study.py figure FILE.png` read runs.jsonl,
`python study.py resnet20` reads resnet20.jsonl.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import fullrank
from fullrank.comparison.intervals import interval
from fullrank.report import style
from fullrank.report.legend import draw_legend

HERE = Path(__file__).resolve().parent
RECORD, RESNET20 = HERE / "runs.jsonl", HERE / "resnet20.jsonl"
SEEDS = (0, 1, 2)
WITH = {"method.name": "fedavg+feddecorr"}
WEAK = {**WITH, "method.feddecorr.beta": 0.01}
PAPER = {**WITH, "method.feddecorr.scale": "paper"}

STUDY: dict[str, tuple[str, dict[str, Any]]] = {
    "lenet fedavg": ("lenet", {}),
    "lenet feddecorr": ("lenet", WITH),
    "cnn fedavg": ("cnn", {}),
    "cnn feddecorr": ("cnn", WITH),
    "lenet feddecorr paper": ("lenet", PAPER),
    "lenet feddecorr 0.01": ("lenet", WEAK),
    "cnn, no norm fedavg": ("cnn", {"model.norm": "none"}),
    "cnn, no norm feddecorr": ("cnn", {"model.norm": "none", **WITH}),
    "cnn feddecorr paper": ("cnn", PAPER),
    "cnn feddecorr 0.01": ("cnn", WEAK),
    "mlp fedavg": ("mlp", {}),
    "mlp feddecorr": ("mlp", WITH),
    "lenet, lr 0.05 fedavg": ("lenet", {"train.lr": 0.05}),
    "lenet, lr 0.05 feddecorr": ("lenet", {"train.lr": 0.05, **WITH}),
    "lenet, alpha 0.5 fedavg": ("lenet", {"data.alpha": 0.5}),
    "lenet, alpha 0.5 feddecorr": ("lenet", {"data.alpha": 0.5, **WITH}),
    "cnn, 32 features fedavg": ("cnn", {"model.features": 32}),
    "cnn, 32 features feddecorr": ("cnn", {"model.features": 32, **WITH}),
    "cnn, alpha 0.5 fedavg": ("cnn", {"data.alpha": 0.5}),
    "cnn, alpha 0.5 feddecorr": ("cnn", {"data.alpha": 0.5, **WITH}),
}
"""Each setting by name: its file, and what it changes in it."""
LARGER: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet20 fedavg": ("resnet20", {}),
    "resnet20 feddecorr": ("resnet20", WITH),
    "resnet20 feddecorr paper": ("resnet20", PAPER),
}
"""Settings of a larger network, which needs a GPU and has a separate record."""
LARGER_SHOWN = {
    "resnet20 feddecorr": "ResNet20, β = 0.1",
    "resnet20 feddecorr paper": 'ResNet20, β = 0.1, "paper"',
}

SHOWN = {
    "lenet feddecorr": "LeNet, β = 0.1",
    "lenet feddecorr 0.01": "LeNet, β = 0.01",
    "lenet feddecorr paper": 'LeNet, β = 0.1, "paper"',
    "lenet, lr 0.05 feddecorr": "LeNet, learning rate 0.05",
    "lenet, alpha 0.5 feddecorr": "LeNet, α = 0.5",
    "cnn feddecorr": "CNN, β = 0.1",
    "cnn feddecorr 0.01": "CNN, β = 0.01",
    "cnn feddecorr paper": 'CNN, β = 0.1, "paper"',
    "cnn, no norm feddecorr": "CNN without BatchNorm",
    "cnn, 32 features feddecorr": "CNN, 32 features",
    "cnn, alpha 0.5 feddecorr": "CNN, α = 0.5",
    "mlp feddecorr": "perceptron",
}
"""The settings that are compared with the FedAvg of the same setting, in the order of the table and the figure."""
MOMENTS = {"rounds 6 to 10": slice(5, 10), "last five rounds": slice(-5, None)}


def make_runs(directory: Path, study: dict[str, tuple[str, dict[str, Any]]], file_of_rows: Path) -> None:
    """Make the runs that a record lacks, each in a separate directory."""
    done = read("accuracy", file_of_rows)
    for setting, (file, changes) in study.items():
        for seed in SEEDS:
            if seed in done.get(setting, {}):
                continue
            described = fullrank.Experiment.from_toml(HERE / f"{file}.toml").but(**changes, seed=seed)
            run = fullrank.run(described, out=directory / f"{setting}-{seed}".replace(" ", "-"))
            row: dict[str, Any] = {"setting": setting, "seed": seed}
            for measure in ("accuracy", "dead_features"):
                row[measure] = [round(row[measure], 4) for row in run.metrics]
            with file_of_rows.open("a") as record:
                print(json.dumps(row), file=record)
            print(setting, seed, row["accuracy"][-1], row["dead_features"][-1], flush=True)


def read(measure: str, record: Path = RECORD) -> dict[str, dict[int, list[float]]]:
    """Return a measure of the recorded runs by round, by setting and seed."""
    found: dict[str, dict[int, list[float]]] = {}
    for line in record.read_text().splitlines() if record.exists() else []:
        row = json.loads(line)
        found.setdefault(row["setting"], {})[row["seed"]] = row[measure]
    return found


def base(setting: str) -> str:
    """Return the FedAvg setting with which a setting is compared."""
    return f"{setting.partition(' feddecorr')[0]} fedavg"


def differences(setting: str, rounds: slice, record: Path = RECORD) -> list[float]:
    """Return FedDecorr's mean accuracy over some rounds less FedAvg's, in points, by seed."""
    accuracy = read("accuracy", record)
    mean = {name: {k: statistics.fmean(v[rounds]) for k, v in accuracy[name].items()} for name in accuracy}
    return [100 * (mean[setting][seed] - mean[base(setting)][seed]) for seed in SEEDS]


def dead(setting: str, record: Path = RECORD) -> float:
    """Return the share of dead features after the last round, the mean over seeds."""
    return statistics.fmean(shares[-1] for shares in read("dead_features", record)[setting].values())


def print_table(shown: dict[str, str], record: Path) -> None:
    """Print the differences with their 95 % intervals, as Markdown."""
    accuracy = read("accuracy", record)
    print("| setting | FedAvg, % |", " | ".join(MOMENTS), "| dead features, FedAvg → FedDecorr |")
    print("|---|---|---|---|---|")
    for setting, name in shown.items():
        reached = 100 * statistics.fmean(statistics.fmean(v[-5:]) for v in accuracy[base(setting)].values())
        cells = [with_interval(differences(setting, rounds, record)) for rounds in MOMENTS.values()]
        shares = f"| {dead(base(setting), record):.0%} → {dead(setting, record):.0%} |"
        print(f"| {name} | {reached:.1f} |", " | ".join(cells), shares)


def with_interval(values: list[float]) -> str:
    """Format a mean with its interval, in bold if the interval excludes 0."""
    low, high = interval(values) or (float("nan"), float("nan"))
    text = f"{statistics.fmean(values):+.1f} ({low:+.1f} to {high:+.1f})"
    text = text.replace("-", "−")
    return f"**{text}**" if low * high > 0 else text


LEFTMOST = -34
"""The end of the axis of differences; an arrow marks an interval that continues."""


def draw(path: str) -> None:
    """Draw the differences with their intervals, and the shares of dead features."""
    with style.drawing(path, 3.9) as figure:
        figure.set_size_inches(1.6 * style.COLUMN, 3.9)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.4))
        colours = {"rounds 6 to 10": style.ORANGE, "last five rounds": style.BLUE}
        for moment, (name, rounds) in enumerate(MOMENTS.items()):
            for place, setting in enumerate(SHOWN):
                draw_difference(left, differences(setting, rounds), place + (moment - 0.5) * 0.36, colours[name])
        left.axvline(0, color=style.GREY, linewidth=0.6, zorder=0)
        left.set_yticks(range(len(SHOWN)), SHOWN.values())
        left.set_ylim(len(SHOWN) - 0.4, -0.6)
        left.set_xlim(LEFTMOST - 1, 20)
        left.set_xlabel("accuracy, FedDecorr − FedAvg, points")
        dots = {"FedAvg": (base, "o", style.GREY), "FedDecorr": (str, "D", style.VERMILLION)}
        for which, marker, colour in dots.values():
            shares = [100 * dead(which(setting)) for setting in SHOWN]
            right.plot(shares, range(len(SHOWN)), marker, color=colour, markersize=3.5)
        right.set_xlim(-5, 105)
        right.set_xlabel("dead features, %")
        for axes in (left, right):
            axes.grid(axis="y", color=style.GREY, linewidth=0.3, alpha=0.4)
            axes.tick_params(axis="y", length=0)
        entries = {name: style.line(colour, marker="o", markersize=3.5) for name, colour in colours.items()}
        for name, (_, marker, colour) in dots.items():
            entries[f"dead, {name}"] = style.line(colour, marker=marker, markersize=3.5, linestyle="none")
        draw_legend(figure, entries)


def draw_difference(axes: Any, values: list[float], height: float, colour: str) -> None:
    """Draw a mean, its interval and, as small ticks, the three seeds."""
    low, high = interval(values) or (values[0], values[0])
    axes.plot([max(low, LEFTMOST), high], [height, height], color=colour, linewidth=1)
    axes.plot(values, [height] * len(values), "|", color=colour, markersize=4, markeredgewidth=0.7)
    axes.plot(statistics.fmean(values), height, "o", color=colour, markersize=3.5)
    if low < LEFTMOST:
        axes.plot(LEFTMOST, height, "<", color=colour, markersize=4)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", directory]:
            make_runs(Path(directory), STUDY, RECORD)
            make_runs(Path(directory), LARGER, RESNET20)
        case ["table"]:
            print_table(SHOWN, RECORD)
        case ["resnet20"]:
            print_table(LARGER_SHOWN, RESNET20)
        case ["figure", file]:
            draw(file)
        case _:
            sys.exit("usage: study.py run DIRECTORY | table | resnet20 | figure FILE.png")
