"""Drawing the figure of a paper from the runs of a reproduction."""

from __future__ import annotations

from pathlib import Path

from fullrank.errors import InputError
from fullrank.papers.reproduction import CellResult, Reproduction
from fullrank.papers.tables import Drawing
from fullrank.report.figures import draw_figure


def draw_panels(found: Reproduction) -> tuple[list[Path], list[str]]:
    """Draw each panel of a figure of which runs are complete, into the folder of the runs.

    Args:
        found: The reproduction of a figure; that of a table has no panels.

    Returns:
        The files, and for each panel that cannot be drawn a sentence with the reason.
    """
    files: list[Path] = []
    problems: list[str] = []
    for drawing in found.plan.table.drawings:
        for values, results in _panels(found, drawing).items():
            runs = dict.fromkeys(
                task.path for one in results for seed in one.values for task in one.planned.tasks[seed]
            )
            at = [f"{name}-{value}" for name, value in zip(drawing.panels, values, strict=True)]
            parts = ["figure", *at, *([drawing.name] if drawing.name else [])]
            file = found.plan.folder / ("-".join(parts).replace("/", "-").replace(" ", "-") + ".png")
            try:
                draw_figure(drawing.kind, list(runs), file, **drawing.options)
            except InputError as problem:
                problems.append(f"{file.name} was not drawn: {problem}")
            else:
                files.append(file)
    return files, problems


def _panels(found: Reproduction, drawing: Drawing) -> dict[tuple[str, ...], list[CellResult]]:
    """Return the cells with values by the coordinates of the panels."""
    panels: dict[tuple[str, ...], list[CellResult]] = {}
    for result in found.selected:
        if result.values:
            panels.setdefault(tuple(result.cell.at.get(name, "") for name in drawing.panels), []).append(result)
    return panels
