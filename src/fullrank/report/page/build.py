"""Build a report: the page of some runs as data, as one HTML file, and as CSV files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fullrank._version import __version__
from fullrank.errors import InputError, writing
from fullrank.files import write_atomically
from fullrank.report.page import (
    agreement,
    blocks,
    clients,
    costs,
    embeddings,
    learning,
    overview,
    predictions,
    representation,
    setup,
    studies,
    training,
)
from fullrank.report.page.html import html_of
from fullrank.report.page.reading import read
from fullrank.report.page.subject import Subject, subject_of
from fullrank.runs.result import Run

NAME = "report.html"
SECTIONS: tuple[Callable[[Subject], dict[str, Any]], ...] = (
    setup.section,
    learning.section,
    training.section,
    clients.section,
    predictions.section,
    costs.section,
    representation.section,
    agreement.section,
    embeddings.section,
    setup.provenance,
)
"""The sections after the summary, in their order."""
OF_TRIALS = (setup.section, training.section, costs.section, setup.provenance)
"""The sections of a sweep, whose trials are chosen by validation scores: none of them shows test scores."""


def page_of(subject: Subject) -> dict[str, Any]:
    """Return the page about runs as plain data, in the types of JSON."""
    study = studies.section(subject)
    trials = subject.study is not None and subject.study.kind == "sweep"
    sections = [
        overview.section(subject, read(subject)),
        *([study] if study is not None else []),
        *(section(subject) for section in (OF_TRIALS if trials else SECTIONS)),
    ]
    for block in (block for section in sections for block in section["blocks"]):
        if block["type"] == "figure" and not block["command"]:  # no other kind of figure shows the same
            block["command"] = subject.command("chart", f"--chart {block['id']}", name=block["id"])
    page: dict[str, Any] = blocks.tidy(
        {
            "title": overview.title_of(subject),
            "lead": overview.lead_of(subject),
            "sections": sections,
            "foot": f"Made by fullrank {__version__} from {', '.join(subject.paths)}.",
        }
    )
    return page


def write_report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    out: str | Path = "",
    *,
    json_file: str | Path = "",
    csv_folder: str | Path = "",
) -> Path:
    """Write the report of one or more runs as one HTML file, which needs no network.

    The report changes nothing else, and can be made of runs that are still running, were stopped or have failed.

    Args:
        runs: Runs, run directories, or folders of runs, such as those of a comparison, a sweep or a reproduction.
        out: The HTML file. By default it is `report.html` in the directory of the only run or folder; of several runs,
            in the innermost folder that contains all of them.
        json_file: A file for everything on the page as JSON.
        csv_folder: A folder for the values of each chart and each table as CSV.

    Returns:
        The path of the HTML file.

    Raises:
        InputError: If there is no run, or a file cannot be written.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}
    >>> run = fullrank.run(few, out=tempfile.mkdtemp())
    >>> fullrank.write_report(run).name
    'report.html'
    """
    given = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    target = Path(out) if str(out) else default_target(given)
    if target.is_dir():
        raise InputError(f'"{target}" is a folder; give the name of an HTML file, as in "{target / NAME}"')
    page = page_of(subject_of(given))
    if str(csv_folder):
        _write_tables(Path(csv_folder), page)
    if str(json_file):
        _write(Path(json_file), json.dumps(page, indent=1, allow_nan=False) + "\n")
    _write(target, html_of(page))
    return target


def default_target(given: Sequence[Run | str | Path]) -> Path:
    """Return the file that a report is written to by default.

    Raises:
        InputError: If the only run has no directory.
    """
    paths = [each.path if isinstance(each, Run) else Path(each) for each in given]
    known = [path for path in paths if path is not None]
    if not known:
        raise InputError('name the file of the report, as in out="report.html": the run has no directory')
    if len(known) == 1:
        return known[0] / NAME
    whole = [path.absolute().parts for path in known]
    shared = []
    for parts in zip(*whole, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    folder = Path(*shared)
    with_relative = Path.cwd()
    return (folder.relative_to(with_relative) if folder.is_relative_to(with_relative) else folder) / NAME


def _write_tables(folder: Path, page: dict[str, Any]) -> None:
    for block in blocks.figures_in(page):
        _write(folder / f"{block['id']}.csv", blocks.csv_of(block))


def _write(path: Path, content: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode())
