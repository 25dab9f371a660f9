"""The record of a run's data, files and source code, and the check that these are still the same."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.config.experiment import Experiment
from fullrank.data.federation import Federation
from fullrank.errors import InputError
from fullrank.runs.directory import read_json
from fullrank.runs.sources import fingerprints
from fullrank.runs.starting import weights_file

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly


def federation_facts(federation: Federation) -> dict[str, Any]:
    """Return what is recorded about the data and their partition, and where the experiment's relative paths start."""
    return {"data": data_facts(federation), **federation.describe(), "working_directory": os.getcwd()}


def data_facts(federation: Federation) -> dict[str, Any]:
    """Return what is recorded about the data: enough to build the network and to prepare inputs without them."""
    data, statistics, crop = federation.data, federation.pipeline.statistics, federation.pipeline.crop
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "train": len(data.train),
        "test": len(data.test) if data.test is not None else 0,
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
        "dtype": str(data.train.x.dtype).removeprefix("torch."),
        "mean": list(statistics[0]) if statistics else None,
        "std": list(statistics[1]) if statistics else None,
        "augment": list(data.augment),
        **({"columns": [dataclasses.asdict(column) for column in data.columns]} if data.columns else {}),
        "crop": list(crop) if crop else None,
        "unreadable": list(data.unreadable),
    }


def check_data(path: Path, federation: Federation) -> None:
    """Check that data and partition are those with which the run in a directory was started.

    Args:
        path: The run directory.
        federation: The data, divided among clients.

    Raises:
        InputError: If they are not.
    """
    recorded = read_json(path / "partition.json")
    kept = path / "partition.safetensors"
    for what, before, after, advice in (
        ("the data set's content", recorded["data"]["fingerprint"], federation.data.fingerprint(), ""),
        (
            "the partition",
            recorded["hash"],
            federation.hash,
            "; the same keys may give another partition in another version of fullrank, so the run cannot be continued"
            f' here, but a new run has the partition of this one with data.partition = "{kept}"'
            if kept.is_file()
            else "",
        ),
    ):
        if before != after:
            raise InputError(
                f'{what} is not what it was when "{path}" was started ({before[:12]}… is now {after[:12]}…){advice}'
            )


def file_hashes(experiment: Experiment, files_read: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of the files from which the model comes, by key.

    Args:
        experiment: The experiment, which may name such files.
        files_read: SHA-256 of the files that a user's model function read, by path.
    """
    table = experiment.model
    named = {"model.start": table.start, "model.scales": table.options.get("scales")}
    found = {
        key: hashlib.sha256(weights_file(Path(name)).read_bytes()).hexdigest()
        for key, name in named.items()
        if isinstance(name, str) and name and weights_file(Path(name)).is_file()
    }
    return {**found, **{f"model.name ({path})": digest for path, digest in files_read.items()}}


def check_files(path: Path, recorded: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that files have the SHA-256 that the run in a directory recorded.

    Args:
        path: The run directory.
        recorded: The recorded SHA-256 of each file.
        now: The current SHA-256 of each file.

    Raises:
        InputError: If one of them differs.
    """
    for key, before in recorded.items():
        if key in now and now[key] != before:
            raise InputError(f'the file of {key} is not what it was when "{path}" was started; choose another --out')


def source_fingerprints(assembly: Assembly) -> dict[str, str]:
    """Return the fingerprints of the user's own code that a run uses."""
    names = [name for named in assembly.experiment.import_paths().values() for name in named.split("+")]
    return fingerprints(names, [*assembly.network.module.modules(), *assembly.composition.parts])
