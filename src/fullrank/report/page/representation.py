"""The section about the representation: spectra of local and global models, effective rank, and neural collapse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fullrank.collapse.spectra import RELATIVE_ZERO
from fullrank.report.courses import NC
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.learning import ROUND, bands
from fullrank.report.page.subject import Cohort, Group, Member, Subject
from fullrank.report.probed import Probe, mean

MOST_VALUES = 256
"""The largest number of singular values of a spectrum that are shown."""
NO_PROBES = (
    "No run has probes, so nothing is known of its representation. Set probe.every, for example to 5, and "
    "probe.clients to probe clients as well."
)
TITLES = {
    "effective_rank": ("Effective rank", "Effective rank"),
    "gap": ("Gap R between local and global spectra", "Gap R, mean of clients"),
}
OF_CLIENTS = "mean of clients"


def section(subject: Subject) -> Block:
    """Return the section."""
    found = [block for cohort in subject.cohorts for block in _of_cohort(subject, cohort)]
    about = (
        "Probes measure the features of the test set before the classifier. A spectrum that falls early means that the "
        "features use few directions: the representation has collapsed."
    )
    return blocks.section("representation", "Representation", found or [blocks.absent(NO_PROBES)], about)


def _of_cohort(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    if not any(member.run.probes for member in cohort.members):
        return
    if (chart := _spectra(cohort)) is not None:
        yield blocks.figure(
            f"spectra{cohort.suffix}",
            cohort.entitled("Singular values of the representation"),
            chart,
            caption="Natural logarithm of the singular values of the covariance, full lines of the global model and "
            "dashed lines of clients after local training.",
            command=subject.command("spectrum"),
            wide=True,
        )
    for key, (title, label) in TITLES.items():
        lines = _lines(cohort, key)
        if lines:
            command = subject.command("gap") if key == "gap" else ""
            chart = blocks.lines(ROUND, blocks.axis(label), lines, notes=_notes(lines))
            yield blocks.figure(f"{key}{cohort.suffix}", cohort.entitled(title), chart, command=command)
    command = subject.command("collapse")
    for key, title in NC.items():
        if lines := _lines(cohort, key):
            values = [v for each in lines for v in each["y"] if v is not None]
            wide = min(values) > 0 and max(values) > 8 * min(values)
            y = blocks.axis(title, **({"scale": "log"} if wide else {}))
            chart = blocks.lines(ROUND, y, lines, notes=_notes(lines))
            yield blocks.figure(f"{key}{cohort.suffix}", cohort.entitled(title), chart, command=command)


def _notes(lines: Sequence[blocks.Series]) -> list[dict[str, str]]:
    dashed = [{"kind": "dash", "text": OF_CLIENTS}] if any(each.get("dash") for each in lines) else []
    return [*bands(list(lines)), *dashed]


def of_global(probe: Probe, key: str) -> float | None:
    """Return a measure of the global model in a probe."""
    value = probe.get("global", {}).get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def of_clients(probe: Probe, key: str) -> float | None:
    """Return the mean of a measure over the clients of a probe."""
    value = mean([local.get(key) for local in probe["locals"]])
    return value if math.isfinite(value) else None


def course_of(member: Member, key: str, of: Any) -> dict[int, float]:
    """Return a measure of the probes of a run by round.

    Args:
        member: The run.
        key: The key of the measure.
        of: The function that finds the measure in a probe: `of_global` or `of_clients`.
    """
    found = {probe["round"]: of(probe, key) for probe in member.run.probes}
    return {round: value for round, value in found.items() if value is not None}


def _lines(cohort: Cohort, key: str) -> list[blocks.Series]:
    """Return a full line of the global model and a dashed one of clients for each group."""
    found: list[blocks.Series] = []
    for group in cohort.groups:
        for of, dashed in ((of_global, False), (of_clients, True)):
            spread = group.over_rounds(partial(course_of, key=key, of=of))
            if not spread["x"]:
                continue
            if dashed:
                spread = {"x": spread["x"], "y": spread["y"]}
            has_global = any(each["name"] == group.name and not each.get("dash") for each in found)
            style: dict[str, Any] = {"dash": True, "thin": True, "legend": not has_global} if dashed else {}
            found.append(blocks.series(group.name, colour=group.colour, markers=True, **spread, **style))
    return found


def _spectra(cohort: Cohort) -> dict[str, Any] | None:
    """Return spectra with a slider over the rounds that any run has a probe of."""
    rounds = sorted({probe["round"] for member in cohort.members for probe in member.run.probes})
    charts = []
    for round in rounds:
        lines = [line for group in cohort.groups for line in _of_group(group, round)]
        x = blocks.axis("Index k of the singular value", integer=True)
        notes = [{"kind": "dash", "text": "clients"}] if any(each.get("dash") for each in lines) else []
        charts.append(((f"round {round}",), blocks.lines(x, blocks.axis("log λ_k"), lines, notes=notes, height=320)))
    return blocks.framed(charts, ["round"]) if charts else None


def _of_group(group: Group, round: int) -> Iterator[blocks.Series]:
    probes = [p for member in group.shown for p in member.run.probes if p["round"] == round]
    curves = [curve for probe in probes if (curve := _curve(probe.get("global")))]
    if curves:
        shared = min(map(len, curves))
        values = np.array([curve[:shared] for curve in curves]).mean(axis=0)
        yield blocks.series(group.name, range(1, shared + 1), values.tolist(), group.colour)
    for probe in probes[:1]:
        for local in probe["locals"]:
            if curve := _curve(local):
                style: dict[str, Any] = {"dash": True, "thin": True, "legend": not curves}
                yield blocks.series(group.name, range(1, len(curve) + 1), curve, group.colour, **style)


def _curve(model: Probe | None) -> list[float]:
    """Return the logarithms of the leading singular values, without rounding errors."""
    if model is None:
        return []
    values = model["spectrum"][:MOST_VALUES].astype(np.float64)
    kept = values[values > RELATIVE_ZERO * max(values[0], 0)] if len(values) else values
    logarithms: list[float] = np.log(kept).tolist()
    return logarithms
