"""The section about predictions on the whole test set: confusion, recall by class, and calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fullrank.metrics.details import dense
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Group, Member, Subject, of_first_seed
from fullrank.runs.clients import ClientRow

PERFECT = {"kind": "dash", "text": "perfectly calibrated"}
MOST_CLASSES = 120
"""The largest number of classes whose confusion matrix is shown."""


def whole_test(member: Member) -> ClientRow | None:
    """Return the row of the global model on the whole test set, if there is one."""
    return next((row for row in member.kept if row["client"] is None and row["site"] is None), None)


def section(subject: Subject) -> Block:
    """Return the section."""
    found = [block for cohort in subject.cohorts for block in _of_cohort(cohort)]
    if not found:
        found = [blocks.absent(_reason(subject))]
    return blocks.section("predictions", "Predictions of the global model", found, short="Predictions")


def _reason(subject: Subject) -> str:
    for member in subject.members:
        if reason := member.summary["absent"].get("accuracy"):
            return f"There are no predictions of a global model: {reason}."
    return "Confusion and calibration are computed after the last round, and no run has ended yet."


def _of_cohort(cohort: Cohort) -> Iterator[Block]:
    found = [(group, row) for group in cohort.groups if (row := whole_test(group.first)) is not None]
    if not found:
        return
    first = of_first_seed([group for group, _ in found])
    small = [(group, row) for group, row in found if len(group.first.classes) <= MOST_CLASSES]
    if small:
        charts = [((group.label,), _confusion(row, group.first.classes)) for group, row in small]
        title = cohort.entitled("Confusion of classes")
        caption = f"Rows are labels, columns predictions; of {small[0][1]['samples']:,} test samples{first}."
        yield blocks.figure(f"confusion{cohort.suffix}", title, blocks.framed(charts, ["method"]), caption=caption)
    charts = [((group.label,), _recalls(row, group.first.classes)) for group, row in found]
    title = cohort.entitled("Recall by class")
    caption = f"The share of a class's test samples that are recognised{first}."
    yield blocks.figure(f"recall{cohort.suffix}", title, blocks.framed(charts, ["method"]), caption=caption)
    lines = [_calibration(group, row) for group, row in found if "calibration" in row]
    if lines:
        x, y = (blocks.per_cent(name, min=0, max=100, pad=0) for name in ("Mean confidence in a bin", "Accuracy"))
        chart = blocks.points(x, y, lines, refs=[{"diagonal": True}], notes=[PERFECT])
        title = cohort.entitled("Calibration")
        caption = f"Accuracy in bins of the confidence{first}. Below the diagonal a model is too confident."
        yield blocks.figure(f"calibration{cohort.suffix}", title, chart, caption=caption)


def _confusion(row: ClientRow, classes: list[str]) -> dict[str, Any]:
    table = dense(row["confusion"], len(classes))
    sums = table.sum(axis=1, keepdims=True).clip(min=1)
    scale = blocks.axis("Share of the label (%)", unit="%", digits=0, min=0, max=100, blank_zero=True)
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


def _calibration(group: Group, row: ClientRow) -> blocks.Series:
    bins = row["calibration"]
    counts = bins["counts"]
    kept = [place for place, count in enumerate(counts) if count]
    return blocks.series(
        group.label,
        [100 * bins["confidence"][place] for place in kept],
        [100 * bins["accuracy"][place] for place in kept],
        group.colour,
        shape=group.colour,
        labels=[f"{counts[place]:,} samples" for place in kept],
    )
