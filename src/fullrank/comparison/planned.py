"""A record of the runs of a comparison, a sweep or a reproduction, by which `fullrank watch` knows what is to come."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from fullrank.comparison.parallel import ComparisonCallback, Task
from fullrank.files import Damaged, read_json, write_json

FILE = "runs.json"
"""The file in the folder of the runs."""


class PlannedRun(TypedDict):
    """A run that was planned."""

    path: str
    """The run directory, relative to the folder."""
    name: str
    rounds: int
    failed: str
    """Why it failed, in this process; empty if it did not."""


class _Plan(TypedDict):
    runs: list[PlannedRun]


class PlanRecord(ComparisonCallback):
    """Writes the planned runs into the file runs.json of their folder, and later which of them failed.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path):
        self._file = folder / FILE
        self._runs: dict[str, PlannedRun] = {}

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        """Write all runs, those included that are complete already."""
        for task in tasks:
            path = self._relative(task)
            self._runs[path] = {"path": path, "name": task.name, "rounds": task.rounds, "failed": ""}
        self._write()

    def started(self, task: Task) -> None:
        """Delete the reason of an earlier failure."""
        if self._runs[self._relative(task)]["failed"]:
            self._note(task, "")

    def failed(self, task: Task, reason: str) -> None:
        """Write the reason of the failure."""
        self._note(task, reason)

    def _note(self, task: Task, reason: str) -> None:
        self._runs[self._relative(task)]["failed"] = reason
        self._write()

    def _relative(self, task: Task) -> str:
        return task.path.relative_to(self._file.parent).as_posix()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the runs report a folder that cannot be written
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, {"runs": list(self._runs.values())})


def planned_runs(folder: Path) -> list[PlannedRun] | None:
    """Return the runs that were planned in a folder; None if it has no such record, or it is being replaced."""
    try:
        found: dict[str, Any] = read_json(folder / FILE, _Plan)
    except (OSError, Damaged):
        return None
    return list(found["runs"])
