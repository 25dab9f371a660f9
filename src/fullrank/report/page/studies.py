"""The section about a sweep or a reproduction: its table, with the curves behind each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.learning import ROUND
from fullrank.report.page.overview import curve_of
from fullrank.report.page.subject import Member, Study, Subject, accuracy_label


def section(subject: Subject) -> Block | None:
    """Return the section, or None if the page is not about a sweep or a reproduction."""
    if subject.study is None or subject.study.kind not in WRITERS:
        return None
    return WRITERS[subject.study.kind](subject, subject.study)


def _by_directory(subject: Subject) -> dict[Path, Member]:
    return {member.run.path.resolve(): member for member in subject.members if member.run.path is not None}


def _sweep(subject: Subject, study: Study) -> Block:
    plan = study.record.get("sweep", {})
    over, measure = list(plan.get("over", {})), str(plan.get("measure", "validation_accuracy"))
    share = "accuracy" in measure
    words = measure.replace("_", " ")
    runs = _by_directory(subject)
    columns = [blocks.column("trial"), *(blocks.column(key) for key in over)]
    columns += [blocks.column(f"{words}{' (%)' if share else ''}, {plan.get('value', 'best')}", first="descending")]
    columns += [blocks.column("state", "text"), blocks.column(words, "spark")]
    rows, details = [], []
    for trial in study.record.get("trials", []):
        members = [runs[place] for run in trial.get("runs", []) if (place := (study.path / run).resolve()) in runs]
        mean = trial.get("mean")
        value = (
            None
            if mean is None
            else blocks.cell(100 * mean if share else mean, f"{100 * mean:.2f}" if share else f"{mean:.4g}")
        )
        reason = f": {trial['reason']}" if trial.get("reason") else ""
        settings = [trial.get("settings", {}).get(key) for key in over]
        curve = curve_of(members[0], measure) if members else []
        rows.append([trial["number"], *settings, value, f"{trial.get('state', '')}{reason}", curve])
        details.append(_curves(members, f"trial-{trial['number']}", f"Trial {trial['number']}", measure, words))
    found: list[Block] = [blocks.table("trials", "Trials", columns, rows, details=details)]
    found += _against_settings(over, rows, words, share)
    best = study.record.get("test", {})
    scores = ", ".join(
        f"{name} {values.get('mean'):.4g}"
        for name, values in best.items()
        if isinstance(values, Mapping) and values.get("mean") is not None
    )
    read = f": {scores}" if scores else ""
    about = f"Trials are compared by their {words}. Test scores are read for the best trial only{read}."
    return blocks.section("sweep", "Sweep", found, about)


def _against_settings(over: list[str], rows: list[list[Any]], words: str, share: bool) -> Iterator[Block]:
    """Yield a chart of the measure over each numeric key."""
    for place, key in enumerate(over, 1):
        known = [
            (row[place], row[len(over) + 1]["value"], row[0])
            for row in rows
            if isinstance(row[place], (int, float))
            and not isinstance(row[place], bool)
            and row[len(over) + 1] is not None
        ]
        if len({setting for setting, _, _ in known}) < 2:
            continue
        values = [setting for setting, _, _ in known]
        log = min(values) > 0 and max(values) >= 10 * min(values)
        x = blocks.axis(key, **({"scale": "log"} if log else {}))
        y = blocks.per_cent(words.capitalize()) if share else blocks.axis(words.capitalize())
        trials = [f"trial {number}" for _, _, number in known]
        line = blocks.series("trials", values, [value for _, value, _ in known], labels=trials, legend=False)
        yield blocks.figure(
            f"over-{key.replace('.', '-')}", f"{words.capitalize()} over {key}", blocks.points(x, y, [line])
        )


def _curves(members: list[Member], id: str, title: str, key: str, words: str) -> Block | None:
    lines = []
    share = "accuracy" in key
    for place, member in enumerate(members):
        if course := member.course(key):
            values = [100 * v if share else v for v in course.values()]
            lines.append(blocks.series(f"seed {member.seed}", course, values, place, markers=True))
    if not lines:
        return None
    y = blocks.per_cent(words.capitalize()) if share else blocks.axis(words.capitalize())
    return blocks.figure(id, f"{title}: {words} over rounds", blocks.lines(ROUND, y, lines))


def _reproduction(subject: Subject, study: Study) -> Block:
    runs = _by_directory(subject)
    cells = study.record.get("cells", [])
    names = list(dict.fromkeys(name for each in cells for name in each.get("at", {})))
    columns = [*(blocks.column(name, "text") for name in names), blocks.column("measure", "text")]
    columns += [blocks.column(name) for name in ("paper", "ours", "difference")]
    columns += [blocks.column("verdict", "text"), blocks.column("accuracy", "spark")]
    rows, details = [], []
    for number, each in enumerate(cells):
        where = [(study.path / run["directory"]).resolve() for run in each.get("runs", [])]
        members = [runs[place] for place in where if place in runs]
        at = [str(each.get("at", {}).get(name, "")) for name in names]
        numbers = [_number(each.get(key)) for key in ("paper", "ours", "difference")]
        key = members[0].accuracy_key if members else "accuracy"
        verdict = each.get("verdict", {})
        words = ": ".join(filter(None, (verdict.get("kind", ""), verdict.get("detail", ""))))
        curve = curve_of(members[0]) if members else []
        rows.append([*at, str(each.get("measure", "")), *numbers, words, curve])
        title = ", ".join(filter(None, at)) or f"cell {number + 1}"
        details.append(_curves(members, f"cell-{number}", title, key, accuracy_label(members).lower()))
    about = "Each row is a cell of the paper's table; the verdict says whether our value agrees with the printed one."
    return blocks.section(
        "reproduction", "Reproduction", [blocks.table("cells", "Cells", columns, rows, details=details)], about
    )


def _number(found: Any) -> Any:
    """Return a printed or measured value, with its standard deviation where it has one."""
    if isinstance(found, Mapping):
        mean, spread = found.get("mean"), found.get("std")
        if mean is None:
            return None
        return blocks.cell(float(mean), f"{mean:.2f}" + (f" ± {spread:.2f}" if spread is not None else ""))
    return None if found is None else blocks.cell(float(found), f"{float(found):.2f}")


WRITERS = {"sweep": _sweep, "reproduction": _reproduction}
"""The function that writes the section, by the kind of the study; comparisons have the table of methods."""
