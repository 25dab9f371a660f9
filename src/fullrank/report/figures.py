"""The figures of runs, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fullrank.errors import InputError, nearest
from fullrank.report.courses import draw_accuracy, draw_collapse
from fullrank.report.directions import draw_tsne
from fullrank.report.heatmaps import draw_cka, draw_classifier
from fullrank.report.losses import draw_losses
from fullrank.report.spectra import draw_gap, draw_spectrum
from fullrank.report.style import figure_file
from fullrank.runs.result import Run, load_run

KINDS: dict[str, Callable[..., None]] = {
    "spectrum": draw_spectrum,
    "gap": draw_gap,
    "collapse": draw_collapse,
    "classifier": draw_classifier,
    "tsne": draw_tsne,
    "cka": draw_cka,
    "losses": draw_losses,
    "accuracy": draw_accuracy,
}


def draw_figure(kind: str, runs: Sequence[Run | str | Path], path: str | Path, **options: Any) -> None:
    """Draw a figure of runs or run directories into a PDF, PNG or SVG file, one column wide.

    `options` are those of the kind: rounds, clients, top, term. An option that a kind does not have is rejected.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp", "probe.every": 1}
    >>> draw_figure("spectrum", [fullrank.run(few, out=tempfile.mkdtemp())], tempfile.mkdtemp() + "/spectrum.pdf")
    """
    if kind not in KINDS:
        raise InputError(f'there is no figure "{kind}"; {nearest(kind, KINDS)}')
    if not runs:
        raise InputError("a figure needs at least one run")
    known = [name for name in inspect.signature(KINDS[kind]).parameters if name not in ("runs", "path")]
    for name in options:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f'the figure "{kind}" has no option {name}; {has}')
    figure_file(path)  # reject the path before runs are read and maps are computed
    KINDS[kind]([run if isinstance(run, Run) else load_run(run) for run in runs], path, **options)
