"""The section about agreement between clients: CKA by layer, and norms and directions of their classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fullrank.report.page import blocks
from fullrank.report.page.blocks import Block
from fullrank.report.page.learning import ROUND, bands
from fullrank.report.page.representation import NO_PROBES
from fullrank.report.page.subject import Cohort, Group, Subject, of_first_seed
from fullrank.report.probed import MOST_RUNS, Probe

TOO_FEW = "Probes show too few clients to compare them. Set probe.clients to 2 or more."
CKA = blocks.axis("Linear CKA", min=0, max=1, digits=2)


def section(subject: Subject) -> Block:
    """Return the section."""
    probed = any(member.run.probes for member in subject.members)
    found = [block for cohort in subject.cohorts for block in _of_cohort(subject, cohort)]
    reason = TOO_FEW if probed else NO_PROBES
    about = (
        "Linear CKA says how alike the probed clients' representations of the test set are, layer by layer: 1 is equal "
        "up to rotation and scale. The rows of a classifier are the vectors by which it recognises each class."
    )
    return blocks.section(
        "agreement", "Agreement between clients", found or [blocks.absent(reason)], about, short="Agreement"
    )


def _of_cohort(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    if lines := _by_layer(cohort):
        layers = list(dict.fromkeys(name for each in lines for name in each["labels"]))
        for each in lines:
            each["x"] = [layers.index(name) for name in each.pop("labels")]
        chart = blocks.lines(blocks.axis("Layer", categories=layers), blocks.axis("Linear CKA, mean of pairs"), lines)
        title = cohort.entitled("Similarity of clients by layer, last probe")
        yield blocks.figure(f"cka-layers{cohort.suffix}", title, chart)
    if lines := _consistency(cohort):
        y = blocks.axis("Cosine between clients' prototypes")
        chart = blocks.lines(ROUND, y, lines, notes=bands(lines))
        title = cohort.entitled("Agreement of class prototypes over rounds")
        command = subject.command("consistency")
        yield blocks.figure(f"consistency{cohort.suffix}", title, chart, command=command)
    yield from _matrices(subject, cohort)


def _by_layer(cohort: Cohort) -> list[blocks.Series]:
    found = []
    for group in cohort.groups:
        probe = _last(group)
        if probe is not None and probe.get("cka_by_layer"):
            layers, values = zip(*probe["cka_by_layer"].items(), strict=True)
            found.append(
                blocks.series(
                    group.label, range(len(layers)), values, group.colour, markers=True, labels=[*map(_layer, layers)]
                )
            )
    return found


def _layer(name: str) -> str:
    return {"z": "features"}.get(name, name.removeprefix("backbone."))


def _consistency(cohort: Cohort) -> list[blocks.Series]:
    found = []
    for group in cohort.groups:
        spread = group.over_rounds(
            lambda member: {
                probe["round"]: probe["prototype_consistency"]
                for probe in member.run.probes
                if probe.get("prototype_consistency") is not None
            }
        )
        if spread["x"]:
            found.append(blocks.series(group.name, colour=group.colour, markers=True, **spread))
    return found


def _last(group: Group) -> Probe | None:
    return group.first.run.probes[-1] if group.first.run.probes else None


def _matrices(subject: Subject, cohort: Cohort) -> Iterator[Block]:
    """Yield heat maps, in which a reader chooses the method and moves through layers or rounds."""
    layers, norms, cosines = [], [], []
    for group in cohort.groups:
        for probe in group.first.run.probes:
            place = (group.label, f"round {probe['round']}")
            if (chart := _norms(probe, group.first.classes)) is not None:
                norms.append((place, chart))
            if "classifier_cosines" in probe:
                cosines.append((place, _cosines(probe)))
        layers += [((group.label, name), chart) for name, chart in _cka(_last(group))]
    first, names = of_first_seed(cohort.groups).removeprefix(", "), ("method", "round")
    first = f"{first[:1].upper()}{first[1:]}." if first else ""
    if layers:
        title = cohort.entitled("CKA between clients by layer, last probe")
        command = subject.command("cka", most=MOST_RUNS)
        chart = blocks.framed(layers, ("method", "layer"))
        yield blocks.figure(f"cka{cohort.suffix}", title, chart, caption=first, command=command)
    command = subject.command("classifier", most=MOST_RUNS)
    for id, title, found in (
        ("norms", "Norms of the classifier's rows", norms),
        ("cosines", "Cosine between clients' classifiers", cosines),
    ):
        if found:
            chart = blocks.framed(found, names)
            whole = cohort.entitled(title)
            yield blocks.figure(f"{id}{cohort.suffix}", whole, chart, caption=first, command=command)


def _cka(probe: Probe | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the matrix of each layer."""
    for layer, table in (probe or {}).get("cka", {}).items():
        names = [str(client) for client in (probe or {})["clients"]]
        axes = blocks.axis("Client", categories=names), blocks.axis("Client", categories=names)
        yield _layer(layer), blocks.heatmap(*axes, table.tolist(), CKA, square=True)


def _norms(probe: Probe, classes: list[str]) -> dict[str, Any] | None:
    models = [("global model", probe["global"])] if "global" in probe else []
    models += [(f"client {local['client']}", local) for local in probe["locals"]]
    named = [(name, model) for name, model in models if "classifier_norms" in model]
    if not named:
        return None
    values = [model["classifier_norms"].tolist() for _, model in named]
    columns = classes if len(classes) == len(values[0]) else [str(place) for place in range(len(values[0]))]
    x, y = blocks.axis("Class", categories=columns), blocks.axis("Model", categories=[name for name, _ in named])
    return blocks.heatmap(x, y, values, blocks.axis("Norm of the row", digits=2))


def _cosines(probe: Probe) -> dict[str, Any]:
    names = [str(client) for client in probe["clients"]]
    axes = blocks.axis("Client", categories=names), blocks.axis("Client", categories=names)
    low = min(0.0, float(probe["classifier_cosines"].min()))
    scale = blocks.axis("Cosine, mean over classes", min=low, max=1, digits=2)
    return blocks.heatmap(*axes, probe["classifier_cosines"].tolist(), scale, square=True)
