"""Compare methods by site: a measure of the models on each site's samples, over the seeds of a comparison."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fullrank.comparison.intervals import std
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError, nearest
from fullrank.metrics.registry import ALWAYS, BY_SITE, Metric, find_metrics, single_numbers
from fullrank.runs.clients import Rows
from fullrank.runs.result import Run

AVERAGE = "average"
"""The name of the column with the unweighted mean over sites."""
OF_STAGES = ("global", "received", "local", "personalised")
BALANCED = "balanced_accuracy"


@dataclass(frozen=True)
class SiteRow:
    """A method's values by site and seed; `average` counts as a site."""

    method: str
    values: dict[str, dict[int, float]]
    """The value by site and seed."""
    absent: dict[int, str]
    """The seeds without values, with the reason."""

    def mean(self, site: str) -> float | None:
        """Return the mean over seeds at a site."""
        found = self.values.get(site)
        return statistics.fmean(found.values()) if found else None

    def std(self, site: str) -> float | None:
        """Return the standard deviation over seeds at a site; None for a single seed."""
        return std(list(self.values.get(site, {}).values()))


@dataclass(frozen=True)
class SiteTable:
    """A table of methods by sites.

    `value` is the source of the numbers: "final" is the table of clients that a run writes at its end, "validated" the
    accuracy of the models as received in the round that was best in validation.
    """

    measure: str
    stage: str
    set: str
    value: str
    sites: tuple[str, ...]
    rows: tuple[SiteRow, ...]
    is_share: bool

    def table(self) -> Rows:
        """Return one row per method and site, with mean and standard deviation over seeds."""
        return Rows(
            {"method": row.method, "site": site, "mean": row.mean(site), "std": row.std(site), "values": found}
            for row in self.rows
            for site, found in row.values.items()
        )

    def facts(self) -> dict[str, Any]:
        """Return the table as plain data."""
        plain = {name: getattr(self, name) for name in ("measure", "stage", "set", "value")}
        return {**plain, "sites": list(self.sites), "rows": [dataclasses.asdict(row) for row in self.rows]}


def check_site_measure(measure: str, experiment: Experiment) -> None:
    """Check that the table of clients of an experiment will have a measure.

    Args:
        measure: The measure.
        experiment: The experiment.

    Raises:
        InputError: If it will not.
    """
    known = site_measures(find_metrics(experiment.evaluate.metrics))
    if measure not in known:
        raise InputError(f'no run would have "{measure}" by site; known: {", ".join(known)}')


def site_measures(asked: Sequence[Metric]) -> dict[str, Metric]:
    """Return the measures that the table of clients has, by their keys."""
    every = {metric.key: metric for metric in single_numbers(asked)}
    return {key: every[key] for key in (*ALWAYS, BALANCED, *(m.key for m in asked)) if key in every}


def by_site(
    runs: Mapping[tuple[str, int], Run],
    methods: Sequence[str],
    measure: str = "accuracy",
    stage: str = "received",
    on: str = "",
    value: str = "final",
) -> SiteTable:
    """Compare methods by site.

    Args:
        runs: Complete runs by method and seed.
        methods: The methods in their order.
        measure: A metric of `evaluate.metrics`, accuracy, loss or balanced_accuracy.
        stage: "received" (the model as a client receives it: the global model, with the client's personal entries if it
            has any), "local", "personalised", or "global".
        on: "test" or "holdout"; by default the test parts, if any run has them.
        value: "final", after the last round, or "validated", in the round with the best validation accuracy.

    Returns:
        The table of methods by sites.

    Raises:
        InputError: If no run has such values.
    """
    if stage not in OF_STAGES:
        raise InputError(f'there is no stage "{stage}" of a model; {nearest(stage, OF_STAGES)}')
    if on not in ("", "test", "holdout"):
        raise InputError(f'there is no set "{on}" of samples by site; choose "test" or "holdout"')
    if value not in ("final", "validated"):
        raise InputError(f'there is no value "{value}" by site; choose "final" or "validated"')
    if value == "validated" and (measure != "accuracy" or stage not in ("received", "global") or on == "holdout"):
        raise InputError(
            '"validated" by site is known only for the accuracy of models as received on test parts; choose "final"'
        )
    first = next(iter(runs.values()))
    metrics = site_measures(first.asked)
    if measure not in metrics:
        raise InputError(f'no run has "{measure}" by site; known: {", ".join(metrics)}')
    chosen = on or _usual(runs)
    found = {pair: _values(run, measure, stage, chosen, value) for pair, run in runs.items()}
    if not any(isinstance(values, dict) for values in found.values()):
        raise InputError(f"no run has a table by site: {next(reason for reason in found.values())}")
    rows = tuple(_row(method, found) for method in methods)
    sites = tuple(dict.fromkeys(site for row in rows for site in row.values if site != AVERAGE))
    return SiteTable(measure, stage, chosen, value, (*sites, AVERAGE), rows, metrics[measure].is_share)


def _usual(runs: Mapping[tuple[str, int], Run]) -> str:
    sets = {row["set"] for run in runs.values() for row in run.kept() or []}
    return "holdout" if "holdout" in sets and "test" not in sets else "test"


def _row(method: str, found: Mapping[tuple[str, int], dict[str, float] | str]) -> SiteRow:
    values: dict[str, dict[int, float]] = {}
    absent: dict[int, str] = {}
    for (name, seed), by_name in found.items():
        if name != method:
            continue
        if isinstance(by_name, str):
            absent[seed] = by_name
            continue
        for site, number in by_name.items():
            values.setdefault(site, {})[seed] = number
    return SiteRow(method, values, absent)


def _values(run: Run, measure: str, stage: str, on: str, value: str) -> dict[str, float] | str:
    """Return a run's values by site and their average, or the reason why it has none."""
    if value == "validated":
        best = run.summary().get("validated_round")
        chosen = next((row for row in run.metrics if row["round"] == best), {})
        listed = chosen.get(f"accuracy{BY_SITE}")
        if not listed:
            return "no round has both a validation score (data.validation) and accuracies by site"
        return {**listed, AVERAGE: chosen["site_accuracy"]}
    kept = run.kept()
    if kept is None:
        return "it has no table of its clients, because an earlier version of fullrank ran it or it has not ended"
    sites: dict[str, float] = {}
    for row in kept:
        known = row["metrics"].get(measure)
        if (row["stage"], row["set"]) == (stage, on) and row["site"] is not None and known is not None:
            sites[row["site"]] = known
    if not sites:
        return f'it has no models at the stage "{stage}" that were evaluated on samples of sites ("{on}")'
    return {**sites, AVERAGE: statistics.fmean(sites.values())}
