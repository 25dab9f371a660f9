"""Checks of what a method leaves on disk: a stopped run resumes exactly, and damage is noticed."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from fullrank.config.experiment import Experiment, merged
from fullrank.errors import InputError
from fullrank.runs.run import execute
from fullrank.testing.results import CheckFailed
from fullrank.testing.trial import Trial


def check_resume(trial: Trial) -> str:
    """Check that a run that is stopped and resumed ends like one that is not, also if clients train as a group."""
    _resumed(trial, trial.experiment(trial.method), "")
    _resumed(trial, trial.experiment(trial.method, trial.in_groups), " where clients train as a group")
    return "holds"


def _resumed(trial: Trial, experiment: Experiment, where: str) -> None:
    short = Experiment(**merged(experiment.model_dump(), {"train": {"rounds": 1}}))
    with tempfile.TemporaryDirectory() as folder:
        for name, stages in (("whole", [experiment]), ("parts", [short, experiment])):
            for stage in stages:
                execute(stage, Path(folder) / name, module=copy.deepcopy(trial.module), method=trial.method)
        whole, parts = (_saved(Path(folder) / name) for name in ("whole", "parts"))
    for file in sorted(whole.keys() | parts.keys()):
        if whole.get(file) != parts.get(file):
            raise CheckFailed(
                f'"{trial.method.name}" stopped after a round and resumed does not end like a run that was never '
                f"stopped{where}: {file} differs; a value that it needs is not in its state"
            )


def check_checksums(trial: Trial) -> str:
    """Check that a flipped bit in the last tensor of any file of a stopped run is noticed when the run continues."""
    experiment = trial.experiment(trial.method)
    short = Experiment(**merged(experiment.model_dump(), {"train": {"rounds": 1}}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        execute(short, path, module=copy.deepcopy(trial.module), method=trial.method)
        for file in sorted(path.glob("checkpoints/*.safetensors")):
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            try:
                execute(experiment, path, module=copy.deepcopy(trial.module), method=trial.method)
            except InputError:
                file.write_bytes(whole)
            else:
                raise CheckFailed(f'"{trial.method.name}" continued a run although {file.name} is damaged')
    return "holds"


def _saved(path: Path) -> dict[str, bytes]:
    tensors = [*path.glob("checkpoints/*.safetensors"), path / "model.safetensors"]
    return {file.name: file.read_bytes() for file in tensors if file.is_file()}
