"""The measures by which runs are compared: their names, whether a run can have one, and its value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fullrank import methods
from fullrank.comparison.derived import DERIVED, ROUNDS_TO, derived
from fullrank.config.experiment import Experiment
from fullrank.data.registry import BY_LABEL
from fullrank.errors import InputError, nearest
from fullrank.metrics.registry import ALWAYS, BY_DOMAIN, BY_SITE, METRICS, Metric, find_metrics, single_numbers
from fullrank.runs.result import Run
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
COSTS = ("bytes_up", "bytes_down", "elements_up", "elements_down", "elements", "seconds", "skipped")
"""Measures of which less is better."""
OF_CLIENTS = ("personal", "unseen")
"""The measures of the clients' own models."""
VALUES = ("last5", "last", "best", "validated", "final")


def measures(metrics: Sequence[Metric] = ()) -> tuple[str, ...]:
    """Return the names of all measures in a run's summary that can be compared.

    Args:
        metrics: The metrics that the runs were asked for, if they are not the library's.
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


def metric_of(measure: str, metrics: Sequence[Metric] = ()) -> Metric | None:
    """Return the metric whose values a measure has, or None if it is no metric of predictions.

    Args:
        measure: The measure.
        metrics: The metrics that the runs were asked for, if they are not the library's.

    >>> metric_of("personal.local.loss.mean").key, metric_of("accuracy_by_site.amazon").key, metric_of("seconds")
    ('loss', 'accuracy', None)
    """
    first, *below = measure.split(".")
    known = metrics_by_key(metrics)
    if first in OF_CLIENTS:
        named = next((known[step] for step in below if step in known), known["accuracy"])
        return None if below[-1:] == ["clients"] else named
    return known.get(_without_place(first))


def _without_place(name: str) -> str:
    """Return the metric of a measure that has a value for each site or domain; other names unchanged."""
    return name.removesuffix(BY_SITE).removesuffix(BY_DOMAIN)


def _with_place(measure: str) -> tuple[str, str] | None:
    """Return the key in a summary and the name of the site or domain of a measure at one place; else None.

    The name may have dots.
    """
    key, _, place = measure.partition(".")
    return (key, place) if place and key != _without_place(key) else None


def is_share(measure: str, metrics: Sequence[Metric] = ()) -> bool:
    """Return whether a measure is a share, which is shown in per cent.

    Args:
        measure: The measure.
        metrics: The metrics of the runs that are not the library's.
    """
    metric = metric_of(measure, metrics)
    return metric is not None and metric.is_share


def lower_is_better(measure: str, metrics: Sequence[Metric] = ()) -> bool | None:
    """Return whether lower values of a measure are better; None if neither is known to be."""
    if (found := derived(measure)) is not None:
        return found.lower_is_better
    if measure in COSTS:
        return True
    metric = metric_of(measure, metrics)
    return None if metric is None or measure.endswith(".std") else metric.lower_is_better


def check_name(measure: str, metrics: Sequence[Metric] = (), terms: Collection[str] = ()) -> None:
    """Reject a name that no measure has.

    Args:
        measure: The name.
        metrics: The metrics that the runs are asked for, if they are not the library's.
        terms: The methods whose terms of the loss are measures too, as `with_terms` returns them.

    Raises:
        InputError: If there is no such measure.
    """
    first, _, place = measure.partition(".")
    if derived(measure) is not None or first in terms:
        return
    known = (*measures(metrics), *terms)
    if first in ("accuracy" + BY_SITE, *(metric.key + BY_DOMAIN for metric in single_numbers(metrics))):
        if not place:
            where = "site" if first.endswith(BY_SITE) else "domain"
            raise InputError(f'the measure "{measure}" needs the name of a {where}, as in {first}.NAME')
    elif measure not in known and (first not in known or first in OF_CLIENTS):
        raise InputError(f'there is no measure "{measure}"; {nearest_measure(measure, known)}')


def check_measure(measure: str, experiment: Experiment, terms: Collection[str] = ()) -> None:
    """Reject a measure that no run of an experiment can have, before any is run.

    Args:
        measure: The measure.
        experiment: The experiment of one of the runs.
        terms: The methods whose terms of the loss are measures too, as `with_terms` returns them.

    Raises:
        InputError: If the runs would not have the measure.
    """
    asked = find_metrics(experiment.evaluate.metrics)
    check_name(measure, asked, terms)
    if lacking := _lacking(measure, experiment, asked):
        raise InputError(f'no run would have the measure "{measure}"; {lacking}')


def _lacking(measure: str, experiment: Experiment, asked: Sequence[Metric]) -> str:
    """Return what an experiment lacks for a measure that exists, or an empty string."""
    if (found := derived(measure)) is not None:
        return found.needs(experiment)
    first, metric = measure.split(".")[0], metric_of(measure, asked)
    if first.endswith(BY_SITE) and experiment.data.partition in BY_LABEL:
        return f'clients are no sites with data.partition = "{experiment.data.partition}"'
    names = {known.key: name for name, known in METRICS.own.items()}
    if metric is None or metric.key not in names or metric.key in {*ALWAYS, *(each.key for each in asked)}:
        return ""
    return f'add "{names[metric.key]}" to {METRICS.key}'


def with_terms(names: Iterable[str]) -> set[str]:
    """Return the names of the methods that add a term to the loss, or to its gradient, and so have a measure of it.

    Args:
        names: Names of methods, several of which may be joined by "+".

    >>> sorted(with_terms(["fedavg+feddecorr", "fedprox"]))
    ['feddecorr', 'fedprox']
    """
    parts = (methods.find(piece) for name in names for piece in name.split("+"))
    plain = methods.Method
    return {cls.name for cls in parts if cls.loss is not plain.loss or cls.pull is not plain.pull}


def nearest_measure(measure: str, known: Sequence[str]) -> str:
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
        reference: The run with the same seed by whose time that of the run is divided, for `time_ratio`.

    Returns:
        The number, or None if there is none; and the reason of its absence, otherwise an empty text.
    """
    if (found := derived(measure)) is not None:
        return found.of(run, reference)
    return _measured(run.summary(), measure, value)


def has_values(summary: Mapping[str, Any], measure: str) -> bool:
    """Return whether a summary has a value of a measure per round, from which one is selected, not one number only."""
    found = _at(summary, measure)
    return isinstance(found, Mapping) and "last" in found


def _at(summary: Mapping[str, Any], measure: str) -> Any:
    """Return the entry of a summary for a measure: a term of the loss, or the value at a path."""
    if measure in summary.get("terms", {}):
        return summary["terms"][measure]
    if (at := _with_place(measure)) is not None:
        return summary.get(at[0], {}).get(at[1])
    found: Any = summary
    for step in measure.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _measured(summary: Mapping[str, Any], measure: str, value: str) -> tuple[float | None, str]:
    """Return a measure from a summary, or None and the reason of its absence."""
    found = _at(summary, measure)
    if stage := stage_of(summary, measure):
        found = found[stage].get("mean")
    if isinstance(found, Mapping):
        found = found.get(value, found.get("last") if value == "final" else None)
    if isinstance(found, (int, float)):
        return float(found), ""
    if (at := _with_place(measure)) is not None and at[1] not in summary.get(at[0], {}):
        named = [f"{at[0]}.{name}" for name in summary.get(at[0], {})]
        return None, nearest(measure, named, f"known: {', '.join(named)}") if named else "its rows have no such values"
    return None, summary["absent"].get(_family(measure), "there is none in its summary")


def stage_of(summary: Mapping[str, Any], measure: str) -> str | None:
    """Return the stage of the clients' models to which a measure belongs: the last one that the method has.

    It is None for measures that name a stage, and for measures of the global model.
    """
    found = summary.get(measure) if measure in OF_CLIENTS else None
    return next((stage for stage in ("personalised", "local") if stage in (found or {})), None)


def check_known(measure: str, runs: Sequence[Run]) -> None:
    """Reject a measure that none of these runs has.

    Args:
        measure: The measure.
        runs: The runs.

    Raises:
        InputError: If no run has the measure, and none has recorded the reason of its absence.
    """
    summaries = [run.summary() for run in runs]
    if derived(measure) is not None or any(_is_known(summary, measure) for summary in summaries):
        return
    known = [name for name in _possible(runs[0], summaries) if any(_has(summary, name) for summary in summaries)]
    raise InputError(f'no run has the measure "{measure}"; {nearest_measure(measure, known)}')


def _possible(run: Run, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all measures that summaries may have."""
    by_place = {
        f"{key}.{place}": None
        for summary in summaries
        for key, found in summary.items()
        if key != _without_place(key)
        for place in found
    }
    return [*measures(run.asked), *by_place]


def _has(summary: Mapping[str, Any], measure: str) -> bool:
    return _measured(summary, measure, "last")[0] is not None


def _is_known(summary: Mapping[str, Any], measure: str) -> bool:
    """Return whether a run has a measure, or a reason of its absence."""
    return _has(summary, measure) or _family(measure) in summary["absent"]


def _family(measure: str) -> str:
    """Return the measure under which a summary has the reason why this one is absent.

    The metrics of the global model are absent together, under the name of the accuracy.
    """
    first = measure.split(".")[0]
    return "accuracy" if first == "loss" else first
