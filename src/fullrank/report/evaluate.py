"""Evaluation of a run's model on any data set: metrics with bootstrap intervals, of all samples and of each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fullrank.data import DataSet, Split, load_dataset
from fullrank.data.sources.registry import DATA_SETS
from fullrank.data.sources.table import TABLES
from fullrank.data.sources.unlabelled import as_trained
from fullrank.errors import InputError
from fullrank.federated.site import Stage
from fullrank.metrics.bootstrap import Intervals, bootstrap
from fullrank.metrics.registry import ALWAYS, LEVEL, RESAMPLES, Metric, Value, find_metrics
from fullrank.runs.prediction import Predictor
from fullrank.runs.result import Run, check_model

Part = Literal["test", "train", "all"]
PARTS: tuple[Part, ...] = ("test", "train", "all")
NAMED = 10
"""The largest number of classes that a message names."""


@dataclass(frozen=True)
class Measured:
    """The metrics of a model on some samples."""

    samples: int
    values: dict[str, Value]
    """The value of each metric by its key."""
    intervals: dict[str, Intervals]
    """The bootstrap interval of each metric by its key."""

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, metrics: Sequence[Metric], resamples: int) -> Measured:
        """Compute metrics and their intervals.

        Args:
            scores: The scores (N, C).
            labels: The labels (N,).
            metrics: The metrics.
            resamples: The number of draws of the bootstrap.
        """
        values = {metric.key: metric.function(scores, labels) for metric in metrics if metric.function is not None}
        return cls(len(labels), values, bootstrap(metrics, scores, labels, resamples=resamples))

    def facts(self) -> dict[str, Any]:
        """Return the metrics as one dict."""
        return {
            "samples": self.samples,
            **{
                key: {"value": value, "low": _ends(self.intervals[key], 0), "high": _ends(self.intervals[key], 1)}
                for key, value in self.values.items()
            },
        }


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of a model on a data set."""

    model: str
    stage: str
    """The stage of a client's own model; empty for the global model."""
    data: str
    part: Part
    classes: tuple[str, ...]
    metrics: tuple[Metric, ...]
    all: Measured
    sites: Mapping[str, Measured]
    """The metrics of the samples of each site, if the data come from sites."""
    resamples: int
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return the evaluation as one dict."""
        return {
            "model": self.model,
            **({"stage": self.stage} if self.stage else {}),
            "data": self.data,
            "part": self.part,
            "classes": list(self.classes),
            "level": LEVEL,
            "resamples": self.resamples,
            "all": self.all.facts(),
            "sites": {name: found.facts() for name, found in self.sites.items()},
            "notes": list(self.notes),
        }


def evaluate_run(
    run: Run,
    data: str = "",
    root: str = "",
    *,
    part: Part = "test",
    client: int | None = None,
    stage: Stage | None = None,
    metrics: Sequence[str] = (),
    resamples: int = RESAMPLES,
) -> Evaluated:
    """Evaluate the global model of a run, or a client's own model, on a data set with bootstrap intervals.

    Samples are prepared as in the run. Classes are matched by their names.

    Args:
        run: The run.
        data: A data set, as `load_dataset` takes it, or a folder of images; by default the data of the run.
        root: The folder of the data set.
        part: The split whose samples are used, or "all".
        client: The number of a client, to evaluate the client's own model in place of the global one.
        stage: The stage of the client's model, as in `Run.client_model`.
        metrics: Names of metrics in addition to those of the run.
        resamples: The number of draws of the bootstrap.

    Returns:
        The metrics of all samples and of each site.

    Raises:
        InputError: If there is no such model, or if the data do not fit it.
    """
    if part not in PARTS:
        raise InputError(f'there is no part "{part}" of a data set; choose from {", ".join(PARTS)}')
    check_model(run, "predict")
    find_metrics(metrics)  # rejects unknown names before anything is computed
    predictor = Predictor.of(run, client, stage)
    asked = tuple(find_metrics([*ALWAYS, *run.experiment.evaluate.metrics, *metrics]))
    if data not in DATA_SETS.own and Path(data).is_dir() and data:
        data, root = "folder", data
    loaded = (
        load_dataset(data, root, seed=run.experiment.seed, columns=predictor.columns, **_reading(run, data))
        if data
        else run._assembled("the model is evaluated on the run's data").federation.data
    )
    split = _part(loaded, part)
    labels = _matched(split.y, loaded, predictor.classes)
    x, changes = _fitted(split.x, predictor)
    try:
        scores = predictor.scores(x)
    except InputError as error:
        raise InputError(f'the run does not fit "{loaded.name}": {error}') from None
    sites = {
        name: Measured.of(scores[here], labels[here], asked, resamples) for name, here in _sites(loaded, split).items()
    }
    owner = "global" if client is None else f"client {client}'s"
    return Evaluated(
        f"{owner} model of {run.path or 'the run'}",
        run.stage_of(stage) if client is not None else "",
        loaded.name,
        part,
        predictor.classes,
        asked,
        Measured.of(scores, labels, asked, resamples),
        sites,
        resamples,
        (*changes, *predictor.notes),
    )


def _reading(run: Run, data: str) -> dict[str, Any]:
    """Return how the files of a data set are read: as those of the run if both are tables."""
    table = run.experiment.data
    return table.reading if table.name.endswith(TABLES) and data.endswith(TABLES) else {"size": table.size}


def _part(data: DataSet, part: Part) -> Split:
    if part == "train":
        return data.train
    if data.test is None:
        if part == "test":
            raise InputError(f'"{data.name}" has no test split; choose its training samples with --part train or all')
        return data.train
    return data.test if part == "test" else _joined(data.train, data.test)


def _joined(first: Split, second: Split) -> Split:
    columns = {name: (getattr(first, name), getattr(second, name)) for name in ("domain", "client")}
    ids: dict[str, Any] = {
        name: torch.cat(pair) for name, pair in columns.items() if pair[0] is not None and pair[1] is not None
    }
    return Split(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]), **ids, missing=first.missing)


def _matched(labels: Tensor, data: DataSet, classes: tuple[str, ...]) -> Tensor:
    """Return labels as numbers of the run's classes, which are found by their names."""
    if data.classes == classes:
        return labels
    occurring = torch.unique(labels).tolist()
    unknown = [data.classes[k] for k in occurring if data.classes[k] not in classes]
    if unknown:
        raise InputError(
            f'"{data.name}" has samples of {_listed(unknown)}, but the classes of the run are {_listed(classes)}; '
            "classes are matched by name"
        )
    numbers = [classes.index(name) if name in classes else -1 for name in data.classes]
    return torch.tensor(numbers)[labels]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def _fitted(x: Tensor, predictor: Predictor) -> tuple[Tensor, list[str]]:
    """Return 8-bit images in the shape of the run's images, with a phrase for each change; other samples do not
    change."""
    images = x.dtype == predictor.stored == torch.uint8 and x.dim() == 4 and len(predictor.shape) == 3
    if not images or {x.shape[1], predictor.shape[0]} - {1, 3}:
        return x, []
    fitted, changes = as_trained(x, predictor.shape)
    return fitted, [f"images were {change}" for change in changes]


def _sites(data: DataSet, split: Split) -> dict[str, Tensor]:
    """Return which samples belong to each site: to each domain, otherwise to each natural client, of the data."""
    for names, column in ((data.domains, split.domain), (data.clients, split.client)):
        if names and column is not None:
            return {name: here for k, name in enumerate(names) if (here := column == k).any()}
    return {}


def _ends(interval: Intervals, end: int) -> Any:
    if isinstance(interval, list):
        return [None if one is None else one[end] for one in interval]
    return None if interval is None else interval[end]
