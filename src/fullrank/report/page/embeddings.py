"""The section with maps in two dimensions: of test features, and of the rows of clients' classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullrank.collapse import principal_map
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Group, Subject

MOST_COLOURS = 12
"""The number of colours of classes; with more classes colours repeat with another shape."""
NONE = (
    "No run keeps an embedding of test features. Set probe.embed to a number of test samples, for example 500, together "
    "with probe.every; the run then keeps two coordinates and the label of each of these samples."
)
PLAIN: dict[str, Any] = {"plain": True, "height": 340}
"""The style of maps: the coordinates of a point are not read out."""
PLANE = blocks.axis("First principal component"), blocks.axis("Second principal component")


def section(subject: Subject) -> Block:
    """Return the section."""
    maps = [block for cohort in subject.cohorts for group in cohort.groups for block in _features(cohort, group)]
    rows = [block for cohort in subject.cohorts for group in cohort.groups for block in _classifiers(cohort, group)]
    found = [*(maps or [blocks.absent(NONE)]), *rows]
    about = (
        "Each map is a projection onto the two directions of the largest variance, so that distances between far points "
        "are true and near points may be separated by directions that are not shown. Maps of different rounds have axes "
        "of their own."
    )
    return blocks.section("embeddings", "Maps of features and classifiers", found, about)


def _seed(group: Group) -> str:
    return f", seed {group.first.seed}" if len(group.members) > 1 else ""


def _features(cohort: Cohort, group: Group) -> Iterator[Block]:
    member = group.first
    charts, number = [], 0
    for probe in member.run.probes:
        if "embedded_labels" not in probe:
            continue
        labels = probe["embedded_labels"]
        number = len(labels)
        models = [("global model", probe["global"])] if "global" in probe else []
        models += [(member.client_name(local["client"]), local) for local in probe["locals"]]
        for name, model in models:
            places = np.asarray(model["embedding"], np.float64)
            charts.append((f"round {probe['round']}, {name}", _map(places, labels, member.classes)))
    if charts:
        title = cohort.entitled(f"Test features: {group.label}{_seed(group)}")
        caption = f"{number:,} test samples, coloured by class, under the global model and the probed clients' models."
        chart = blocks.framed(charts, "probe")
        yield blocks.figure(f"features-{group.colour}{cohort.suffix}", title, chart, caption=caption)


def _map(places: NDArray[np.float64], labels: Any, classes: list[str]) -> dict[str, Any]:
    found = []
    for label in sorted({int(label) for label in labels}):
        own = places[np.asarray(labels) == label]
        name = classes[label] if label < len(classes) else f"class {label}"
        style = {"shape": label // MOST_COLOURS, "size": 2.6}
        found.append(blocks.series(name, own[:, 0].tolist(), own[:, 1].tolist(), label % MOST_COLOURS, **style))
    return blocks.points(*PLANE, found, **PLAIN)


def _classifiers(cohort: Cohort, group: Group) -> Iterator[Block]:
    member = group.first
    charts = []
    for probe in member.run.probes:
        if "classifier_directions" not in probe:
            continue
        rows = np.asarray(probe["classifier_directions"], np.float64)
        clients, classes, _ = rows.shape
        places = principal_map(rows.reshape(clients * classes, -1)).reshape(clients, classes, 2)
        found = []
        for label in range(classes):
            name = member.classes[label] if label < len(member.classes) else f"class {label}"
            own = places[:, label]
            named = [f"client {client}" for client in probe["clients"]]
            style = {"shape": label // MOST_COLOURS, "labels": named}
            found.append(blocks.series(name, own[:, 0].tolist(), own[:, 1].tolist(), label % MOST_COLOURS, **style))
        charts.append((f"round {probe['round']}", blocks.points(*PLANE, found, **PLAIN)))
    if charts:
        title = cohort.entitled(f"Rows of clients' classifiers: {group.label}{_seed(group)}")
        yield blocks.figure(
            f"rows-{group.colour}{cohort.suffix}",
            title,
            blocks.framed(charts),
            caption="A point for each class and probed client, divided by its norm. Points of a class lie together "
            "where clients agree.",
            command=f"fullrank figure tsne '{member.run.path}' --out tsne.pdf",
        )
