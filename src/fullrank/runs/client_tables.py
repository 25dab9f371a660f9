"""Tables of clients' models for a terminal: by site and stage, by class, and confusion matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fullrank.errors import printable
from fullrank.metrics.details import dense
from fullrank.runs.clients import ClientRow
from fullrank.runs.terminal import print_table, say

STAGES = {
    "global": "global model",
    "received": "models as received",
    "local": "models after local training",
    "personalised": "personalised models",
}
SETS = {"holdout": "clients' hold-outs", "test": "test parts of sites"}
LISTED, LOWEST, HIGHEST = 20, 5, 3
"""The largest number of clients that are all listed, and how many of the lowest and highest are listed otherwise."""
QUANTILES = {"lowest": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9, "highest": 1.0}
COLUMNS = 8
"""The largest number of models that are shown next to each other."""
CELLS = 20
"""The largest number of classes whose confusion matrix is shown; of more classes, this many confusions are listed."""

Titled = tuple[str, Table]


def show(tables: Iterable[Titled]) -> None:
    """Print tables with their titles."""
    for title, table in tables:
        say(f"\n{title[0].upper()}{title[1:]}:\n")
        print_table(table)
    print(flush=True)


def show_sites(rows: Sequence[ClientRow]) -> None:
    """Print the accuracy of the clients' own models, by client or site and by stage, if there is any."""
    if any(row["client"] is not None for row in rows):
        show(by_site(rows))


def name_of(row: ClientRow) -> str:
    """Return the name of the client or site of a row.

    >>> name_of({"client": 3, "site": None})
    'client 3'
    """
    if row["site"] is not None:
        return row["site"]
    return "whole test set" if row["client"] is None else f"client {row['client']}"


def whole_test(rows: Sequence[ClientRow]) -> str:
    """Describe the global model on the whole test set; empty if there is no such row."""
    found = next((row for row in rows if row["client"] is None and row["site"] is None), None)
    if found is None:
        return ""
    accuracy, balanced = _with_ends(found, "accuracy"), _with_ends(found, "balanced_accuracy")
    return (
        f"global model on the whole test set ({found['samples']} samples): accuracy {accuracy}, "
        f"balanced accuracy {balanced}"
    )


def by_site(rows: Sequence[ClientRow]) -> Iterator[Titled]:
    """Yield a title and a table for each set: clients or sites by stage.

    Of more than `LISTED` clients, quantiles and the clients with the lowest and the highest accuracy are shown.
    """
    own = [row for row in rows if row["client"] is not None] or [row for row in rows if row["site"] is not None]
    for name in dict.fromkeys(row["set"] for row in own):
        found = [row for row in own if row["set"] == name]
        there = [stage for stage in STAGES if any(row["stage"] == stage for row in found)]
        yield _title(found, name), _sites_by_stages(found, there)


def _title(rows: Sequence[ClientRow], name: str) -> str:
    sites = "clients" if rows[0]["site"] is None else "sites"
    number = len({name_of(row) for row in rows})
    return f"accuracy with its 95 % interval, and balanced accuracy, of {number} {sites} on {SETS[name]}"


def _sites_by_stages(rows: Sequence[ClientRow], there: Sequence[str]) -> Table:
    table = _table("", "samples", *(column for stage in there for column in (stage, "balanced")))
    models: dict[str, dict[str, ClientRow]] = {}
    for row in rows:
        models.setdefault(name_of(row), {})[row["stage"]] = row
    for label, share in QUANTILES.items() if len(models) > LISTED else ():
        table.add_row(label, "", *_over(rows, there, partial(np.quantile, q=share)))
    for label in _listed(models, there[-1]):
        found = models[label]
        cells = [cell for stage in there for cell in _cells(found.get(stage))]
        table.add_row(shown_name(label), str(next(iter(found.values()))["samples"]), *cells)
    table.add_row("mean", "", *_over(rows, there, np.mean))
    return table


def _cells(row: ClientRow | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    return _with_ends(row, "accuracy"), _number(row["metrics"].get("balanced_accuracy"))


def _over(rows: Sequence[ClientRow], there: Sequence[str], of: Callable[[Sequence[float]], Any]) -> list[str]:
    """Return a statistic over clients of the accuracy and the balanced accuracy of each stage."""
    cells = []
    for stage in there:
        for key in ("accuracy", "balanced_accuracy"):
            values = [row["metrics"].get(key) for row in rows if row["stage"] == stage]
            known = [value for value in values if value is not None]
            cells.append(_number(float(of(known))) if known else "")
    return cells


def _listed(models: dict[str, dict[str, ClientRow]], stage: str) -> list[str]:
    """Return the clients that are listed: all, or those with the lowest and the highest accuracy at a stage."""
    if len(models) <= LISTED:
        return list(models)
    having = [label for label, found in models.items() if stage in found]
    ordered = sorted(having, key=lambda label: models[label][stage]["metrics"]["accuracy"] or 0.0)
    return ordered[:LOWEST] + ordered[-HIGHEST:]


def by_class(rows: Sequence[ClientRow], classes: Sequence[str]) -> Iterator[Titled]:
    """Yield a title and a table for each stage and set: recalls by class, with intervals and numbers of samples."""
    for title, models in _models(rows):
        if len(models) > COLUMNS:
            table = dense([cell for row in models for cell in row["confusion"]], len(classes))
            columns = [f"all {len(models)} clients"]
            cells = [[_recall(int(line[c]), int(line.sum()))] for c, line in enumerate(table)]
        else:
            columns = [f"{name_of(row)} ({row['samples']})" for row in models]
            cells = [[_class_cell(row, c) for row in models] for c in range(len(classes))]
        shown = _table("recall", *columns)
        for name, found in zip(classes, cells, strict=True):
            shown.add_row(shown_name(name), *found)
        yield f"recall by class with its 95 % interval, {title}", shown


def _recall(hits: int, samples: int) -> str:
    return f"{hits / samples:.3f} of {samples}" if samples else "–"


def _class_cell(row: ClientRow, number: int) -> str:
    value, ends = row["recall"][number], row["recall_intervals"][number]
    if value is None:
        return "–"
    samples = sum(count for label, _, count in row["confusion"] if label == number)
    return f"{value:.3f}" + (f" ({_number(ends[0])}–{_number(ends[1])})" if ends else "") + f" of {samples}"


def by_confusion(rows: Sequence[ClientRow], classes: Sequence[str]) -> Iterator[Titled]:
    """Yield a title and a confusion matrix for each model, or for all clients together where there are many."""
    for title, models in _models(rows):
        groups = [(f"all {len(models)} clients", models)] if len(models) > COLUMNS else []
        groups = groups or [(name_of(row), [row]) for row in models]
        for name, group in groups:
            table = dense([cell for row in group for cell in row["confusion"]], len(classes))
            yield f"labels (rows) and predictions (columns), {name}, {title}", _matrix(table, classes)


def _matrix(table: np.ndarray, classes: Sequence[str]) -> Table:
    if len(classes) > CELLS:
        shown = _table("label", "prediction", "samples")
        off = table.copy()
        np.fill_diagonal(off, 0)
        for place in np.argsort(-off, axis=None, kind="stable")[:CELLS]:
            label, prediction = np.unravel_index(place, off.shape)
            if off[label, prediction]:
                shown.add_row(
                    shown_name(classes[int(label)]), shown_name(classes[int(prediction)]), str(off[label, prediction])
                )
        return shown
    shown = _table("", *classes)
    for name, line in zip(classes, table.tolist(), strict=True):
        shown.add_row(shown_name(name), *map(str, line))
    return shown


def _models(rows: Sequence[ClientRow]) -> Iterator[tuple[str, list[ClientRow]]]:
    """Yield the rows of each stage and set that belong next to each other."""
    for stage in STAGES:
        for name in SETS:
            if found := [row for row in rows if (row["stage"], row["set"]) == (stage, name)]:
                yield f"{STAGES[stage]}, {SETS[name]}", found


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(shown_name(first), no_wrap=True)
    for column in others:
        table.add_column(shown_name(column), justify="right")
    return table


def shown_name(name: str) -> Text:
    """Return the name of a class or a site for a table: what looks like markup is shown, control characters are not.

    >>> shown_name("[red]left\\nright")
    <text '[red]left?right' [] ''>
    """
    return Text(printable(name))


def _with_ends(row: ClientRow, key: str) -> str:
    low, high = row["intervals"].get(key, (None, None))
    ends = "" if low is None or high is None else f" ({low:.3f}–{high:.3f})"
    return f"{_number(row['metrics'].get(key))}{ends}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
