"""The section about how accuracy and loss of the global model changed over rounds."""

from __future__ import annotations

from typing import Any

from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import VALIDATION, Cohort, Member, Subject, accuracy_label

ROUND = blocks.axis("Round", integer=True)
DEVIATION = {"kind": "band", "text": "± 1 standard deviation over seeds"}


def over_rounds(cohort: Cohort, key: str, times: float = 1.0, **style: Any) -> list[blocks.Series]:
    """Return a line for each group: a measure of the rows over rounds, its mean over seeds with a band.

    Args:
        cohort: The runs.
        key: The key of the measure in a row.
        times: A factor, for example 100 for per cent.
        **style: Further entries of each series.
    """
    found = []
    for group in cohort.groups:
        spread = group.over_rounds(lambda member: {r: times * v for r, v in member.course(key).items()})
        if spread["x"]:
            found.append(blocks.series(group.name, colour=group.colour, **spread, **style))
    return found


def bands(series: list[blocks.Series]) -> list[dict[str, str]]:
    """Return the entry of a legend that explains bands, if there are any."""
    return [DEVIATION] if any("low" in each for each in series) else []


def section(subject: Subject) -> Block:
    """Return the section."""
    found: list[Block] = []
    for cohort in subject.cohorts:
        found += list(_figures(subject, cohort))
    if not found:
        found = [blocks.absent("No round with an evaluation is complete yet, so there is no curve.")]
    about = "The accuracy over rounds is in the summary."
    return blocks.section("learning", "Loss over rounds", found, about, short="Loss")


def accuracy_figure(subject: Subject, cohort: Cohort) -> Block | None:
    """Return the chart of the accuracy over rounds."""
    keys = {member.accuracy_key for member in cohort.members if member.rows}
    label = accuracy_label(cohort.members)
    key = next(iter(keys)) if len(keys) == 1 else "accuracy"
    lines = over_rounds(cohort, key, 100.0)
    if not lines:
        return None
    chart = blocks.lines(ROUND, blocks.per_cent(label), lines, notes=bands(lines), gaps="bridge", height=300)
    return blocks.figure(
        f"accuracy{cohort.suffix}",
        cohort.entitled(f"{label} over rounds"),
        chart,
        command=subject.command("course", f"--measure {key}{' --band std' if bands(lines) else ''}"),
        wide=len(subject.cohorts) == 1,
    )


def _figures(subject: Subject, cohort: Cohort) -> Any:
    losses = over_rounds(cohort, "loss")
    if losses:
        chart = blocks.lines(
            ROUND, blocks.axis("Test loss (cross-entropy)"), losses, notes=bands(losses), gaps="bridge"
        )
        command = subject.command("course", "--measure loss")
        yield blocks.figure(f"loss{cohort.suffix}", cohort.entitled("Test loss over rounds"), chart, command=command)
    if lines := over_rounds(cohort, VALIDATION, 100.0):
        chart = blocks.lines(ROUND, blocks.per_cent("Validation accuracy"), lines, notes=bands(lines), gaps="bridge")
        title = cohort.entitled("Validation accuracy over rounds")
        command = subject.command("course", f"--measure {VALIDATION}")
        yield blocks.figure(f"validation{cohort.suffix}", title, chart, command=command)
    has_global = any(member.course("accuracy") for member in cohort.members)
    if has_global and (lines := over_rounds(cohort, "personal_accuracy", 100.0)):
        chart = blocks.lines(ROUND, blocks.per_cent("Clients' accuracy, mean"), lines, notes=bands(lines))
        title = cohort.entitled("Accuracy of clients' own models over rounds")
        command = subject.command("course", "--measure personal_accuracy")
        yield blocks.figure(f"personal-course{cohort.suffix}", title, chart, command=command)
    shares = over_rounds(cohort, "dead_features", 100.0)
    if any(value for each in shares for value in each["y"]):
        chart = blocks.lines(ROUND, blocks.per_cent("Dead features"), shares, notes=bands(shares))
        yield blocks.figure(
            f"dead{cohort.suffix}",
            cohort.entitled("Features that are the same for every sample"),
            chart,
            command=subject.command("course", "--measure dead_features"),
        )


def run_figure(member: Member, id: str, key: str = "", label: str = "") -> Block | None:
    """Return the chart of a measure of one run over rounds, which the page shows behind a cell of a table.

    Args:
        member: The run.
        id: The identifier of the chart.
        key: The key of the measure in a row, by default that of the accuracy.
        label: The label of the measure.

    Returns:
        The chart, or None if the run has no value of the measure.
    """
    key = key or member.accuracy_key
    course = member.course(key)
    if not course:
        return None
    share = "accuracy" in key
    label = label or accuracy_label([member])
    line = blocks.series(label, course, [100 * v if share else v for v in course.values()], markers=True)
    y = blocks.per_cent(label) if share else blocks.axis(label)
    return blocks.figure(id, f"{label} of {member.name}, seed {member.seed}", blocks.lines(ROUND, y, [line]))
