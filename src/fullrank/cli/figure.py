"""The command `fullrank figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fullrank.comparison.table import runs_in
from fullrank.errors import Refusal
from fullrank.report.figures import KINDS, draw_figure
from fullrank.runs.result import Run


def figure_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"What to draw: {', '.join(KINDS)}.")],
    inputs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Run directories; a folder stands for all runs in it.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="A .pdf or .png; else figures/KIND.pdf in the first run."),
    ] = None,
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="N,N,…", help="Which rounds; else the last (losses: first and last).")
    ] = "",
    clients: Annotated[
        str, typer.Option("--clients", metavar="K,K,…", help="Which clients; else all that were looked at.")
    ] = "",
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", help="Singular values of a spectrum; else the first 100.")
    ] = None,
    term: Annotated[
        str, typer.Option("--term", metavar="NAME", help="Which term of the loss; else the method's own, or criterion.")
    ] = "",
) -> None:
    """Draw a figure of one run or several, as wide as a column of a paper.

    spectrum: singular values of the representation, clients' dashed beside the global model's. gap: R between them.
    collapse: NC1 to NC4 over rounds. classifier: norms of its rows, and cosines between clients. tsne: a map of these
    rows (needs scikit-learn). cka: how alike clients are, layer by layer. losses: a loss term over local epochs.
    accuracy: over rounds. All but the last two need probes: run with --set probe.every=N. Lines are named after what
    differs between the runs. Runs that differ in the seed alone are one line, their mean, in a band from the least to
    the greatest.

    Example: fullrank figure spectrum runs/a runs/b --out spectrum.pdf
    """
    options: dict[str, Any] = {"rounds": _numbers("--rounds", rounds), "clients": _numbers("--clients", clients)}
    options |= {"top": top, "term": term}
    if top is not None and top < 1:
        raise Refusal(f"--top {top}: must be at least 1")
    runs: list[Run] = [run for path in inputs for run in runs_in(Path(path))] if kind in KINDS else []
    first = runs[0].path if runs else None
    target = Path(out) if out is not None else (first or Path()) / "figures" / f"{kind}.pdf"
    draw_figure(kind, runs, target, **{name: value for name, value in options.items() if value})
    print(f"drawn in {target}")


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(piece) for piece in text.split(",") if piece.strip()]
    except ValueError:
        found = [-1]
    if any(number < 0 for number in found):
        raise Refusal(f"{option} {text}: must be whole numbers, as in 1,5,10")
    return found
