"""The form of what a client has measured, which a server checks before it computes with it or records it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from fullrank.deploy.sites.roster import LONGEST, MOST_CLASSES, Number
from fullrank.federated.codec import BadMessage
from fullrank.federated.site import SETS, Stage
from fullrank.metrics.registry import METRICS

Name = Annotated[str, Field(max_length=LONGEST)]
ByClass = Annotated[list[float | None], Field(max_length=MOST_CLASSES)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
Scores: TypeAlias = dict[Name, "float | ByClass | list[dict[Name, float | ByClass | None]] | None"]
"""The scores of a model by metric; the course of a personalisation has those of several models."""


class _Row(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    stage: Stage
    set: Literal["holdout", "test"]
    samples: Number
    metrics: dict[Name, float | None]
    intervals: dict[Name, Interval]
    recall: ByClass
    recall_intervals: list[Interval | None]
    confusion: list[Annotated[list[Number], Field(min_length=3, max_length=3)]]


class _Metrics(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    samples: NotRequired[Number]
    steps: NotRequired[Number]
    skipped_batches: NotRequired[Number]
    epochs: NotRequired[list[dict[Name, float]]]
    personal: NotRequired[dict[Stage, Scores]]
    test: NotRequired[dict[Stage, Scores]]
    rows: NotRequired[Annotated[list[_Row], Field(max_length=6)]]


_METRICS: TypeAdapter[Any] = TypeAdapter(_Metrics)


def check_metrics(metrics: Mapping[str, Any], kind: str, classes: int) -> None:
    """Check what a client has measured.

    Args:
        metrics: The metrics of a result, which a stranger may have written.
        kind: The kind of the job.
        classes: The number of classes.

    Raises:
        BadMessage: If they are not of the form that a site returns.
    """
    try:
        _METRICS.validate_python(dict(metrics), strict=True)
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))[:LONGEST]
        raise BadMessage(f"its metrics have another form than expected ({place}: {found['msg'].lower()})") from None
    if kind == "train" and not {"samples", "steps", "skipped_batches", "epochs"} <= metrics.keys():
        raise BadMessage("its metrics lack the numbers of samples, of steps, of skipped batches, or the epochs")
    if not all(_is_usable(scores) for name in SETS.values() for scores in metrics.get(name, {}).values()):
        raise BadMessage("its metrics have scores without accuracy, loss or the number of samples, or of another kind")
    for row in metrics.get("rows", []):
        outside = any(max(label, prediction) >= classes for label, prediction, _ in row["confusion"])
        if outside or len(row["recall"]) != classes or len(row["recall_intervals"]) != classes:
            raise BadMessage("its metrics are about other classes than those of the data")


def _is_usable(scores: Mapping[str, Any]) -> bool:
    """Return whether the scores of a model have what all have, and lists only for metrics by class."""
    single = {metric.key for metric in METRICS.own.values() if not metric.by_class}
    return (
        all(type(scores.get(key)) in (int, float) for key in ("accuracy", "loss"))
        and type(scores.get("samples")) is int
        and scores["samples"] >= 0
        and not any(isinstance(value, list) and key in single for key, value in scores.items())
    )
