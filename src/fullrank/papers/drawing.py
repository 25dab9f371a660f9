"""Drawing the figure of a paper from the runs of a reproduction."""

from __future__ import annotations

from pathlib import Path

from fullrank.errors import InputError
from fullrank.papers.reproduction import CellResult, Reproduction
from fullrank.report.figures import draw_figure


def draw_panels(found: Reproduction) -> tuple[list[Path], list[str]]:
    """Draw each panel of a figure of which runs are complete, into the folder of the runs.

    Args:
        found: The reproduction of a figure; that of a table has no panels.

    Returns:
        The files, and for each panel that cannot be drawn a sentence with the reason.
    """
    drawing = found.plan.table.drawing
    files: list[Path] = []
    problems: list[str] = []
    if drawing is None:
        return files, problems
    panels: dict[tuple[str, ...], list[CellResult]] = {}
    for result in found.selected:
        if result.values:
            panels.setdefault(tuple(result.cell.at.get(name, "") for name in drawing.panels), []).append(result)
    for values, results in panels.items():
        paths = dict.fromkeys(task.path for one in results for seed in one.values for task in one.planned.tasks[seed])
        at = [f"{name}-{value}" for name, value in zip(drawing.panels, values, strict=True)]
        file = found.plan.folder / ("-".join(["figure", *at]).replace("/", "-").replace(" ", "-") + ".png")
        try:
            draw_figure(drawing.kind, list(paths), file, **drawing.options)
        except InputError as problem:
            problems.append(f"{file.name} was not drawn: {problem}")
        else:
            files.append(file)
    return files, problems
