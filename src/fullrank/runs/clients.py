"""The table of a run's models: one row for each client, stage and set, in `clients.jsonl`, and its means over sites."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired, TypedDict

from fullrank.errors import InputError, nearest
from fullrank.files import read_lines, writable, write_lines
from fullrank.metrics.registry import BY_SITE, METRICS, SITES_LISTED, Metric, single_numbers
from fullrank.runs.directory import CLIENTS
from fullrank.runs.summary import over

HTML_ROWS = 60
"""Number of rows that a notebook shows."""


class ClientRow(TypedDict):
    """One model on one set, as `metrics.details` describes it; it has counts only, and no sample."""

    client: int | None
    """The client; None for the global model."""
    site: str | None
    """The name of the site; None where clients are not sites, and for the global model on the whole test set."""
    stage: str
    set: str
    samples: int
    metrics: dict[str, float | None]
    intervals: dict[str, list[float | None]]
    recall: list[float | None]
    recall_intervals: list[list[float | None] | None]
    confusion: list[list[int]]
    calibration: NotRequired[dict[str, list[Any]]]
    """The calibration of the global model on the whole test set, by bins of its confidence."""
    unseen: NotRequired[bool]
    """Whether the client never trained."""


class Rows(list[dict[str, Any]]):
    """A table: a list of dicts with the same keys, from which `pandas.DataFrame(rows)` makes a data frame.

    >>> rows = Rows([{"site": "a", "value": 0.5}, {"site": "b", "value": 0.75}])
    >>> rows.where(site="b")
    [{'site': 'b', 'value': 0.75}]
    """

    def where(self, **values: Any) -> Rows:
        """Return the rows that have these values."""
        return Rows(row for row in self if all(row[key] == value for key, value in values.items()))

    def _repr_html_(self) -> str:
        """Return the table for a notebook, which shows its first rows."""
        if not self:
            return "<p>no rows</p>"
        head = "".join(f"<th>{html.escape(key)}</th>" for key in self[0])
        body = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in self[:HTML_ROWS])
        more = f"<p>and {len(self) - HTML_ROWS} more rows</p>" if len(self) > HTML_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"<td>{html.escape(text)}</td>"


def client_rows(
    clients: Mapping[int, Mapping[str, Any]], names: Sequence[str], unseen: Collection[int] = ()
) -> list[ClientRow]:
    """Return the rows of the clients' own models.

    Args:
        clients: The results of each client's evaluation, with "rows" if anything was evaluated.
        names: The name of each client's site, where clients are sites.
        unseen: The clients that never trained.
    """
    found: list[Any] = []
    for client in sorted(clients):
        facts: dict[str, Any] = {"client": client, "site": names[client] if names else None}
        new = {"unseen": True} if client in unseen else {}
        found += [{**facts, **row, **new} for row in clients[client].get("rows", [])]
    return found


def write_clients(path: Path, rows: Sequence[ClientRow]) -> None:
    """Write the table of a run's models into its directory."""
    write_lines(path / CLIENTS, [writable(row) for row in rows])


def read_clients(path: Path) -> list[ClientRow]:
    """Read the table of a run's models.

    Args:
        path: The run directory.

    Raises:
        InputError: If the run has no table, or it is damaged.
    """
    if not (path / CLIENTS).is_file():
        raise InputError(
            f'the run in "{path}" has no {CLIENTS}, for example because an earlier version of fullrank ran it; run the '
            "same experiment in another directory to have the table"
        )
    return list(read_lines(path / CLIENTS, ClientRow))


# Flat tables


def flat_table(rows: Sequence[ClientRow], classes: Sequence[str], by: str = "metric") -> Rows:
    """Return the rows in a flat form, as `Run.clients` describes it.

    Args:
        rows: The table.
        classes: The names of the classes.
        by: "metric", "class" or "confusion".

    Raises:
        InputError: If there is no such form.
    """
    if by not in _TABLES:
        raise InputError(f'by = "{by}" is not a table of clients; {nearest(by, _TABLES)}')
    flat = Rows()
    for row in rows:
        facts = {key: row[key] for key in ("client", "site", "stage", "set")}
        flat += [{**facts, **rest} for rest in _TABLES[by](row, classes)]
    return flat


def _by_metric(row: ClientRow, _: Sequence[str]) -> Iterator[dict[str, Any]]:
    for metric, value in row["metrics"].items():
        low, high = row["intervals"].get(metric, (None, None))
        yield {"metric": metric, "value": value, "low": low, "high": high, "samples": row["samples"]}


def _by_class(row: ClientRow, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    counts = [0] * len(classes)
    for label, _, count in row["confusion"]:
        counts[label] += count
    for name, value, ends, count in zip(classes, row["recall"], row["recall_intervals"], counts, strict=False):
        low, high = ends or (None, None)
        yield {"class": name, "metric": "recall", "value": value, "low": low, "high": high, "samples": count}


def _by_pair(row: ClientRow, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    for label, prediction, count in row["confusion"]:
        yield {"class": classes[label], "predicted": classes[prediction], "samples": count}


_TABLES: dict[str, Callable[[ClientRow, Sequence[str]], Iterator[dict[str, Any]]]] = {
    "metric": _by_metric,
    "class": _by_class,
    "confusion": _by_pair,
}


# Means over sites


def over_sites(rows: Sequence[ClientRow], metrics: Sequence[Metric] = ()) -> dict[str, dict[str, dict[str, Any]]]:
    """Aggregate the rows of sites by set and stage; clients that never trained are left out.

    Args:
        rows: The table.
        metrics: The metrics of the run that are not the library's.

    Returns:
        For each set and stage the numbers of `over_clients`: those of the accuracy directly, those of other metrics
        under their keys; `mean` is the unweighted mean over sites. `accuracy_by_site` and `samples_by_site` have
        the values of all sites, unless there are more than `SITES_LISTED`.
    """
    tables: dict[str, dict[str, list[ClientRow]]] = {}
    for row in rows:
        if row["site"] is not None and not row.get("unseen"):
            tables.setdefault(row["set"], {}).setdefault(row["stage"], []).append(row)
    return {name: {stage: _over(found, metrics) for stage, found in staged.items()} for name, staged in tables.items()}


def _over(rows: Sequence[ClientRow], metrics: Sequence[Metric]) -> dict[str, Any]:
    scores = [{**row["metrics"], "samples": row["samples"]} for row in rows]
    others = {metric.key: metric for metric in single_numbers(metrics) if metric.key != "accuracy"}
    found = {key: numbers for key, metric in others.items() if (numbers := over(scores, metric))}
    listed = {}
    if len(rows) <= SITES_LISTED:
        listed = {
            f"accuracy{BY_SITE}": {row["site"]: row["metrics"]["accuracy"] for row in rows},
            f"samples{BY_SITE}": {row["site"]: row["samples"] for row in rows},
        }
    return {**over(scores, METRICS.own["accuracy"]), **found, **listed}
