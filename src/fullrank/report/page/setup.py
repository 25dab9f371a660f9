"""The section about what was run: the experiment, the partition, hashes, and the software and machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fullrank.config.experiment import Experiment, same
from fullrank.errors import InputError, printable
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Member, Subject, counts_of

MOST_CLIENTS = 100
"""The largest number of clients in the chart of a partition."""
SOFTWARE = ("fullrank", "git_commit", "torch", "numpy", "python", "platform", "cpu", "cores", "threads", "gpu")
HIDDEN = ("run.", "engine.", "data.root")
"""Keys that do not decide the result; the whole experiment below the table has them."""


def section(subject: Subject) -> Block:
    """Return the section."""
    found: list[Block] = [_differences(subject)]
    for cohort in subject.cohorts:
        found += list(_partition(cohort))
    return blocks.section("setup", "What was run", found, short="Setup")


def provenance(subject: Subject) -> Block:
    """Return the section with what is needed to make the runs again: hashes, software, and whole experiments."""
    found: list[Block] = [_hashes(subject), _environment(subject)]
    found += [
        blocks.details(
            f"The whole experiment of {member.name}, seed {member.seed}",
            [blocks.code(member.run.experiment.resolved().as_toml())],
        )
        for member in _one_each(subject)
    ]
    return blocks.section("provenance", "Hashes, software and whole experiments", found, short="Provenance")


def _one_each(subject: Subject) -> list[Member]:
    return [group.first for group in subject.groups]


def _flat(experiment: Experiment) -> dict[str, Any]:
    return {key: value for key, value in experiment.resolved().flat().items() if value is not None}


def _differences(subject: Subject) -> Block:
    """Return the keys that differ from their defaults, or between the groups."""
    members = _one_each(subject)
    tables = [_flat(member.run.experiment) for member in members]
    defaults = [_flat(Experiment(method={"name": _known(member.run.experiment)})) for member in members]
    keys = [
        key
        for key in dict.fromkeys(key for table in tables for key in table)
        if key != "seed" and not key.startswith(HIDDEN)
    ]
    rows = []
    for key in keys:
        values = [table.get(key) for table in tables]
        usual = [default.get(key) for default in defaults]
        changed = any(
            not same(value, default) for value, default in zip(values, usual, strict=True) if value is not None
        )
        if not changed and key != "method.name":
            continue
        default = next((value for value in usual if value is not None), None)
        varied = any(not same(value, values[0]) for value in values)
        own = "; ".join(
            dict.fromkeys(
                f"{_text(value)} ({member.name})" if varied and key != "method.name" else _text(value)
                for value, member in zip(values, members, strict=True)
                if value is not None
            )
        )
        rows.append([key, own, "" if default is None else _text(default)])
    seeds = sorted({member.seed for member in subject.members})
    rows.append(["seed", ", ".join(map(str, seeds)), "0"])
    columns = [blocks.column("key", "key"), blocks.column("value", "text"), blocks.column("default", "text")]
    caption = "Every other key that decides the result has its default; the command fullrank keys explains them."
    return blocks.table(
        "experiment", "The experiment, as differences from the defaults", columns, rows, caption=caption
    )


def _known(experiment: Experiment) -> str:
    """Return the name of the method if its defaults are known without importing code of the user."""
    return "fedavg" if ":" in experiment.method.name else experiment.method.name


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False))


def _partition(cohort: Cohort) -> Iterator[Block]:
    member = cohort.members[0]
    counts = counts_of(member)
    facts = member.partition
    if not facts.get("sizes"):
        return
    sizes = facts["sizes"]
    shown = min(len(sizes), MOST_CLIENTS)
    parts = [
        f"{len(sizes):,} clients with {facts['samples']:,} training samples, {facts['size']['min']:,} to "
        f"{facts['size']['max']:,} each"
    ]
    if facts.get("classes_per_client") is not None:
        parts.append(f"{facts['classes_per_client']:.1f} classes per client on average")
    if facts.get("emd", {}).get("mean") is not None:
        distance = f"{facts['emd']['mean']:.2f}"
        parts.append(f"distance to the distribution of all clients {distance} on average (0 equal, 2 disjoint)")
    sentences = [f"{'; '.join(parts)}."]
    if len({each.partition.get("hash") for each in cohort.members}) > 1:
        sentences.append(f"Of seed {member.seed}; other seeds have other partitions.")
    if shown < len(sizes):
        sentences.append(f"The first {shown} of {len(sizes):,} clients.")
    names = [member.sites[k] if member.sites else str(k) for k in range(shown)]
    clients = blocks.axis("Client" if not member.sites else "Site", categories=names)
    title = cohort.entitled("Training samples by client and class")
    if counts is None:
        bars = blocks.series("training samples", range(shown), sizes[:shown], legend=False)
        chart = blocks.bars(clients, blocks.axis("Training samples", integer=True), [bars])
        sentences.append(
            "The server does not know the sites' counts by class."
            if facts.get("at_sites")
            else "The run does not record counts by class: there are too many, or it is of an earlier version."
        )
        title = cohort.entitled("Training samples by client")
        yield blocks.figure(f"partition{cohort.suffix}", title, chart, caption=" ".join(sentences), wide=True)
        return
    classes = member.classes if len(member.classes) == counts.shape[1] else [str(c) for c in range(counts.shape[1])]
    scale = blocks.axis("Samples (empty: none)", digits=0, blank_zero=True, root=True, min=0)
    chart = blocks.heatmap(blocks.axis("Class", categories=classes), clients, counts[:shown].tolist(), scale)
    yield blocks.figure(f"partition{cohort.suffix}", title, chart, caption=" ".join(sentences), wide=True)


def _hashes(subject: Subject) -> Block:
    rows = []
    for member in subject.members:
        facts = member.partition
        fingerprint, partition = facts.get("data", {}).get("fingerprint", ""), facts.get("hash", "")
        rows.append([member.name, member.seed, _hash_of(member), fingerprint, partition, str(member.run.path or "")])
    columns = [
        blocks.column("run", "text"),
        blocks.column("seed"),
        *(blocks.column(name, "key") for name in ("experiment", "data", "partition")),
        blocks.column("directory", "text"),
    ]
    short = [[*row[:2], *(blocks.cell(value, value[:16]) for value in row[2:5]), row[5]] for row in rows]
    caption = "The first 16 digits of SHA-256; the CSV and the JSON have all."
    return blocks.table("hashes", "Hashes", columns, short, caption=caption)


def _hash_of(member: Member) -> str:
    try:
        return member.run.experiment.hash()
    except InputError:  # it names code outside the library, which is not imported for a page
        return ""


def machines(member: Member) -> list[Mapping[str, Any]]:
    """Return the environments of a run, one for each process that ran a part of it."""
    return [member.environment, *member.environment.get("resumed", [])] if member.environment else []


def _environment(subject: Subject) -> Block:
    found: dict[tuple[str, ...], list[str]] = {}
    for member in subject.members:
        for each in machines(member):
            facts = tuple("" if each.get(key) is None else str(each[key]) for key in SOFTWARE)
            found.setdefault(facts, []).append(f"{member.name}, seed {member.seed}")
    if not found:
        return blocks.absent("The software and the machine are recorded in the directory of a run, and there is none.")
    rows = []
    several = len(found) > 1
    for place, name in enumerate(SOFTWARE):
        row: list[Any] = [name.replace("_", " "), *(facts[place] for facts in found)]
        rows.append(row)
    titles = [
        (f"{len(dict.fromkeys(runs))} runs" if len(runs) > 1 else runs[0]) if several else "value"
        for runs in found.values()
    ]
    columns = [blocks.column("software and machine", "text"), *(blocks.column(title, "text") for title in titles)]
    return blocks.table("environment", "Software and machine", columns, rows)
