"""The command `fullrank`: its sub-commands are thin layers over the public functions."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console

from fullrank import methods
from fullrank._version import __version__
from fullrank.cli import bench as benchcli
from fullrank.cli import compare as comparecli
from fullrank.cli import data as datacli
from fullrank.cli import evaluate as evaluatecli
from fullrank.cli import export as exportcli
from fullrank.cli import figure as figurecli
from fullrank.cli import flower as flowercli
from fullrank.cli import inspect as inspectcli
from fullrank.cli import keys as keyscli
from fullrank.cli import methods as methodscli
from fullrank.cli import models as modelscli
from fullrank.cli import predict as predictcli
from fullrank.cli import probes as probescli
from fullrank.cli import report as reportcli
from fullrank.cli import reproduce as reproducecli
from fullrank.cli import search_scales as searchcli
from fullrank.cli import sweep as sweepcli
from fullrank.cli import theory as theorycli
from fullrank.cli import watch as watchcli
from fullrank.cli.options import (
    AsJson,
    Command,
    File,
    Overrides,
    Quiet,
    answer,
    command_group,
    ended_if_interrupted,
    experiment_values,
    picture,
    prepare_streams,
)
from fullrank.config.experiment import Experiment, parse_overrides
from fullrank.data.sources.progress import watching
from fullrank.engine.allocator import keep_freed_memory
from fullrank.errors import InputError
from fullrank.local import interrupt
from fullrank.runs.terminal import say

app = command_group(
    "Federated learning when clients' data differ: train models, compare methods, and measure whether the "
    "representation collapses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(datacli.app, name="data", rich_help_panel="Data")
app.add_typer(methodscli.app, name="methods", rich_help_panel="Models and methods")
app.add_typer(theorycli.app, name="theory", rich_help_panel="Reproduce")
app.add_typer(benchcli.app, name="bench", rich_help_panel="Tools")
app.add_typer(flowercli.app, name="flower", rich_help_panel="Tools")


def _version(asked: bool) -> None:
    if asked:
        print(f"fullrank {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Print the commands with --help."""


@app.command(cls=Command, rich_help_panel="Run")
def run(
    file: File = None,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Run directory. By default a name in runs/.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    change_engine: Annotated[
        bool,
        typer.Option("--change-engine", help="Resume with other engine keys; results may differ in the last bits."),
    ] = False,
) -> None:
    """Run an experiment, or resume it where it stopped.

    The state of the run is saved after each round. If a run was interrupted, the same command resumes it, and the
    result is identical to that of an uninterrupted run. A larger train.rounds continues a finished run.

    Example: fullrank run --set method.name=fedavg+feddecorr --set data.alpha=0.05 --set train.rounds=30
    """
    from fullrank.runs import client_tables, display
    from fullrank.runs.run import run as run_experiment

    experiment = _experiment(file, overrides)
    _reject_without_effect(experiment, overrides)
    silence = watching(None) if quiet else nullcontext()
    with ended_if_interrupted(), display.choose(quiet, as_json) as shown, silence:
        finished = run_experiment(experiment, out, change_engine=change_engine, callbacks=[shown])
    if quiet or as_json:
        return
    console = Console(soft_wrap=True)
    summary = finished.summary()
    for table in display.tables_of(finished, console.width):
        console.print(table)
        console.print()
    if "sites" in summary:
        client_tables.show_sites(finished.kept() or [])
    for measure, reason in summary["absent"].items():
        if measure == "personal":
            continue  # part of the summary; most runs have no held-out samples
        console.print(f"no {measure}: {reason}", highlight=False)
    traffic = f"{display.size(summary['bytes_up'])} up, {display.size(summary['bytes_down'])} down"
    rounds = display.counted(summary["rounds"], "round")
    ending = summary.get("ending_seconds", 0)
    after = f" ({ending:.1f} s of it after the last round)" if ending >= 1 else ""
    say(f"{rounds} complete, {traffic}, {summary['seconds']:.1f} s{after}; results in {finished.path}")


for name, panel, command in (
    ("watch", "Run", watchcli.watch_command),
    ("keys", "Run", keyscli.list_keys),
    ("compare", "Compare", comparecli.compare_command),
    ("sweep", "Compare", sweepcli.sweep_command),
    ("report", "Inspect", reportcli.report_command),
    ("inspect", "Inspect", inspectcli.inspect_command),
    ("probes", "Inspect", probescli.probes_command),
    ("predict", "Inspect", predictcli.predict_command),
    ("evaluate", "Inspect", evaluatecli.evaluate_command),
    ("figure", "Inspect", figurecli.figure_command),
    ("models", "Models and methods", modelscli.list_models),
    ("search-scales", "Models and methods", searchcli.search_command),
    ("reproduce", "Reproduce", reproducecli.reproduce_command),
    ("export", "Tools", exportcli.export_command),
):
    app.command(name, cls=Command, rich_help_panel=panel)(command)


@app.command(cls=Command, rich_help_panel="Data")
def partition(
    file: File = None,
    overrides: Overrides = None,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Also draw the partition in this file, with Matplotlib.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an experiment divides its data among clients.

    Prints the classes of each client and how much the clients differ: sizes, label entropy, and the distance between
    the label distributions of clients and of all samples.

    Example: fullrank partition --set data.alpha=0.05 --set data.clients=20
    """
    import numpy as np

    from fullrank.data.heterogeneity import draw_text
    from fullrank.runs.assemble import federate

    picture(png)
    federation = federate(_experiment(file, overrides))
    facts = federation.describe()
    if png is not None:
        from fullrank.report.partition import draw_partition

        draw_partition(federation.class_counts, png, federation.data.classes, federation.names)
    if as_json:
        print(json.dumps({"fingerprint": federation.data.fingerprint(), **facts}, indent=1))
        return
    print(draw_text(federation.class_counts, federation.data.classes, Console().width, federation.names))
    size, entropy, emd = facts["size"], facts["entropy"], facts["emd"]
    say()
    say(f"clients              {facts['clients']}")
    say(f"training samples     {facts['samples']}" + _not_for_training(facts))
    if left_out := federation.left_out():
        say(f"without a client     {left_out}")
    say(f"size                 {size['min']} to {size['max']}, median {size['median']:g}")
    if federation.groups is not None:
        least, most, median = federation.groups.min(), federation.groups.max(), np.median(federation.groups)
        say(f"groups per client    {least} to {most}, median {median:g}, of the training samples")
    say(f"classes per client   {facts['classes_per_client']:.2f} on average, of {federation.data.num_classes}")
    say(f"label entropy        {entropy['mean']:.3f} nats on average")
    say(f"distance to global   {emd['mean']:.3f} on average (earth mover's, 0 equal to 2 disjoint)")
    say(f"partition hash       {facts['hash']}")
    say(f"data fingerprint     {federation.data.fingerprint()}")
    if png is not None:
        say(f"drawn in             {png}")


def _not_for_training(facts: dict[str, Any]) -> str:
    parts = [
        f"{facts[name]} {words}"
        for name, words in (("holdout", "held out"), ("validation", "for validation"))
        if facts[name]
    ]
    return f" (and {', '.join(parts)})" if parts else ""


def _reject_without_effect(experiment: Experiment, overrides: list[str] | None) -> None:
    """Reject --set of hyper-parameters of a method that is not used; a file may contain them for a comparison."""
    used = {methods.find(piece).name for piece in experiment.method.name.split("+")}
    for name, value in parse_overrides(overrides or []).get("method", {}).items():
        if isinstance(value, dict) and name not in used:
            raise InputError(
                f"--set method.{name}.{next(iter(value), '')}: the method is {experiment.method.name}, so this has no "
                f"effect; add the method, as in --set method.name={experiment.method.name}+{name}"
            )


def _experiment(file: str | None, overrides: list[str] | None) -> Experiment:
    return Experiment(**experiment_values(file, overrides))


def main() -> None:
    """Run the command line of this process."""
    if "" not in sys.path:
        # An experiment can name a method, model or data set in the current directory, which comes last, so that none of
        # its files replaces an installed package.
        sys.path.append("")
    prepare_streams()
    keep_freed_memory()
    with interrupt.own_process():
        answer(app)
