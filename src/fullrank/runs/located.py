"""The current paths of the files that a recorded experiment names, because a run can be read from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fullrank.config.experiment import Experiment
from fullrank.data.registry import is_file
from fullrank.plugins import FILES, HUB, is_foreign
from fullrank.runs.starting import KEPT, weights_file


def located(experiment: Experiment, path: Path, facts: Mapping[str, Any], root: str = "") -> Experiment:
    """Return the experiment of a run with the paths, the partition and the device that this process needs.

    Relative paths are resolved from the directory in which the run was started. The partition is the one that the run
    saved. Without a GPU, the experiment is changed to the CPU.

    Args:
        experiment: The recorded experiment.
        path: The run directory.
        facts: The content of its partition.json.
        root: The folder of the data, if the user gave one.
    """
    start = Path(facts.get("working_directory", ""))
    changes: dict[str, Any] = {"data": _data(experiment, start, root), "model": _model(experiment, start, path)}
    own = path / "partition.safetensors"
    if is_file(experiment.data.partition) and own.is_file():
        # The saved partition has the hold-outs and the validation share that were drawn for a CSV without them.
        changes["data"] |= {"partition": str(own), "holdout": 0.0, "validation": 0.0}
    table = experiment.engine
    if table.device.startswith("cuda") and not torch.cuda.is_available():
        # Runs that were trained on a GPU are often read on other machines, and bfloat16 is meant for GPUs.
        precision = "float64" if table.precision == "float64" else "float32"
        changes["engine"] = {"device": "", "name": "serial", "precision": precision}
    return experiment.but(**changes)


def _data(experiment: Experiment, start: Path, root: str) -> dict[str, Any]:
    name, recorded = experiment.data.name, experiment.data.root
    given = Path(root).expanduser().absolute() if root else None
    if name.endswith(FILES["data.name"]):
        places = [start / recorded / name] if given is None else [given / name, given / Path(name).name, given]
        found = _first_file(places)
        return {"name": str(found), "root": ""} if found else {"root": str(given or recorded)}
    if name == "npz":
        places = [start / recorded] if given is None else [given, given / Path(recorded).name]
        return {"root": str(_first_file(places) or given or recorded)}
    if given is not None:
        return {"root": str(given)}
    kind, _, folder = name.partition(":")
    if kind == HUB and not recorded and folder and (start / folder).is_dir():
        return {"name": f"{HUB}:{start / folder}"}
    there = start / recorded
    return {"root": str(there)} if recorded and there.exists() else {}


def _model(experiment: Experiment, start: Path, path: Path) -> dict[str, Any]:
    table = experiment.model
    changes: dict[str, Any] = {
        key: str(start / name)
        for key, name in (("start", table.start), ("scales", table.options.get("scales")))
        if isinstance(name, str) and name and weights_file(start / name).is_file()
    }
    if table.start and "start" not in changes and (path / KEPT).is_file():
        changes["start"] = str(path / KEPT)
    scales = table.options.get("scales")
    gone = isinstance(scales, str) and bool(Path(scales).suffix) and "scales" not in changes
    if gone and not is_foreign("model.name", table.name):
        changes["scales"] = None  # the library's networks have their scales among the entries that a run saves
    return changes


def _first_file(places: list[Path]) -> Path | None:
    return next((place for place in places if place.is_file()), None)
