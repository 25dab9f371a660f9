"""The section about costs: communication, time, memory and client state, in total and until a target is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fullrank.comparison.derived import seconds_per_round
from fullrank.files import read_lines
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Group, Member, Subject, accuracy_label
from fullrank.runs.display import clock, size
from fullrank.runs.memory import recorded_peak

STEP = 0.05
"""Targets are whole multiples of this accuracy."""
TARGETS = 4
"""The number of targets in the table: the highest that any group reaches, and those before it."""
MB = 1e6


def section(subject: Subject) -> Block:
    """Return the section."""
    found: list[Block] = []
    for cohort in subject.cohorts:
        if not any(member.rows for member in cohort.members):
            continue
        found.append(_table(cohort))
        found += list(_figures(subject, cohort))
        if (targets := _targets_table(cohort)) is not None:
            found.append(targets)
    if not found:
        found = [blocks.absent("No round is complete yet, so there are no costs.")]
    return blocks.section("costs", "Communication, time and memory", found, short="Costs")


def bytes_of(member: Member) -> float | None:
    """Return all bytes that a run sent in both directions."""
    return member.summary["bytes_up"] + member.summary["bytes_down"] if member.rows else None


def seconds_of(member: Member) -> float | None:
    """Return the seconds of a run."""
    return member.summary.get("seconds")


def memory_of(member: Member) -> float | None:
    """Return the peak memory of a run in bytes, if it was recorded."""
    found = recorded_peak(member.run.path) if member.run.path is not None and member.environment else None
    return float(found["bytes"]) if found else None


def state_of(member: Member) -> float | None:
    """Return the mean size on disk of what a client keeps between rounds, in bytes; 0 if clients keep nothing."""
    folder = member.run.path / "checkpoints" if member.run.path is not None else None
    if folder is None or not (folder / "clients.jsonl").is_file():
        return None
    owners = {client for note in read_lines(folder / "clients.jsonl") for client in note.get("states", [])}
    kept = sum(file.stat().st_size for file in folder.glob("clients-*.safetensors"))
    return kept / len(owners) if owners else 0.0


def mean_of(group: Group, of: Callable[[Member], float | None]) -> float | None:
    """Return the mean of a number over the runs of a group that have it."""
    values = group.values(of)
    return statistics.fmean(values) if values else None


def _written(value: float | None, show: Callable[[float], str]) -> Any:
    return None if value is None else blocks.cell(value, show(value))


def _pace(member: Member) -> float | None:
    return seconds_per_round(member.run) if member.rows else None


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else clock(seconds)


def _table(cohort: Cohort) -> Block:
    rows = []
    for group in cohort.groups:
        rows.append(
            [
                group.label,
                _written(mean_of(group, cohort.value_of), lambda v: f"{100 * v:.2f} %"),
                _written(mean_of(group, lambda m: m.summary.get("bytes_up")), size),
                _written(mean_of(group, lambda m: m.summary.get("bytes_down")), size),
                _written(mean_of(group, lambda m: m.summary.get("elements")), lambda v: f"{v:,.0f}"),
                _written(mean_of(group, seconds_of), _short),
                _written(mean_of(group, _pace), _short),
                _written(mean_of(group, memory_of), size),
                _written(mean_of(group, state_of), lambda v: size(v) if v else "none"),
            ]
        )
    columns = [
        blocks.column("method", "text"),
        blocks.column(f"{cohort.words.lower()}", first="descending"),
        *(blocks.column(name) for name in ("sent by clients", "sent to clients", "elements per client and round")),
        *(blocks.column(name) for name in ("time", "time per round", "peak memory", "state per client")),
    ]
    title = cohort.entitled("What each method costs")
    caption = "Means over seeds. The state per client is what a client keeps between rounds, as it is stored."
    return blocks.table(f"costs{cohort.suffix}", title, columns, rows, caption=caption)


def _figures(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    label = accuracy_label(cohort.members)
    for key, title, x, of in (
        ("bytes", "Accuracy by communication", "Sent in both directions (MB)", _traffic),
        ("time", "Accuracy by time", "Time since the start (s)", _elapsed),
    ):
        lines = []
        for group in cohort.groups:
            courses = [_against(member, of(member)) for member in group.shown]
            if line := _mean_course(courses):
                lines.append(blocks.series(group.name, colour=group.colour, **line))
        if lines:
            chart = blocks.lines(blocks.axis(x), blocks.per_cent(label), lines)
            over = "bytes" if key == "bytes" else "seconds"
            command = subject.command("cost", f"--over {over}") if all(m.summary for m in cohort.members) else ""
            yield blocks.figure(f"accuracy-by-{key}{cohort.suffix}", cohort.entitled(title), chart, command=command)


def _traffic(row: Any) -> Any:
    return _totals(row, lambda each: (each["bytes_up"] + each["bytes_down"]) / MB)


def _elapsed(row: Any) -> Any:
    return _totals(row, lambda each: each["seconds"])


def _totals(member: Member, of: Callable[[dict[str, Any]], float]) -> dict[int, float]:
    total, found = 0.0, {}
    for row in member.rows:
        total += of(row)
        found[row["round"]] = total
    return found


def _against(member: Member, totals: dict[int, float]) -> list[tuple[float, float]]:
    return [(totals[round], 100 * value) for round, value in member.course(member.accuracy_key).items()]


def _mean_course(courses: Sequence[Sequence[tuple[float, float]]]) -> dict[str, list[float]]:
    """Return the mean over seeds of cost and accuracy, round by round."""
    full = [course for course in courses if course]
    if not full:
        return {}
    steps = list(zip(*full, strict=False))
    return {
        "x": [statistics.fmean(cost for cost, _ in step) for step in steps],
        "y": [statistics.fmean(value for _, value in step) for step in steps],
    }


def targets_of(cohort: Cohort) -> list[float]:
    """Return the accuracies whose costs are compared: the highest multiples of `STEP` that a group reaches."""
    best = [max(member.course(member.accuracy_key).values(), default=0.0) for member in cohort.members]
    top = math.floor(max(best, default=0.0) / STEP + 1e-9)
    return [step * STEP for step in range(max(1, top - TARGETS + 1), top + 1)]


def reached(member: Member, target: float) -> tuple[int, float, float] | None:
    """Return the costs after which a run first had an accuracy.

    Args:
        member: The run.
        target: The accuracy.

    Returns:
        The round, the megabytes that were sent until then, and the seconds; None if the run never had the accuracy.
    """
    traffic, time = _traffic(member), _elapsed(member)
    for round, value in member.course(member.accuracy_key).items():
        if value >= target - 1e-12:
            return round, traffic[round], time[round]
    return None


def _targets_table(cohort: Cohort) -> Block | None:
    rows: list[list[Any]] = []
    for target in targets_of(cohort):
        for group in cohort.groups:
            if not any(member.course(member.accuracy_key) for member in group.shown):
                continue
            found = [reached(member, target) for member in group.shown]
            there = [each for each in found if each is not None]
            name = blocks.cell(target, f"{100 * target:.0f} %")
            if not there:
                rows.append([name, group.label, *[blocks.cell(None, "not reached")] * 3, f"0 of {len(found)}"])
                continue
            rounds, megabytes, seconds = (statistics.fmean(values) for values in zip(*there, strict=True))
            rows.append(
                [
                    name,
                    group.label,
                    blocks.cell(rounds, f"{rounds:.1f}".removesuffix(".0")),
                    blocks.cell(megabytes, size(MB * megabytes)),
                    blocks.cell(seconds, _short(seconds)),
                    f"{len(there)} of {len(found)}",
                ]
            )
    if not rows:
        return None
    columns = [
        blocks.column("accuracy reached"),
        blocks.column("method", "text"),
        *(blocks.column(name) for name in ("rounds", "sent in both directions", "time")),
        blocks.column("seeds that reach it", "text"),
    ]
    title = cohort.entitled("Until an accuracy is reached for the first time")
    caption = "Means over the seeds that reach it."
    return blocks.table(f"targets{cohort.suffix}", title, columns, rows, caption=caption)
