"""A callback that stops runs which are worse than earlier ones, as the trials of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.errors import CallbackFailed
from fullrank.files import read_json, write_json
from fullrank.runs.callbacks import Callback
from fullrank.runs.directory import RunDirectory

MARK = "pruned.json"
"""The file in the directory of a run that was stopped, which says after which round and why."""


class Pruned(CallbackFailed):
    """Raised to stop a run that is worse than earlier ones."""


class Pruner(Callback):
    """Stops a run after the first round in which the best value so far is worse than the limit of this round.

    The limits of the run in a directory are in the file that `limits_file` names; without that file nothing is stopped.
    A run that was stopped keeps its directory, without a result and with the mark `pruned.json`.
    """

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Read the limits, and the best value of the rounds that are complete."""
        self._path, self._best = path, None
        file = limits_file(path) if path is not None else None
        self._limits = read_json(file) if file is not None and file.is_file() else {}
        if path is not None and self._limits:
            for row in RunDirectory(path).rows_until(done):
                self._note(row)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Compare the best value of the run so far with the limit.

        Args:
            row: The row of the round.

        Raises:
            Pruned: If the value is worse.
        """
        if not self._limits:
            return
        self._note(row)
        limit = self._limits["limits"].get(str(row["round"]))
        if self._best is None or limit is None or not _worse(self._best, limit, self._limits["lower_is_better"]):
            return
        assert self._path is not None
        write_json(self._path / MARK, {"round": row["round"], "best": self._best, "limit": limit})
        measure = self._limits["measure"]
        raise Pruned(
            f"pruned after round {row['round']}, because its best {measure} so far, {self._best:.4g}, is worse than "
            f"{limit:.4g}, the median of the earlier trials in this round"
        )

    _best: float | None = None

    def _note(self, row: Mapping[str, Any]) -> None:
        value = row.get(self._limits["measure"])
        if value is not None and (self._best is None or _worse(self._best, value, self._limits["lower_is_better"])):
            self._best = value


def _worse(one: float, other: float, lower_is_better: bool) -> bool:
    return one > other if lower_is_better else one < other


def limits_file(path: Path) -> Path:
    """Return the file with the limits of the run in a directory."""
    return path.parent / "limits" / f"{path.name}.json"
