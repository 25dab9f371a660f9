"""The command `fullrank figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fullrank.comparison.table import runs_in
from fullrank.errors import InputError
from fullrank.report.figures import KINDS, draw_figure
from fullrank.runs.result import Run


def figure_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"Kind of figure: {', '.join(KINDS)}.")],
    inputs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or folders of runs.")],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Output file: .pdf, .png or .svg. By default RUN/figures/KIND.pdf."),
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
) -> None:
    """Draw a figure of one or more runs.

    The figure is as wide as a column of a paper. Kinds:

    - spectrum: singular values of the global representation and of clients (dashed)
    - gap: the gap R between the spectra of clients and of the global model
    - collapse: neural collapse, NC1 to NC4, over rounds
    - classifier: norms of the rows of the classifier, and cosines between clients
    - tsne: t-SNE of these rows (needs scikit-learn)
    - cka: similarity of the clients' representations, layer by layer
    - losses: a term of the loss over local epochs
    - accuracy: test accuracy over rounds

    All but losses and accuracy need probes: run with --set probe.every=N. The legend shows the keys in which the runs
    differ. Runs that differ only in the seed are drawn as one line, their mean, with a band from the minimum to the
    maximum.

    Example: fullrank figure spectrum runs/a runs/b --out spectrum.pdf
    """
    options: dict[str, Any] = {"rounds": _numbers("--rounds", rounds), "clients": _numbers("--clients", clients)}
    options |= {"top": top, "term": term}
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
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
        raise InputError(f"{option} {text}: must be integers, as in 1,5,10")
    return found
