"""The section with maps in two dimensions: of test features, and of the rows of clients' classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullrank.collapse import principal_map
from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.subject import Cohort, Subject, of_first_seed
from fullrank.report.probed import MOST_RUNS, Probe

MOST_COLOURS = 12
"""The number of colours of classes; with more classes colours repeat with another shape."""
NONE = (
    "No run keeps a map of test features. Set probe.embed to a number of test samples, for example 500, together with "
    "probe.every; the run then keeps two coordinates and the label of each of these samples."
)
PLAIN: dict[str, Any] = {"plain": True, "height": 340}
"""The style of maps: the coordinates of a point are not read out."""
PLANE = blocks.axis("First principal component"), blocks.axis("Second principal component")


def section(subject: Subject) -> Block:
    """Return the section."""
    found: list[Block] = []
    for cohort in subject.cohorts:
        found += _features(cohort)
    found = found or [blocks.absent(NONE)]
    for cohort in subject.cohorts:
        found += _classifiers(subject, cohort)
    about = (
        "Each map is a projection onto the two directions of the largest variance: points that are far from each other "
        "are so in all dimensions too, and near points may be separated by directions that are not shown. Maps of "
        "different rounds have different axes."
    )
    return blocks.section("embeddings", "Maps of features and classifiers", found, about, short="Maps")


def _features(cohort: Cohort) -> Iterator[Block]:
    charts, number = [], 0
    for group in cohort.groups:
        member = group.first
        for probe in member.run.probes:
            if "embedded_labels" not in probe:
                continue
            labels = probe["embedded_labels"]
            number = len(labels)
            models = [("global model", probe["global"])] if "global" in probe else []
            models += [(member.client_name(local["client"]), local) for local in probe["locals"]]
            for name, model in models:
                places = np.asarray(model["embedding"], np.float64)
                charts.append(((group.label, name, f"round {probe['round']}"), _map(places, labels, member.classes)))
    if charts:
        caption = f"{number:,} test samples, coloured by class{of_first_seed(cohort.groups)}."
        chart = blocks.framed(charts, ("method", "model", "round"))
        title = cohort.entitled("Test features")
        yield blocks.figure(f"features{cohort.suffix}", title, chart, caption=caption)


def _map(places: NDArray[np.float64], labels: Any, classes: list[str]) -> dict[str, Any]:
    found = []
    for label in sorted({int(label) for label in labels}):
        own = places[np.asarray(labels) == label]
        name = classes[label] if label < len(classes) else f"class {label}"
        style = {"shape": label // MOST_COLOURS, "size": 2.6}
        found.append(blocks.series(name, own[:, 0].tolist(), own[:, 1].tolist(), label % MOST_COLOURS, **style))
    return blocks.points(*PLANE, found, **PLAIN)


def _classifiers(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    charts = []
    for group in cohort.groups:
        for probe in group.first.run.probes:
            if "classifier_directions" in probe:
                charts.append(((group.label, f"round {probe['round']}"), _rows(probe, group.first.classes)))
    if charts:
        yield blocks.figure(
            f"rows{cohort.suffix}",
            cohort.entitled("Rows of clients' classifiers"),
            blocks.framed(charts, ("method", "round")),
            caption="A point for each class and probed client, divided by its norm; the points of a class lie together "
            f"where clients agree{of_first_seed(cohort.groups)}.",
            command=subject.command("tsne", most=MOST_RUNS),
        )


def _rows(probe: Probe, names: list[str]) -> dict[str, Any]:
    rows = np.asarray(probe["classifier_directions"], np.float64)
    clients, classes, _ = rows.shape
    places = principal_map(rows.reshape(clients * classes, -1)).reshape(clients, classes, 2)
    found = []
    for label in range(classes):
        name = names[label] if label < len(names) else f"class {label}"
        own = places[:, label]
        style = {"shape": label // MOST_COLOURS, "labels": [f"client {client}" for client in probe["clients"]]}
        found.append(blocks.series(name, own[:, 0].tolist(), own[:, 1].tolist(), label % MOST_COLOURS, **style))
    return blocks.points(*PLANE, found, **PLAIN)
