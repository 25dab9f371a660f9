"""Sends the metrics of a run to TensorBoard, which reads them from event files in the run directory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.errors import Interrupted
from fullrank.runs.trackers.tracker import Tracker
from fullrank.runs.trackers.values import distributions, labels, results, scalars, settings

SUFFIX = ".fullrank"
"""The end of the names of the event files, by which those of other programs are not taken for them."""
MEASURES = ("accuracy", "loss", "personal_accuracy")
"""The measures in the table of TensorBoard's page HParams."""


class TensorBoard(Tracker):
    """Writes an event file into the run directory: `tensorboard --logdir runs` shows all runs in the folder.

    When a run is resumed, a new event file with all rounds so far takes the place of the old one.
    """

    key, title, library = "tensorboard", "TensorBoard", "tensorboard"

    def open(self, experiment: Experiment, path: Path, id: str) -> None:
        """Begin an event file."""
        self._before = [*path.glob(f"events.out.tfevents.*{SUFFIX}")]
        # A viewer that is open already drops what it has read of the old file from step 0 on.
        purge = 0 if self._before else None
        # Imported here because it takes a second, and TensorBoard may be absent.
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(path), purge_step=purge, filename_suffix=SUFFIX)
        self._settings = {**settings(experiment), **{f"label.{key}": text for key, text in labels(experiment).items()}}
        self._writer.add_text("experiment", _code(experiment.as_toml()), 0)
        self._session("STATUS_RUNNING")
        self._step = 0

    def send(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a round, and histograms of those of its clients."""
        self._step = row["round"]
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, self._step)
        for name, values in distributions(row).items():
            self._writer.add_histogram(name, _array(values), self._step)
        self._writer.flush()

    def send_warnings(self, texts: list[str]) -> None:
        """Write all warnings."""
        self._writer.add_text("warnings", "\n".join(f"- {_escaped(text)}" for text in texts), self._step)
        self._writer.flush()

    def caught_up(self) -> None:
        """Delete the event files of earlier processes, all of whose rounds are in the new one."""
        self._writer.flush()
        for file in self._before:
            file.unlink(missing_ok=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        rows = "".join(f"| {_escaped(name)} | {value:.6g} |\n" for name, value in results(summary).items())
        self._writer.add_text("summary", f"| | |\n|---|---|\n{rows}", self._step)
        self._end("STATUS_SUCCESS")

    def give_up(self, error: BaseException, reason: str) -> None:
        """Write the reason of the failure."""
        self._writer.add_text("failure", _escaped(reason), self._step)
        self._end("STATUS_UNKNOWN" if isinstance(error, Interrupted) else "STATUS_FAILURE")

    def _end(self, status: str) -> None:
        self._session(status)
        self._writer.close()

    def _session(self, status: str) -> None:
        """Write the settings of the run, or how it ended, for TensorBoard's page HParams."""
        summaries = importlib.import_module("torch.utils.tensorboard.summary").hparams
        measured = dict.fromkeys(MEASURES, 0.0)  # only their names are used
        names, start, end = summaries(self._settings, measured)
        if status == "STATUS_RUNNING":
            written = [names, start]
        else:
            pages = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
            known = importlib.import_module("tensorboard.plugins.hparams.api_pb2").Status
            facts = pages.HParamsPluginData.FromString(end.value[0].metadata.plugin_data.content)
            facts.session_end_info.status = known.Value(status)
            end.value[0].metadata.plugin_data.content = facts.SerializeToString()
            written = [end]
        for each in written:
            self._writer.file_writer.add_summary(each, 0)
        self._writer.flush()


def _array(values: list[float]) -> Any:
    return importlib.import_module("numpy").array(values)


def _code(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _escaped(text: str) -> str:
    """Return a text in which Markdown shows every character."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>()#+-.!|" else letter for letter in text)
