"""Write RESULTS.md from the records in this folder: `python results/write.py`. No result in it is typed by hand.

`runs.toml` says which record belongs to which cell of a paper's table, and what is left to run.
`python results/write.py figure` draws the figure of FedDecorr's runs on CIFAR-10.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fullrank import load_run
from fullrank.comparison.intervals import interval
from fullrank.config.experiment import Experiment, merged, nested, read_toml
from fullrank.papers import UNITS, Cell, Printed, Table, load_table
from fullrank.papers.plan import differing
from fullrank.papers.reproduction import markdown_table
from fullrank.papers.verdict import RULE, verdict
from fullrank.report import legend, style
from fullrank.report.probed import probe_at
from fullrank.runs.display import clock

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "RESULTS.md"
COLLAPSE = HERE / "collapse-fashion-mnist"
ALPHAS = {"0.05": "0.05", "0.25": "0.25", "inf": "∞"}
FIGURE = "cifar10-a005.png"
"""The figure of FedDecorr's runs on CIFAR-10."""
FIGURES = (
    (
        "spectrum {}/alpha-*/fedavg-seed0",
        "spectrum-over-alpha.png",
        "Singular values of the representation for three values of α: but for the first few, the smaller α, the lower "
        "they lie",
    ),
    (
        "spectrum {}/alpha-0.05",
        "spectrum-feddecorr.png",
        "Singular values at α = 0.05 with and without FedDecorr; with it the tail is higher",
    ),
    ("gap {}", "gap.png", "The gap R over rounds, smaller with FedDecorr for every α"),
    (
        "cka {}/alpha-0.05",
        "cka.png",
        "Linear CKA between five clients: near 1 in the first layer, down to 0.2 in the representation",
    ),
)
"""The figures of the collapse: the arguments of `fullrank figure`, the file and the caption."""
SITES = {
    "ham10000": (
        "Skin lesions of seven classes at four sites, two of which lack a class, resized to 32×32 pixels. "
        "[docs/ham10000.md](docs/ham10000.md) reads such a comparison closely. Its settings were chosen in two trials "
        "with seed 0 by balanced accuracy on the test parts, so that all values are a little too good.",
        (("accuracy", "final"), ("balanced_accuracy", "final")),
        "FedBN, which keeps the BatchNorm of each site, is ahead of FedAvg in both measures. FedDecorr with "
        "its default weight is ahead in neither; "
        "[docs/feddecorr-small-networks.md](docs/feddecorr-small-networks.md) measures what that weight does to other "
        "small networks. FedETF, whose loss weights classes "
        "equally, is behind in accuracy and ahead in balanced accuracy.",
    ),
    "office-caltech10": (
        "Objects of ten classes in pictures from a shop, from a web search, from a camera and from a webcam, "
        "resized to 32×32 pixels, with ResNet20.",
        (("accuracy", "validated"), ("accuracy", "final")),
        "FedBN is ahead of FedAvg, most of all at the two small sites, dslr and webcam. Whether FedDecorr helps, three "
        "seeds do not tell.",
    ),
}
"""The records by site: what they are, the measures and values that the page has, and what these show."""
WARM_UP = 30
"""The round after which the accuracy of FedETF's cells no longer grows quickly."""
CHANCE = 0.2
"""A round whose accuracy is at most this, twice that of guessing, has collapsed."""


@cache
def read_rows(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file of metrics, which may be compressed."""
    path = HERE / file
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


@dataclass(frozen=True)
class Record:
    """A committed run: an entry of runs.toml with its files."""

    entry: Mapping[str, Any]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run."""
        changes = nested(self.entry.get("set", {}))
        return Experiment(**merged(read_toml(HERE / self.entry["experiment"]), changes))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of each round."""
        return read_rows(self.entry["metrics"])

    @property
    def cells(self) -> list[Cell]:
        """The cells of the table to which the run belongs."""
        return table_of(self.entry["table"]).select([self.entry["cells"]])

    def printed(self) -> Printed:
        """Return the printed accuracy of the global model."""
        (found,) = (cell.printed for cell in self.cells if cell.measure == "accuracy")
        assert found is not None
        return found

    def value(self, cell: Cell) -> float:
        """Return the run's value in a cell, in the unit of the paper."""
        if cell.measure == "accuracy":
            accuracies = [row["accuracy"] for row in self.rows]
            found = {"last": accuracies[-1], "last5": statistics.fmean(accuracies[-5:])}[cell.value]
        else:
            stages = json.loads((HERE / self.entry["summary"]).read_text())[cell.measure]
            found = next(stages[stage]["mean"] for stage in ("personalised", "local") if stage in stages)
        return UNITS[cell.unit] * found

    def changed(self, cell: Cell) -> dict[str, Any]:
        """Return the keys in which the run differs from the cell, and that change the result."""
        found = differing(cell.experiments(seed=self.experiment.seed), [self.experiment])
        return {key: value for key, value in found.items() if key not in self.entry.get("equal", ())}

    def accuracy(self, first: int, last: int) -> float:
        """Return the mean accuracy over some rounds, in per cent."""
        return 100 * statistics.fmean(row["accuracy"] for row in self.rows[first - 1 : last])

    def collapsed(self) -> int:
        """Return the number of rounds after the warm-up in which the accuracy fell to that of guessing, or little
        more."""
        return sum(row["accuracy"] <= CHANCE for row in self.rows[WARM_UP:])


@cache
def table_of(name: str) -> Table:
    """Return a table of a paper."""
    return load_table(name)


@cache
def records(table: str) -> list[Record]:
    """Return the committed runs that belong to a table."""
    return [Record(entry) for entry in read_toml(HERE / "runs.toml")["runs"] if entry["table"] == table]


def first_of(table: str, method: str) -> Record:
    """Return the first committed run of a method that belongs to a table."""
    return next(record for record in records(table) if record.experiment.method.name == method)


def prose(text: str) -> Iterator[str]:
    """Yield the lines of a paragraph or of an item of a list, and an empty line after a paragraph."""
    item = text.startswith("- ")
    indent = "  " if item else ""
    yield from textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if not item:
        yield ""


# Tables of the papers


def table_section(name: str) -> Iterator[str]:
    """Yield the lines of a table of a paper: the cells of which runs are committed, ours next to the paper's."""
    table = table_of(name)
    yield f"## {name}: {table.title}"
    yield ""
    yield from prose(f"{table.paper}. `fullrank reproduce {name}` runs its cells.")
    titles = [*table.coordinates, "rounds", "paper", "ours", "difference", "seeds", "verdict"]
    coordinates = list(table.coordinates)
    yield from markdown_table(titles, [row for cell in table.cells for row in cell_rows(name, cell, coordinates)])
    yield ""


def cell_rows(name: str, cell: Cell, coordinates: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each way in which a cell was run; runs that differ in the seed only are one."""
    ways: dict[str, list[Record]] = {}
    for record in records(name):
        if any(one.at == cell.at for one in record.cells):
            ways.setdefault(repr((len(record.rows), record.changed(cell))), []).append(record)
    for several in ways.values():
        values = [record.value(cell) for record in several]
        rounds = len(several[0].rows), cell.experiments(seed=0)[0].train.rounds
        mean = statistics.fmean(values)
        ours = Printed(mean, statistics.stdev(values) if len(values) > 1 else None)
        difference = f"{mean - cell.printed.mean:+.2f}" if cell.printed is not None else ""
        seeds = ", ".join(str(record.experiment.seed) for record in several)
        found = verdict(cell.printed, values, rounds=rounds, changed=several[0].changed(cell))
        at = [cell.at[name] for name in coordinates]
        yield [*at, str(rounds[0]), str(cell.printed or ""), str(ours), difference, seeds, str(found)]


def feddecorr_section() -> Iterator[str]:
    """Yield the section on FedDecorr's Table 1."""
    table = "feddecorr-tpami/table-1"
    yield from table_section(table)
    plain, decorrelated = first_of(table, "fedavg"), first_of(table, "fedavg+feddecorr")
    rounds, full = len(plain.rows), len(decorrelated.rows)
    both = min(rounds, full)
    spans = dict.fromkeys([(11, 20), (21, 30), (31, 40), (both - 9, both), (full - 9, full)])
    rows = []
    for first, last in spans:
        means = [
            f"{one.accuracy(first, last):.2f}" if last <= len(one.rows) else "not run" for one in (plain, decorrelated)
        ]
        rows.append([f"{first} to {last}", *means])
    yield "Accuracy in percent, mean over ten rounds, of the first seed:"
    yield ""
    yield from markdown_table(["rounds", "fedavg", "fedavg+feddecorr"], rows)
    yield ""
    yield f"![Test accuracy over rounds of FedAvg with and without FedDecorr](docs/figures/{FIGURE})"
    yield ""
    ahead = decorrelated.accuracy(both - 9, both) - plain.accuracy(both - 9, both)
    text = (
        f"In the last ten rounds that both runs have, FedDecorr is ahead of FedAvg by {ahead:.1f} points; in the paper "
        f"it is by {decorrelated.printed().mean - plain.printed().mean:.1f} after all rounds. Over its last five "
        f"rounds FedDecorr has {decorrelated.accuracy(full - 4, full):.2f} %; single rounds differ more, so that the "
        "last one, which the table has, says less."
    )
    if rounds < full:
        text += f" FedAvg was stopped after {rounds} of {full} rounds and has no value at full length."
    yield from prose(text)


def fedetf_section() -> Iterator[str]:
    """Yield the section on FedETF's Table 1."""
    table = "fedetf/table-1"
    yield from table_section(table)
    yield from prose(
        "`general` is the accuracy of the global model, `personal` the mean of the clients' own models on their "
        "hold-outs: personalised with FedETF, after local training with FedAvg. These runs weight clients by their "
        "training samples, the cells by all of their samples as the authors' code does: no client's share differs by "
        "as much as 0.0001."
    )
    rows = []
    gaps: dict[str, float] = {}
    for record in records(table):
        method, train = record.experiment.method.name, record.experiment.train
        alpha = f"{record.experiment.data.alpha:g}"
        drift = max(row["drift"]["largest"] for row in record.rows[WARM_UP:])
        seed = str(record.experiment.seed)
        rows.append([method, alpha, train.last_batch, seed, str(record.collapsed()), f"{drift:.1f}"])
        gap = record.printed().mean - 100 * statistics.fmean(row["accuracy"] for row in record.rows[-5:])
        if gap > 0:
            gaps[f"{method} at α = {alpha} with `{train.last_batch}` (seed {seed})"] = gap
    collapsed = f"rounds after {WARM_UP} at {100 * CHANCE:.0f} % or less"
    yield from markdown_table(["method", "α", "last batch", "seed", collapsed, "largest drift"], rows)
    yield ""
    listed = "; ".join(f"{name} by {gap:.1f} points" for name, gap in gaps.items())
    yield from prose(
        f"FedETF's general accuracy is ahead of that of FedAvg in every setting. Below the paper's are: {listed}."
    )
    yield from prose(
        "What was tried: `train.last_batch`. With `keep`, the cell's setting, the last batch of one client has two "
        "samples, its weights drift much further in single rounds, and these rounds collapse, as the table shows. With "
        "`wrap` the last batch is filled up from the beginning of the epoch, and no round collapses; the accuracy of "
        "FedAvg is not closer to the paper's with it, so that this does not explain the difference. The paper's own "
        f"standard deviation of FedAvg at α = 0.1 is {first_of(table, 'fedavg').printed().std:g} points."
    )


# Other studies


def collapse_section() -> Iterator[str]:
    """Yield the section on dimensional collapse, with its figures."""
    methods = ("fedavg", "fedavg+feddecorr")
    runs = {
        (alpha, name): load_run(COLLAPSE / f"alpha-{alpha}" / f"{name}-seed0") for alpha in ALPHAS for name in methods
    }
    probes = {key: probe_at(run) for key, run in runs.items()}
    final = {key: run.summary()["accuracy"]["last"] for key, run in runs.items()}
    around = json.loads((COLLAPSE / "alpha-0.05" / "fedavg-seed0" / "environment.json").read_text())
    last = probes["0.05", "fedavg"]
    yield "## The collapse, seen"
    yield ""
    yield from prose(
        "FedDecorr's claim (ICLR 2023, Figs. 2 to 7; TPAMI 2023) is a picture: the less alike the clients' data, the "
        "fewer directions the representation uses, in clients' models and in the global one; decorrelating features "
        "during local training keeps the tail. Here it is on Fashion-MNIST with ResNet20, by one command, which takes "
        "minutes on a GPU:"
    )
    yield '    make collapse SET="--set engine.device=cuda --set data.root=DATA"'
    yield ""
    yield from prose(
        f"It makes {len(runs)} runs of `experiments/collapse.toml` with seed 0 and {last['round']} rounds. These were "
        f"run on an {around['gpu']} (fullrank {around['fullrank']}, torch {around['torch']}; training in bfloat16, "
        "probes in float32). The figures are made from the records:"
    )
    for arguments, name, _ in FIGURES:
        yield f"    fullrank figure {arguments.format('results/collapse-fashion-mnist')} --out {name}"
    yield ""
    for _, name, caption in FIGURES[:-1]:
        yield f"![{caption}](docs/figures/{name})"
        yield ""
    rows = []
    for (alpha, method), probe in probes.items():
        accuracy, rank = (both(probe, name, scale) for name, scale in (("accuracy", 100), ("effective_rank", 1)))
        significant = f"{probe['global']['significant']} / {over_clients(probe, 'significant'):.1f}"
        rows.append([ALPHAS[alpha], method, accuracy, significant, rank, f"{over_clients(probe, 'gap'):+.2f}"])
    yield from markdown_table(["α", "method", "accuracy, %", "λ > e⁻²", "effective rank", "R"], rows)
    yield ""
    yield from prose(
        f"After round {last['round']}; global model / mean of {len(last['locals'])} clients, on the test set. λ > e⁻² "
        "counts significant singular values (TPAMI's log τ = −2), R is TPAMI's Eq. 1."
    )
    plain = [probes[alpha, "fedavg"] for alpha in reversed(ALPHAS)]
    whole = " to ".join(f"{probe['global']['effective_rank']:.1f}" for probe in plain)
    clients = " to ".join(f"{over_clients(probe, 'effective_rank'):.1f}" for probe in plain)
    ahead = [
        f"{100 * (final[alpha, methods[1]] - final[alpha, methods[0]]):+.1f} at α = {name}"
        for alpha, name in ALPHAS.items()
    ]
    yield "What reproduces, in this one seed:"
    yield ""
    yield from prose(
        f"- **Collapse grows with heterogeneity.** The effective rank falls from {whole} in the global model and from "
        f"{clients} in clients' models as α goes from ∞ to 0.25 to 0.05. The number of significant values is a coarser "
        "count and sees less of it."
    )
    yield from prose("- **FedDecorr lifts the tail**, for every α, in the global model and in clients' models.")
    yield from prose("- **R shrinks**: clients' spectra come closer to the global one's, for every α.")
    yield ""
    yield "What does not:"
    yield ""
    yield from prose(
        "- **Accuracy is not higher with FedDecorr.** Its last accuracy minus that of FedAvg, in points: "
        f"{', '.join(ahead)}. The papers report a hundred rounds on harder data. Spectra say how many directions are "
        "in use, not that more of them are better; "
        "[docs/feddecorr-small-networks.md](docs/feddecorr-small-networks.md) measures over three seeds what FedDecorr "
        "does to the accuracy of small networks."
    )
    yield ""
    yield from prose(
        "The similarity of clients by layer is CCVR's picture (NeurIPS 2021, Figs. 1 and 2): at α = 0.05 clients agree "
        "in early layers and less in deep ones."
    )
    yield f"![{FIGURES[-1][2]}](docs/figures/{FIGURES[-1][1]})"
    yield ""


def both(probe: Mapping[str, Any], name: str, scale: float) -> str:
    """Return a measure of the global model and its mean over clients."""
    return f"{scale * probe['global'][name]:.1f} / {scale * over_clients(probe, name):.1f}"


def over_clients(probe: Mapping[str, Any], name: str) -> float:
    """Return the mean of a measure over the probed clients."""
    return statistics.fmean(local[name] for local in probe["locals"])


def sites_section() -> Iterator[str]:
    """Yield the section on real sites: tables by site, over several seeds."""
    yield "## By site"
    yield ""
    yield from prose(
        "Each site is a client, and the values are those on its own test part: `received` is the model as the site "
        "gets it from the server, `local` the same after the site has trained it once more, `personalised` FedETF's "
        "model after fine-tuning. Mean ± standard deviation over the seeds; the average is unweighted. Neither is a "
        "cell of a paper: the division into training and test parts is that of the copies used here, and images and "
        "networks are small, so that a CPU suffices."
    )
    for name, (text, measures, shown) in SITES.items():
        found = json.loads((HERE / "sites" / f"{name}.json").read_text())
        around = found["environment"]
        seeds, settings = ", ".join(map(str, found["seeds"])), found["set"]
        changes = [f"--set {key}={value}" for key, value in settings.items()]
        yield f"### {name}"
        yield ""
        yield from prose(text)
        yield from prose(
            f"Seeds {seeds}; fullrank {around['fullrank']} (commit {around['git_commit'][:12]}), torch "
            f"{around['torch']}, on an {around['cpu']}."
        )
        command = ["fullrank compare", found["experiment"], f"--methods {','.join(found['methods'])}", "--by site"]
        command += [f"--seeds {','.join(map(str, found['seeds']))}", *changes, "--root DATA"]
        unbroken = [part.replace(" ", "\N{NO-BREAK SPACE}") for part in command]
        lines = textwrap.wrap(" ".join(unbroken), 110, break_long_words=False, break_on_hyphens=False)
        yield from " \\\n".join(f"    {line}" for line in lines).replace("\N{NO-BREAK SPACE}", " ").splitlines()
        yield ""
        for measure, value in measures:
            yield from site_table(found["tables"], measure, value)
            yield from differences(found["tables"], measure, value)
        yield from prose(shown)


def site_table(tables: Sequence[Mapping[str, Any]], measure: str, value: str) -> Iterator[str]:
    """Yield the table of a measure by site, in percent, with a row for each method and stage."""
    chosen = [
        table
        for stage in ("received", "local", "personalised")
        for table in tables
        if (table["measure"], table["value"], table["stage"], table["set"]) == (measure, value, stage, "test")
    ]
    if not chosen:
        return
    when = "in the round with the best validation accuracy" if value == "validated" else "after the last round"
    yield f"{measure.replace('_', ' ').capitalize()} in percent, {when}:"
    yield ""
    rows = []
    for method in [row["method"] for row in chosen[0]["rows"]]:
        for table in chosen:
            values = next(row["values"] for row in table["rows"] if row["method"] == method)
            if values:
                rows.append([method, table["stage"], *(spread(values[site]) for site in table["sites"])])
    yield from markdown_table(["method", "model", *chosen[0]["sites"]], rows)
    yield ""


def differences(tables: Sequence[Mapping[str, Any]], measure: str, value: str) -> Iterator[str]:
    """Yield how far the methods are from the first one, in the average over sites of the models as received."""
    wanted = (measure, value, "received", "test")
    [table] = [each for each in tables if (each["measure"], each["value"], each["stage"], each["set"]) == wanted]
    first, *others = [(row["method"], row["values"]["average"]) for row in table["rows"]]
    found = []
    for method, values in others:
        gaps = [100 * (values[seed] - first[1][seed]) for seed in values]
        ends = interval(gaps)
        assert ends is not None
        low, high = ends
        found.append(f"{method} {statistics.fmean(gaps):+.1f} ({low:+.1f} to {high:+.1f})")
    yield from prose(
        f"Models as received, average over sites, minus {first[0]} in points, paired by seed, with a 95 % interval: "
        f"{', '.join(found)}."
    )


def spread(by_seed: Mapping[str, float]) -> str:
    """Return the mean and the standard deviation of shares, in percent."""
    values = [100 * value for value in by_seed.values()]
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def small_section() -> Iterator[str]:
    """Yield the section on small networks and on short runs, each of which has its page."""
    folder = HERE / "feddecorr-small-networks"
    small, larger = (len((folder / file).read_text().splitlines()) for file in ("runs.jsonl", "resnet20.jsonl"))
    yield "## Small networks and short runs"
    yield ""
    yield from prose(
        "[docs/feddecorr-small-networks.md](docs/feddecorr-small-networks.md) measures what FedDecorr does to small "
        f"networks, in {small} runs on a CPU and {larger} of ResNet20 on a GPU; its tables and its figure are made "
        "from the records by `results/feddecorr-small-networks/study.py`."
    )
    yield from prose(
        "[docs/short-runs.md](docs/short-runs.md) has ten rounds of FedMR and FedETF on Fashion-MNIST. The files of "
        "those runs are not committed, so that their numbers are not here; the page has the commands that make them."
    )


def time_section() -> Iterator[str]:
    """Yield the section on the time of a round by method, as a ratio to FedAvg."""
    yield "## Time of a round"
    yield ""
    yield "Medians over the later rounds, as ratios to FedAvg on the same machine (`results/overheads`):"
    yield ""
    rows = []
    for file in sorted((HERE / "overheads").glob("*.json")):
        found = json.loads(file.read_text())
        medians = {name: numbers["seconds"]["median"] for name, numbers in found["overheads"].items()}
        ratios = [f"{name} {seconds / medians['fedavg']:.2f}" for name, seconds in medians.items() if name != "fedavg"]
        machine = found["machine"]
        rows.append([file.stem, machine["gpu"] or machine["cpu"], f"{medians['fedavg']:.2f}", ", ".join(ratios)])
    yield from markdown_table(["workload", "machine", "FedAvg, seconds", "ratios"], rows)
    yield ""


def reference_section() -> Iterator[str]:
    """Yield the section on the short runs that a test repeats."""
    around = json.loads((HERE / "reference" / "environment.json").read_text())
    shown = (1, 5, 10, 20)
    rows = []
    for file in sorted((HERE / "reference").glob("*.toml")):
        metrics = read_rows(f"reference/{file.stem}.metrics.jsonl")
        values = [f"{100 * metrics[round - 1]['accuracy']:.2f}" for round in shown]
        rows.append([Experiment.from_toml(file).method.name, *values, f"{sum(row['seconds'] for row in metrics):.1f}"])
    yield "## Reference runs"
    yield ""
    yield from prose(
        "The experiment of `examples/demo.toml` on the embedded digits; a slow test runs these again and compares "
        f"accuracy and loss after each round. Made with fullrank {around['fullrank']} (commit "
        f"{around['git_commit'][:12]}), torch {around['torch']}, on an {around['cpu']}. Accuracy in percent:"
    )
    yield from markdown_table(["method", *(f"round {round}" for round in shown), "seconds in all"], rows)
    yield ""


# What is missing


def left_section() -> Iterator[str]:
    """Yield the list of what is left to run, with the time that it needs."""
    yield "## What is left"
    yield ""
    yield from prose(
        "The time is the number of rounds times the measured seconds of a round of the same method on an NVIDIA H200, "
        "one run at a time."
    )
    rows, total = [], 0.0
    for entry in read_toml(HERE / "runs.toml")["left"]:
        [experiment] = table_of(entry["table"]).select([entry["cells"]])[0].experiments(seed=0)
        rounds = experiment.train.rounds * len(entry["seeds"])
        seconds = rounds * seconds_per_round(*entry["seconds"])
        total += seconds
        seeds = ", ".join(map(str, entry["seeds"]))
        rows.append([entry["table"], entry["cells"], seeds, str(rounds), clock(seconds)])
    rows.append(["all of these", "", "", "", clock(total)])
    yield from markdown_table(["table", "cell", "seeds", "rounds", "h:mm:ss"], rows)
    yield ""
    yield from prose(
        "Other cells have no measured time of a round yet, among them FedRepOpt on CIFAR-100 and the further methods "
        "and values of α of FedDecorr's Table 1. `fullrank reproduce TABLE --dry-run --estimate` measures it."
    )


def seconds_per_round(file: str, method: str = "") -> float:
    """Return the measured seconds of a round: of a file of metrics, or of a method in a file of overheads."""
    if method:
        return float(json.loads((HERE / file).read_text())["overheads"][method]["seconds"]["median"])
    return statistics.median(row["seconds"] for row in read_rows(file)[1:])


def lacking_section() -> Iterator[str]:
    """Yield what the committed records do not say."""
    yield "## What the records lack"
    yield ""
    for entry in read_toml(HERE / "runs.toml")["runs"]:
        missing = []
        if not {"fullrank", "commit"} <= entry.keys():
            missing.append("the version of the code")
        if "seed" not in {**read_toml(HERE / entry["experiment"]), **entry.get("set", {})}:
            missing.append("the seed (its experiment has none, so that it is the default, 0)")
        if missing:
            yield from prose(f"- `results/{entry['metrics']}`: {' and '.join(missing)}.")
    around = json.loads((COLLAPSE / "alpha-0.05" / "fedavg-seed0" / "environment.json").read_text())
    if around["git_commit"] is None:
        yield f"- `results/collapse-fashion-mnist`: the commit; the version is {around['fullrank']}."
    yield "- `docs/short-runs.md`: the files of the runs."


SECTIONS = (
    feddecorr_section,
    fedetf_section,
    collapse_section,
    sites_section,
    small_section,
    time_section,
    reference_section,
    left_section,
    lacking_section,
)


def page() -> str:
    """Return the text of RESULTS.md."""
    lines = ["# Results", ""]
    lines += prose(
        "What fullrank reached in the experiments of the papers, next to what they print. `python results/write.py` "
        "writes this page from the records in `results/`; [docs/reproduce.md](docs/reproduce.md) says how to run a "
        "cell again."
    )
    lines += prose(f"Values are in percent. {RULE}")
    for section in SECTIONS:
        lines += section()
    return "\n".join(lines).rstrip() + "\n"


def draw(path: Path) -> None:
    """Draw the accuracy over rounds of FedDecorr's runs on CIFAR-10, and what the paper prints."""
    table = "feddecorr-tpami/table-1"
    with style.drawing(str(path), 2.4) as figure:
        axes = figure.subplots()
        entries = {}
        for method, colour in (("fedavg", style.BLUE), ("fedavg+feddecorr", style.VERMILLION)):
            record = first_of(table, method)
            rows, printed = record.rows, record.printed()
            accuracies = [100 * row["accuracy"] for row in rows]
            axes.plot([row["round"] for row in rows], accuracies, color=colour, linewidth=0.9)
            axes.errorbar(103, printed.mean, printed.std, fmt="o", color=colour, markersize=2.5, linewidth=0.9)
            entries[method] = style.line(colour)
        entries["printed, ± std"] = style.line("black", marker="o", markersize=2.5, linestyle="none")
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, %")
        legend.draw_legend(figure, entries)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            PAGE.write_text(page(), encoding="utf-8")
        case ["figure"]:
            draw(PAGE.parent / "docs" / "figures" / FIGURE)
        case _:
            sys.exit("usage: python results/write.py [figure]")
