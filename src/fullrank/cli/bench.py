"""The command `fullrank bench`: how fast this machine plays rounds, beside what one would write without a library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from fullrank.bench import cpu as cpu_bench
from fullrank.bench import gpu as gpu_bench
from fullrank.bench import overheads, workload
from fullrank.cli.options import AsJson, Overrides, fail

app = typer.Typer(
    help="Measure how fast rounds are played on this machine.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Repeats = Annotated[int, typer.Option("--repeats", metavar="N", help="Measurements of each, in turns.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="A few steps, to see that it works; its numbers mean nothing.")]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="Where CIFAR-10 lies.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")]


@app.command()
def cpu(
    networks: Annotated[
        str, typer.Option("--networks", metavar="A,B", help="cnn (1.63 M parameters), linear.")
    ] = "cnn,linear",
    repeats: Repeats = 5,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """CPU-seconds of a round beside a bare PyTorch loop: pfl-research's CIFAR-10 workload on synthetic images.

    Every measurement is a fresh process with one thread; its whole process tree counts. Needs Linux.

    Example: fullrank bench cpu --networks linear --repeats 3
    """
    chosen = workload.TINY if tiny else None
    result = cpu_bench.measure(networks.split(","), repeats, workload=chosen, say=_say)
    _show(result, cpu_bench.report, as_json)


@app.command()
def gpu(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Rounds measured after the first.")] = 3,
    root: Root = "",
    device: Device = "cuda",
    overrides: Overrides = None,
    eager_fraction: Annotated[
        float, typer.Option("--eager-fraction", metavar="SHARE", help="Of the eager loop's steps, for a quick look.")
    ] = 1.0,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """A round of FedDecorr's CIFAR-10 experiment beside an eager PyTorch loop in the same process.

    Example: fullrank bench gpu --root data --rounds 3
    """
    values = gpu_bench.feddecorr_round(device, root, tiny)
    result = gpu_bench.measure(
        values, rounds=rounds, overrides=overrides or [], eager_fraction=eager_fraction, say=_say
    )
    _show(result, gpu_bench.report, as_json)
    if result["failed"]:
        fail(f"{result['failed'][0]['stage']} failed: {result['failed'][0]['error']}", 1)


@app.command("methods")
def methods_command(
    names: Annotated[
        str, typer.Option("--methods", "-m", metavar="A,B,…", help="Which methods; without it, all of them.")
    ] = "",
    repeats: Repeats = 5,
    root: Root = "",
    device: Device = "cpu",
    overrides: Overrides = None,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """What each method costs beyond FedAvg, its rounds in turns with FedAvg's.

    Example: fullrank bench methods --methods fedprox,fedavg+feddecorr --repeats 5
    """
    values = overheads.default_experiment(device, root, tiny)
    chosen = [name.strip() for name in names.split(",") if name.strip()] or overheads.default_methods()
    result = overheads.measure(values, chosen, repeats, overrides=overrides or [], say=_say)
    _show(result, overheads.report, as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(result: Mapping[str, Any], report: Callable[[Any], str], as_json: bool) -> None:
    print(json.dumps(result, indent=1) if as_json else report(result))
