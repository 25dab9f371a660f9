"""The probes of runs that figures draw, with an error message for what a run does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fullrank.errors import InputError
from fullrank.probe.files import FOLDER, LINES
from fullrank.runs.prober import MOST_KEPT
from fullrank.runs.result import Run

Probe = dict[str, Any]
MOST_RUNS = 5
"""The largest number of runs in a figure with one row or panel per run."""
FEWER = "give fewer runs, or draw several figures"


def probes_of(run: Run) -> list[Probe]:
    """Return all probes of a run.

    Raises:
        InputError: If it has none.
    """
    if not run.probes:
        if run.path is not None and any((run.path / FOLDER).glob("*.safetensors")):
            raise InputError(f'"{run.path / LINES}" is empty or missing, although the run has probes; restore the file')
        raise InputError(
            f"{name_of(run)} has no probes; run the experiment with --set probe.every=1, or with another number"
        )
    return run.probes


def probe_at(run: Run, round: int | None = None) -> Probe:
    """Return a probe of a run.

    Args:
        run: The run.
        round: The round of the probe; by default the last.

    Raises:
        InputError: If there is no such probe.
    """
    found = {probe["round"]: probe for probe in probes_of(run)}
    if round is None:
        return found[max(found)]
    if round not in found:
        raise InputError(f"{name_of(run)} has no probe of round {round}; it has {_listed(list(found))}")
    return found[round]


def locals_of(probe: Probe, clients: Sequence[int] = ()) -> list[Probe]:
    """Return the clients of a probe.

    Args:
        probe: The probe.
        clients: The clients that are wanted; by default all.

    Raises:
        InputError: If the probe does not have one of them.
    """
    found = {local["client"]: local for local in probe["locals"]}
    for client in clients:
        if client not in found:
            raise InputError(
                f"the probe of round {probe['round']} does not show client {client}; it shows {_listed(list(found))}"
            )
    return [found[client] for client in clients or found]


def between_clients(run: Run, round: int | None, name: str) -> Any:
    """Return a comparison of clients from a probe.

    Args:
        run: The run.
        round: The round of the probe; None for the last.
        name: The name of the comparison.

    Raises:
        InputError: If the probe does not have it.
    """
    probe = probe_at(run, round)
    if name not in probe:
        shown = len(probe["clients"])
        if shown < 2:
            raise InputError(f"{name_of(run)} shows too few clients to compare: {shown}; set probe.clients = 2 or more")
        raise InputError(f"{name_of(run)} has no rows of a classifier to compare: its classifier is not linear")
    return probe[name]


def few(runs: Sequence[Run]) -> Sequence[Run]:
    """Check that a figure has room for a row or panel per run.

    Args:
        runs: The runs.

    Returns:
        The runs.

    Raises:
        InputError: If there are too many.
    """
    if len(runs) > MOST_RUNS:
        raise InputError(
            f"this figure shows each run separately and has room for {MOST_RUNS}, not for {len(runs)}: {FEWER}"
        )
    return runs


def one(rounds: Sequence[int]) -> int | None:
    """Check that a figure shows one round.

    Args:
        rounds: The rounds that a user has given.

    Returns:
        The round; None for the last one.

    Raises:
        InputError: If there are several.
    """
    if len(rounds) > 1:
        raise InputError(f"this figure shows one round, not {len(rounds)}")
    return rounds[0] if rounds else None


def directions_of(run: Run, round: int | None) -> Any:
    """Return the unit rows of clients' classifiers in a probe.

    Args:
        run: The run.
        round: The round of the probe; None for the last.

    Returns:
        An array of shape (clients, C, d).

    Raises:
        InputError: If the probe does not have them.
    """
    between_clients(run, round, "classifier_cosines")
    probe = probe_at(run, round)
    if "classifier_directions" not in probe:
        raise InputError(
            f"{name_of(run)} kept no directions of its clients' classifiers: together they have more than "
            f"{MOST_KEPT:,} weights, or the run is older than this feature; show fewer clients (probe.clients)"
        )
    return probe["classifier_directions"]


def name_of(run: Run) -> str:
    """Return the directory of a run in quotes, for messages."""
    return f'"{run.path}"' if run.path is not None else "the run"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if numbers else "none"


def number(value: float | None) -> float:
    """Convert a measure to a number; nan, which is not drawn, if it is not defined."""
    return math.nan if value is None else value


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of the defined values; nan if none is defined."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
