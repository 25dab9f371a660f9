"""The command `fullrank sweep`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fullrank.cli.options import AsJson, File, Overrides, RayAddress, ended_if_interrupted, experiment_values
from fullrank.cli.several import Jobs, QuietTable, parse_seeds, with_spread
from fullrank.comparison.space import parse_over
from fullrank.comparison.study import PRUNERS, SAMPLERS
from fullrank.errors import InputError
from fullrank.runs.terminal import print_table, say

if TYPE_CHECKING:
    from fullrank.comparison.sweep import Sweep


def sweep_command(
    file: File = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=VALUES",
            help="Key to search: a range LOW:HIGH or LOW:HIGH:log, or a list V,V,… Can be repeated.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", "-n", metavar="N", help="Number of trials. By default the grid, or 20.")
    ] = None,
    sampler: Annotated[
        str, typer.Option("--sampler", metavar="NAME", help=f"How settings are chosen: {', '.join(SAMPLERS)}.")
    ] = "tpe",
    pruner: Annotated[
        str,
        typer.Option(
            "--pruner",
            metavar="NAME",
            help=f"Whether runs that are worse than the median of earlier trials are stopped: {', '.join(PRUNERS)}.",
        ),
    ] = "none",
    measure: Annotated[
        str, typer.Option("--measure", metavar="NAME", help="Measure of the validation set that is compared.")
    ] = "validation_accuracy",
    value: Annotated[
        str, typer.Option("--value", metavar="NAME", help="Value of a run: best (over rounds), last5, last or final.")
    ] = "best",
    seeds: Annotated[
        str, typer.Option("--seeds", "-s", metavar="N,N,…", help="Seeds of every trial, as in 0,1 or 0-2.")
    ] = "0",
    overrides: Overrides = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder of the sweep.")] = "",
    jobs: Jobs = 0,
    ray: RayAddress = "",
    as_json: AsJson = False,
    quiet: QuietTable = False,
) -> None:
    """Search for the settings that are best on validation data.

    All trials have the same data, splits and seeds. They are compared on the validation set, so the experiment needs
    data.validation; test scores are printed for the best trial only, after it was chosen. DIR/best.toml is its
    experiment, DIR/sweep.json has all trials, and DIR/trials their run directories. If the sweep was interrupted, the
    same command resumes it with the same trials; a larger --trials adds further ones. It needs Optuna, which the extra
    "sweep" installs.

    - grid: all combinations of lists, in their order
    - random: independent draws from ranges and lists
    - tpe: Optuna's tree-structured Parzen estimator, which learns from earlier trials

    Example: fullrank sweep --over train.lr=0.01:1:log --trials 20 --set data.validation=0.1 --out runs/lr

    Example: fullrank sweep demo.toml --over method.feddecorr.beta=0.01,0.1,1 --sampler grid --seeds 0-2 --out runs/beta
    """
    from fullrank.comparison.board import choose_board
    from fullrank.comparison.sweep import sweep

    if not out:
        raise InputError("name the folder of the sweep, as in --out runs/sweep")
    wanted: dict[str, Any] = {"sampler": sampler, "pruner": pruner, "measure": measure, "value": value}
    wanted |= {"seeds": parse_seeds(seeds), "out": out, "jobs": jobs, "ray": ray}
    searched = parse_over(over or [])
    for text in overrides or []:
        key = text.partition("=")[0].strip()
        if key == "seed" or key in searched:
            raise InputError(f"--set {key} has no effect in this sweep; use {'--seeds' if key == 'seed' else '--over'}")
    with ended_if_interrupted(), choose_board(quiet or as_json) as board:
        found = sweep(experiment_values(file, overrides), searched, trials, **wanted, callbacks=[board])
    if as_json:
        print((found.path / "sweep.json").read_text())
    else:
        _show(found)


def _show(found: Sweep) -> None:
    from fullrank.runs.display import counted

    unit, word = " in percent" if found.is_share else "", {"best": "best over rounds"}.get(found.value, found.value)
    name = found.measure.replace("_", " ")
    say(f"\n{name[0].upper()}{name[1:]}{unit}, {word}, over {counted(len(found.seeds), 'seed')}:\n")
    print_table(_table(found))
    say()
    for trial in found.trials:
        if trial.reason:
            say(f"trial {trial.number} {trial.state}: {trial.reason}")
    settings = ", ".join(f"{key}={_shown(value)}" for key, value in found.best.settings.items())
    say(f"best: trial {found.best.number}, {settings}")
    where = "in the round with the best validation score" if found.test_value == "validated" else found.test_value
    for measure, scores in found.test.items():
        text = with_spread(scores["mean"], scores["std"], found.is_share or measure == "accuracy")
        say(f"its test {measure.replace('_', ' ')}: {text} ({where})")
    say(f"results in {found.path}; run the best settings with: fullrank run {found.path / 'best.toml'}")


def _table(found: Sweep) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("trial", *found.best.settings, "mean ± std", "state"):
        table.add_column(column, no_wrap=True)
    for row in found.table():
        mean = "–" if row["mean"] is None else with_spread(row["mean"], row["std"], found.is_share)
        settings = [_shown(value) for value in row["settings"].values()]
        cells = [str(row["number"]), *settings, mean, row["state"]]
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _shown(value: Any) -> str:
    """Format a value of a setting; numbers that a sampler drew have four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
