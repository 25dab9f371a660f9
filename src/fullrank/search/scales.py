"""The search for scales of re-parameterisable networks, of FedRepOpt (ACCV 2024) and RepOptimizers (ICLR 2023).

A network with trained scales is trained on a public or server-side data set; only its scales are kept. The search is an
ordinary run of a single client with one epoch per round, so it resumes exactly and can use a GPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.config.experiment import Experiment, merged
from fullrank.data import DataSet, Split, load_dataset
from fullrank.data.augment.resize import resized
from fullrank.data.federation import Federation
from fullrank.data.registry import is_file
from fullrank.errors import InputError
from fullrank.files import write_json
from fullrank.models.reparam.scales import write_scales
from fullrank.randomness import generator
from fullrank.runs.assemble import federate, pipeline
from fullrank.runs.callbacks import Callback
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.display import counted
from fullrank.runs.environment import environment
from fullrank.runs.result import Run
from fullrank.runs.resume import check_resumable
from fullrank.runs.run import execute

FORMAT = 1
SIZE = 32
"""Side of the images in pixels; images of other sizes are resized."""
_COMMON: dict[str, Any] = {
    "lr_schedule": "cosine",
    "lr_schedule_by": "step",
    "warmup": 10,
    "momentum": 0.9,
    "label_smoothing": 0.1,
    "clip_norm": 5.0,
    "decay_on": "matrices",
    "last_batch": "drop",
    "optimizer_state": "keep",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "repvgg": {**_COMMON, "rounds": 240, "batch_size": 128, "lr": 0.05, "weight_decay": 4e-5},
    "repghost": {**_COMMON, "rounds": 600, "batch_size": 512, "lr": 1.2, "weight_decay": 1e-5},
}
"""The `[train]` table of a search by family; a round is an epoch. Batch sizes are summed over the authors' GPUs."""


@dataclass(frozen=True)
class Found:
    """The result of a search: the files with the scales and the facts, and the run."""

    scales: Path
    facts: Path
    run: Run


def search_scales(
    model: str,
    out: str | Path,
    *,
    values: Mapping[str, Any] | None = None,
    per_class: int = 0,
    client: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Found:
    """Search scales for a network.

    The scales are written to `OUT.safetensors`, and their origin to `OUT.json`. The run is in `OUT.run`; the same call
    continues it where it stopped.

    Args:
        model: The name of the network.
        out: The path `OUT` of the files, without a suffix.
        values: Further keys of the experiment, nested: the data set, its partition, the seed, epochs as `train.rounds`.
        per_class: The number of random samples of each class; 0 means the whole training set.
        client: The client of the partition in `values` whose samples are used; None means all samples.
        callbacks: Objects that follow the run.

    Returns:
        The files and the run.

    Raises:
        InputError: If the network has no scales, or the experiment or the samples are rejected.
    """
    experiment = searched(model, values or {})
    stored = load_dataset(experiment.data.name, experiment.data.root, seed=experiment.seed, **experiment.data.reading)
    federation = _chosen(_divided(experiment, stored), per_class, client, experiment.seed)
    _reject_less_than_a_batch(experiment, len(federation.parts[0]), per_class, client)
    name = Path(out).name.removesuffix(".safetensors")
    if not name:
        raise InputError(f'--out "{out}" has no file name; give one, as in --out scales/a0')
    path = Path(out).with_name(name)
    directory = path.with_name(f"{path.name}.run")
    _reject_other_samples(experiment, federation, directory)
    run = execute(experiment, directory, callbacks=callbacks, federation=federation)
    scales, facts = (path.with_name(f"{path.name}.{end}") for end in ("safetensors", "json"))
    write_scales(scales, run.model(), model.rpartition(":")[2])
    subset = _subset(experiment, federation, per_class, client)
    write_json(facts, _facts(run, model, federation, stored.fingerprint(), subset, scales))
    return Found(scales, facts, run)


def searched(model: str, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a search.

    Args:
        model: The name of the network, on whose family the settings depend.
        values: Keys of the experiment, nested, which replace these settings.

    Raises:
        InputError: If the network has no scales, or a key cannot be changed.
    """
    family = next((name for name in SETTINGS if name in model), None)
    if family is None:
        raise InputError(f'"{model}" has no scales to search; choose a repvgg or a repghost')
    start = {
        "data": {"name": "cifar100", "partition": "iid", "clients": 1, "augment": ["crop", "flip"]},
        "model": {"name": model, "mode": "hs"},
        "method": {"name": "fedavg"},
        "train": SETTINGS[family],
    }
    settled = merged(start, values)
    Experiment(**settled)  # reject invalid tables and values before anything is computed
    if settled["model"].get("mode") != "hs" or settled["method"]["name"] != "fedavg":
        raise InputError('a search trains a network in mode "hs" with fedavg; leave out model.mode and method.name')
    saved = is_file(str(settled["data"]["partition"]))
    for key in ("holdout", "unseen") if saved else ("size", "holdout", "unseen"):
        if settled["data"].get(key):
            raise InputError(f"data.{key}: a search trains on 32×32 images of all its samples; leave it out")
    given = values.get("train", {})
    for key in ("epochs", "steps", "participation"):
        if key in given:
            raise InputError(f"train.{key}: a round of a search is an epoch of all its samples; leave it out")
    settled["train"] = {**settled["train"], "epochs": 1, "participation": 1.0}
    experiment = Experiment(**settled)
    if "warmup" in given:
        return experiment
    settled["train"]["warmup"] = min(experiment.train.warmup, experiment.train.rounds // 2)
    return Experiment(**settled)


def _divided(experiment: Experiment, stored: DataSet) -> Federation:
    """Return the data set of a search, divided by its settings or by the saved partition of a run."""
    data = for_search(stored)
    if not is_file(experiment.data.partition):
        return federate(experiment, data)
    as_then = federate(experiment.but(data__augment="none"), stored)
    return dataclasses.replace(as_then, data=data, pipeline=pipeline(experiment, data))


def for_search(data: DataSet) -> DataSet:
    """Convert a data set to images of three channels and 32×32 pixels.

    The channel of grey images is repeated; images of another size are resized to 32 pixels on the short side, and
    cropped at the centre.

    Args:
        data: The data set.

    Raises:
        InputError: If its samples are not 8-bit grey or colour images.
    """
    if not data.images or data.in_channels not in (1, 3):
        raise InputError(
            f"a search needs 8-bit grey or colour images, but samples of {data.name} are {data.train.x.dtype} of shape "
            f"{data.input_shape}"
        )

    def changed(split: Split) -> Split:
        top, left = ((side - SIZE) // 2 for side in split.x.shape[2:])
        x = split.x[:, :, top : top + SIZE, left : left + SIZE]
        return dataclasses.replace(split, x=x.expand(-1, 3, -1, -1))

    def thrice(numbers: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return numbers * 3 if numbers is not None and len(numbers) == 1 else numbers

    sized = resized(data, SIZE)
    test = changed(sized.test) if sized.test is not None else None
    train, mean, std = changed(sized.train), thrice(data.mean), thrice(data.std)
    return dataclasses.replace(sized, train=train, test=test, mean=mean, std=std, file=None)


def _chosen(federation: Federation, per_class: int, client: int | None, seed: int) -> Federation:
    """Return a federation of one client, with the samples of the search."""
    if per_class < 0:
        raise InputError(f"{per_class} samples of each class are wanted; it must be at least 1, or 0 for all")
    if client is not None and per_class:
        raise InputError("a search takes a number of samples of each class, or one client's samples, not both")
    if client is None:
        part = np.sort(np.concatenate(federation.parts))
    elif 0 <= client < federation.clients:
        part = federation.parts[client]
    elif federation.clients == 1:
        raise InputError(
            f"there is no client {client}, because the data are not divided; divide them, as in "
            "--set data.partition=dirichlet --set data.clients=10"
        )
    else:
        raise InputError(f"there is no client {client}; clients are 0 to {federation.clients - 1}")
    if per_class:
        part = _some_of_each(federation.data.train.y, part, per_class, seed)
    return dataclasses.replace(federation, parts=[part], holdouts=[np.empty(0, np.int64)])


def _some_of_each(labels: torch.Tensor, part: np.ndarray, number: int, seed: int) -> np.ndarray:
    rng, of = generator(seed, "scales"), labels.numpy()[part]
    for label in np.unique(of):
        if (have := int((of == label).sum())) < number:
            raise InputError(f"{number} samples of each class are wanted, but class {label} has {have}")
    return np.sort(np.concatenate([rng.choice(part[of == label], number, replace=False) for label in np.unique(of)]))


def _reject_less_than_a_batch(experiment: Experiment, samples: int, per_class: int, client: int | None) -> None:
    train = experiment.train
    if train.last_batch != "drop" or samples >= train.batch_size:
        return
    more = "more --per-class" if per_class else "another --client" if client is not None else "more data"
    raise InputError(
        f'one batch of {train.batch_size} is not filled by {counted(samples, "sample")} (train.last_batch = "drop"): '
        f"take {more}, or smaller batches with --set train.batch_size=N"
    )


def _reject_other_samples(experiment: Experiment, federation: Federation, path: Path) -> None:
    """Raise an error if a search would resume with other samples, because no key of the experiment shows that."""
    directory = RunDirectory(path)
    if not directory.started:
        return
    check_resumable(experiment.resolved(), directory)  # a message about a key that differs is more exact
    recorded = read_json(path / "partition.json")
    if recorded["data"]["fingerprint"] == federation.data.fingerprint() and recorded["hash"] != federation.hash:
        raise InputError(
            f'the search in "{path}" was started with other samples (--per-class, --client): choose another --out, or '
            "delete it"
        )


def _subset(experiment: Experiment, federation: Federation, per_class: int, client: int | None) -> str:
    table, samples, every = experiment.data, len(federation.parts[0]), len(federation.data.train)
    if per_class:
        return f"{counted(per_class, 'sample')} of each class"
    if client is None:
        return "all" if samples == every else f"{samples} of {every}: what clients have to train with"
    kind = (
        f"{table.partition} α={table.alpha:g} ({table.variant})" if table.partition == "dirichlet" else table.partition
    )
    return f"client {client} of {table.clients}, {kind}"


def _facts(run: Run, model: str, federation: Federation, fingerprint: str, subset: str, scales: Path) -> dict[str, Any]:
    experiment, data = run.experiment, federation.data
    accuracy = run.summary().get("accuracy", {})
    around = environment(experiment.engine.threads, torch.device(experiment.engine.device or "cpu"))
    return {
        "format": FORMAT,
        "model": model,
        "data": {
            "name": data.name,
            "fingerprint": fingerprint,
            "subset": subset,
            "samples_hash": federation.hash,
            "keys": {key: value for key, value in experiment.data.model_dump().items() if key not in ("name", "root")},
            "samples": len(federation.parts[0]),
            "classes": int(torch.unique(data.train.y[torch.from_numpy(federation.parts[0])]).numel()),
        },
        "options": experiment.model.options,
        "seed": experiment.seed,
        "epochs": experiment.train.rounds,
        "train": experiment.train.model_dump(),
        "engine": {key: getattr(experiment.engine, key) for key in ("name", "precision", "compile")},
        "accuracy": {
            "last": accuracy.get("last"),
            "best": accuracy.get("best"),
            "of": "the test set; scales of the last",
        },
        "environment": {key: around[key] for key in ("fullrank", "python", "torch", "numpy", "cpu", "gpu")},
        "sha256": hashlib.sha256(scales.read_bytes()).hexdigest(),
    }
