"""The runs of a comparison: finding them in directories, and the check that they can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fullrank.comparison.variants import data_of, row_labels
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.plugins import FILES, GIVEN
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.pruning import MARK
from fullrank.runs.result import Run, load_run


def all_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Return the runs in directories and folders, each once."""
    return list({path_of(run): run for path in paths for run in runs_in(Path(path))}.values())


def runs_in(path: Path) -> list[Run]:
    """Load the runs of a directory.

    Args:
        path: A run directory, or a folder of run directories. Runs in its subfolders come after its own, in the order
            of the folders' names.

    Returns:
        The runs by method (in the order of the comparison) and seed.

    Raises:
        InputError: If there is no run.
    """
    if RunDirectory(path).started or not path.is_dir():
        return [load_run(path)]
    folders = [inner for inner in sorted(path.iterdir()) if not RunDirectory(inner).started]
    found = [*_runs_directly_in(path), *(run for folder in folders for run in _runs_directly_in(folder))]
    if not found:
        raise InputError(f'"{path}" is not a run directory and holds none')
    return found


def _runs_directly_in(path: Path) -> list[Run]:
    started = [inner for inner in path.iterdir() if RunDirectory(inner).started] if path.is_dir() else []
    inside = [load_run(inner) for inner in started if not (inner / MARK).exists()]  # those that a sweep has not pruned
    labels = dict(zip(map(path_of, inside), row_labels([run.experiment for run in inside]), strict=True))
    record = path / "comparison.json"
    order = [*(read_json(record)["methods"] if record.exists() else []), *sorted(labels.values())]
    return sorted(inside, key=lambda run: (order.index(labels[path_of(run)]), run.experiment.seed, path_of(run).name))


def path_of(run: Run) -> Path:
    """Return the directory of a run that was read from one."""
    assert run.path is not None
    return run.path


def division_of(run: Run) -> Any:
    """Return what a run recorded of its data and of their division among clients."""
    return read_json(path_of(run) / "partition.json")


def check_comparable(runs: Sequence[Run]) -> None:
    """Check that runs with the same keys of [data] have the same data and, with the same seed, the same partition.

    Args:
        runs: The runs.

    Raises:
        InputError: If two of them differ.
    """
    first_of: dict[Any, Run] = {}
    for run in runs:
        data = data_of(run.experiment)
        _check_data(first_of.setdefault(data, run), run, same_seed=False)
        _check_data(first_of.setdefault((data, run.experiment.seed), run), run, same_seed=True)


def _check_data(first: Run, run: Run, *, same_seed: bool) -> None:
    if run is first:
        return
    one, two = division_of(first), division_of(run)
    if same_seed or not _split_by_seed(run.experiment):
        prints = one["data"]["fingerprint"], two["data"]["fingerprint"]
        if prints[0] != prints[1]:
            raise InputError(f"{_both(first, run)}: their data differ (fingerprint {_shortened(*prints)})")
    if same_seed and one["hash"] != two["hash"]:
        hashes = _shortened(one["hash"], two["hash"])
        raise InputError(f"{_both(first, run)}: their clients have other samples (partition hash {hashes})")


def _split_by_seed(experiment: Experiment) -> bool:
    """Return whether the split into training and test data may depend on the seed."""
    name = experiment.data.name
    return name in (GIVEN, "npz") or name.endswith(FILES["data.name"]) or ":" in name


def _both(first: Run, run: Run) -> str:
    return f'"{first.path}" and "{run.path}" cannot be compared'


def _shortened(one: str, two: str) -> str:
    return f"{one[:12]}… and {two[:12]}…"
