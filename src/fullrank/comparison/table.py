"""Comparisons of complete runs: the check that they can be compared, and the table of their results."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank._version import __version__
from fullrank.comparison.by_site import SiteTable, by_site
from fullrank.comparison.derived import DERIVED, REFERENCE, ROUNDS_TO, derived
from fullrank.comparison.intervals import holm, interval, p_value, std
from fullrank.comparison.variants import data_of, reference_row, row_labels, setting_of, varied_keys
from fullrank.config.experiment import Experiment, same
from fullrank.errors import InputError, nearest
from fullrank.metrics.measures import ALWAYS, METRICS, Metric, find_metrics, single_numbers
from fullrank.plugins import FILES, GIVEN
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.display import counted
from fullrank.runs.pruning import MARK
from fullrank.runs.result import Run, load_run
from fullrank.runs.summary import measures as metrics_by_key

OTHER_MEASURES = (
    "validated_round",
    "bytes_up",
    "bytes_down",
    "elements_up",
    "elements_down",
    "elements",
    "seconds",
    "rounds",
    "skipped",
)
"""Measures of a run that are not metrics of predictions."""
COSTS = ("bytes_up", "bytes_down", "elements_up", "elements_down", "seconds", "skipped")
"""Measures of which less is better."""
OF_CLIENTS = ("personal", "unseen")
"""The measures of the clients' own models."""
VALUES = ("last5", "last", "best", "validated", "final")
CONFIDENCE = 0.95
ENOUGH_SEEDS = 3
ENOUGH_FOR_P = 3
"""The fewest seeds for which p-values are given."""


@dataclass(frozen=True)
class Difference:
    """The difference between a row and its reference in a measure, paired by seed, over the seeds of both.

    `p` is the p-value of the paired t-test, from three seeds on, and `p_holm` the same corrected for the number of
    differences in the table.
    """

    to: str
    values: dict[int, float]
    mean: float
    low: float | None
    high: float | None
    confidence: float = CONFIDENCE
    p: float | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table: a method's measure by seed (or the reason of its absence), its mean, and its standard
    deviation.

    `stage` is the stage of the clients' models to which the measures "personal" and "unseen" belong.
    """

    method: str
    values: dict[int, float]
    absent: dict[int, str]
    mean: float | None
    std: float | None
    difference: Difference | None
    stage: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Complete runs by (method, seed), compared by one measure.

    A method is a row of the table: its name, with the hyper-parameters and other keys in which the rows differ. Rows on
    different data may stand in one table; a difference is only between rows on the same splits.

    `measure` is a key of a run's summary ("accuracy", "loss", "validation_accuracy", "personal", or a path such as
    "personal.local.worst_decile"), a term of the loss in training ("criterion", "fedmr.intra"), or one that is computed
    from the run ("rounds_to.75", "eigenvalue_variance", "time_ratio", "peak_memory"); `value` selects one of its
    numbers: "last5" (mean of the last five rounds), "last", "best" (over rounds), "validated" (at the round that was
    best in validation) or "final" (after the method's finish, where it has one, else the last).

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}
    >>> found = fullrank.compare(few, ["fedavg", "fedprox"], seeds=[0], out=tempfile.mkdtemp(), jobs=1)
    >>> [row.method for row in found.by("loss").rows()]
    ['fedavg', 'fedprox']
    """

    runs: Mapping[tuple[str, int], Run]
    measure: str = "accuracy"
    value: str = "last5"
    out: Path | None = None
    failed: Mapping[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    """The reasons of failures by method and seed; these runs are left out of all statistics."""
    names: tuple[str, ...] = ()
    """The methods in their order; by default the order of the runs."""
    reference: str = ""
    """The method to which differences are: a row of the table, or a method as it was written; by default the first."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("there is nothing to compare: no runs were given")
        check_value(self.value)
        check_comparable(list(self.runs.values()))
        self._reference_row()
        summaries = [run.summary() for run in self.runs.values()]
        if derived(self.measure) is None and not any(_is_known(summary, self.measure) for summary in summaries):
            known = [
                name
                for name in measures(self.asked)
                if any(_measured(summary, name, "last")[0] is not None for summary in summaries)
            ]
            raise InputError(f'no run has the measure "{self.measure}"; {_nearest(self.measure, known)}')

    def __repr__(self) -> str:
        """Describe the comparison in one line."""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        where = f", {self.out}" if self.out is not None else ""
        return f"Comparison({', '.join(self.methods)}; {counted(len(self.runs), 'run')}{failed}, {self.measure}{where})"

    def _repr_html_(self) -> str:
        """Return the table, which notebooks show."""
        from fullrank.comparison.printed import table_of, title_of
        from fullrank.runs.notebook import html_of

        return html_of(title_of(self), [table_of(self)]) + html_of(" ".join(self.remarks()), [])

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in their order, each a row of the table."""
        return self.names or tuple(dict.fromkeys(method for method, _ in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds with which any method was run."""
        return tuple(sorted({seed for _, seed in (*self.runs, *self.failed)}))

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first run; those of the others differ from it in method, seed and `varied` only."""
        return next(iter(self.runs.values())).experiment

    @property
    def asked(self) -> Sequence[Metric]:
        """The metrics of the runs."""
        return next(iter(self.runs.values())).asked

    @property
    def is_share(self) -> bool:
        """Whether the measure is a share, which is shown in per cent."""
        return is_share(self.measure, self.asked)

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms of the loss in training that any run has recorded."""
        return tuple(dict.fromkeys(name for run in self.runs.values() for name in run.summary().get("terms", {})))

    @property
    def has_values(self) -> bool:
        """Whether the measure has a value per round, from which `value` selects, or one number per run."""
        found = [_at(run.summary(), self.measure) for run in self.runs.values()]
        return any(isinstance(numbers, Mapping) and "last" in numbers for numbers in found)

    def by(self, measure: str, value: str = "last5") -> Comparison:
        """Return the comparison of the same runs by another measure.

        Args:
            measure: The measure, as in `Comparison`.
            value: The value of the measure, as in `Comparison`.
        """
        return dataclasses.replace(self, measure=measure, value=value)

    def by_site(
        self, measure: str = "accuracy", stage: str = "received", on: str = "", value: str = "final"
    ) -> SiteTable:
        """Return the methods by sites, as `fullrank.comparison.by_site` describes it.

        Args:
            measure: As in `fullrank.comparison.by_site.by_site`.
            stage: As there.
            on: As there.
            value: As there.
        """
        return by_site(self.runs, self.methods, measure, stage, on, value)

    @property
    def varied(self) -> tuple[str, ...]:
        """The keys in which the rows differ, other than the method, its hyper-parameters and the seed."""
        return tuple(varied_keys([run.experiment for run in self.runs.values()]))

    def settings_of(self, method: str) -> list[Any]:
        """Return the values of the varied keys in a row; None where a row has no such key or no run."""
        found = setting_of(self._firsts[method].experiment) if method in self._firsts else {}
        return [found.get(key) for key in self.varied]

    @property
    def lower_is_better(self) -> bool | None:
        """Whether lower values of the measure are better; None if this is not known."""
        first, *below = self.measure.split(".")
        if first in COSTS:
            return True
        metrics = metrics_by_key(self.asked)
        if first not in OF_CLIENTS:
            return metrics[first].lower_is_better if first in metrics else None
        if below[-1:] in (["clients"], ["std"]):
            return None
        return next((metrics[step] for step in below if step in metrics), metrics["accuracy"]).lower_is_better

    def rows(self) -> list[Row]:
        """Return one row per method, with differences to the reference on the same data."""
        found = {method: self._row(method) for method in self.methods}
        rows = [
            row if reference in (None, row.method) else self._with_difference(row, found[str(reference)])
            for row, reference in zip(found.values(), self.references().values(), strict=True)
        ]
        return _corrected(rows)

    def references(self) -> dict[str, str | None]:
        """Return the row to which the difference of each row is.

        It is None for the reference, and the row itself where no row of the reference's method is on the same data.
        """
        chosen, exact = self._reference_row()
        return {method: self._reference_of(method, chosen, exact) for method in self.methods}

    def _reference_of(self, method: str, chosen: str, exact: bool) -> str | None:
        """Return the row of the reference's method on the same data, if possible with the same other settings."""
        if method == chosen:
            return None
        if method not in self._firsts or chosen not in self._firsts:  # all runs of one of them failed
            return chosen
        own = [other for other in self._firsts if self._method_of(other) == self._method_of(chosen)]
        on_same = [other for other in own if self.same_data(method, other)]
        if exact and chosen in on_same:
            return chosen
        if method not in own:
            setting = setting_of(self._firsts[method].experiment)
            on_same.sort(key=lambda other: setting_of(self._firsts[other].experiment) != setting)
        return next(iter(on_same), method) if on_same[:1] != [method] else None

    def _reference_row(self) -> tuple[str, bool]:
        """Return the first row of the reference, and whether exactly this row was asked for."""
        if not self.reference:
            return self.methods[0], False
        experiments = {method: run.experiment for method, run in self._firsts.items()}
        return reference_row(self.reference, experiments, self.methods), self.reference in self.methods

    @cached_property
    def _firsts(self) -> dict[str, Run]:
        """The first run of each row that has any, in the order of the rows."""
        found: dict[str, Run] = {}
        for (method, _), run in self.runs.items():
            found.setdefault(method, run)
        return {method: found[method] for method in self.methods if method in found}

    def _method_of(self, row: str) -> tuple[tuple[str, str], ...]:
        """Return what makes two rows rows of one method: its name and all of its hyper-parameters."""
        flat = self._firsts[row].experiment.resolved().flat()
        return tuple((key, repr(value)) for key, value in sorted(flat.items()) if key.startswith("method."))

    @cached_property
    def _splits(self) -> dict[tuple[str, int], tuple[str, str]]:
        """The fingerprint of the data and the hash of the partition of each run."""
        facts = {pair: _division(run) for pair, run in self.runs.items()}
        return {pair: (found["data"]["fingerprint"], found["hash"]) for pair, found in facts.items()}

    def same_data(self, one: str, two: str) -> bool:
        """Return whether two rows have the same data and splits, so that their values can be compared by seed."""
        if one not in self._firsts or two not in self._firsts:
            return False
        if data_of(self._firsts[one].experiment) == data_of(self._firsts[two].experiment):
            return True
        both = [seed for seed in self.seeds if (one, seed) in self.runs and (two, seed) in self.runs]
        return bool(both) and all(self._splits[one, seed] == self._splits[two, seed] for seed in both)

    def best(self) -> set[str]:
        """Return the rows that are the best on their data, and those whose difference to the best is not significant.

        A row counts as a tie if the 95 % confidence interval of its paired difference to the best row includes 0.
        """
        lower, rows = self.lower_is_better, [row for row in self.rows() if row.mean is not None]
        if lower is None:
            return set()
        found: set[str] = set()
        for row in rows:
            rivals = [other for other in rows if other is row or self.same_data(row.method, other.method)]
            leader = min(rivals, key=lambda other: (other.mean or 0.0) * (1 if lower else -1))
            if leader.mean == row.mean or _is_tie(row, leader):
                found.add(row.method)
        return found

    def _row(self, method: str) -> Row:
        values: dict[int, float] = {}
        absent: dict[int, str] = {}
        stage: str | None = None
        for seed in self.seeds:
            if (method, seed) not in self.runs:
                absent[seed] = f"failed: {reason}" if (reason := self.failed.get((method, seed))) else "not run"
                continue
            run = self.runs[method, seed]
            number, reason = measured(run, self.measure, self.value, self._reference(seed))
            stage = _stage(run.summary(), self.measure) or stage
            if number is None:
                lacking = self.measure in self.terms and self.measure not in run.summary().get("terms", {})
                absent[seed] = "its method adds no such term to the loss" if lacking else reason
            else:
                values[seed] = number
        mean = statistics.fmean(values.values()) if values else None
        return Row(method, values, absent, mean, std(list(values.values())), None, stage)

    def _reference(self, seed: int) -> Run | None:
        """Return the run to whose time those of other methods are compared."""
        runs = (run for (_, its), run in self.runs.items() if its == seed)
        return next((run for run in runs if run.experiment.method.name == REFERENCE), None)

    def _with_difference(self, row: Row, first: Row) -> Row:
        values = {seed: value - first.values[seed] for seed, value in row.values.items() if seed in first.values}
        if not values:
            return row
        listed = list(values.values())
        low, high = interval(listed, CONFIDENCE) or (None, None)
        p = p_value(listed) if len(listed) >= ENOUGH_FOR_P else None
        difference = Difference(first.method, values, statistics.fmean(listed), low, high, p=p)
        return dataclasses.replace(row, difference=difference)

    def stages(self) -> tuple[str, ...]:
        """Return the stages of the clients' models to which the measure belongs, in the order of the methods."""
        return tuple(dict.fromkeys(row.stage for row in self.rows() if row.stage is not None))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        return [dataclasses.asdict(row) for row in self.rows()]

    def remarks(self) -> list[str]:
        """Return sentences about missing values and their reasons, and about intervals that include 0."""
        rows = self.rows()
        lines = self._remarks_on_settings()
        for row in rows:
            for reason in dict.fromkeys(row.absent.values()):
                seeds = [seed for seed, why in row.absent.items() if why == reason]
                if reason == "not run":
                    lines.append(f"{row.method} was not run with {_listed('seed', seeds)}")
                elif all((row.method, seed) in self.failed for seed in seeds):
                    left_out = "is left out of" if len(seeds) == 1 else "are left out of"
                    lines.append(f"{row.method} with {_listed('seed', seeds)} {left_out} mean and difference: {reason}")
                else:
                    lines.append(f"{row.method} has no {self.measure}: {reason}")
        for row, reference in zip(rows, self.references().values(), strict=True):
            if reference is not None:
                lines += self._remarks_on_difference(row, reference)
        return lines

    def _remarks_on_settings(self) -> list[str]:
        """Return sentences about the keys in which rows differ, and about hyper-parameters without their defaults."""
        lines = []
        if self.varied:
            where = "" if len(self._on_data()) == 1 else "; only rows on the same data and splits are compared"
            lines.append(f"the rows differ in {_and(self.varied)}{where}")
        if any(row.difference is not None and row.difference.p_holm is not None for row in self.rows()):
            lines.append("p is that of the paired t-test, corrected for the number of differences (Holm)")
        own = {method: _not_default(run.experiment) for method, run in self._firsts.items()}
        for method, values in own.items():
            hidden = [f"{key}={value}" for key, value in values.items() if f"{key}={value}" not in method]
            if hidden:
                lines.append(f"{method} has {_and(hidden)}")
        return lines

    def _on_data(self) -> list[str]:
        """Return one row of each group of rows on the same data."""
        found: list[str] = []
        for method in self._firsts:
            if not any(self.same_data(method, other) for other in found):
                found.append(method)
        return found

    def _remarks_on_difference(self, row: Row, first: str) -> list[str]:
        difference = row.difference
        if first == row.method:
            return [f"{row.method} is on other data than all rows of the reference: there is no difference"]
        if difference is None:
            return [f"{row.method} has no value for any seed for which {first} has one: there is no difference"]
        lines = []
        if len(difference.values) < len(self.seeds):
            over = _listed("seed", list(difference.values))
            lines.append(f"the difference of {row.method} to {first} is over {over}, which both have")
        if difference.low is not None and difference.high is not None and difference.low <= 0 <= difference.high:
            number = len(difference.values)
            lines.append(f"{row.method}: the interval includes 0, so these {number} seeds do not tell it from {first}")
        return lines

    def warnings(self) -> list[str]:
        """Return a warning if the seeds are too few."""
        fewest = min((len(row.values) for row in self.rows() if row.values), default=ENOUGH_SEEDS)
        if fewest >= ENOUGH_SEEDS:
            return []
        says = "one seed says nothing about the spread" if fewest == 1 else "two seeds say little"
        return [f"{says}; compare over three or more"]

    def to_json(self) -> str:
        """Return the table, the splits and the run directories as JSON."""
        return json.dumps(self.facts(), indent=1)

    def facts(self) -> dict[str, Any]:
        """Return the table, the splits and the run directories as plain data."""
        splits: dict[int, dict[str, str]] = {}
        for (_, seed), (fingerprint, partition) in self._splits.items():
            splits.setdefault(seed, {"partition": partition, "fingerprint": fingerprint})
        return {
            "measure": self.measure,
            "value": self.value,
            "stages": list(self.stages()),
            "methods": list(self.methods),
            "varied": list(self.varied),
            "reference": self._reference_row()[0],
            "seeds": list(self.seeds),
            "rows": self.table(),
            "remarks": self.remarks(),
            "warnings": self.warnings(),
            "splits": splits,
            "runs": [
                {"method": method, "seed": seed, "path": str(run.path)} for (method, seed), run in self.runs.items()
            ],
            "failed": [{"method": m, "seed": seed, "reason": reason} for (m, seed), reason in self.failed.items()],
            "fullrank": __version__,
        }


def compare_runs(
    paths: Iterable[str | Path],
    *,
    measure: str = "accuracy",
    value: str = "last5",
    reference: str = "",
) -> Comparison:
    """Compare existing runs by method and seed.

    Runs of one method with different hyper-parameters are different rows of the table, and so are runs that differ in
    any other key that can change a result. Differences are only between rows on the same data and splits.

    Args:
        paths: Run directories, and folders, which stand for all runs directly in them.
        measure: The measure to compare, for example "accuracy".
        value: The value of a run: "last5", "last", "best", "validated" or "final".
        reference: The method or the row to which differences are; by default the first.

    Returns:
        The comparison.

    Raises:
        InputError: If there are no complete runs, two of them have the same settings and seed, or runs with the same
            keys of [data] and the same seed have other data or other splits.

    >>> import fullrank, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}
    >>> runs = [fullrank.run({**few, "method.name": name}, f"{folder}/{name}") for name in ("fedavg", "fedprox")]
    >>> compare_runs([folder]).methods
    ('fedavg', 'fedprox')
    """
    found = all_runs(paths)
    for run in found:
        RunDirectory(_path(run)).check("compare", run.experiment.train.rounds)
    pairs: dict[tuple[str, int], Run] = {}
    labels = row_labels([run.experiment for run in found])
    for label, run in zip(labels, found, strict=True):
        pair = (label, run.experiment.seed)
        if pair in pairs:
            raise InputError(f'"{pairs[pair].path}" and "{run.path}" are both {label} with seed {pair[1]}; give one')
        pairs[pair] = run
    return Comparison(pairs, measure, value, reference=reference)


# Finding runs


def all_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Return the runs in directories and folders, each once."""
    return list({_path(run): run for path in paths for run in runs_in(Path(path))}.values())


def runs_in(path: Path) -> list[Run]:
    """Load the runs of a directory.

    Args:
        path: A run directory, or a folder of run directories. Runs in its subfolders come after its own, in the order
            of the folders' names.

    Returns:
        The runs by method (in the order of the comparison) and seed.

    Raises:
        InputError: If there is no run.
    """
    if RunDirectory(path).started or not path.is_dir():
        return [load_run(path)]
    folders = [inner for inner in sorted(path.iterdir()) if not RunDirectory(inner).started]
    found = [*_runs_directly_in(path), *(run for folder in folders for run in _runs_directly_in(folder))]
    if not found:
        raise InputError(f'"{path}" is not a run directory and holds none')
    return found


def _runs_directly_in(path: Path) -> list[Run]:
    started = [inner for inner in path.iterdir() if RunDirectory(inner).started] if path.is_dir() else []
    inside = [load_run(inner) for inner in started if not (inner / MARK).exists()]  # those that a sweep has not pruned
    labels = dict(zip(map(_path, inside), row_labels([run.experiment for run in inside]), strict=True))
    record = path / "comparison.json"
    order = [*(read_json(record)["methods"] if record.exists() else []), *sorted(labels.values())]
    return sorted(inside, key=lambda run: (order.index(labels[_path(run)]), run.experiment.seed, _path(run).name))


def _path(run: Run) -> Path:
    assert run.path is not None
    return run.path


def _division(run: Run) -> Any:
    return read_json(_path(run) / "partition.json")


def check_comparable(runs: Sequence[Run]) -> None:
    """Check that runs with the same keys of [data] have the same data and, with the same seed, the same partition.

    Args:
        runs: The runs.

    Raises:
        InputError: If two of them differ.
    """
    first_of: dict[Any, Run] = {}
    for run in runs:
        data = data_of(run.experiment)
        _check_data(first_of.setdefault(data, run), run, same_seed=False)
        _check_data(first_of.setdefault((data, run.experiment.seed), run), run, same_seed=True)


def _check_data(first: Run, run: Run, *, same_seed: bool) -> None:
    if run is first:
        return
    one, two = _division(first), _division(run)
    if same_seed or not _split_by_seed(run.experiment):
        prints = one["data"]["fingerprint"], two["data"]["fingerprint"]
        if prints[0] != prints[1]:
            raise InputError(f"{_both(first, run)}: their data differ (fingerprint {_shortened(*prints)})")
    if same_seed and one["hash"] != two["hash"]:
        hashes = _shortened(one["hash"], two["hash"])
        raise InputError(f"{_both(first, run)}: their clients have other samples (partition hash {hashes})")


def _split_by_seed(experiment: Experiment) -> bool:
    """Return whether the split into training and test data may depend on the seed."""
    name = experiment.data.name
    return name in (GIVEN, "npz") or name.endswith(FILES["data.name"]) or ":" in name


def _both(first: Run, run: Run) -> str:
    return f'"{first.path}" and "{run.path}" cannot be compared'


def _shortened(one: str, two: str) -> str:
    return f"{one[:12]}… and {two[:12]}…"


# Rows


def _corrected(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with p-values that are corrected for the number of differences in the table."""
    tested = [row for row in rows if row.difference is not None and row.difference.p is not None]
    corrected = holm([row.difference.p for row in tested if row.difference and row.difference.p is not None])
    by_method = {row.method: p for row, p in zip(tested, corrected, strict=True)}
    return [
        dataclasses.replace(row, difference=dataclasses.replace(row.difference, p_holm=by_method[row.method]))
        if row.difference is not None and row.method in by_method
        else row
        for row in rows
    ]


def _is_tie(row: Row, best: Row) -> bool:
    """Return whether the confidence interval of a row's difference to the best one includes 0."""
    found = interval([row.values[seed] - best.values[seed] for seed in row.values if seed in best.values], CONFIDENCE)
    return found is not None and found[0] <= 0 <= found[1]


def _not_default(experiment: Experiment) -> dict[str, Any]:
    """Return the hyper-parameters of the library's methods that do not have their defaults."""
    if ":" in experiment.method.name:
        return {}
    defaults = Experiment(method={"name": experiment.method.name}).resolved().flat()
    return {
        key.removeprefix("method."): value
        for key, value in experiment.resolved().flat().items()
        if key.startswith("method.") and not same(value, defaults.get(key))
    }


def _and(words: Sequence[str]) -> str:
    """Join words: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# Measures of a run


def measures(metrics: Sequence[Metric] = ()) -> tuple[str, ...]:
    """Return the names of all measures in a run's summary that can be compared.

    Args:
        metrics: The metrics of the runs that are not the library's.
    """
    numbers = ("mean", "weighted", "std", "worst_decile", "clients")
    keys = ("", *(f"{metric.key}." for metric in single_numbers(metrics) if metric.key != "accuracy"))
    return (
        *metrics_by_key(metrics),
        *OTHER_MEASURES,
        *DERIVED,
        f"{ROUNDS_TO}.75",
        "criterion",
        *OF_CLIENTS,
        *(
            f"{clients}.{stage}.{key}{number}"
            for clients in OF_CLIENTS
            for stage in ("received", "local", "personalised")
            for key in keys
            for number in numbers
        ),
    )


def is_share(measure: str, metrics: Sequence[Metric] = ()) -> bool:
    """Return whether a measure is a share, which is shown in per cent.

    Args:
        measure: The measure.
        metrics: The metrics of the runs that are not the library's.
    """
    first, *below = measure.split(".")
    known = metrics_by_key(metrics)
    if first not in OF_CLIENTS:
        return first in known and known[first].is_share
    metric = next((known[step] for step in below if step in known), known["accuracy"])
    return metric.is_share and below[-1:] != ["clients"]


def check_measure(measure: str, experiment: Experiment, methods: Collection[str] = ()) -> None:
    """Reject a measure that no run of an experiment can have, before any is run.

    Args:
        measure: The measure.
        experiment: The experiment of one of the runs.
        methods: The names of the methods of all runs, whose terms of the loss are measures too.

    Raises:
        InputError: If no run can have the measure.
    """
    if (found := derived(measure)) is not None:
        if lacking := found.needs(experiment):
            raise InputError(f'no run would have the measure "{measure}": {lacking}')
        return
    asked = find_metrics(experiment.evaluate.metrics)
    known = (*measures(asked), *methods)
    if measure.split(".")[0] in methods:
        return
    first = measure.split(".")[0]
    if measure not in known and (first not in known or first in OF_CLIENTS):
        raise InputError(f'there is no measure "{measure}"; {_nearest(measure, known)}')
    metrics = metrics_by_key(asked)
    names = {metric.key: name for name, metric in METRICS.own.items()}
    computed = {*ALWAYS, *(metric.key for metric in asked)}
    for step in measure.split("."):
        if step in metrics and (key := metrics[step].key) in names and key not in computed:
            name = names[key]
            raise InputError(f'no run would have the measure "{measure}"; add "{name}" to {METRICS.key}')


def _nearest(measure: str, known: Sequence[str]) -> str:
    """Return a clause with the nearest measure, or with all measures except the many of the clients' own models."""
    return nearest(measure, known, "known: " + ", ".join(sorted(name for name in known if "." not in name)))


def check_value(value: str) -> None:
    """Check that measures have a value.

    Args:
        value: The name of the value, such as "last5".

    Raises:
        InputError: If there is no such value.
    """
    if value not in VALUES:
        raise InputError(f'there is no value "{value}" of a measure; {nearest(value, VALUES)}')


def measured(run: Run, measure: str, value: str, reference: Run | None = None) -> tuple[float | None, str]:
    """Return a measure of a run, or None and the reason of its absence.

    Args:
        run: The run.
        measure: The measure, as in `Comparison`.
        value: The value of the measure, as in `Comparison`.
        reference: FedAvg's run with the same seed, for `time_ratio`.

    Returns:
        The number, or None, and the reason if there is none.
    """
    if (found := derived(measure)) is not None:
        return found.of(run, reference)
    return _measured(run.summary(), measure, value)


def _at(summary: Mapping[str, Any], measure: str) -> Any:
    """Return what a summary has under the name of a measure: a term of the loss, or what is at a path."""
    if measure in summary.get("terms", {}):
        return summary["terms"][measure]
    found: Any = summary
    for step in measure.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _measured(summary: Mapping[str, Any], measure: str, value: str) -> tuple[float | None, str]:
    """Return a measure from a summary, or None and the reason of its absence."""
    found = _at(summary, measure)
    if stage := _stage(summary, measure):
        found = found[stage].get("mean")
    if isinstance(found, Mapping):
        found = found.get(value, found.get("last") if value == "final" else None)
    if isinstance(found, (int, float)):
        return float(found), ""
    return None, summary["absent"].get(_family(measure), "there is none in its summary")


def _stage(summary: Mapping[str, Any], measure: str) -> str | None:
    """Return the stage of the clients' models to which a measure belongs: the last one that the method has.

    It is None for measures that name a stage, and for measures of the global model.
    """
    found = summary.get(measure) if measure in ("personal", "unseen") else None
    return next((stage for stage in ("personalised", "local") if stage in (found or {})), None)


def _is_known(summary: Mapping[str, Any], measure: str) -> bool:
    """Return whether a run has a measure, or a reason of its absence."""
    return _measured(summary, measure, "last")[0] is not None or _family(measure) in summary["absent"]


def _family(measure: str) -> str:
    """Return the measure under which a summary has the reason why this one is absent.

    The metrics of the global model are absent together, under the name of the accuracy.
    """
    first = measure.split(".")[0]
    return "accuracy" if first == "loss" else first


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """Format numbers with their noun: `seed 1`, `seeds 1, 2 and 5`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    return f"{noun}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
