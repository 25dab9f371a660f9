"""The first section: what was run, what came out, and whether to believe it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fullrank.comparison.intervals import std
from fullrank.comparison.printed import difference_text, format_of, p_text
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.costs import bytes_of, mean_of, seconds_of
from fullrank.report.page.learning import accuracy_figure, run_figure
from fullrank.report.page.subject import COMPLETE, Cohort, Group, Member, Subject, accuracy_label
from fullrank.runs.client_tables import STAGES
from fullrank.runs.display import clock, counted, setting, size

SHORT = {"received": "received", "local": "local", "personalised": "personalised"}
"""The stages of clients' models in the header of a table."""
MOST_NAMED = 4
"""The largest number of methods in a title."""
MOST_CURVES = 40
"""The largest number of runs of which each has a chart behind its row."""


def title_of(subject: Subject) -> str:
    """Return the title of a page."""
    experiment = subject.members[0].run.experiment
    if subject.study is not None and subject.study.kind == "sweep":
        over = " and ".join(subject.study.record.get("sweep", {}).get("over", {}))
        return f"Sweep over {over} with {experiment.method_label} on {experiment.data_label}"
    if subject.study is not None and subject.study.kind == "reproduction":
        return f"Reproduction of {subject.study.record.get('table', subject.study.path.name)}"
    methods = list(dict.fromkeys(member.run.experiment.method_label for member in subject.members))
    data = list(dict.fromkeys(member.run.experiment.data_label for member in subject.members))
    named = _listed(methods) if len(methods) <= MOST_NAMED else f"{len(methods)} methods"
    return f"{named} on {_listed(data)}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def lead_of(subject: Subject) -> str:
    """Return the sentence below the title."""
    first, *others = dict.fromkeys(setting(member.run.experiment) for member in subject.members)
    further = f", and {counted(len(others), 'other setting')}" if others else ""
    seeds = sorted({member.seed for member in subject.members})
    done = sum(member.state == COMPLETE for member in subject.members)
    runs = counted(len(subject.members), "run")
    complete = "" if done == len(subject.members) else f", {done} complete"
    if len(seeds) > 8:
        listed = f"{len(seeds)} seeds"
    else:
        listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"{first}{further} · {runs}{complete} · {listed}"


def section(subject: Subject, reading: Sequence[Mapping[str, Any]]) -> Block:
    """Return the section, given the sentences of the reading."""
    found: list[Block] = [_verdict(subject, reading)]
    for cohort in subject.cohorts:
        if len(subject.groups) == 1:
            found.append(_tiles(cohort, cohort.groups[0]))
        else:
            found.append(_methods(cohort))
    curves = [figure for cohort in subject.cohorts if (figure := accuracy_figure(subject, cohort))]
    found += curves
    found.append(blocks.reading(reading))
    if len(subject.members) > 1:
        found.append(_runs(subject))
    return blocks.section("summary", "Summary", found)


def _verdict(subject: Subject, reading: Sequence[Mapping[str, Any]]) -> Block:
    """Return the result in a sentence, and how far to believe it."""
    warnings = [item for item in reading if item["level"] == "warn"]
    broken = [item for item in warnings if item["rule"] in SERIOUS]
    lines = [result_of(subject)]
    if broken:
        lines.append(f"Do not rely on it yet: {_first(broken[0])}{_more(len(warnings) - 1)}")
    elif warnings:
        lines.append(f"Treat it with caution: {_first(warnings[0])}{_more(len(warnings) - 1)}")
    else:
        lines.append("Nothing in the records speaks against it; the reading below has the details.")
    level = "warn" if broken else "note" if warnings else "good"
    return blocks.verdict(level, lines)


SERIOUS = ("not_complete", "failed", "diverged")
"""The rules whose sentences mean that a result should not be used."""


def _first(item: Mapping[str, Any]) -> str:
    text = str(item["text"])
    return (
        text
        if text.partition(" ")[0].rstrip(",:") != text.partition(" ")[0].capitalize()
        else text[0].lower() + text[1:]
    )


def _more(number: int) -> str:
    return f" There {'is' if number == 1 else 'are'} {counted(number, 'further warning')} below." if number else ""


def result_of(subject: Subject) -> str:
    """Return the result of a page in a sentence."""
    if len(subject.cohorts) > 1:
        number = len(subject.cohorts)
        return f"{len(subject.groups)} settings on {number} different data sets or partitions; each has a table below."
    cohort = subject.cohorts[0]
    known = [(mean, group) for group in cohort.groups if (mean := mean_of(group, cohort.value_of)) is not None]
    if not known:
        reason = next((text for m in cohort.members if (text := m.summary["absent"].get("accuracy"))), "")
        return f"There is no result: {reason or 'no round with an evaluation is complete'}."
    if len(known) == 1:
        return f"{cohort.words} {_with_spread(cohort, known[0][1])}{_which(cohort)}."
    _, best = max(known, key=lambda pair: pair[0])
    ties = sorted(cohort.best - {best.label})
    shared = f"; the seeds do not tell {_some(ties)} from it" if ties else ""
    return f"Highest {cohort.words.lower()}: {best.label} with {_with_spread(cohort, best)}{shared}."


def _which(cohort: Cohort) -> str:
    stage = cohort.members[0].last_stage
    if cohort.measure == "personal" and stage is not None:
        return f", of {STAGES[stage]} on their own samples; there is no complete global model"
    return f" ({_averaged(cohort)})"


def _averaged(cohort: Cohort) -> str:
    """Say over how many evaluations `last5` is a mean, which are fewer than five in a short run."""
    number = min(5, max(len(member.course(member.accuracy_key)) for member in cohort.members))
    return f"mean of the last {number} evaluations" if number > 1 else "one evaluation"


def _some(names: Sequence[str]) -> str:
    return _listed(names) if len(names) <= MOST_NAMED else f"{len(names)} others"


def _with_spread(cohort: Cohort, group: Group) -> str:
    values = [100 * value for value in group.values(cohort.value_of)]
    width = std(values)
    spread = f" ± {width:.2f}" if width is not None else ""
    return f"{statistics.fmean(values):.2f}{spread} %"


def _tiles(cohort: Cohort, group: Group) -> Block:
    member = group.first
    label = accuracy_label([member])
    courses = [member.course(member.accuracy_key) for member in group.shown]
    items: list[tuple[str, str, str]] = []
    if any(courses):
        seeds = f"mean ± std of {counted(len(courses), 'seed')}" if len(courses) > 1 else f"seed {member.seed}"
        items.append((label, _with_spread(cohort, group), f"{_averaged(cohort)}, {seeds}"))
        best = [max(course.values()) for course in courses if course]
        where = max(courses[0], key=courses[0].__getitem__)
        kind = "validation" if member.chosen_by else "test"
        items.append(
            ("Best round", f"{100 * statistics.fmean(best):.2f} %", f"round {where}, chosen on the {kind} set")
        )
    stage = member.last_stage if not member.chosen_by else None
    if (
        stage is not None
        and (mean := mean_of(group, lambda each: each.summary["personal"][stage].get("mean"))) is not None
    ):
        worst = mean_of(group, lambda each: each.summary["personal"][stage].get("worst_decile"))
        low = f", worst tenth {100 * worst:.1f} %" if worst is not None else ""
        items.append(("Clients' own models", f"{100 * mean:.2f} %", f"{STAGES[stage]}{low}"))
    rounds = f"{len(member.rows)} of {member.run.experiment.train.rounds}"
    items.append(("Rounds", rounds, member.state))
    if (traffic := mean_of(group, bytes_of)) is not None:
        items.append(("Sent", size(traffic), "by and to all clients"))
    if (seconds := mean_of(group, seconds_of)) is not None:
        items.append(
            ("Time", clock(seconds) if seconds >= 60 else f"{seconds:.1f} s", "h:mm:ss" if seconds >= 60 else "")
        )
    return blocks.tiles(items)


def _methods(cohort: Cohort) -> Block:
    """Return the table of methods, with differences as `fullrank compare` prints them."""
    comparison = cohort.comparison
    rows = {row.method: row for row in cohort.compared}
    show = format_of(comparison) if comparison is not None else None
    tested = any(p_text(row) for row in rows.values())
    trials = bool(cohort.members[0].chosen_by)
    stages = (
        []
        if trials
        else [stage for stage in STAGES if any(stage in m.summary.get("personal", {}) for m in cohort.members)]
    )
    columns = [blocks.column("method", "text"), blocks.column(f"{cohort.words.lower()} (%)", first="descending")]
    columns += [blocks.column("difference (95 % interval)", first="descending")] * bool(rows)
    columns += [blocks.column("p (Holm)")] * tested
    columns += [blocks.column(f"clients: {SHORT[stage]} (%)", first="descending") for stage in stages]
    columns += [
        blocks.column("sent"),
        blocks.column("time"),
        blocks.column("runs", "text"),
        blocks.column("accuracy", "spark"),
    ]
    found, details = [], []
    for group in cohort.groups:
        mean, row = mean_of(group, cohort.value_of), rows.get(group.label)
        cells: list[Any] = [
            group.label,
            None
            if mean is None
            else blocks.cell(
                100 * mean, _with_spread(cohort, group).removesuffix(" %"), best=group.label in cohort.best
            ),
        ]
        if rows:
            has = row is not None and row.difference is not None and show is not None
            cells.append(
                blocks.cell(row.difference.mean, difference_text(row, show))
                if has and row and row.difference and show
                else None
            )
        if tested:
            has_p = row is not None and row.difference is not None and row.difference.p_holm is not None
            cells.append(blocks.cell(row.difference.p_holm, p_text(row)) if has_p and row and row.difference else None)
        for stage in stages:
            value = mean_of(group, partial(Member.personal, stage=stage))
            cells.append(None if value is None else blocks.cell(100 * value, f"{100 * value:.2f}"))
        traffic, seconds = mean_of(group, bytes_of), mean_of(group, seconds_of)
        cells.append(None if traffic is None else blocks.cell(traffic, size(traffic)))
        cells.append(
            None if seconds is None else blocks.cell(seconds, clock(seconds) if seconds >= 60 else f"{seconds:.1f} s")
        )
        cells += [_states(group.members), curve_of(group.first)]
        found.append(cells)
        details.append(
            _seeds_figure(group, f"curves-{group.colour}{cohort.suffix}") if len(cohort.groups) <= MOST_CURVES else None
        )
    personal = cohort.measure == "personal"
    what = "clients' models at their last stage" if personal else _averaged(cohort)
    bold = "bold: the best, and those that the seeds do not tell from it."
    caption = f"Mean ± standard deviation over seeds of the {what}; {bold}"
    title = cohort.entitled("Methods")
    return blocks.table(f"methods{cohort.suffix}", title, columns, found, caption=caption, details=details)


def _states(members: Sequence[Member]) -> str:
    number = {
        state: sum(member.state == state for member in members) for state in dict.fromkeys(m.state for m in members)
    }
    return ", ".join(f"{count} {state}" for state, count in number.items())


def curve_of(member: Member, key: str = "") -> list[float | None]:
    """Return the values of a small curve: a measure over rounds, by default the accuracy."""
    course = member.course(key or member.accuracy_key)
    values: list[float | None] = [float(f"{value:.4g}") for value in course.values()]
    return values[:: max(1, len(values) // 60)]


def _seeds_figure(group: Group, id: str) -> Block | None:
    lines = []
    for place, member in enumerate(group.members):
        course = member.course(member.accuracy_key)
        if course:
            lines.append(blocks.series(f"seed {member.seed}", course, [100 * v for v in course.values()], place))
    if not lines:
        return None
    label = accuracy_label(group.members)
    x, y = blocks.axis("Round", integer=True), blocks.per_cent(label)
    return blocks.figure(id, f"{label} of each seed: {group.label}", blocks.lines(x, y, lines, gaps="bridge"))


def _runs(subject: Subject) -> Block:
    """Return the table of all runs."""
    columns = [
        blocks.column("method", "text"),
        blocks.column("seed"),
        *(blocks.column(f"{name} (%)", first="descending") for name in ("last", "last five", "best")),
        blocks.column("rounds"),
        blocks.column("state", "text"),
        blocks.column("accuracy", "spark"),
        blocks.column("directory", "text"),
    ]
    rows, details = [], []
    curves = len(subject.members) <= MOST_CURVES
    for cohort in subject.cohorts:
        for group in cohort.groups:
            where = f" on {cohort.title}" if cohort.title else ""
            for number, member in enumerate(group.members):
                course = list(member.course(member.accuracy_key).values())
                numbers = [course[-1], statistics.fmean(course[-5:]), max(course)] if course else [None] * 3
                shown = [None if v is None else blocks.cell(100 * v, f"{100 * v:.2f}") for v in numbers]
                rounds = f"{len(member.rows)} of {member.run.experiment.train.rounds}"
                state = f"{member.state}: {member.reason}" if member.reason else member.state
                rows.append(
                    [
                        f"{group.label}{where}",
                        member.seed,
                        *shown,
                        blocks.cell(len(member.rows), rounds),
                        state,
                        curve_of(member),
                        str(member.run.path or ""),
                    ]
                )
                id = f"run-{group.colour}-{number}{cohort.suffix}"
                details.append(run_figure(member, id) if curves else None)
    return blocks.table("runs", "Runs", columns, rows, details=details)
