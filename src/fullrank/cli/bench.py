"""The command `fullrank bench`: the speed of rounds on this machine, compared with plain PyTorch loops."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from fullrank.cli.options import AsJson, Command, Overrides, command_group, fail

app = command_group("Measure the speed of rounds on this machine.", no_args_is_help=True)

Repeats = Annotated[int, typer.Option("--repeats", metavar="N", help="Number of measurements of each variant.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Run a few steps as a test; the numbers are meaningless.")]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="Folder of CIFAR-10.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Device: cpu or cuda.")]


@app.command(cls=Command)
def cpu(
    networks: Annotated[
        str, typer.Option("--networks", metavar="A,B", help="Networks: cnn (1.63 M parameters), linear.")
    ] = "cnn,linear",
    repeats: Repeats = 5,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """Compare the CPU time of a round with a plain PyTorch loop.

    The workload is the CIFAR-10 benchmark of pfl-research on synthetic images. Every measurement is a new process with
    one thread, and the CPU time of its whole process tree counts. The command needs Linux.

    Example: fullrank bench cpu --networks linear --repeats 3
    """
    from fullrank.bench import cpu as cpu_bench
    from fullrank.bench import workload

    chosen = workload.TINY if tiny else None
    result = cpu_bench.measure(networks.split(","), repeats, workload=chosen, say=_say)
    _show(result, cpu_bench.report, as_json)


@app.command(cls=Command)
def gpu(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Number of rounds after the first.")] = 3,
    root: Root = "",
    device: Device = "cuda",
    overrides: Overrides = None,
    eager_fraction: Annotated[
        float,
        typer.Option("--eager-fraction", metavar="SHARE", help="Fraction of the steps of the eager loop to run."),
    ] = 1.0,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """Compare the time of a round on a GPU with an eager PyTorch loop.

    The workload is the CIFAR-10 experiment of FedDecorr. Both run in the same process.

    Example: fullrank bench gpu --root data --rounds 3
    """
    from fullrank.bench import gpu as gpu_bench

    values = gpu_bench.feddecorr_round(device, root, tiny)
    result = gpu_bench.measure(
        values, rounds=rounds, overrides=overrides or [], eager_fraction=eager_fraction, say=_say
    )
    _show(result, gpu_bench.report, as_json)
    if result["failed"]:
        fail(f"{result['failed'][0]['stage']} failed: {result['failed'][0]['error']}", 1)


@app.command("methods", cls=Command)
def methods_command(
    names: Annotated[
        str, typer.Option("--methods", "-m", metavar="A,B,…", help="Methods to measure. By default all of them.")
    ] = "",
    repeats: Repeats = 5,
    root: Root = "",
    device: Device = "cpu",
    overrides: Overrides = None,
    tiny: Tiny = False,
    as_json: AsJson = False,
) -> None:
    """Compare the time of a round of each method with FedAvg.

    Rounds of the method and of FedAvg alternate, so that both see the same load of the machine.

    Example: fullrank bench methods --methods fedprox,fedavg+feddecorr --repeats 5
    """
    from fullrank.bench import overheads

    values = overheads.default_experiment(device, root, tiny)
    chosen = [name.strip() for name in names.split(",") if name.strip()] or overheads.default_methods()
    result = overheads.measure(values, chosen, repeats, overrides=overrides or [], say=_say)
    _show(result, overheads.report, as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(result: Mapping[str, Any], report: Callable[[Any], str], as_json: bool) -> None:
    print(json.dumps(result, indent=1) if as_json else report(result))
