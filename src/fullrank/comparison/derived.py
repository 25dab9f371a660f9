"""Measures that a comparison computes from a run's rows, its probes or its directory, or from two runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.runs.directory import read_json
from fullrank.runs.memory import FILE, KINDS, recorded_peak
from fullrank.runs.result import Run

Found: TypeAlias = tuple[float | None, str]
"""A number, or None and the reason of its absence."""
ROUNDS_TO = "rounds_to"
REFERENCE = "fedavg"
"""The method by whose time others are divided, unless a reference is chosen."""


@dataclass(frozen=True)
class Derived:
    """A measure with one number per run."""

    title: str
    """The title of a table with the measure."""
    of: Callable[[Run, Run | None], Found]
    """A function of the run and of the reference's run with the same seed in the comparison, if there is one."""
    needs: Callable[[Experiment], str] = lambda experiment: ""
    """A function that returns what an experiment lacks for it, or an empty string."""
    kind: Callable[[Run], str] = lambda run: ""
    """A function that returns what was measured in a run, for a measure that differs between machines; else an empty
    string."""
    lower_is_better: bool | None = True
    is_ratio: bool = False
    """Whether it is a ratio to the reference."""

    def title_for(self, runs: Iterable[Run], reference: str) -> str:
        """Return the title, with what was measured in these runs and the reference of a ratio."""
        kinds = " or ".join(dict.fromkeys(filter(None, map(self.kind, runs))))
        to = f", divided by those of {reference or REFERENCE}" if self.is_ratio else ""
        return f"{self.title}{to} ({kinds})" if kinds else f"{self.title}{to}"


def derived(measure: str) -> Derived | None:
    """Return a measure that is computed from a run.

    Args:
        measure: The name of the measure.

    Returns:
        The measure, or None if no measure of this kind has the name.

    Raises:
        InputError: If it is `rounds_to` without a possible accuracy.

    >>> derived("rounds_to.75").title
    'rounds to 75 % test accuracy'
    """
    first, _, rest = measure.partition(".")
    if first != ROUNDS_TO:
        return DERIVED.get(measure)
    target = accuracy_of(rest)
    return Derived(f"rounds to {rest} % test accuracy", lambda run, _: rounds_to(run, target, rest))


def accuracy_of(text: str) -> float:
    """Convert an accuracy in per cent to a share.

    Args:
        text: The number.

    Raises:
        InputError: If it is not a number above 0 and at most 100.
    """
    try:
        share = Fraction(text) / 100  # exact, so that 29 % is reached by 29 of 100 samples
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 < share <= 1:
        raise InputError(
            f'the measure "{ROUNDS_TO}" takes a test accuracy in per cent, above 0 and at most 100, as in '
            f'{ROUNDS_TO}.75; "{text}" is none'
        )
    return float(share)


def rounds_to(run: Run, target: float, text: str) -> Found:
    """Return the first round after which the global model had at least a test accuracy.

    Args:
        run: The run.
        target: The accuracy, as a share.
        text: The accuracy as the user wrote it, for messages.

    Returns:
        The round, or None and the reason of its absence.
    """
    known = [(row["round"], row["accuracy"]) for row in run.metrics if row.get("accuracy") is not None]
    summary = run.summary()
    if "accuracy" in summary:
        known.append((summary["rounds"], summary["accuracy"]["last"]))  # of the end, if its round has no evaluation
    reached = [round for round, accuracy in known if accuracy >= target]
    if reached:
        return float(min(reached)), ""
    if not known:
        return None, summary["absent"].get("accuracy", "its global model was not evaluated")
    return None, f"its test accuracy never reached {text} % (highest: {100 * max(a for _, a in known):.2f} %)"


def eigenvalue_variance(run: Run, _: Run | None = None) -> Found:
    """Return FedMR's variance of eigenvalues of the global model, in the last probe of a run."""
    if not run.probes:
        return None, "it has no probes (probe.every = 0)"
    probe = run.probes[-1]
    if "global" not in probe:
        return None, probe["absent"]
    if "eigenvalue_variance" not in probe["global"]:
        return None, "its probes are of an earlier version of fullrank"
    value = probe["global"]["eigenvalue_variance"]
    return value, "" if value is not None else "no class has two samples in a mini-batch of the test set"


def time_ratio(run: Run, reference: Run | None) -> Found:
    """Return the seconds per round of a run divided by those of the reference's run.

    The first round, in which kernels are chosen and caches are filled, does not count if there are others.

    Args:
        run: The run.
        reference: FedAvg's run with the same seed, if there is one.

    Returns:
        The ratio, or None and the reason of its absence.
    """
    if reference is None:
        return None, "there is no run of the reference with the same seed on the same data"
    if _machines(run) != _machines(reference):
        return None, "it was not run on the same machine, with the same number of threads, as the reference"
    return seconds_per_round(run) / seconds_per_round(reference), ""


def seconds_per_round(run: Run) -> float:
    """Return the mean of the seconds per round, without the first round if there are others."""
    seconds = [float(row["seconds"]) for row in run.metrics]
    return statistics.fmean(seconds[1:] or seconds)


def parameters(run: Run, _: Run | None = None) -> Found:
    """Return the number of parameters that a run trains: those of the global model and those that clients keep.

    What is frozen, such as the frame of FedETF or the constants of FedRepOpt, and the statistics of BatchNorm are not
    among them.
    """
    try:
        return float(run.trained_parameters()), ""
    except InputError as problem:
        return None, str(problem)


def peak_memory(run: Run, _: Run | None = None) -> Found:
    """Return the peak memory that a run recorded, in bytes."""
    found = recorded_peak(run.path) if run.path is not None else None
    if found is None:
        return None, "its peak memory was not recorded, for example because an earlier version of fullrank ran it"
    return float(found["bytes"]), ""


def memory_kind(run: Run) -> str:
    """Describe what the peak memory of a run includes."""
    found = recorded_peak(run.path) if run.path is not None else None
    return KINDS[found["of"]] if found is not None else ""


def _machines(run: Run) -> list[tuple[object, ...]]:
    """Return the machines on which a run was run, each once."""
    if run.path is None:
        return []
    history = read_json(run.path / FILE)
    entries = (history, *history.get("resumed", []))
    return list(dict.fromkeys(tuple(entry.get(key) for key in ("cpu", "gpu", "threads")) for entry in entries))


def _without_probes(experiment: Experiment) -> str:
    return "" if experiment.probe.every else "probes are needed for it: set probe.every, for example to train.rounds"


DERIVED: dict[str, Derived] = {
    "eigenvalue_variance": Derived(
        "variance of the top eigenvalues within classes (Table 7 of FedMR), last probe",
        eigenvalue_variance,
        _without_probes,
        lower_is_better=None,
    ),
    "time_ratio": Derived("seconds per round", time_ratio, is_ratio=True),
    "parameters": Derived("trained parameters", parameters),
    "peak_memory": Derived("peak memory in bytes", peak_memory, kind=memory_kind),
}
"""The measures by their names, besides `rounds_to`, which has an accuracy in its name."""
