"""The state of a run, or of a folder of runs, as one object that the terminal and the page show."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fullrank.comparison.planned import planned_runs
from fullrank.config.experiment import Experiment, Recorded
from fullrank.errors import InputError, message_of
from fullrank.report.watch.rows import Rows, newest_and_best, thinned, without_test
from fullrank.runs.directory import RunDirectory
from fullrank.runs.display import setting
from fullrank.runs.pruning import MARK

WAITING, RUNNING, STOPPED = "waiting", "running", "stopped"
COMPLETE, FAILED, PRUNED = "complete", "failed", "pruned"
ENDED = (COMPLETE, FAILED, PRUNED)
"""The states after which nothing more comes of a run, unless its command is given again."""
WARNINGS = 20
"""The number of last warnings of a run that are shown."""
POINTS = 300
"""The largest number of points of a curve."""
SMALL = 40
"""The largest number of points of the curve of a run among several."""
DEPTH = 2
"""How many folders below the one that is followed may contain run directories."""
TAIL = 65536
"""The number of bytes at the end of a log that are searched for the reason of a failure."""


@dataclass
class RunState:
    """The state of a run at the moment."""

    name: str
    title: str = ""
    """Method, data, partition and network in a few words."""
    state: str = WAITING
    reason: str = ""
    """Why the run failed, was stopped or was pruned; empty otherwise."""
    rounds: int = 0
    done: int = 0
    phase: str = ""
    """The step after the last round, with the number of clients so far."""
    pace: float | None = None
    """Seconds per round."""
    left: float | None = None
    """The estimated seconds until the last round; None if that is not known."""
    changed: float = 0.0
    """When the last round was written, in seconds since 1970; 0 before the first."""
    measures: list[dict[str, Any]] = field(default_factory=list)
    """Newest and best value of each measure, as texts."""
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    skipped: int = 0
    """How often a client was left out of a round."""
    warnings: list[str] = field(default_factory=list)
    """The last warnings."""
    warned: int = 0
    """The number of all warnings."""


@dataclass
class Snapshot:
    """A run, or all runs in a folder, at the moment."""

    name: str
    several: bool
    """Whether it is a folder of runs, such as that of a comparison."""
    state: str
    left: float | None
    runs: list[RunState]
    time: float

    def as_json(self, selected: int | None = None) -> dict[str, Any]:
        """Return the snapshot for a page or a program; of several runs, only that selected has its whole curves."""
        found = dataclasses.asdict(self)
        for place, run in enumerate(found["runs"]):
            if self.several and place != selected:
                first = next(iter(run["curves"]), None)
                run["curves"] = {first: thinned(run["curves"][first], SMALL)} if first else {}
                run["warnings"] = run["warnings"][-1:]
        return found


class RunFollower:
    """Reads the state of one run from its directory again and again.

    Args:
        path: The run directory, which need not exist yet.
        name: The name of the run; by default that of the directory.
        in_sweep: Whether the run is a trial of a sweep, whose test scores are not shown.
    """

    def __init__(self, path: Path, name: str = "", in_sweep: bool = False):
        self._path, self._name, self._in_sweep = path, name or path.absolute().name, in_sweep
        self._rows = Rows(path / "metrics.jsonl")
        self._experiment: Experiment | None = None
        self._read: tuple[int, int] = (0, 0)
        self._problem = ""
        """Why experiment.toml cannot be read."""

    def state(self, planned: int = 0, failure: str = "") -> RunState:
        """Return the state of the run.

        Args:
            planned: The number of its rounds, if it is known before the run starts.
            failure: Why the comparison says that the run has failed.
        """
        found = RunState(self._name, rounds=planned)
        in_use = RunDirectory(self._path).in_use  # first: a run that ends meanwhile has written its result
        self._read_experiment()
        self._rows.update()
        if self._experiment is None:
            found.state = FAILED if failure else STOPPED if self._problem else WAITING
            found.reason = failure or self._problem or ("starting" if in_use else "no run has started here yet")
            return found
        rows = self._rows
        found.title = f"{self._experiment.method_label} on {setting(self._experiment)}, seed {self._experiment.seed}"
        found.rounds = self._experiment.train.rounds
        found.done, found.pace, found.changed = rows.done, rows.pace, rows.changed
        found.state, found.reason = self._state(in_use, failure)
        if found.state == RUNNING:
            found.left = rows.pace * (found.rounds - found.done) if rows.pace is not None else None
            found.phase = self._phase(found)
        self._add_measures(found)
        return found

    def _add_measures(self, found: RunState) -> None:
        rows = self._rows
        keys = without_test(rows.measured()) if self._in_sweep else rows.measured()
        found.measures = [facts for key in keys if (facts := newest_and_best(rows, key)) is not None]
        found.curves = {key: thinned(rows.course(key), POINTS) for key in keys}
        found.skipped = sum(row.skipped for row in rows.rows)
        warnings = list(dict.fromkeys(text for row in rows.rows for text in row.warnings))
        warnings += [f"line {number} of metrics.jsonl cannot be read" for number in rows.damaged]
        found.warnings, found.warned = warnings[-WARNINGS:], len(warnings)

    def _read_experiment(self) -> None:
        """Read experiment.toml if it has changed, as when a run is continued with more rounds."""
        file = self._path / "experiment.toml"
        try:
            facts = file.stat()
            if (facts.st_ino, facts.st_mtime_ns) == self._read:
                return
            self._experiment = Recorded.by(self._path)
            self._read = (facts.st_ino, facts.st_mtime_ns)
            self._problem = ""
        except FileNotFoundError:
            self._experiment, self._read, self._problem = None, (0, 0), ""
        except (InputError, OSError) as error:
            self._experiment, self._read, self._problem = None, (0, 0), message_of(error)

    def _state(self, in_use: bool, failure: str) -> tuple[str, str]:
        assert self._experiment is not None
        if in_use:
            return RUNNING, ""
        if _result_rounds(self._path) == self._rows.done == self._experiment.train.rounds:
            return COMPLETE, ""
        if mark := _json(self._path / MARK):
            return PRUNED, f"pruned after round {mark.get('round')}, because other trials are better"
        said = _last_words(self._path / "log.txt")
        if said == "by a signal":
            return STOPPED, "stopped by a signal"
        if said or failure:
            return FAILED, said or failure
        return STOPPED, "no process on this machine is running it"

    def _phase(self, found: RunState) -> str:
        """Return what the run does after its last round."""
        if found.done < found.rounds or not found.rounds:
            return ""
        try:
            lines = (self._path / "ending.jsonl").read_bytes().count(b'"client":')
        except OSError:
            lines = 0
        return f"evaluating the clients' own models ({lines} so far)" if lines else "after the last round"


class Follower:
    """Follows what lies in a directory: one run, or the runs of a comparison, a sweep or a reproduction.

    Args:
        path: The directory, which need not exist yet.
    """

    def __init__(self, path: Path):
        self._path = path
        self._runs: dict[Path, RunFollower] = {}

    def snapshot(self) -> Snapshot:
        """Return the state of the run, or of all runs in the folder."""
        planned = planned_runs(self._path)
        if planned is not None:
            folder = {self._path / run["path"]: (run["name"], run["rounds"], run["failed"]) for run in planned}
            inside = {path: facts for path, facts in folder.items() if _is_below(path, self._path)}
        elif RunDirectory(self._path).started:
            inside = {}
        else:
            inside = {path: (_relative(path, self._path), 0, "") for path in sorted(_runs_below(self._path, DEPTH))}
        if not inside:
            states = [self._follower(self._path, "").state()]
        else:
            states = [self._follower(path, name).state(rounds, why) for path, (name, rounds, why) in inside.items()]
        state = _of_all(states)
        name = self._path.absolute().name
        return Snapshot(name, bool(inside), state, _left(states) if state == RUNNING else None, states, time.time())

    def _follower(self, path: Path, name: str) -> RunFollower:
        if path not in self._runs:
            in_sweep = path.parent.name == "trials" and (path.parent.parent / "sweep.json").is_file()
            self._runs[path] = RunFollower(path, name, in_sweep)
        return self._runs[path]


def _of_all(runs: list[RunState]) -> str:
    """Return the state of several runs together."""
    states = {run.state for run in runs}
    if RUNNING in states:
        return RUNNING
    if states <= {*ENDED}:
        return FAILED if FAILED in states else COMPLETE
    return STOPPED if STOPPED in states else WAITING


def _left(runs: list[RunState]) -> float | None:
    """Return the estimated seconds until all runs are complete, if as many are active as are now."""
    if len(runs) == 1:
        return runs[0].left
    paces = [run.pace for run in runs if run.pace is not None]
    if not paces:
        return None
    usual = sum(paces) / len(paces)
    open_runs = [run for run in runs if run.state not in ENDED]
    seconds = sum((run.pace or usual) * max(0, run.rounds - run.done) for run in open_runs)
    return seconds / max(1, sum(run.state == RUNNING for run in runs))


def _runs_below(path: Path, depth: int) -> Iterator[Path]:
    """Yield the run directories in a folder, and in folders of it."""
    try:
        folders = [inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith(".")]
    except OSError:
        return
    for folder in folders:
        if RunDirectory(folder).started:
            yield folder
        elif depth > 1:
            yield from _runs_below(folder, depth - 1)


def _is_below(path: Path, folder: Path) -> bool:
    """Return whether a path that a file names is inside the folder of that file."""
    return ".." not in path.relative_to(folder).parts if path.is_relative_to(folder) else False


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _result_rounds(path: Path) -> int:
    """Return the number of rounds of the result; 0 if there is none."""
    rounds = _json(path / "summary.json").get("rounds", 0)
    return rounds if isinstance(rounds, int) else 0


def _json(file: Path) -> dict[str, Any]:
    """Return the object of a JSON file; empty if there is none, or it cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_words(log: Path) -> str:
    """Return why a run stopped, if its log ends with the reason."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            text = "\n" + file.read().decode("utf-8", errors="replace").rstrip()
    except OSError:
        return ""
    _, found, said = text.rpartition("\nstopped: ")
    again = "\nwriting to " in said  # the run was resumed after it
    return said if found and not again else ""
