"""The command `fullrank compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fullrank.cli.options import AsJson, Overrides, RayAddress, Root, ended_if_interrupted, experiment_values, fail
from fullrank.cli.several import Jobs, QuietTable, parse_seeds, with_spread
from fullrank.comparison.variants import parse_grid, split_list
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.metrics.registry import single_numbers
from fullrank.report.style import reject_unwritable
from fullrank.runs.terminal import WIDE, print_table, say

if TYPE_CHECKING:
    from fullrank.comparison.by_site import SiteTable
    from fullrank.comparison.table import Comparison


def compare_command(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE.toml",
            help="Experiment file. If omitted, all keys have their defaults. With --runs, the run directories.",
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            metavar="A,B,…",
            help="Methods, each with its own settings if needed, as in feddecorr:beta=0.5:train.lr=0.01 "
            "(hyper-parameters of the method, or keys of the experiment).",
        ),
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", "-s", metavar="N,N,…", help="Seeds, as in 0,1,2 or 0-4.")] = "0,1,2",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=V,V,…",
            help="Run every method with each of these values, as in --vary data.alpha=0.05,0.5. Can be repeated.",
        ),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            "--reference", metavar="METHOD", help="Method to which the others are compared. By default the first."
        ),
    ] = "",
    overrides: Overrides = None,
    root: Root = "",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs. By default a name in runs/."),
    ] = None,
    jobs: Jobs = 0,
    ray: RayAddress = "",
    measure: Annotated[
        str,
        typer.Option(
            "--measure",
            metavar="NAME",
            help=f"Measure to compare: {', '.join(metric.key for metric in single_numbers())}, another metric of "
            "evaluate.metrics, accuracy_by_site.NAME, personal, bytes_up, elements (per client and round), "
            "rounds_to.75 (first round with at least 75 % test accuracy), time_ratio (seconds per round relative to "
            "--reference, by default to fedavg), parameters (that are trained), peak_memory, eigenvalue_variance "
            "(of the last probe), criterion or another term of the loss, as in fedmr.intra …",
        ),
    ] = "accuracy",
    value: Annotated[
        str,
        typer.Option(
            "--value",
            metavar="NAME",
            help="Value of a run: last5 (mean of the last five rounds), last, best (over rounds), validated (round "
            "with the best validation score) or final (after the last step of the method). By default last5; with "
            "--by site final, or validated.",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="site",
            help="Print methods by sites (a column per site, and the average) instead of differences.",
        ),
    ] = "",
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help="With --by site: received (the global model as the client gets it, the default), local, personalised "
            "or global.",
        ),
    ] = "",
    on: Annotated[
        str,
        typer.Option("--on", metavar="SET", help="With --by site: test (the sites' own test parts) or holdout."),
    ] = "",
    runs: Annotated[bool, typer.Option("--runs", help="Compare existing run directories, or all in a folder.")] = False,
    csv: Annotated[
        str, typer.Option("--csv", metavar="FILE", help="Also write the table as CSV, with all digits.")
    ] = "",
    markdown: Annotated[
        str, typer.Option("--markdown", metavar="FILE", help="Also write the table in Markdown, the best in bold.")
    ] = "",
    latex: Annotated[
        str, typer.Option("--latex", metavar="FILE", help="Also write the table in LaTeX (booktabs), the best in bold.")
    ] = "",
    as_json: AsJson = False,
    quiet: QuietTable = False,
) -> None:
    """Compare methods over several seeds on the same partitions.

    Each seed draws its own partition of the data, and all methods use the same one. The table has the mean and standard
    deviation over seeds, and the differences to the first method, paired by seed, with a 95 % confidence interval
    (Student's t) and, from three seeds on, the p-value of the paired t-test, corrected for the number of differences
    (Holm). With --vary, or where runs differ in other keys, rows are named by what differs, and only rows on the same
    data are compared.

    Every run has an ordinary run directory: if the comparison was interrupted, the same command resumes it, and more
    seeds can be added later. A run that fails, for example because it diverges, is marked in the table and excluded
    from the means; the other runs continue, and the exit status is 1.

    Example: fullrank compare examples/demo.toml --methods fedavg,fedprox,fedavg+feddecorr --seeds 0-4

    Example: fullrank compare --methods fedavg,feddecorr:beta=0.01,feddecorr:beta=0.1 --vary data.alpha=0.05,0.5

    Example: fullrank compare --runs runs/a runs/b runs/c runs/d --latex table.tex

    Example: fullrank compare --runs runs/a runs/b --by site --measure balanced_accuracy
    """
    from fullrank.comparison.board import choose_board
    from fullrank.comparison.by_site import check_site_measure
    from fullrank.comparison.compare import compare
    from fullrank.comparison.exported import write_table
    from fullrank.comparison.table import compare_runs

    chosen = _sites_of(by, stage, on, measure, value)
    files = {kind: path for kind, path in (("csv", csv), ("markdown", markdown), ("latex", latex)) if path}
    if chosen is not None:
        if files:
            raise InputError(f"--{next(iter(files))} writes the table of differences; omit --by site")
        measure, value = "accuracy", ""
    for path in files.values():
        reject_unwritable(Path(path))
    value = value or "last5"
    if runs:
        if methods or vary or overrides or out or root or ray:
            raise InputError("--runs compares existing runs: omit --methods, --vary, --set, --root, --ray and --out")
        found = compare_runs(inputs or [], measure=measure, value=value, reference=reference)
    else:
        there = [f"data.root={root}"] if root else []
        experiment = _experiment(inputs or [], methods, [*(overrides or []), *there])
        if chosen is not None:
            check_site_measure(chosen["measure"], Experiment.of(experiment))
        views: dict[str, Any] = {"jobs": jobs, "ray": ray, "measure": measure, "value": value}
        views |= {"vary": parse_grid(vary or []), "reference": reference}
        with ended_if_interrupted(), choose_board(quiet or as_json) as board:
            found = compare(experiment, split_list(methods), parse_seeds(seeds), out, **views, callbacks=[board])
    for kind, path in files.items():
        write_table(found, path, kind)
    if chosen is not None:
        _show_by_site(found.by_site(**chosen), as_json)
    elif as_json:
        print(found.to_json())
    else:
        _show(found)
    for warning in found.warnings():
        say(f"fullrank: warning: {warning}", file=sys.stderr)
    if found.failed:
        every = len(found.failed) + len(found.runs)
        fail(f"{len(found.failed)} of {every} runs failed; see log.txt in the directory of each", 1)


def _sites_of(by: str, stage: str, on: str, measure: str, value: str) -> dict[str, Any] | None:
    """Return the arguments of `Comparison.by_site`, or None if methods are not compared by site."""
    if by not in ("", "site"):
        raise InputError(f"--by {by}: methods are compared by site only; give --by site")
    if not by:
        if stage or on:
            raise InputError("--stage and --on belong to --by site")
        return None
    return {"measure": measure, "stage": stage or "received", "on": on, "value": value or "final"}


def _experiment(inputs: Sequence[str], methods: str, overrides: list[str] | None) -> dict[str, Any]:
    """Return the values of the experiment that all methods and seeds share."""
    if len(inputs) > 1:
        raise InputError(f"compare takes one experiment, not {len(inputs)}; use --runs to compare run directories")
    if not methods.strip():
        raise InputError("name the methods to compare, as in --methods fedavg,fedavg+feddecorr")
    for text in overrides or []:
        key = text.partition("=")[0].strip()
        if key in ("seed", "method.name"):
            raise InputError(
                f"--set {key} has no effect in a comparison; use {'--seeds' if key == 'seed' else '--methods'}"
            )
    return experiment_values(inputs[0] if inputs else None, overrides)


def _show(found: Comparison) -> None:
    from fullrank.comparison.board import number_of
    from fullrank.comparison.printed import table_of, title_of

    console, wide = Console(highlight=False), Console(highlight=False, width=WIDE)
    table = table_of(found)
    if not console.is_terminal:
        console = wide  # lines in a file can have any length
    elif wide.measure(table).maximum > console.width:
        table = table_of(found, by_seed=False)
        if wide.measure(table).maximum > console.width:
            table = table_of(found, by_seed=False, by_reference=False)
    say(f"\n{title_of(found)}\n")
    console.print(table)
    say()
    for remark in found.remarks():
        console.print(remark, markup=False)
    where = f"; results in {found.out}" if found.out is not None else ""
    failed = f", {len(found.failed)} failed" if found.failed else ""
    say(f"{number_of(found.runs, 'run')} complete{failed}{where}")


def _show_by_site(found: SiteTable, as_json: bool) -> None:
    """Print the table of methods by sites."""
    from fullrank.runs import client_tables

    if as_json:
        print(json.dumps(found.facts(), indent=1))
        return
    values = {"final": "after the last round", "validated": "in the round with the best validation score"}
    unit = " in percent" if found.is_share else ""
    name = found.measure.replace("_", " ")
    where, whose = client_tables.SETS[found.set], client_tables.STAGES[found.stage]
    say(f"\n{name[0].upper()}{name[1:]}{unit}, {whose}, on {where}, {values[found.value]}; mean ± std over seeds:\n")
    table = Table(box=None, pad_edge=False)
    for column in ("method", *found.sites):
        table.add_column(client_tables.shown_name(column), no_wrap=True)
    for row in found.rows:
        cells = [with_spread(row.mean(site), row.std(site), found.is_share) for site in found.sites]
        table.add_row(row.method, *cells)
    print_table(table)
    say()
    for row in found.rows:
        for reason in dict.fromkeys(row.absent.values()):
            say(f"{row.method}: {reason}")
