"""The figures of runs, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError, nearest
from fullrank.lazy import OnFirstUse

if TYPE_CHECKING:
    from fullrank.runs.result import Run

KINDS: OnFirstUse[Callable[..., None]] = OnFirstUse(
    {
        "spectrum": "fullrank.report.spectra:draw_spectrum",
        "gap": "fullrank.report.spectra:draw_gap",
        "collapse": "fullrank.report.courses:draw_collapse",
        "classifier": "fullrank.report.heatmaps:draw_classifier",
        "tsne": "fullrank.report.directions:draw_tsne",
        "cka": "fullrank.report.heatmaps:draw_cka",
        "losses": "fullrank.report.losses:draw_losses",
        "accuracy": "fullrank.report.courses:draw_accuracy",
        "course": "fullrank.report.courses:draw_course",
        "ablation": "fullrank.report.ablation:draw_ablation",
        "consistency": "fullrank.report.courses:draw_consistency",
        "cost": "fullrank.report.cost:draw_cost",
        "chart": "fullrank.report.chart:draw_chart",
    }
)


def draw_figure(kind: str, runs: Sequence[Run | str | Path], path: str | Path, **options: Any) -> None:
    """Draw a figure of runs or run directories into a PDF, PNG or SVG file, one column wide.

    Args:
        kind: The kind of figure, a key of `KINDS`.
        runs: The runs, or their directories.
        path: The file, which ends in .pdf, .png or .svg.
        **options: Options of the kind: `rounds`, `clients`, `top`, `term`, `over`, `measure`, `value`, `chart`,
            `labels` and `band`, as `fullrank figure --help` lists them.

    Raises:
        InputError: If the kind does not have an option, or the runs do not have what it shows.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp", "probe.every": 1}
    >>> draw_figure("spectrum", [fullrank.run(few, out=tempfile.mkdtemp())], tempfile.mkdtemp() + "/spectrum.pdf")
    """
    from fullrank.report.seeds import check_band
    from fullrank.report.style import figure_file
    from fullrank.runs.result import Run, load_run

    if kind not in KINDS:
        raise InputError(f'there is no figure "{kind}"; {nearest(kind, KINDS)}')
    if not runs:
        raise InputError("a figure needs at least one run")
    known = [name for name in inspect.signature(KINDS[kind]).parameters if name not in ("runs", "path")]
    for name in options:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f'the figure "{kind}" has no option {name}; {has}')
    if "band" in options:
        check_band(options["band"])
    figure_file(path)  # reject the path before runs are read and maps are computed
    KINDS[kind]([run if isinstance(run, Run) else load_run(run) for run in runs], path, **options)
