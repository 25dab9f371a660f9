"""The comparison of complete runs: its rows, the differences between them, and remarks on both."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank._version import __version__
from fullrank.comparison.by_site import SiteTable, by_site
from fullrank.comparison.derived import REFERENCE
from fullrank.comparison.directories import all_runs, check_comparable, division_of, path_of
from fullrank.comparison.intervals import holm, interval, p_value, std
from fullrank.comparison.measured import (
    check_known,
    check_value,
    has_values,
    is_share,
    lower_is_better,
    measured,
    stage_of,
)
from fullrank.comparison.variants import data_of, describes, reference_row, row_labels, setting_of, varied_keys
from fullrank.config.experiment import Experiment, same
from fullrank.errors import InputError
from fullrank.metrics.registry import Metric
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import counted
from fullrank.runs.result import Run

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
    from the run ("rounds_to.75", "eigenvalue_variance", "time_ratio", "parameters", "peak_memory"); `value` selects one
    of its numbers: "last5" (mean of the last five rounds), "last", "best" (over rounds), "validated" (at the round that
    was best in validation) or "final" (after the method's finish, where it has one, else the last).

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
        check_known(self.measure, list(self.runs.values()))

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
        return any(has_values(run.summary(), self.measure) for run in self.runs.values())

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
        return lower_is_better(self.measure, self.asked)

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
        own = [other for other in self._firsts if self._is_like(other, chosen, exact)]
        on_same = [other for other in own if self.same_data(method, other)]
        if exact and chosen in on_same:
            return chosen
        if method not in own:
            setting = setting_of(self._firsts[method].experiment)
            on_same.sort(key=lambda other: setting_of(self._firsts[other].experiment) != setting)
        return next(iter(on_same), method) if on_same[:1] != [method] else None

    def _is_like(self, row: str, chosen: str, exact: bool) -> bool:
        """Return whether a row is of the reference's method, with the settings that were written with its name."""
        written = "" if exact else self.reference
        same = self._methods[row] == self._methods[chosen]
        return same and (":" not in written or describes(written, self._firsts[row].experiment))

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

    @cached_property
    def _methods(self) -> dict[str, dict[str, str]]:
        """The name of each row's method and all of its hyper-parameters, in which rows of one method are equal."""
        resolved = {row: run.experiment.resolved().flat() for row, run in self._firsts.items()}
        return {
            row: {key: repr(value) for key, value in flat.items() if key.startswith("method.")}
            for row, flat in resolved.items()
        }

    @cached_property
    def _splits(self) -> dict[tuple[str, int], tuple[str, str]]:
        """The fingerprint of the data and the hash of the partition of each run."""
        facts = {pair: division_of(run) for pair, run in self.runs.items()}
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
            number, reason = measured(run, self.measure, self.value, self._timed_by(method, seed))
            stage = stage_of(run.summary(), self.measure) or stage
            if number is None:
                lacking = self.measure in self.terms and self.measure not in run.summary().get("terms", {})
                absent[seed] = "its method adds no such term to the loss" if lacking else reason
            else:
                values[seed] = number
        mean = statistics.fmean(values.values()) if values else None
        return Row(method, values, absent, mean, std(list(values.values())), None, stage)

    @property
    def timed_by(self) -> str:
        """The row by whose times those of the rows on its data are divided, in `time_ratio`.

        It is the chosen reference, or else the first row of FedAvg; empty if there is none.
        """
        if self.reference:
            return self._reference_row()[0]
        return next((row for row, run in self._firsts.items() if run.experiment.method.name == REFERENCE), "")

    def _timed_by(self, method: str, seed: int) -> Run | None:
        """Return the run by whose time that of a row is divided."""
        chosen = self.timed_by
        row = self._reference_of(method, chosen, self._reference_row()[1]) if chosen else method
        if row is None:  # the reference on its data
            return self.runs.get((method, seed))
        return self.runs.get((row, seed)) if row != method else None

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
        return [*lines, *self._remarks_on_ties(rows)]

    def _remarks_on_ties(self, rows: Sequence[Row]) -> list[str]:
        """Return sentences about the rows whose seeds do not tell them from their reference."""
        ties: dict[tuple[str, int], list[str]] = {}
        for row in rows:
            found = row.difference
            if found is not None and found.low is not None and found.high is not None and found.low <= 0 <= found.high:
                ties.setdefault((found.to, len(found.values)), []).append(row.method)
        return [
            f"{own[0]}: the interval includes 0, so these {number} seeds do not tell it from {to}"
            if len(own) == 1
            else f"{_and(own)}: the intervals include 0, so these {number} seeds do not tell them from {to}"
            for (to, number), own in ties.items()
        ]

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
        RunDirectory(path_of(run)).check("compare", run.experiment.train.rounds)
    pairs: dict[tuple[str, int], Run] = {}
    labels = row_labels([run.experiment for run in found])
    for label, run in zip(labels, found, strict=True):
        pair = (label, run.experiment.seed)
        if pair in pairs:
            raise InputError(f'"{pairs[pair].path}" and "{run.path}" are both {label} with seed {pair[1]}; give one')
        pairs[pair] = run
    return Comparison(pairs, measure, value, reference=reference)


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


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """Format numbers with their noun: `seed 1`, `seeds 1, 2 and 5`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    return f"{noun}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
