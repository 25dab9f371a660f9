"""The section about clients and sites: the accuracy of the global model and of the clients' models, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Member, Subject, of_first_seed
from fullrank.runs.client_tables import SETS, STAGES, name_of
from fullrank.runs.clients import ClientRow

MOST = 60
"""The largest number of clients of which each has a row in a chart; of more, quantiles are shown."""
MOST_ROWS = 500
"""The largest number of rows of the table of clients."""
SHAPES = {"global": 0, "received": 1, "local": 2, "personalised": 3}
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
INTERVAL = {"kind": "interval", "text": "95 % bootstrap interval over samples"}


def section(subject: Subject) -> Block:
    """Return the section."""
    found = [block for cohort in subject.cohorts for block in _of_cohort(cohort)]
    if not found:
        found = [blocks.absent(_reason(subject))]
    about = (
        "Received is the model as a client gets it from the server, local the same after training on the client's own "
        "samples, personalised what the method makes of it. Each is evaluated on samples that no client trained on."
    )
    return blocks.section("clients", "Clients and sites", found, about, short="Clients")


def _reason(subject: Subject) -> str:
    if not any(member.state == "complete" for member in subject.members):
        return "Clients' own models are evaluated after the last round, and no run has ended yet."
    reasons = {member.summary["absent"].get("personal", "") for member in subject.members} - {""}
    because = f" ({next(iter(reasons))})" if reasons else ""
    return (
        f"No client was evaluated{because}. Set data.holdout, for example to 0.2, to hold out samples of each client."
    )


def _of_cohort(cohort: Cohort) -> Iterator[Block]:
    """Yield a chart and a table for each set of samples, in which a reader chooses the method."""
    kept = {
        group.label: [row for row in group.first.kept if row["client"] is not None or row["site"] is not None]
        for group in cohort.groups
    }
    for name in SETS:
        found = {label: own for label, rows in kept.items() if (own := [row for row in rows if row["set"] == name])}
        if not found:
            continue
        which = "site" if all(rows[0]["site"] is not None for rows in found.values()) else "client"
        many = max(len({name_of(row) for row in rows}) for rows in found.values()) > MOST
        charts = [((label,), (_quantiles if many else _dots)(rows)) for label, rows in found.items()]
        title = cohort.entitled(f"Accuracy by {which}")
        caption = f"Evaluated on the {SETS[name]}{of_first_seed(cohort.groups)}."
        chart = blocks.framed(charts, ["method"])
        id = f"{which}s-{name}{cohort.suffix}"
        yield blocks.figure(id, title, chart, caption=caption, wide=True)
        yield _table(f"{id}-table", title, found)


def _dots(rows: Sequence[ClientRow]) -> dict[str, Any]:
    """Return a row for each client, with a point and an interval for each stage of its model."""
    names = list(dict.fromkeys(name_of(row) for row in rows))
    order = {name: place for place, name in enumerate(names)}
    found = []
    for place, stage in enumerate(each for each in STAGES if any(row["stage"] == each for row in rows)):
        own = [row for row in rows if row["stage"] == stage and row["metrics"].get("accuracy") is not None]
        ends = [row["intervals"].get("accuracy", (None, None)) for row in own]
        found.append(
            blocks.series(
                STAGES[stage],
                [100 * (row["metrics"]["accuracy"] or 0.0) for row in own],
                [order[name_of(row)] for row in own],
                place,
                shape=SHAPES[stage],
                xlow=[None if low is None else 100 * low for low, _ in ends],
                xhigh=[None if high is None else 100 * high for _, high in ends],
                labels=[f"{row['samples']} samples" for row in own],
            )
        )
    kind = "Site" if rows[0]["site"] is not None else "Client"
    short = [name.removeprefix("client ") for name in names]
    y = blocks.axis(kind, categories=short)
    x = blocks.per_cent("Accuracy", max=100)
    return blocks.points(x, y, found, notes=[INTERVAL])


def _quantiles(rows: Sequence[ClientRow]) -> dict[str, Any]:
    """Return quantiles over many clients for each stage."""
    import numpy as np

    found = []
    for place, stage in enumerate(each for each in STAGES if any(row["stage"] == each for row in rows)):
        own = [row["metrics"]["accuracy"] for row in rows if row["stage"] == stage]
        known = [value for value in own if value is not None]
        if known:
            values = [100 * float(np.quantile(known, share)) for share in QUANTILES]
            found.append(blocks.series(STAGES[stage], [100 * q for q in QUANTILES], values, place, markers=True))
    x = blocks.axis("Share of clients with at most this accuracy (%)", min=0, max=100, pad=0)
    return blocks.lines(x, blocks.per_cent("Accuracy", min=0, max=100, pad=0), found)


def _table(id: str, title: str, by_method: Mapping[str, Sequence[ClientRow]]) -> Block:
    metrics = list(dict.fromkeys(metric for rows in by_method.values() for row in rows for metric in row["metrics"]))
    columns = [blocks.column(name, "text") for name in ("method", "client or site", "model")]
    columns += [blocks.column("samples")]
    columns += [blocks.column(metric.replace("_", " "), first="descending") for metric in metrics]
    columns += [blocks.column("accuracy from"), blocks.column("accuracy to")]
    found = []
    for label, rows in by_method.items():
        for row in rows:
            low, high = row["intervals"].get("accuracy", (None, None))
            values = [row["metrics"].get(metric) for metric in metrics]
            numbers = [None if value is None else blocks.cell(value, f"{value:.3f}") for value in (*values, low, high)]
            found.append([label, name_of(row), STAGES[row["stage"]], row["samples"], *numbers])
    shown = found[:MOST_ROWS]
    caption = ""
    if len(shown) < len(found):
        caption = f"The first {len(shown)} of {len(found):,} rows; run.clients() in Python and clients.jsonl have all."
    table = blocks.table(id, title, columns, shown, caption=caption)
    return blocks.details(f"{title} as a table, with all metrics", [table])


def member_rows(member: Member, stage: str, on: str = "holdout") -> list[ClientRow]:
    """Return the rows of the clients' models of a stage on a set.

    Args:
        member: The run.
        stage: The stage of the clients' models, for example "received".
        on: The set of samples.
    """
    return [row for row in member.kept if (row["stage"], row["set"]) == (stage, on) and row["client"] is not None]
