"""The command `fullrank evaluate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from fullrank.cli.options import AsJson, Client, Root, StageName, Trust
from fullrank.files import writable
from fullrank.metrics.registry import LEVEL, RESAMPLES, Metric
from fullrank.runs.terminal import print_table, say

if TYPE_CHECKING:
    from fullrank.federated.site import Stage
    from fullrank.metrics.bootstrap import Interval
    from fullrank.report.evaluate import Evaluated, Measured, Part

CLASSES_SHOWN = 20


def evaluate_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Data set or folder of images. By default the data of the run.")
    ] = "",
    part: Annotated[
        str, typer.Option("--part", metavar="PART", help="Samples to evaluate on: test, train or all.")
    ] = "test",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="A,B", help="Metrics in addition to evaluate.metrics of the run.")
    ] = "",
    client: Client = None,
    stage: StageName = None,
    resamples: Annotated[
        int, typer.Option("--resamples", metavar="N", min=1, help="Number of draws of the bootstrap.")
    ] = RESAMPLES,
    root: Root = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the model of a run on any data set.

    Prints metrics with 95 % bootstrap intervals. DATA is a data set by name or path, as data.name takes it, or a folder
    of images, as data.root takes it. Of data without a test split, a part is split off as for a run; --part all takes
    all samples.

    Samples are prepared as in the run, images of another size are resized, and classes are matched by their names.
    If the data come from domains or natural clients, the metrics are printed for each of these sites as well.

    An interval lies between two percentiles of the values on samples that are drawn with replacement. It shows how
    much the value depends on the samples, not how much it would vary between training runs.

    Example: fullrank evaluate runs/demo --metrics balanced-accuracy,per-class
    """
    from fullrank.report.evaluate import evaluate_run
    from fullrank.runs.result import run_at

    names = [name.strip() for name in metrics.split(",") if name.strip()]
    found = evaluate_run(
        run_at(run, trust, "" if data else root),
        data,
        root,
        part=cast("Part", part),
        client=client,
        stage=cast("Stage | None", stage),
        metrics=names,
        resamples=resamples,
    )
    if as_json:
        print(json.dumps(writable(found.facts()), indent=1))
        return
    _show(found)


def _show(found: Evaluated) -> None:
    from fullrank.runs.display import STAGES

    say(f"model     {found.model}" + (f", {found.stage}: {STAGES[found.stage]}" if found.stage else ""))
    samples = {"test": "test samples", "train": "training samples", "all": "all samples"}[found.part]
    say(f"data      {found.data}, {samples}")
    for note in found.notes:
        say(f"note      {note}")
    single = [metric for metric in found.metrics if not isinstance(found.all.values[metric.key], list)]
    print_table(_table(single, {"all": found.all, **found.sites}))
    for metric in found.metrics:
        if metric not in single:
            _show_classes(metric, found)
    say(f"[low, high]: {100 * LEVEL:g} % bootstrap intervals over samples, {found.resamples} draws")


def _table(metrics: list[Metric], rows: dict[str, Measured]) -> Table:
    from fullrank.runs.client_tables import shown_name

    table = Table(box=None, pad_edge=False)
    table.add_column("site" if len(rows) > 1 else "")
    table.add_column("samples", justify="right")
    for metric in metrics:
        table.add_column(metric.key.replace("_", " "), justify="right", no_wrap=True)
    for name, measured in rows.items():
        cells = [_cell(measured.values[m.key], measured.intervals[m.key], m.is_share) for m in metrics]
        table.add_row(shown_name(name), str(measured.samples), *cells)
    return table


def _show_classes(metric: Metric, found: Evaluated) -> None:
    """Print a metric with a value for each class; a column for each site."""
    from fullrank.runs.client_tables import shown_name

    columns = {"all": found.all, **found.sites}
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for name in columns:
        table.add_column(shown_name(name), justify="right")
    for k, name in list(enumerate(found.classes))[:CLASSES_SHOWN]:
        cells = []
        for measured in columns.values():
            values, intervals = measured.values[metric.key], measured.intervals[metric.key]
            assert isinstance(values, list)
            assert isinstance(intervals, list)
            cells.append(_cell(values[k], intervals[k], metric.is_share))
        table.add_row(shown_name(name), *cells)
    say(f"\n{metric.key.replace('_', ' ')}")
    print_table(table)
    if len(found.classes) > CLASSES_SHOWN:
        say(f"and {len(found.classes) - CLASSES_SHOWN} more classes; --json has all")


def _cell(value: object, interval: object, is_share: bool) -> str:
    if not isinstance(value, float):
        return "–"
    shown = [_number(value, is_share)]
    if isinstance(interval, tuple):
        low, high = cast("Interval", interval)
        shown.append(f"\\[{_number(low, is_share)}, {_number(high, is_share)}]")
    return " ".join(shown)


def _number(value: float, is_share: bool) -> str:
    return f"{value:.3f}" if is_share else f"{value:.4g}"
