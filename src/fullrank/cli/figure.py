"""The command `fullrank figure`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.errors import InputError
from fullrank.report.figures import KINDS, draw_figure

if TYPE_CHECKING:
    from fullrank.runs.result import Run


def figure_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"Kind of figure: {', '.join(KINDS)}.")],
    inputs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or folders of runs.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Output file: .pdf, .png or .svg. By default figures/KIND.pdf in the first RUN.",
        ),
    ] = None,
    rounds: Annotated[
        str,
        typer.Option("--rounds", metavar="N,N,…", help="Rounds. By default the last; for losses first and last."),
    ] = "",
    clients: Annotated[
        str, typer.Option("--clients", metavar="K,K,…", help="Clients. By default all that were probed.")
    ] = "",
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", help="Number of singular values of a spectrum. By default 100.")
    ] = None,
    term: Annotated[
        str,
        typer.Option("--term", metavar="NAME", help="Loss term. By default that of the method, or criterion."),
    ] = "",
    measure: Annotated[
        str,
        typer.Option(
            "--measure",
            metavar="NAME",
            help="Measure. By default accuracy. Of a course, any number in metrics.jsonl, as in personal.local.mean; "
            "of ablation and cost, a measure of fullrank compare.",
        ),
    ] = "",
    value: Annotated[
        str,
        typer.Option(
            "--value", metavar="NAME", help="Value of a run: last5 (the default), last, best, validated or final."
        ),
    ] = "",
    over: Annotated[
        str,
        typer.Option(
            "--over",
            metavar="NAME",
            help="What the horizontal axis shows. Of a course, rounds (the default) or steps (of fine-tuning); of "
            "losses, epochs (the default) or rounds; of cka, clients (the default: heat maps) or layers (means over "
            "clients); of ablation, a numeric key, as in train.lr; of cost, bytes (the default), bytes_up, bytes_down, "
            "elements_up, elements_down, seconds, peak_memory or parameters.",
        ),
    ] = "",
    chart: Annotated[
        str,
        typer.Option(
            "--chart",
            metavar="NAME",
            help="Chart of a report, named as fullrank report --csv names it.",
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME", help="Name of a line. Repeat it for each line, in their order."),
    ] = None,
    band: Annotated[
        str,
        typer.Option(
            "--band",
            metavar="NAME",
            help="Band around the mean over seeds: range (minimum to maximum, the default), std (± one standard "
            "deviation), ci (95 % interval of the mean) or none.",
        ),
    ] = "",
) -> None:
    """Draw a figure of one or more runs.

    The figure is as wide as a column of a paper. Kinds, with their options:

    - spectrum: singular values of the global representation and of clients (dashed)
      (--rounds, --clients, --top, --label, --band)
    - gap: the gap R between the spectra of clients and of the global model (--clients, --label, --band)
    - collapse: neural collapse, NC1 to NC4, over rounds (--clients, --label, --band)
    - consistency: cosine between clients' prototypes, and the NC error, over rounds (--label, --band)
    - classifier: norms of the rows of the classifier, and cosines between clients (--rounds, --label, --band)
    - tsne: t-SNE of these rows (needs scikit-learn) (--rounds, --label)
    - cka: similarity of the clients' representations, layer by layer (--over, --rounds, --label, --band)
    - losses: terms of the loss over local epochs or rounds (--term, --over, --rounds, --clients, --label, --band)
    - accuracy: test accuracy over rounds (--label, --band)
    - course: any measure over rounds, or accuracy over fine-tuning steps (--measure, --over, --label, --band)
    - ablation: a measure over the values of a key, per method (--over, --measure, --value, --label, --band)
    - cost: a measure against bytes, seconds or memory, per method (--over, --measure, --value, --label, --band)
    - chart: any chart of fullrank report, such as calibration (--chart, --rounds)

    The first seven need probes: run with --set probe.every=N. The legend shows the keys in which the runs differ, or
    what --label says. Runs that differ only in the seed are drawn as one line, their mean, with a band around it.
    Classifier, cka and losses show up to five runs separately; --band, or more runs, averages over clients and seeds.

    Example: fullrank figure spectrum runs/a runs/b --out spectrum.pdf

    Example: fullrank figure course runs/comparison --measure personal.local.mean --band std --label Ours --label FedAvg
    """
    from fullrank.comparison.directories import runs_in

    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    options: dict[str, Any] = {"rounds": _numbers("--rounds", rounds), "clients": _numbers("--clients", clients)}
    options |= {"top": top, "term": term, "measure": measure, "value": value, "over": over, "labels": label}
    options["chart"] = chart
    options["band"] = band
    runs: list[Run] = [run for path in inputs for run in runs_in(Path(path))] if kind in KINDS else []
    target = Path(out) if out is not None else Path(inputs[0]) / "figures" / f"{kind}.pdf"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        draw_figure(kind, runs, target, **{name: value for name, value in options.items() if value})
    for warning in said:
        print(f"fullrank: warning: {warning.message}", file=sys.stderr)
    print(f"drawn in {target}")


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(piece) for piece in text.split(",") if piece.strip()]
    except ValueError:
        found = [-1]
    if any(number < 0 for number in found):
        raise InputError(f"{option} {text}: must be integers, as in 1,5,10")
    return found
