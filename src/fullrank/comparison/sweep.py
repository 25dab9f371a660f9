"""Sweeps: a search for the settings of an experiment that are best on validation data."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank._version import __version__
from fullrank.comparison.board import boards
from fullrank.comparison.compare import checked_seeds, sharing_cores
from fullrank.comparison.intervals import std
from fullrank.comparison.measured import check_measure, check_value
from fullrank.comparison.on_ray import place_of
from fullrank.comparison.parallel import ComparisonCallback, ComparisonCallbacks, Failure, Place, Task, run_all
from fullrank.comparison.planned import FILE, PlanRecord
from fullrank.comparison.space import Space, experiment_at, grid_of, make_space
from fullrank.comparison.study import PRUNERS, SAMPLERS, Study
from fullrank.comparison.table import Comparison
from fullrank.config.experiment import Experiment
from fullrank.engine.machine import cores
from fullrank.engine.resolve import runs_at_once
from fullrank.errors import InputError, Interrupted, RunFailed, nearest
from fullrank.files import read_json, writable, write_atomically, write_json
from fullrank.local import interrupt
from fullrank.metrics.registry import find_metrics
from fullrank.runs.callbacks import check_callbacks
from fullrank.runs.directory import RunDirectory
from fullrank.runs.pruning import MARK, Pruner, limits_file
from fullrank.runs.result import Run, load_run
from fullrank.runs.summary import measures as metrics_by_key

VALIDATION = "validation_"
TRIALS = 20
"""The number of trials by default, unless the sampler is a grid."""
BEFORE_PRUNING = 3
"""The number of complete trials from which on further ones are pruned."""
PRUNER = f"{Pruner.__module__}:{Pruner.__qualname__}"


@dataclass(frozen=True)
class Trial:
    """One point of a sweep: its settings, and the measure over the seeds.

    `state` is "complete", "pruned", "failed" or, until all of its runs have ended, "running".
    """

    number: int
    settings: dict[str, Any]
    state: str = "running"
    values: dict[int, float] = dataclasses.field(default_factory=dict)
    """The measure by seed."""
    mean: float | None = None
    std: float | None = None
    reason: str = ""
    """Why the trial was pruned or has failed."""

    def path(self, folder: Path, seed: int) -> Path:
        """Return the run directory of a seed."""
        return folder / "trials" / f"{self.number:03d}-seed{seed}"


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep.

    `trials` are in the order in which they were chosen. `test` has, for the best trial only, the measures of the test
    set by name, each with its values by seed, mean and standard deviation.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp", "data.validation": 0.2}
    >>> found = fullrank.sweep(few, {"train.lr": [0.01, 0.1]}, sampler="grid", out=tempfile.mkdtemp(), jobs=1)
    >>> [trial.state for trial in found.trials], found.best is found.trials[found.best.number]
    (['complete', 'complete'], True)
    """

    path: Path
    measure: str
    value: str
    lower_is_better: bool
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    test: dict[str, dict[str, Any]]
    test_value: str
    """The value of a run that `test` has: "validated" is that of the round with the best validation score."""
    is_share: bool = False

    @property
    def best(self) -> Trial:
        """The complete trial with the best mean of the measure; of equal ones the first."""
        return _best(self.trials, self.lower_is_better)

    @property
    def experiment(self) -> Experiment:
        """The experiment with the best settings, as in best.toml."""
        return Experiment.from_toml(self.path / "best.toml")

    def __repr__(self) -> str:
        """Describe the result in one line."""
        found = ", ".join(f"{key}={value}" for key, value in self.best.settings.items())
        return f"Sweep({len(self.trials)} trials, best {found}, {self.measure} {self.best.mean:.4f}, {self.path})"

    def table(self) -> list[dict[str, Any]]:
        """Return the trials as plain data, the best first; those without a result last."""
        sign = 1 if self.lower_is_better else -1
        order = sorted(self.trials, key=lambda trial: (trial.state != "complete", sign * (trial.mean or 0.0)))
        return [dataclasses.asdict(trial) for trial in order]


def sweep(
    experiment: Experiment | str | Path | Mapping[str, Any],
    over: Mapping[str, Any],
    trials: int | None = None,
    *,
    sampler: str = "tpe",
    pruner: str = "none",
    measure: str = "validation_accuracy",
    value: str = "best",
    seeds: Sequence[int] = (0,),
    out: str | Path,
    jobs: int = 0,
    ray: str = "",
    callbacks: Sequence[ComparisonCallback] = (),
    progress: bool | None = None,
) -> Sweep:
    """Search for the settings of an experiment that are best on validation data.

    All trials have the same seeds, data and splits. They are compared by a measure of the validation set; test scores
    are read for the best trial only, after it was chosen. Every run is an ordinary run directory in `out`/trials. The
    same call again completes what is missing, with the same trials, and with a larger `trials` adds further ones. The
    failed runs of earlier calls are repeated once by each call. It needs Optuna: `pip install 'fullrank[sweep]'`.

    Args:
        experiment: An Experiment, the path of a TOML file, or a dict with nested or dotted keys. It needs a validation
            set (`data.validation`).
        over: What to search, by dotted key: a list of values, a range (low, high) or (low, high, "log"), or the text of
            either, as in "0.01,0.1" and "0.01:1:log".
        trials: The number of trials. By default all points of a grid, or 20.
        sampler: "grid" (all combinations, in their order), "random", or "tpe" (Optuna's tree-structured Parzen
            estimator).
        pruner: "none", or "median": a run is stopped after a round if its best value so far is worse than the median of
            the earlier trials with the same seed in this round.
        measure: The measure by which trials are compared; its name starts with "validation_".
        value: The value of a run: "best" (over rounds), "last5", "last" or "final".
        seeds: The seeds of every trial; trials are compared by their mean.
        out: The folder of the sweep.
        jobs: The number of parallel runs, each in its own process. 0 means one per core, or one run at a time if a run
            has a GPU or worker processes. With `ray`, as many as the cluster has room for.
        ray: The address of a Ray cluster on whose nodes the runs are made, "host:port" or "auto" (the cluster of which
            this machine is a node). All nodes must share the folder `out`.
        callbacks: Objects that are notified of the progress of the runs.
        progress: Whether the progress of the runs is shown. None shows it in a notebook only.

    Returns:
        The trials, and the test scores of the best one. `best.toml` in the folder is its experiment.

    Raises:
        InputError: If the experiment, a key to search or the folder is rejected.
        RunFailed: If no trial is complete.
        Interrupted: If the sweep is interrupted; the same call continues it.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp", "data.validation": 0.2}
    >>> found = fullrank.sweep(few, {"train.lr": [0.01, 0.1]}, sampler="grid", out=tempfile.mkdtemp(), jobs=1)
    >>> len(found.trials), found.best.settings["train.lr"] in (0.01, 0.1)
    (2, True)
    """
    check_callbacks(callbacks, ComparisonCallback)
    base = Experiment.of(experiment)
    _check_choice("sampler", sampler, SAMPLERS)
    _check_choice("pruner", pruner, PRUNERS)
    lower, is_share = _check_measure(measure, value, base)
    if jobs < 0:
        raise InputError(f"jobs = {jobs}: must be at least 0 (one per core)")
    space, found_seeds = make_space(over, base), tuple(checked_seeds(seeds))
    points = grid_of(space) if sampler == "grid" else None
    number = _number_of_trials(trials, points)
    folder = Path(out)
    watching = ComparisonCallbacks([PlanRecord(folder), *boards(progress), *callbacks])
    existed = folder.exists()
    with place_of(ray) as place:
        chosen = (measure, value, lower, is_share, sampler, pruner, points, jobs, place)
        plan = _Plan(base, space, folder, found_seeds, *chosen)
        plan.open()
        try:
            return _complete(plan, number, _OfTrials(watching))
        except (InputError, RunFailed):
            if not any(RunDirectory(path).started for path in (folder / "trials").glob("*-seed*")):
                plan.remove_traces(existed)
            raise


def _check_choice(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InputError(f'there is no {what} "{name}"; {nearest(name, known)}')


def _check_measure(measure: str, value: str, base: Experiment) -> tuple[bool, bool]:
    """Return whether lower values of a measure are better, and whether it is a share."""
    check_value(value)
    if not measure.startswith(VALIDATION):
        raise InputError(
            f'settings are chosen on validation data, never on the test set, so "{measure}" cannot be the measure of a '
            'sweep; take "validation_accuracy" or another measure that starts with "validation_"'
        )
    check_measure(measure, base)
    if not base.data.validation:
        raise InputError(
            "a sweep chooses settings on validation data, and this experiment has none; set data.validation, as in "
            "data.validation=0.1"
        )
    metric = metrics_by_key(find_metrics(base.evaluate.metrics))[measure]
    return metric.lower_is_better, metric.is_share


def _number_of_trials(trials: int | None, points: Sequence[Any] | None) -> int:
    if trials is None:
        return TRIALS if points is None else len(points)
    if isinstance(trials, bool) or trials < 1:
        raise InputError(f"trials = {trials}: must be at least 1")
    return trials if points is None else min(trials, len(points))


@dataclass(frozen=True)
class _Plan:
    """The arguments of a sweep, after their checks."""

    base: Experiment
    space: Space
    folder: Path
    seeds: tuple[int, ...]
    measure: str
    value: str
    lower_is_better: bool
    is_share: bool
    sampler: str
    pruner: str
    points: list[dict[str, Any]] | None
    jobs: int
    place: Place | None = None
    """Where the runs are made, if not on this machine."""

    @property
    def record(self) -> Path:
        """The file with the settings of the sweep and its trials."""
        return self.folder / "sweep.json"

    @property
    def at_once(self) -> int:
        """The number of parallel runs."""
        if self.place is not None:
            return self.jobs or self.place.room([self.task(Trial(0, {}), self.seeds[0])])
        return self.jobs or runs_at_once(self.base.engine, cores())

    @property
    def uses_history(self) -> bool:
        """Whether a trial depends on the results of earlier ones."""
        return self.sampler == "tpe" or self.pruner != "none"

    def identity(self) -> dict[str, Any]:
        """Return what must be equal when a sweep is continued."""
        return {
            "experiment": self.base.but(seed=0).hash(),
            "rounds": self.base.train.rounds,
            "over": {key: dimension.facts() for key, dimension in self.space.items()},
            "sampler": self.sampler,
            "pruner": self.pruner,
            "measure": self.measure,
            "value": self.value,
            "seeds": list(self.seeds),
        }

    def open(self) -> None:
        """Create the folder and its record; the folder of another sweep, or of a run, is rejected."""
        if RunDirectory(self.folder).started or (self.folder / "comparison.json").exists():
            raise InputError(f'"{self.folder}" holds runs of another kind; choose another directory for the sweep')
        if "?" in str(self.folder):
            raise InputError(f'the folder of a sweep must not have a question mark in its name, as "{self.folder}" has')
        if not self.record.exists():
            with _naming_folder(self.folder):
                (self.folder / "trials" / "limits").mkdir(parents=True, exist_ok=True)
                batch = max(1, math.ceil(self.at_once / len(self.seeds)))
                write_json(self.record, {"sweep": writable(self.identity()), "batch": batch})
            return
        known = read_json(self.record).get("sweep", {})
        now = json.loads(json.dumps(writable(self.identity())))
        different = [key for key in now if known.get(key) != now[key]]
        if different:
            shown = "; ".join(
                "the experiment differs" if key == "experiment" else f"{key} was {known.get(key)}, is now {now[key]}"
                for key in different
            )
            raise InputError(f'"{self.folder}" holds another sweep: {shown}; choose another --out')

    def remove_traces(self, existed: bool) -> None:
        """Remove the files of a sweep of which no run has started."""
        for file in ("sweep.json", "optuna.db", FILE):
            (self.folder / file).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "trials", ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def batches(self, number: int) -> list[range]:
        """Return the trials that are run together, none of which depends on another of them."""
        size = read_json(self.record)["batch"] if self.uses_history else number
        return [range(start, min(start + size, number)) for start in range(0, number, size)]

    def task(self, trial: Trial, seed: int) -> Task:
        """Return the run of a trial with a seed."""
        experiment = experiment_at(self.base, {**trial.settings, "seed": seed})
        if self.pruner != "none":
            experiment = experiment.but(run={"track": [*experiment.run.track, PRUNER]})
        return Task(f"trial {trial.number} seed {seed}", experiment, trial.path(self.folder, seed))


@contextlib.contextmanager
def _naming_folder(folder: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise InputError(f'"{folder}" cannot be written: {error.strerror or error}') from None


class _OfTrials(ComparisonCallback):
    """Passes events on to callbacks without test scores, and pruned runs as stopped ones."""

    def __init__(self, callbacks: ComparisonCallback):
        self.callbacks = callbacks

    def planned(self, tasks: Sequence[Task], pending: Sequence[Task]) -> None:
        self.callbacks.planned(tasks, pending)

    def started(self, task: Task) -> None:
        self.callbacks.started(task)

    def round_done(self, task: Task, row: Mapping[str, Any]) -> None:
        self.callbacks.round_done(task, _without_test(row))

    def progressed(self, task: Task, phase: str, done: int, clients: int) -> None:
        self.callbacks.progressed(task, phase, done, clients)

    def printed(self, task: Task, text: str) -> None:
        self.callbacks.printed(task, text)

    def ended(self, task: Task, summary: Mapping[str, Any]) -> None:
        self.callbacks.ended(task, _without_test(summary))

    def failed(self, task: Task, reason: str) -> None:
        if (task.path / MARK).exists():
            self.callbacks.stopped(task, f"pruned {_why_pruned(task.path)}")
        else:
            self.callbacks.failed(task, reason)


def _without_test(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row or a summary without the scores of the test set."""
    measured = [key.removeprefix(VALIDATION) for key in scores if key.startswith(VALIDATION)]
    return {key: value for key, value in scores.items() if key not in measured}


# Running the trials


def _complete(plan: _Plan, number: int, callbacks: ComparisonCallback) -> Sweep:
    study = Study(plan.folder / "optuna.db", plan.space, plan.sampler, plan.lower_is_better, plan.seeds[0])
    try:
        trials = _known(plan, study)
        _announce(plan, trials, number, callbacks)
        try:
            with interrupt.guard():
                for batch in plan.batches(max(number, len(trials))):
                    _run_batch(plan, study, batch, trials, callbacks)
        except Interrupted:
            done = sum(trial.state != "running" for trial in trials)
            raise Interrupted(
                f"stopped; {done} of {number} trials have ended and the rounds of the others are saved in "
                f'"{plan.folder}"; the same command continues from there'
            ) from None
        return _chosen(plan, trials)
    finally:
        study.close()


def _known(plan: _Plan, study: Study) -> list[Trial]:
    """Return the trials of earlier calls, with the results of their runs; failed ones are run again."""
    return [_ended(plan, Trial(n, settings), study.state(n)) for n, settings in enumerate(study.settings())]


def _announce(plan: _Plan, trials: Sequence[Trial], number: int, callbacks: ComparisonCallback) -> None:
    """Notify callbacks of all runs; the settings of trials that are yet to be chosen are those of the experiment."""
    known = {trial.number: trial for trial in trials}
    tasks, pending = [], []
    for n in range(max(number, len(trials))):
        trial = known.get(n, Trial(n, {}))
        own = [plan.task(trial, seed) for seed in plan.seeds]
        tasks += own
        pending += own if trial.state == "running" else []
    callbacks.planned(tasks, pending)


def _run_batch(plan: _Plan, study: Study, batch: range, trials: list[Trial], callbacks: ComparisonCallback) -> None:
    for n in batch:
        if n == len(trials):
            settings = plan.points[n] if plan.points is not None else study.suggest(n, before=batch.start)
            study.add(settings)
            trials.append(Trial(n, settings))
    running = [trials[n] for n in batch if trials[n].state == "running"]
    if not running:
        return
    _write_limits(plan, trials[: batch.start], running)
    tasks = [plan.task(trial, seed) for trial in running for seed in plan.seeds]
    pending = [task for task in tasks if not _has_ended(task)]
    at_once = min(plan.at_once, len(pending))
    started = any(RunDirectory(trial.path(plan.folder, plan.seeds[0])).started for trial in trials)
    several = sharing_cores(pending, at_once, plan.place)
    failures = run_all(several, at_once, callbacks, started, plan.place)
    for trial in running:
        ended = _with_results(plan, trial, failures)
        trials[trial.number] = ended
        study.tell(ended.number, ended.state, ended.mean, _course(plan, ended))
    _write_record(plan, trials)


def _has_ended(task: Task) -> bool:
    if (task.path / MARK).exists():
        return True
    return RunDirectory(task.path).started and (task.path / "summary.json").exists()


def _with_results(plan: _Plan, trial: Trial, failures: Mapping[Path, Failure]) -> Trial:
    """Return a trial with its state and values, after its runs have ended."""
    paths = {seed: trial.path(plan.folder, seed) for seed in plan.seeds}
    pruned = [path for path in paths.values() if (path / MARK).exists()]
    failed = [failures[path].reason for path in paths.values() if path in failures and path not in pruned]
    if failed:
        return dataclasses.replace(trial, state="failed", reason=failed[0])
    if pruned:
        return dataclasses.replace(trial, state="pruned", reason=_why_pruned(pruned[0]))
    runs = {("trial", seed): load_run(path, trust=True) for seed, path in paths.items()}
    try:
        row = Comparison(runs, plan.measure, plan.value).rows()[0]
    except InputError as problem:
        return dataclasses.replace(trial, state="failed", reason=str(problem))
    if row.mean is None or not math.isfinite(row.mean) or row.absent:
        reason = next(iter(row.absent.values()), f"its {plan.measure} is not finite")
        return dataclasses.replace(trial, state="failed", reason=reason)
    return dataclasses.replace(trial, state="complete", values=row.values, mean=row.mean, std=row.std)


def _why_pruned(path: Path) -> str:
    """Return after which round a run was pruned, and why."""
    mark = read_json(path / MARK)
    return (
        f"after round {mark['round']}: its best value so far is {mark['best']:.4g}, and in this round the median of "
        f"earlier trials was {mark['limit']:.4g}"
    )


def _ended(plan: _Plan, trial: Trial, state: str) -> Trial:
    """Return a trial of an earlier call as it ended then; one that had not ended, or failed, is running."""
    return trial if state in ("running", "failed") else _with_results(plan, trial, {})


def _course(plan: _Plan, trial: Trial) -> dict[int, float]:
    """Return the mean of the measure over seeds by round, for the rounds that all runs of a trial have."""
    by_seed = [_values_by_round(plan, trial, seed) for seed in plan.seeds]
    shared = [n for n in by_seed[0] if all(n in values for values in by_seed)]
    return {n: statistics.fmean(values[n] for values in by_seed) for n in shared}


def _values_by_round(plan: _Plan, trial: Trial, seed: int) -> dict[int, float]:
    path = trial.path(plan.folder, seed)
    if not RunDirectory(path).started:
        return {}
    rows = load_run(path, trust=True).metrics
    return {row["round"]: row[plan.measure] for row in rows if math.isfinite(row.get(plan.measure, math.nan))}


def _write_limits(plan: _Plan, earlier: Sequence[Trial], running: Sequence[Trial]) -> None:
    """Write the limits below which runs are pruned: by round, the medians of the earlier trials with the same seed."""
    complete = [trial for trial in earlier if trial.state == "complete"]
    if plan.pruner == "none" or len(complete) < BEFORE_PRUNING:
        return
    for seed in plan.seeds:
        courses = [_values_by_round(plan, trial, seed) for trial in complete]
        rounds = sorted({n for course in courses for n in course})
        limits = {str(n): statistics.median(course[n] for course in courses if n in course) for n in rounds}
        facts = {"measure": plan.measure, "lower_is_better": plan.lower_is_better, "limits": limits}
        for trial in running:
            write_json(limits_file(trial.path(plan.folder, seed)), facts)


# The result


def _best(trials: Sequence[Trial], lower_is_better: bool) -> Trial:
    complete = [trial for trial in trials if trial.state == "complete" and trial.mean is not None]
    return min(complete, key=lambda trial: (trial.mean or 0.0) * (1 if lower_is_better else -1))


def _chosen(plan: _Plan, trials: Sequence[Trial]) -> Sweep:
    """Choose the best trial, and only then read its test scores."""
    if not any(trial.state == "complete" for trial in trials):
        reasons = [trial.reason for trial in trials if trial.state == "failed"]
        raise RunFailed(f"no trial of the sweep is complete: trial 0: {reasons[0] if reasons else 'pruned'}")
    best = _best(trials, plan.lower_is_better)
    runs = {seed: load_run(best.path(plan.folder, seed), trust=True) for seed in plan.seeds}
    test_value = "validated" if plan.value == "best" else plan.value
    test = {name: found for name in _test_measures(plan) if (found := _test(runs, name, test_value))}
    text = experiment_at(plan.base, {**best.settings, "seed": plan.seeds[0]}).as_toml()
    write_atomically(plan.folder / "best.toml", text.encode())
    result = Sweep(
        plan.folder,
        plan.measure,
        plan.value,
        plan.lower_is_better,
        plan.seeds,
        tuple(trials),
        test,
        test_value,
        plan.is_share,
    )
    _write_record(plan, trials, {"best": best.number, "test": test, "test_value": test_value})
    return result


def _test_measures(plan: _Plan) -> list[str]:
    return list(dict.fromkeys(["accuracy", plan.measure.removeprefix(VALIDATION)]))


def _test(runs: Mapping[int, Run], measure: str, value: str) -> dict[str, Any]:
    """Return a measure of the test set by seed, with mean and standard deviation; nothing if the runs have none."""
    try:
        row = Comparison({("best", seed): run for seed, run in runs.items()}, measure, value).rows()[0]
    except InputError:
        return {}
    if row.mean is None:
        return {}
    return {"values": row.values, "mean": row.mean, "std": std(list(row.values.values()))}


def _write_record(plan: _Plan, trials: Sequence[Trial], chosen: Mapping[str, Any] | None = None) -> None:
    listed = [
        {
            **dataclasses.asdict(trial),
            "runs": [str(trial.path(plan.folder, seed).relative_to(plan.folder)) for seed in plan.seeds],
        }
        for trial in trials
    ]
    known = read_json(plan.record)
    facts = {"sweep": known["sweep"], "batch": known["batch"], "trials": listed, **(chosen or {})}
    write_json(plan.record, writable({**facts, "fullrank": __version__}))
