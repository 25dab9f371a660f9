"""Runs in a notebook: progress in the output of the cell, and results as HTML tables."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fullrank.config.experiment import Experiment
from fullrank.errors import in_words
from fullrank.federated.site import Result
from fullrank.runs.display import Display, choose, opening, problems_of, scores
from fullrank.runs.result import Run


def in_notebook() -> bool:
    """Return whether this program is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})


def displays(progress: bool | None) -> list[Display]:
    """Return the display of a run that a program starts.

    Args:
        progress: Whether progress is shown. None shows it in a notebook only.
    """
    if progress is False or (progress is None and not in_notebook()):
        return []
    return [Cell() if in_notebook() else choose(quiet=False, as_json=False)]


class Cell(Display):
    """Shows a progress bar in the output of a notebook's cell, and below it the problems of the run."""

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Show what is run."""
        super().started(experiment, path, done, clients)
        self._bar = Bar()
        self._lines, self._problems = opening(experiment, path, done, clients), list[str]()
        self._state = ""
        self._show()

    def warned(self, text: str) -> None:
        """Show the problem."""
        self._problems.append(text)
        self._show()

    def client_done(self, result: Result) -> None:
        """Advance the bar."""
        super().client_done(result)
        self._show()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Advance the bar and show the metrics."""
        super().round_done(row)
        self._state = scores(row)
        self._problems += problems_of(row)
        self._show()

    def phase_started(self, name: str, done: int, clients: int) -> None:
        """Show the progress of the phase."""
        super().phase_started(name, done, clients)
        self._show()

    def ended(self, run: Run) -> None:
        """Show the end."""
        self._show()

    def failed(self, error: BaseException) -> None:
        """Show why the run stopped."""
        if hasattr(self, "_bar"):  # a run may fail before it starts
            self._problems.append(f"stopped: {in_words(error)[0]}")
            self._show()

    def _show(self) -> None:
        if self.phase_name:
            share, what = self.clients_done / max(1, self.clients), f"{self.phase_name}: {self.so_far()}"
        else:
            complete = self.done + self.clients_done / max(1, self.clients)
            share, what = complete / max(1, self.rounds), f"round {self.done}/{self.rounds}{self._state}"
        self._bar.show(share, [*self._lines, what], self._problems)


class Bar:
    """A progress bar in the output of a notebook's cell, which is updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, share: float, lines: Sequence[str], problems: Sequence[str] = ()) -> None:
        """Update the bar.

        Args:
            share: The share that is complete.
            lines: The lines above the bar.
            problems: The lines below it.
        """
        display = sys.modules["IPython"].display
        below = "".join(f"<div style='color:#b35900'>{html.escape(text)}</div>" for text in problems)
        above = "<br>".join(map(html.escape, lines))
        shown = display.HTML(f"{above}<br><progress value='{share:.4f}' style='width:24em'></progress>{below}")
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def html_of(title: str, tables: Iterable[Table]) -> str:
    """Return tables of Rich as HTML for a notebook; nothing of their content is interpreted as markup."""
    return f"<p>{html.escape(title)}</p>" + "".join(map(_html_table, tables))


def _html_table(table: Table) -> str:
    columns = [list(column.cells) for column in table.columns]
    head = "".join(f"<th>{html.escape(str(column.header))}</th>" for column in table.columns)
    rows = (
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in zip(*columns, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
