"""The command `fullrank probes`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fullrank.cli.options import AsJson
from fullrank.files import writable
from fullrank.runs.terminal import print_table, say

if TYPE_CHECKING:
    from fullrank.report.probed import Probe

CLIENTS_TOO = ("accuracy", "significant", "effective_rank")
"""Measures that are shown for the global model and, as a mean, for the probed clients."""
COLUMNS = ("run", "round", "accuracy, %", "λ > e⁻²", "eff. rank", "R", "CKA")


def probes_command(
    inputs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or folders of runs.")],
    every: Annotated[bool, typer.Option("--every", help="Print every probe of a run instead of the last one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the probes of one or more runs.

    Probes show how far the representation has collapsed. The table has the accuracy on the test set, the number of
    significant singular values (λ > e⁻²) and the effective rank of the representation, each for the global model and,
    after the slash, as a mean over the probed clients; R is the gap between their spectra. CKA measures how similar the
    probed clients are: the mean over layers, the representation and the classifier and, after the slash, that of the
    classifier. --json adds CKA by layer, NC1 and the variance of eigenvalues within classes. To record probes, run with
    --set probe.every=N.

    Example: fullrank probes runs/collapse --every
    """
    from fullrank.comparison.directories import all_runs
    from fullrank.report.labels import titles_of
    from fullrank.report.probed import probe_at, probes_of

    found = all_runs(inputs)
    # runs without probes are skipped in a folder, but not if they were named themselves
    runs = [run for run in found if run.probes or str(run.path) in inputs] or found
    if len(runs) < len(found):
        say(f"fullrank: skipped {len(found) - len(runs)} of {len(found)} runs, without probes", file=sys.stderr)
    rows = [
        {"run": name, **_facts(probe)}
        for name, run in zip(titles_of(runs), runs, strict=True)
        for probe in (probes_of(run) if every else [probe_at(run)])
    ]
    if as_json:
        print(json.dumps(writable(rows), indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if place else "left", no_wrap=place > 0)
    for row in rows:
        table.add_row(*_cells(row))
    print_table(table)
    say("global model / mean of the probed clients; CKA: mean over layers / classifier")


def _facts(probe: Probe) -> dict[str, Any]:
    from fullrank.report.probed import mean

    found = probe.get("global", {})
    clients = {name: mean([local[name] for local in probe["locals"]]) for name in CLIENTS_TOO}
    return {
        "round": probe["round"],
        "global": {name: found.get(name) for name in (*CLIENTS_TOO, "nc1", "eigenvalue_variance")},
        "clients": {**clients, "number": len(probe["locals"])},
        "gap": mean([local.get("gap") for local in probe["locals"]]),
        "cka_mean": probe.get("cka_mean"),
        "cka_by_layer": probe.get("cka_by_layer", {}),
    }


def _cells(row: dict[str, Any]) -> Iterator[str]:
    from fullrank.probe.layers import CLASSIFIER

    yield row["run"]
    yield str(row["round"])
    for name, times, of_global, of_clients in (
        ("accuracy", 100, "{:.1f}", "{:.1f}"),
        ("significant", 1, "{:g}", "{:.1f}"),
        ("effective_rank", 1, "{:.1f}", "{:.1f}"),
    ):
        yield f"{_text(row['global'][name], of_global, times)} / {_text(row['clients'][name], of_clients, times)}"
    yield _text(row["gap"], "{:+.2f}")
    yield " / ".join(_text(value, "{:.3f}") for value in (row["cka_mean"], row["cka_by_layer"].get(CLASSIFIER)))


def _text(value: float | None, form: str, times: int = 1) -> str:
    return "–" if value is None or math.isnan(value) else form.format(times * value).replace("-", "−")
