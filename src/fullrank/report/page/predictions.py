"""The section about predictions on the whole test set: confusion, recall by class, and calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fullrank.metrics.details import dense
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Group, Member, Subject
from fullrank.runs.clients import ClientRow

MOST_CLASSES = 120
"""The largest number of classes whose confusion matrix is shown."""


def whole_test(member: Member) -> ClientRow | None:
    """Return the row of the global model on the whole test set, if there is one."""
    return next((row for row in member.kept if row["client"] is None and row["site"] is None), None)


def section(subject: Subject) -> Block:
    """Return the section."""
    found = [block for cohort in subject.cohorts for group in cohort.groups for block in _of_group(cohort, group)]
    if not found:
        found = [blocks.absent(_reason(subject))]
    return blocks.section("predictions", "Predictions of the global model", found)


def _reason(subject: Subject) -> str:
    for member in subject.members:
        if reason := member.summary["absent"].get("accuracy"):
            return f"There are no predictions of a global model: {reason}."
    return "Confusion and calibration are computed after the last round, and no run has ended yet."


def _of_group(cohort: Cohort, group: Group) -> Iterator[Block]:
    member = group.first
    row = whole_test(member)
    if row is None:
        return
    seed = f", seed {member.seed}" if len(group.members) > 1 else ""
    ending = f"{group.colour}{cohort.suffix}"
    if len(member.classes) <= MOST_CLASSES:
        chart = _confusion(row, member.classes)
        title = cohort.entitled(f"Confusion: {group.label}{seed}")
        caption = f"Rows are labels, columns predictions; of {row['samples']:,} test samples."
        yield blocks.figure(f"confusion-{ending}", title, chart, caption=caption)
    title = cohort.entitled(f"Recall by class: {group.label}{seed}")
    yield blocks.figure(f"recall-{ending}", title, _recalls(row, member.classes))
    title = cohort.entitled(f"Calibration: {group.label}{seed}")
    if "calibration" in row:
        chart, error = _calibration(row), row["metrics"].get("calibration")
        known = f"Expected calibration error {error:.3f}. " if error is not None else ""
        caption = f"{known}Below the diagonal the model is too confident."
        yield blocks.figure(f"calibration-{ending}", title, chart, caption=caption)


def _confusion(row: ClientRow, classes: list[str]) -> dict[str, Any]:
    table = dense(row["confusion"], len(classes))
    sums = table.sum(axis=1, keepdims=True).clip(min=1)
    scale = blocks.axis("Share of the label's samples (%)", unit="%", digits=0, min=0, max=100, blank_zero=True)
    x, y = blocks.axis("Prediction", categories=classes), blocks.axis("Label", categories=classes)
    return blocks.heatmap(x, y, (100 * table / sums).tolist(), scale, square=True)


def _recalls(row: ClientRow, classes: list[str]) -> dict[str, Any]:
    known = [place for place, value in enumerate(row["recall"]) if value is not None]
    ends = [row["recall_intervals"][place] or (None, None) for place in known]
    counts = [sum(n for label, _, n in row["confusion"] if label == place) for place in known]
    found = blocks.series(
        "recall",
        [100 * (row["recall"][place] or 0.0) for place in known],
        known,
        xlow=[None if low is None else 100 * low for low, _ in ends],
        xhigh=[None if high is None else 100 * high for _, high in ends],
        labels=[f"{count:,} samples" for count in counts],
        legend=False,
    )
    x, y = blocks.per_cent("Recall", min=0, max=100, pad=0), blocks.axis("Class", categories=classes)
    return blocks.points(x, y, [found], notes=[{"kind": "interval", "text": "95 % bootstrap interval over samples"}])


def _calibration(row: ClientRow) -> dict[str, Any]:
    bins = row["calibration"]
    counts = bins["counts"]
    kept = [place for place, count in enumerate(counts) if count]
    found = blocks.series(
        "accuracy in a bin",
        [100 * bins["confidence"][place] for place in kept],
        [100 * bins["accuracy"][place] for place in kept],
        labels=[f"{counts[place]:,} samples" for place in kept],
    )
    axes = (blocks.per_cent("Mean confidence", min=0, max=100, pad=0), blocks.per_cent("Accuracy", min=0, max=100, pad=0))
    return blocks.points(*axes, [found], refs=[{"diagonal": True}], notes=[{"kind": "dash", "text": "perfectly calibrated"}])
