"""Sends the metrics of a run to MLflow."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from fullrank._version import __version__
from fullrank.config.experiment import Experiment
from fullrank.errors import Interrupted
from fullrank.runs.trackers.tracker import Tracker
from fullrank.runs.trackers.values import labels, results, scalars, settings

EXPERIMENT = "fullrank"
"""The experiment of MLflow, unless MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID names one."""
IDENTITY = "fullrank.run"
"""The tag by which a resumed run is found."""
LONGEST_VALUE = 500
"""The number of characters of a parameter or a tag that every version of MLflow accepts."""
MOST = 100
"""The number of parameters in one request."""
WAIT = 120.0
"""Seconds after which a process gives up waiting until another has created the local database."""


class MLflow(Tracker):
    """Sends metrics to the server or store that MLFLOW_TRACKING_URI names, else to MLflow's own default.

    That default is the database mlflow.db in the current directory. MLflow keeps several values of one step, so a value
    is sent only if there is none yet.
    """

    key, title, library = "mlflow", "MLflow", "mlflow"

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        super().__init__()

    def open(self, experiment: Experiment, path: Path, id: str) -> None:
        """Find the run by its tag, or create it."""
        mlflow = importlib.import_module("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with _one_at_a_time(mlflow.get_tracking_uri()):
            self._client = mlflow.MlflowClient()
            place = self._experiment_id()
        known = self._client.search_runs([place], f"tags.`{IDENTITY}` = '{id}'", max_results=1)
        tags = {IDENTITY: id, "mlflow.source.name": "fullrank", "fullrank.version": __version__, **labels(experiment)}
        run = known[0] if known else self._client.create_run(place, tags=tags, run_name=path.absolute().name)
        self._run: str = run.info.run_id
        self._known: dict[str, set[int]] = {}
        self._uncertain = False
        if known:
            self._client.update_run(self._run, status="RUNNING")
            if "failure" in run.data.tags:
                self._client.delete_tag(self._run, "failure")
            self._compare()
        self._log_settings(experiment, run.data.params)

    def send(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a round; MLflow has no histograms."""
        self._log(scalars(row), row["round"])

    def send_warnings(self, texts: list[str]) -> None:
        """Store all warnings as a text file of the run."""
        self._client.log_text(self._run, "".join(f"{text}\n" for text in texts), "warnings.txt")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the summary and mark the run as finished."""
        self._compare()  # a run that was complete already has its summary
        self._log(results(summary), summary["rounds"])
        self._client.set_terminated(self._run, "FINISHED")

    def give_up(self, error: BaseException, reason: str) -> None:
        """Send the reason and mark the run as failed or, after a signal, as killed."""
        self._client.set_tag(self._run, "failure", reason[:LONGEST_VALUE])
        self._client.set_terminated(self._run, "KILLED" if isinstance(error, Interrupted) else "FAILED")

    def _experiment_id(self) -> str:
        if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return given
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def _compare(self) -> None:
        """Note for each metric the steps of which the store has a value."""
        history = self._client.get_metric_history
        names = self._client.get_run(self._run).data.metrics
        self._known = {key: {metric.step for metric in history(self._run, key)} for key in names}

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        if self._uncertain:
            self._compare()
        self._uncertain = True  # until it has succeeded: an error may come after the values have arrived
        now = round(time.time() * 1000)
        metrics = [
            self._entities.Metric(_key(name), value, now, step)
            for name, value in numbers.items()
            if step not in self._known.get(_key(name), ())
        ]
        self._client.log_batch(self._run, metrics=metrics)
        self._uncertain = False

    def _log_settings(self, experiment: Experiment, known: Mapping[str, str]) -> None:
        """Send the keys of the experiment. Parameters cannot change, so a key of a resumed run that does is a tag."""
        shown = {_key(key): str(value)[:LONGEST_VALUE] for key, value in settings(experiment).items()}
        new = [self._entities.Param(key, value) for key, value in shown.items() if key not in known]
        changed = {key: value for key, value in shown.items() if key in known and known[key] != value}
        for start in range(0, len(new), MOST):
            self._client.log_batch(self._run, params=new[start : start + MOST])
        for key, value in changed.items():
            self._client.set_tag(self._run, f"resumed.{key}", value)


@contextlib.contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """Hold a lock of this machine: processes that create the same local database at the same time would damage it."""
    name = hashlib.sha256(f"{Path.home()} {uri}".encode()).hexdigest()[:16]
    with filelock.FileLock(Path(tempfile.gettempdir()) / f"fullrank-mlflow-{name}.lock", timeout=WAIT):
        yield


def _key(name: str) -> str:
    """Return a name in the characters that MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)[:250]
