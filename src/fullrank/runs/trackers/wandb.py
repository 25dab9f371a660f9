"""Sends the metrics of a run to Weights & Biases, by default into files that are uploaded only by `wandb sync`."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.errors import Interrupted
from fullrank.runs.trackers.tracker import Tracker
from fullrank.runs.trackers.values import distributions, labels, results, scalars, settings

PROJECT = "fullrank"
"""The project, unless WANDB_PROJECT names one."""
SIGNALLED = 255
"""The exit status by which Weights & Biases knows a run that was stopped by a signal."""


class WeightsAndBiases(Tracker):
    """Writes a run of Weights & Biases into the folder wandb/ of the run directory.

    Nothing is uploaded unless WANDB_MODE is "online". What the program prints is not recorded unless WANDB_CONSOLE says
    so, because the user's own code could print anything. When a run without a connection is resumed, a new file with
    all rounds so far takes the place of the old one; with a connection, the server keeps the rounds that it has.
    """

    key, title, library = "wandb", "Weights & Biases", "wandb"

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__init__()

    def open(self, experiment: Experiment, path: Path, id: str) -> None:
        """Start the run, or continue it under the same id."""
        wandb = importlib.import_module("wandb")
        self._histogram = wandb.Histogram
        mode = os.environ.get("WANDB_MODE") or "offline"
        folder = Path(os.environ.get("WANDB_DIR") or path)
        self._before = [*folder.glob(f"wandb/offline-run-*-{id}")] if mode == "offline" else []
        words = labels(experiment)
        self._run = wandb.init(
            id=id,
            resume=None if mode == "offline" else "allow",
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or path.absolute().name,
            dir=str(folder),
            mode=mode,
            config=settings(experiment),
            tags=[words["method"][:64], words["data"][:64], f"seed {words['seed']}"],
            reinit="create_new",
            settings=wandb.Settings(console=os.environ.get("WANDB_CONSOLE") or "off", silent=True),
        )
        self._known = self._run.step if self._run.resumed else 0
        if self._run.resumed:
            self._run.config.update(settings(experiment), allow_val_change=True)

    def send(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a round, and histograms of those of its clients."""
        if row["round"] < self._known:
            return  # the server has it, and a round that is run again has the same numbers
        spread = {name: self._histogram(values) for name, values in distributions(row).items()}
        self._run.log({**scalars(row), **spread}, step=row["round"], commit=True)

    def send_warnings(self, texts: list[str]) -> None:
        """Add all warnings to the summary."""
        self._run.summary["warnings"] = texts

    def caught_up(self) -> None:
        """Delete the files of earlier processes, all of whose rounds are in the new ones."""
        for folder in self._before:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the summary and mark the run as finished."""
        self._run.summary.update(results(summary))
        self._run.finish(exit_code=0)

    def give_up(self, error: BaseException, reason: str) -> None:
        """Send the reason and mark the run as failed."""
        self._run.summary["failure"] = reason
        self._run.finish(exit_code=SIGNALLED if isinstance(error, Interrupted) else 1)
