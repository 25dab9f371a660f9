"""The table of a comparison for display in a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.markup import escape
from rich.table import Table

from fullrank.comparison.derived import derived
from fullrank.comparison.table import Comparison, Row
from fullrank.metrics.registry import BY_DOMAIN, BY_SITE, label_of
from fullrank.runs.display import STAGES, averaged, counted

Show = Callable[[float, bool], str]
"""Formats a value of the measure; the second argument says whether the sign is shown."""


def title_of(found: Comparison) -> str:
    """Return the title of the table: the measure, and the value of each run."""
    experiment, measure = found.experiment, found.measure
    evaluated = "round" if experiment.evaluate.every == 1 else "evaluation"
    values = {
        "last5": f"mean of the last {counted(averaged(experiment), evaluated)}",
        "last": "last round",
        "best": "best over rounds",
        "validated": "round with the best validation score",
        "final": "after the last step of the method",
    }
    words = {"accuracy": "test accuracy", "loss": "test loss", "personal": "accuracy on the clients' held-out samples"}
    if all("holdout" not in run.summary().get("sites", {"holdout": {}}) for run in found.runs.values()):
        words["personal"] = "accuracy on the test parts of the clients' sites"
    words["elements"] = "elements sent and received per client and round"
    words |= {name: f'the term "{name}" of the loss in training' for name in found.terms}
    words["criterion"] = "criterion in training"
    words["personal_accuracy"] = f"personal accuracy {STAGES['local']}"
    computed = derived(measure)
    if computed is not None:
        name = computed.title_for(found.runs.values(), found.timed_by)
    else:
        name = words.get(measure) or _at_place(measure) or label_of(measure)
    unit = " in percent" if found.is_share else ""
    value = f", {values[found.value]}" if found.has_values else ""
    stages = found.stages()
    stage = f", {STAGES[stages[0]]}" if stages else ""
    if len(stages) > 1:
        stage = ", of each method at its last stage"
    return f"{name[0].upper()}{name[1:]}{unit}{value}{stage}:"


def _at_place(measure: str) -> str:
    """Return the words for a measure at one site or in one domain; empty for another measure.

    >>> _at_place("accuracy_by_site.amazon")
    'test accuracy at the site amazon'
    """
    first, _, place = measure.partition(".")
    for ending, where in ((BY_SITE, "at the site"), (BY_DOMAIN, "in the domain")):
        if place and first.endswith(ending):
            return f"test {label_of(first.removesuffix(ending))} {where} {place}"
    return ""


def table_of(found: Comparison, by_seed: bool = True, by_reference: bool = True) -> Table:
    """Return the table of a comparison.

    Args:
        found: The comparison.
        by_seed: Whether the table has a column for each seed.
        by_reference: Whether the table names the row from which each difference is taken, if there are several.
    """
    show = format_of(found)
    seeds, rows = found.seeds if by_seed else (), found.rows()
    several, staged = len(found.methods) > 1, len(found.stages()) > 1
    references = {row.difference.to for row in rows if row.difference is not None}
    tested = any(p_text(row) for row in rows)
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    if staged:
        table.add_column("stage")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    wanted = (True, several, tested, by_reference and len(references) > 1)
    headers = ("mean ± std", "difference (95 % CI)", "p (Holm)", "difference to")
    for header, shown in zip(headers, wanted, strict=True):
        if shown:
            table.add_column(header, no_wrap=True)
    for row in rows:
        missing = {seed: "failed" if (row.method, seed) in found.failed else "–" for seed in seeds}
        cells = [show(row.values[seed], False) if seed in row.values else missing[seed] for seed in seeds]
        stage = [STAGES[row.stage] if row.stage else ""] if staged else []
        to = row.difference.to if row.difference is not None else ""
        statistics = (mean_text(row, show), difference_text(row, show), p_text(row), to)
        chosen = [text for text, shown in zip(statistics, wanted, strict=True) if shown]
        table.add_row(*(escape(text) for text in (row.method, *stage, *cells, *chosen)))
    return table


def mean_text(row: Row, show: Show) -> str:
    """Format mean and standard deviation of a row."""
    if row.mean is None:
        return "absent"
    return show(row.mean, False) + (f" ± {show(row.std, False)}" if row.std is not None else "")


def difference_text(row: Row, show: Show) -> str:
    """Format the difference of a row with its confidence interval; empty if there is none."""
    difference = row.difference
    if difference is None:
        return ""
    text = show(difference.mean, True)
    if difference.low is None or difference.high is None:
        return text
    return f"{text} ({show(difference.low, True)} to {show(difference.high, True)})"


def p_text(row: Row) -> str:
    """Format the corrected p-value of a row; empty if there is none."""
    if row.difference is None or row.difference.p_holm is None:
        return ""
    return "<0.001" if row.difference.p_holm < 0.001 else f"{row.difference.p_holm:.3f}"


def format_of(found: Comparison) -> Show:
    """Return the format of a measure: fractions in percent, other values with digits that fit their size."""
    if found.is_share:
        # + 0.0: a value that rounds to zero has no sign
        return lambda value, signed: f"{round(100 * value, 2) + 0.0:{'+' if signed else ''}.2f}"
    values = [value for row in found.rows() for value in row.values.values()]
    large = any(abs(value) >= 1000 for value in values)
    digits = 0 if large else 1 if all(value.is_integer() for value in values) else 4
    return lambda value, signed: f"{round(value, digits) + 0.0:{'+' if signed else ''},.{digits}f}"
