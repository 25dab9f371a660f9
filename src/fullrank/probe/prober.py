"""A run's probes: when they are due, which clients they show, and what is noted of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank import collapse
from fullrank.errors import InputError
from fullrank.federated.server import RoundResult
from fullrank.files import writable
from fullrank.probe.classifier import classifier_of
from fullrank.probe.files import LINES, Probe, cut_probes, read_probes, write_probe
from fullrank.probe.layers import layers_of
from fullrank.probe.model_probe import Arrays, ModelProbe, Numbers
from fullrank.randomness import generator, seeded
from fullrank.trees import Tensors

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly

MOST_KEPT = 2**18
"""Weights of all shown clients' classifiers that a probe keeps, as directions in half precision: half a MiB."""


class Prober:
    """Looks at the models of a run's rounds, and leaves no trace in what the run computes."""

    def __init__(self, assembly: Assembly, path: Path | None = None):
        self.assembly, self.path = assembly, path
        self.found: list[dict[str, Any]] = []
        """What was noted of the rounds so far."""
        table = assembly.experiment.probe
        self.every, self.number, self.rounds = table.every, table.clients, assembly.experiment.train.rounds
        if self.every and assembly.federation.data.test is None:
            raise InputError(
                f"probe.every = {self.every}: representations are looked at on the test set, and there is none; "
                "give one, or set probe.every = 0"
            )

    def is_due(self, round: int) -> bool:
        """Whether the models are looked at after so many rounds: every so often, and after the last."""
        return bool(self.every) and (round % self.every == 0 or round == self.rounds)

    def check(self, done: int) -> None:
        """Read the probes of the rounds that are saved; each that was due must be there."""
        if self.path is None:
            return
        self.found = [probe for probe in read_probes(self.path, done) if self.is_due(probe["round"])]
        here = [probe["round"] for probe in self.found]
        # The last round of a run that was to have fewer was due then, and it is forgotten if it is not due any more.
        if missing := [round for round in range(1, done + 1) if self.is_due(round) and round not in here]:
            raise InputError(
                f'"{self.path / LINES}" lacks the probe of round {missing[0]}, which was due; put the file back, or '
                "start a new run"
            )

    def go_on(self, done: int) -> None:
        """Forget the probes after the rounds that are saved, and those that are no longer due."""
        if self.path is not None:
            cut_probes(self.path, done, [probe["round"] for probe in self.found])

    def shown(self, taking_part: Sequence[int]) -> list[int]:
        """The clients of a round whose models are looked at.

        The seed puts all clients into one order, for the whole run, and the first of them that take part are shown:
        the same in every round where all do, and never fewer than asked for where enough take part.
        """
        here = set(taking_part)
        chosen = [client for client in self._order if client in here]
        return sorted(chosen[: self.number])

    @cached_property
    def _order(self) -> list[int]:
        order: list[int] = (
            generator(self.assembly.experiment.seed, "probe").permutation(self.assembly.federation.seen).tolist()
        )
        return order

    @cached_property
    def _looking(self) -> ModelProbe:
        test = self.assembly.federation.data.test
        assert test is not None
        return ModelProbe(self.assembly, test)

    def note(self, outcome: RoundResult) -> None:
        """Look at what a round made, and keep it."""
        probe = self.look(outcome)
        self.found.append(probe.joined())
        if self.path is not None:
            write_probe(self.path, probe)

    def look(self, outcome: RoundResult) -> Probe:
        """What a round made of the global model and of the clients that were shown."""
        server, experiment = self.assembly.server, self.assembly.experiment
        # in the order of clients, whatever the order of work; who failed or made no step has sent nothing
        local = {r.client: r.model for r in sorted(outcome.results, key=lambda r: r.client) if r.model and r.steps}
        # a network may draw numbers even in eval mode: the run's own are not to be moved by a look
        with seeded(experiment.seed, "probe", server.round, device=self.assembly.device):
            return self._probe(server.round, local)

    def _probe(self, round: int, local: Mapping[int, Tensors]) -> Probe:
        looking = self._looking
        row: Numbers = {"round": round, "samples": len(looking.y), "features": self.assembly.network.feature_dim}
        row["clients"] = list(local)
        arrays: Arrays = {}
        everybody = self.assembly.federation.class_counts[self.assembly.federation.seen]
        if reason := self.assembly.no_global_model:
            row["absent"] = reason
        else:
            looking.put(self.assembly.server.model)
            row["global"], found = looking.measure(everybody.sum(0))
            arrays |= {f"global/{name}": value for name, value in found.items()}
        row["locals"] = []
        prototypes, classifiers = [], []
        for place, (client, model) in enumerate(local.items()):
            looking.put(model)
            numbers, found = looking.measure(self.assembly.federation.class_counts[client])
            prototypes.append(looking.prototypes(client))
            if (classifier := classifier_of(self.assembly.network)) is not None:
                classifiers.append(classifier.rows.double().cpu().numpy())
            arrays |= {f"locals/{place}/{name}": value for name, value in found.items()}
            gap = _gap(found["spectrum"], arrays.get("global/spectrum"))
            row["locals"].append({"client": client, **numbers, **gap})
        if len(local) > 1:
            between, found = _between(prototypes, classifiers)
            row |= between
            similar = looking.similarity(list(local.values()), layers_of(self.assembly.network))
            row["layers"] = list(similar)
            arrays |= found | {f"cka/{layer}": table.astype(np.float32) for layer, table in similar.items()}
        return Probe(writable(row), arrays)


def _gap(local: np.ndarray, of_global: np.ndarray | None) -> dict[str, Any]:
    """R of a client's spectrum against the global model's, and over how many values; from the spectra as written."""
    if of_global is None:
        return {}
    gap, number = collapse.spectrum_gap(local, of_global, count=True)
    return {"gap": gap, "gap_values": number}


def _between(prototypes: list[np.ndarray], classifiers: list[np.ndarray]) -> tuple[Numbers, Arrays]:
    """How alike the clients' prototypes and classifiers are."""
    agreed = collapse.prototype_consistency(np.stack(prototypes))
    numbers: Numbers = {"prototype_consistency": agreed["mean"], "prototype_classes": agreed["classes"]}
    arrays: Arrays = {"prototype_consistency_by_class": agreed["by_class"].astype(np.float32)}
    if classifiers:
        alike = collapse.classifier_cosine(np.stack(classifiers))
        numbers["classifier_cosine"] = alike["mean"]
        arrays["classifier_cosines"] = alike["matrix"].astype(np.float32)
        arrays["classifier_cosine_by_class"] = alike["by_class"].astype(np.float32)
        rows = np.stack(classifiers)
        if rows.size <= MOST_KEPT:
            lengths = np.linalg.norm(rows, axis=2, keepdims=True)
            arrays["classifier_directions"] = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float16)
    return numbers, arrays
