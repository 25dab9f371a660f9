"""The command line: thin commands over the public functions."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from fullrank import methods
from fullrank._version import __version__
from fullrank.cli import bench as benchcli
from fullrank.cli import compare as comparecli
from fullrank.cli import data as datacli
from fullrank.cli import export as exportcli
from fullrank.cli import figure as figurecli
from fullrank.cli import inspect as inspectcli
from fullrank.cli import keys as keyscli
from fullrank.cli import methods as methodscli
from fullrank.cli import models as modelscli
from fullrank.cli import probes as probescli
from fullrank.cli import search_scales as searchcli
from fullrank.cli.options import AsJson, File, Overrides, answer, experiment_values, fail, picture, prepare_streams
from fullrank.config.experiment import Experiment, parse_overrides
from fullrank.data.heterogeneity import draw_text
from fullrank.errors import Interrupted, Refusal
from fullrank.local import interrupt
from fullrank.runs import display
from fullrank.runs.assemble import federate
from fullrank.runs.run import run as run_experiment

app = typer.Typer(
    help="Federated learning when clients' data differ: train, compare, and keep the representation from collapsing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(datacli.app, name="data")
app.add_typer(methodscli.app, name="methods")
app.add_typer(benchcli.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        print(f"fullrank {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run with --help for the commands."""


@app.command()
def run(
    file: File = None,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Where to write; else named after the run.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: AsJson = False,
    change_engine: Annotated[
        bool, typer.Option("--change-engine", help="Resume with other engine keys; no longer equal to the bit.")
    ] = False,
) -> None:
    """Run an experiment, or go on with it where it stopped.

    The same command again resumes: everything is saved after each round, and a resumed run ends exactly like an
    uninterrupted one. More rounds on a finished run go on from its end.

    Example: fullrank run --set method.name=fedavg+feddecorr --set data.alpha=0.05 --set train.rounds=30
    """
    experiment = _experiment(file, overrides)
    _refuse_without_effect(experiment, overrides)
    try:
        with display.choose(quiet, as_json) as watcher:
            finished = run_experiment(experiment, out, change_engine=change_engine, watcher=watcher)
    except Interrupted as stop:
        fail(str(stop), 130)  # here, because typer would turn it into a mere "Aborted."
    if quiet or as_json:
        return
    console = Console(soft_wrap=True)
    table, summary = display.summary_table(finished), finished.summary()
    if table.rows:
        console.print(table)
    for line in display.personal_lines(summary):
        print(line)
    for measure, reason in summary["absent"].items():
        if measure == "personal":
            continue  # said in the summary; most runs have no hold-outs and do not miss them
        console.print(f"no {measure}: {reason}", highlight=False)
    traffic = f"{display.size(summary['bytes_up'])} up, {display.size(summary['bytes_down'])} down"
    rounds = display.counted(summary["rounds"], "round")
    ending = summary.get("ending_seconds", 0)
    after = f" ({ending:.1f} s of it after the last round)" if ending >= 1 else ""
    print(f"{rounds} complete, {traffic}, {summary['seconds']:.1f} s{after}; results in {finished.path}")


app.command("compare")(comparecli.compare_command)
app.command("export")(exportcli.export_command)
app.command("figure")(figurecli.figure_command)
app.command("inspect")(inspectcli.inspect_command)
app.command("keys")(keyscli.list_keys)
app.command("models")(modelscli.list_models)
app.command("probes")(probescli.probes_command)
app.command("search-scales")(searchcli.search_command)


@app.command()
def partition(
    file: File = None,
    overrides: Overrides = None,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Draw it as a picture too, with Matplotlib.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who has which data under an experiment, and how much clients differ.

    Example: fullrank partition --set data.alpha=0.05 --set data.clients=20
    """
    picture(png)
    federation = federate(_experiment(file, overrides))
    facts = federation.describe()
    if png is not None:
        from fullrank.report.partition import draw_partition

        draw_partition(federation.class_counts, png, federation.data.classes)
    if as_json:
        print(json.dumps({"fingerprint": federation.data.fingerprint(), **facts}, indent=1))
        return
    print(draw_text(federation.class_counts, federation.data.classes, width=Console().width))
    size, entropy, emd = facts["size"], facts["entropy"], facts["emd"]
    print()
    print(f"clients              {facts['clients']}")
    print(f"training samples     {facts['samples']}" + _apart(facts))
    if left_out := federation.left_out():
        print(f"left out             {left_out}")
    print(f"size                 {size['min']} to {size['max']}, median {size['median']:g}")
    print(f"classes per client   {facts['classes_per_client']:.2f} on average, of {federation.data.num_classes}")
    print(f"label entropy        {entropy['mean']:.3f} nats on average")
    print(f"distance to global   {emd['mean']:.3f} on average (earth mover's, 0 equal to 2 disjoint)")
    print(f"partition hash       {facts['hash']}")
    print(f"data fingerprint     {federation.data.fingerprint()}")
    if png is not None:
        print(f"drawn in             {png}")


def _apart(facts: dict[str, Any]) -> str:
    parts = [
        f"{facts[name]} {words}"
        for name, words in (("holdout", "held out"), ("validation", "for validation"))
        if facts[name]
    ]
    return f" (and {', '.join(parts)})" if parts else ""


def _refuse_without_effect(experiment: Experiment, overrides: list[str] | None) -> None:
    """Refuse to set hyper-parameters of a method that does not train; in a file they may wait for a comparison."""
    used = {methods.find(piece).name for piece in experiment.method.name.split("+")}
    for name, value in parse_overrides(overrides or []).get("method", {}).items():
        if isinstance(value, dict) and name not in used:
            raise Refusal(
                f"--set method.{name}.{next(iter(value), '')}: the method is {experiment.method.name}, so this has no "
                f"effect; name it too, as in --set method.name={experiment.method.name}+{name}"
            )


def _experiment(file: str | None, overrides: list[str] | None) -> Experiment:
    return Experiment(**experiment_values(file, overrides))


def main() -> None:
    """The entry point."""
    if "" not in sys.path:
        # A method, model or data set in the current directory can be named. It comes last, so that no file of an
        # unpacked folder takes the place of an installed package.
        sys.path.append("")
    prepare_streams()
    with interrupt.own_process():
        answer(app)
