"""Comparisons of several methods on the same splits over several seeds, which complete the runs that are missing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank import methods as known
from fullrank.comparison.board import boards
from fullrank.comparison.directories import check_comparable
from fullrank.comparison.measured import check_measure, check_value, with_terms
from fullrank.comparison.on_ray import place_of
from fullrank.comparison.parallel import (
    ComparisonCallback,
    ComparisonCallbacks,
    Failure,
    Place,
    Task,
    experiment_file,
    run_all,
)
from fullrank.comparison.planned import FILE, PlanRecord
from fullrank.comparison.table import Comparison
from fullrank.comparison.variants import (
    Variant,
    check_grid,
    parse_variant,
    reference_row,
    row_labels,
    rows_of,
    split_list,
    with_settings,
)
from fullrank.config.experiment import Experiment, nested, read_toml
from fullrank.engine.machine import cores
from fullrank.engine.resolve import alongside_others, runs_at_once
from fullrank.errors import InputError, Interrupted, RunFailed
from fullrank.files import write_json
from fullrank.local import interrupt
from fullrank.runs.callbacks import check_callbacks
from fullrank.runs.directory import RunDirectory
from fullrank.runs.result import load_run
from fullrank.runs.resume import check_resumable
from fullrank.runs.status import Status


def compare(
    experiment: Experiment | str | Path | Mapping[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    *,
    jobs: int = 0,
    ray: str = "",
    measure: str = "accuracy",
    value: str = "last5",
    vary: Mapping[str, Sequence[Any]] | None = None,
    reference: str = "",
    callbacks: Sequence[ComparisonCallback] = (),
    progress: bool | None = None,
) -> Comparison:
    """Run several methods with several seeds on the same splits, and compare their results.

    Each seed draws its own split (unless `data.seed` says otherwise), the same for every method. Every run is an
    ordinary run directory in `out`. The same call again completes the runs that are not complete, and repeats none.

    A run that fails, for example because it diverges, does not stop the others: `failed` of the comparison has its
    reason, by method and seed, and the same call again resumes it from the last round that was saved.

    Args:
        experiment: An Experiment, the path of a TOML file, or a dict with nested or dotted keys.
        methods: The methods, each a name, or a name with its own settings, `NAME:KEY=VALUE:KEY=VALUE…`. A key is a
            hyper-parameter of the method or a dotted key of the experiment, as in "fedprox:mu=0.1:train.lr=0.05".
        seeds: The seeds.
        out: The folder of the runs. Without one it is named after the experiment and the methods.
        jobs: The number of parallel runs, each in its own process. 0 means one per core, or one run at a time if a run
            has a GPU or worker processes. With `ray`, as many as the cluster has room for.
        ray: The address of a Ray cluster on whose nodes the runs are made, "host:port" or "auto" (the cluster of which
            this machine is a node). All nodes must share the folder `out`.
        measure: The measure to compare, for example "accuracy".
        value: The value of a run: "last5", "last", "best", "validated" or "final".
        vary: Values by dotted key, as in {"data.alpha": [0.05, 0.5]}: each method is run with every combination.
            Differences are only between rows on the same data.
        reference: The method, or the row of the table, with which the others are compared. By default the first method.
            A row is compared with the row of the reference that has the same varied keys.
        callbacks: Objects that are notified of the progress of the runs.
        progress: Whether the progress of the runs is shown. None shows it in a notebook only.

    Returns:
        The comparison of the runs that did not fail.

    Raises:
        InputError: If the experiment, a method or a directory is rejected.
        RunFailed: If all runs fail.
        Interrupted: If the comparison is interrupted; the same call continues it.

    >>> import fullrank, tempfile
    >>> few = {"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}
    >>> found = fullrank.compare(few, ["fedavg", "fedprox"], seeds=[0, 1], out=tempfile.mkdtemp(), jobs=1)
    >>> [row["method"] for row in found.table()]
    ['fedavg', 'fedprox']
    """
    check_callbacks(callbacks, ComparisonCallback)
    callbacks = [*boards(progress), *callbacks]
    check_value(value)
    if jobs < 0:
        raise InputError(f"jobs = {jobs}: must be at least 0 (one per core)")
    planned = _planned(experiment, _checked_methods(methods), checked_seeds(seeds), vary or {})
    first = next(iter(planned.values()))
    check_measure(measure, first, with_terms({each.method.name for each in planned.values()}))
    folder = Path(out) if out is not None else _named_after(planned)
    if RunDirectory(folder).started:
        raise InputError(f'"{folder}" is a run itself; a comparison holds several, so choose another directory')
    tasks = {
        (label, seed): Task(f"{label} seed {seed}", e, folder / _directory(name, seed))
        for label, ((name, seed), e) in zip(row_labels(list(planned.values())), planned.items(), strict=True)
    }
    _reject_equal_rows(planned, tasks)
    if reference:
        firsts = {label: task.experiment for (label, _), task in reversed(tasks.items())}
        reference_row(reference, firsts, list(dict.fromkeys(label for label, _ in tasks)))
    existed = folder.exists()
    try:
        watching = ComparisonCallbacks([PlanRecord(folder), *callbacks])
        failures = _complete(list(tasks.values()), jobs, watching, folder, ray)
    except InputError:
        _remove_traces(tasks.values(), folder, existed)
        raise
    failed = {pair: failures[task.path].reason for pair, task in tasks.items() if task.path in failures}
    if len(failed) == len(tasks):
        task = next(iter(tasks.values()))
        others = f"; all {len(tasks)} runs failed" if len(tasks) > 1 else ""
        raise RunFailed(f"{task.name}: {failures[task.path].reason}{others}", failures[task.path].traceback)
    # These runs name only what the user's own experiment names.
    runs = {pair: load_run(task.path, trust=True) for pair, task in tasks.items() if pair not in failed}
    names = tuple(dict.fromkeys(method for method, _ in tasks))
    found = Comparison(runs, measure, value, folder, failed, names, reference)
    write_json(folder / "comparison.json", found.facts())
    return found


def _remove_traces(tasks: Collection[Task], folder: Path, existed: bool) -> None:
    """Remove the files of runs that did not start, and empty folders, after a comparison was rejected."""
    for task in tasks:
        if not RunDirectory(task.path).started:
            experiment_file(task).unlink(missing_ok=True)
    if not any(RunDirectory(task.path).started for task in tasks):
        (folder / FILE).unlink(missing_ok=True)
    for empty in (folder / "experiments", *([] if existed else [folder])):
        with contextlib.suppress(OSError):  # something is in it
            empty.rmdir()


# Planning the runs


def _checked_methods(names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        names = split_list(names)
    found = [":".join("+".join(piece.strip() for piece in part.split("+")) for part in n.split(":")) for n in names]
    if not any(found):
        raise InputError("compare needs methods, as in fedavg,fedavg+feddecorr")
    for index, name in enumerate(found):
        if name in found[:index]:
            raise InputError(f'the method "{name}" is given twice')
    return found


def _reject_equal_rows(planned: Mapping[tuple[str, int], Any], tasks: Mapping[tuple[str, int], Task]) -> None:
    """Reject methods that are written in two ways but have the same settings."""
    if len(planned) == len(tasks):
        return
    kept = {task.path.name for task in tasks.values()}
    name = next(name for name, seed in planned if _directory(name, seed) not in kept)
    raise InputError(f'"{name}" has the same settings as another method of the comparison; give it once')


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """Check the seeds of a comparison.

    Args:
        seeds: The seeds.

    Returns:
        The seeds in a list.

    Raises:
        InputError: If there are none, one is given twice, or one is not a whole number of at least 0.
    """
    found = list(seeds)
    if not found:
        raise InputError("give at least one seed")
    for index, seed in enumerate(found):
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"{seed!r} is not a seed: seeds are whole numbers of at least 0")
        if seed in found[:index]:
            raise InputError(f"the seed {seed} is given twice")
    return found


def _planned(
    source: Experiment | str | Path | Mapping[str, Any],
    names: Sequence[str],
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[Any]] | None = None,
) -> dict[tuple[str, int], Experiment]:
    """Return all experiments by directory and seed, seed by seed, so that rows can be compared as early as possible."""
    if isinstance(source, Experiment):
        values = source.model_dump()
    else:
        values = nested(source) if isinstance(source, Mapping) else read_toml(source)
    variants, grid = [parse_variant(name) for name in names], vary or {}
    check_grid(grid, variants)
    rows = {
        name: with_settings(_with_own_tables(values, variant, variants), variant.values, point)
        for name, (variant, point) in rows_of(grid, variants).items()
    }
    return {(name, seed): Experiment(**{**row, "seed": seed}) for seed in seeds for name, row in rows.items()}


def _with_own_tables(values: Mapping[str, Any], variant: Variant, variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the experiment's values for one method, without the tables of other methods of the user."""
    library = known.available()
    own = {cls.name for cls in variant.parts}
    others = {cls.name for other in variants for cls in other.parts if cls is not library.get(cls.name)} - own
    table = values.get("method", {})
    if not isinstance(table, Mapping):
        return dict(values)  # rejected, with the reason, when the experiment is made
    return {**values, "method": {**{key: v for key, v in table.items() if key not in others}, "name": variant.name}}


def _named_after(planned: Mapping[tuple[str, int], Experiment]) -> Path:
    """Return the default folder of a comparison, which is the same with more seeds or rounds."""
    hashes = {name: experiment.but(seed=0).hash() for (name, _), experiment in planned.items()}
    digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    data = next(iter(planned.values())).data_label
    return Path("runs") / f"compare-{data}-{digest[:8]}"


def _directory(method: str, seed: int) -> str:
    return f"{method.replace(':', '.')}-seed{seed}"


def _complete(
    tasks: Sequence[Task], jobs: int, callbacks: ComparisonCallback, folder: Path, ray: str
) -> dict[Path, Failure]:
    """Complete the runs that are not complete, after a check of all that have started."""
    pending = [task for task in tasks if not is_complete(task)]
    begun = [load_run(task.path) for task in tasks if RunDirectory(task.path).started]
    check_comparable(begun)
    return complete_runs(tasks, pending, jobs, callbacks, folder, bool(begun), ray)


def complete_runs(
    tasks: Sequence[Task],
    pending: Sequence[Task],
    jobs: int,
    callbacks: ComparisonCallback,
    folder: Path,
    begun: bool = False,
    ray: str = "",
) -> dict[Path, Failure]:
    """Complete runs, several at a time if the machine has room.

    Args:
        tasks: All runs.
        pending: Those of them that are not complete.
        jobs: The number of parallel runs; 0 means as many as `at_once` returns.
        callbacks: What is notified of the progress.
        folder: The folder of the runs, which the message names if they are interrupted.
        begun: Whether a run that fails before any has started is one failure among others, as in `run_all`.
        ray: The address of the Ray cluster on which the runs are made; if empty, they are made here.

    Returns:
        The failures by directory.

    Raises:
        Interrupted: If the runs are interrupted; the same call continues them.
    """
    try:
        with interrupt.guard(), place_of(ray if pending else "") as place:
            number = at_once(pending, jobs, place)
            callbacks.planned(tasks, pending)
            return run_all(sharing_cores(pending, number, place), number, callbacks, begun, place)
    except Interrupted:
        done = sum(is_complete(task) for task in tasks)
        raise Interrupted(
            f'stopped; {done} of {len(tasks)} runs are complete and the rounds of the others are saved in "{folder}"; '
            "the same command continues from there"
        ) from None


def at_once(pending: Sequence[Task], jobs: int, place: Place | None = None) -> int:
    """Return the number of runs that are made at the same time.

    Args:
        pending: The runs.
        jobs: The number that the user wants; 0 for as many as there is room for.
        place: Where the runs are made, if not on this machine.
    """
    if place is not None:
        room = place.room(pending)
        return min(jobs or room, len(pending))
    fitting = min((runs_at_once(task.experiment.engine, cores()) for task in pending), default=1)
    return min(jobs or fitting, len(pending))


def sharing_cores(pending: Sequence[Task], number: int, place: Place | None = None) -> list[Task]:
    """Return the tasks for a number of parallel runs. If there are several, or another place, each uses one process."""
    several = number > 1 or place is not None
    return [alongside_others_of(task) for task in pending] if several else list(pending)


def is_complete(task: Task) -> bool:
    """Return whether a run is complete. A run of another experiment is rejected."""
    directory = RunDirectory(task.path)
    if not directory.started:
        return False
    check_resumable(task.experiment.resolved(), directory)
    return directory.status(task.rounds, verify=True) in (Status.COMPLETE, Status.STRIPPED)


def alongside_others_of(task: Task) -> Task:
    """Return the task for a run in parallel with others, each of which uses one process."""
    changes = alongside_others(task.experiment.engine)
    if not changes or RunDirectory(task.path).started:
        return task
    return dataclasses.replace(task, experiment=task.experiment.but(engine=changes))
