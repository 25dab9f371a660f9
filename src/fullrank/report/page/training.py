"""The section about local training: the terms of the loss, and how far the clients' weights moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.learning import ROUND, bands, over_rounds
from fullrank.report.page.subject import Cohort, Group, Member, Subject, of_first_seed

MOST_CLIENTS = 12
"""The largest number of clients of which each has a line."""
MOST_ROUNDS = 10
"""The largest number of rounds whose local epochs are shown."""
WITHIN = {"criterion": "criterion", "grad_norm": "norm of the gradient", "drift": "drift"}
TITLES = {"criterion": "The criterion in training", "feddecorr": "FedDecorr's decorrelation term"}


def drifts(member: Member) -> dict[int, dict[int, float]]:
    """Return by round how far each client's weights were from those received when its training ended."""
    found: dict[int, dict[int, float]] = {}
    for row in member.rows:
        own = {each["client"]: each["epochs"][-1].get("drift") for each in row.get("clients", []) if each.get("epochs")}
        if known := {k: float(v) for k, v in own.items() if v is not None and math.isfinite(v)}:
            found[row["round"]] = known
    return found


def section(subject: Subject) -> Block:
    """Return the section."""
    found = [block for cohort in subject.cohorts for block in _figures(subject, cohort)]
    if not found:
        found = [blocks.absent("No complete round records local training, so there are no loss terms and no drift.")]
    about = (
        "Each term of the loss is a mean over the local epochs and the clients of a round, weighted by samples. Drift "
        "is the Euclidean distance between the weights that a client received and those at the end of its training."
    )
    return blocks.section("training", "Local training", found, about, short="Training")


def _figures(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    terms = dict.fromkeys(name for member in cohort.members for row in member.rows for name in row.get("terms", {}))
    for name in terms:
        if lines := over_rounds(cohort, f"terms.{name}") if "." not in name else _term(cohort, name):
            chart = blocks.lines(
                ROUND, blocks.axis("Loss" if name == "criterion" else "Term"), lines, notes=bands(lines)
            )
            title = cohort.entitled(TITLES.get(name, f"The term “{name}” of the loss"))
            command = subject.command("losses", f"--over rounds --term {name}")
            yield blocks.figure(f"term-{_slug(name)}{cohort.suffix}", title, chart, command=command)
    if lines := _mean_drifts(cohort):
        chart = blocks.lines(ROUND, blocks.axis("Drift ‖w_k − w‖, mean of clients"), lines, notes=bands(lines))
        yield blocks.figure(f"drift{cohort.suffix}", cohort.entitled("How far clients drift in a round"), chart)
    if within := _within_rounds(cohort):
        title = cohort.entitled("Within a round")
        caption = f"Means of the clients over their local epochs{of_first_seed(cohort.groups)}."
        chart = blocks.framed(within, ["quantity", "round"])
        yield blocks.figure(f"epochs{cohort.suffix}", title, chart, caption=caption, command=subject.command("losses"))
    charts = [((group.label,), drawn) for group in cohort.groups if (drawn := _by_client(group)) is not None]
    if charts:
        title = cohort.entitled("Drift by client")
        caption = (_caption(cohort.groups[0].first) if len(cohort.groups) == 1 else "") or (
            f"Each client's drift{of_first_seed(cohort.groups)}."
        )
        yield blocks.figure(f"drift-clients{cohort.suffix}", title, blocks.framed(charts, ["method"]), caption=caption)


def _within_rounds(cohort: Cohort) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    """Return charts over local epochs: of each term, the norm of the gradient and the drift, in some rounds."""
    rounds = sorted({row["round"] for group in cohort.groups for row in group.first.rows if _epochs(row)})
    if len(rounds) > MOST_ROUNDS:
        last = len(rounds) - 1
        rounds = [rounds[round(place * last / (MOST_ROUNDS - 1))] for place in range(MOST_ROUNDS)]
    found: dict[tuple[str, str], list[blocks.Series]] = {}
    for group in cohort.groups:
        rows = {row["round"]: row for row in group.first.rows}
        for number in rounds:
            for name, means in _epochs(rows.get(number, {})).items():
                line = blocks.series(group.label, range(1, len(means) + 1), means, group.colour, markers=True)
                found.setdefault((WITHIN.get(name, f"term {name}"), f"round {number}"), []).append(line)
    if not any(len(line["x"]) > 1 for lines in found.values() for line in lines):
        return []
    x = blocks.axis("Local epoch", integer=True)
    return [(place, blocks.lines(x, blocks.axis("Mean of clients"), lines)) for place, lines in found.items()]


def _epochs(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the means over the clients of a round by local epoch, for everything that is recorded of each."""
    clients = [each["epochs"] for each in row.get("clients", []) if each.get("epochs")]
    names = dict.fromkeys(name for epochs in clients for epoch in epochs for name in epoch)
    found: dict[str, list[float]] = {}
    for name in names:
        for place in range(max(map(len, clients))):
            values = [epochs[place].get(name) for epochs in clients if place < len(epochs)]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if known:
                found.setdefault(name, []).append(sum(known) / len(known))
    return found


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _term(cohort: Cohort, name: str) -> list[blocks.Series]:
    """Return lines of a term with a dot in its name."""
    found = []
    for group in cohort.groups:
        spread = group.over_rounds(
            lambda member: {
                r["round"]: r["terms"][name] for r in member.rows if r.get("terms", {}).get(name) is not None
            }
        )
        if spread["x"]:
            found.append(blocks.series(group.name, colour=group.colour, **spread))
    return found


def _mean_drifts(cohort: Cohort) -> list[blocks.Series]:
    found = []
    for group in cohort.groups:
        spread = group.over_rounds(lambda member: {r: sum(d.values()) / len(d) for r, d in drifts(member).items()})
        if spread["x"]:
            found.append(blocks.series(group.name, colour=group.colour, **spread))
    return found


def _by_client(group: Group) -> dict[str, Any] | None:
    """Return each client's drift over rounds, or the median and the range over many clients."""
    found = drifts(group.first)
    clients = sorted({client for own in found.values() for client in own})
    if len(clients) < 2:
        return None
    y = blocks.axis("Drift ‖w_k − w‖")
    if len(clients) > MOST_CLIENTS:
        ordered = {round: sorted(own.values()) for round, own in found.items()}
        middle = [values[len(values) // 2] for values in ordered.values()]
        largest = [max(own, key=own.__getitem__) for own in found.values()]
        line = blocks.series(
            "median of clients",
            ordered,
            middle,
            low=[values[0] for values in ordered.values()],
            high=[values[-1] for values in ordered.values()],
            labels=[f"largest: {group.first.client_name(client)}" for client in largest],
        )
        notes = [{"kind": "band", "text": "from the smallest to the largest"}]
        return blocks.lines(ROUND, y, [line], notes=notes)
    lines = []
    for place, client in enumerate(clients):
        own = {round: drift[client] for round, drift in found.items() if client in drift}
        lines.append(blocks.series(group.first.client_name(client), own, own.values(), place, thin=True))
    return blocks.lines(ROUND, y, lines, gaps="bridge")


def _caption(member: Member) -> str:
    rounds = list(member.far)
    if not rounds:
        return ""
    named = ", ".join(map(str, rounds[:10])) + (" …" if len(rounds) > 10 else "")
    return f"In {len(rounds)} of {len(member.rows)} rounds one client moved over twice as far as any other: {named}."
