"""The callback that probes the models of a run between its rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank import collapse
from fullrank.data.split import choose_by_class
from fullrank.errors import InputError
from fullrank.federated.site import Result
from fullrank.files import writable
from fullrank.probe.classifier import classifier_of
from fullrank.probe.files import LINES, Probe, cut_probes, read_probes, write_probe
from fullrank.probe.layers import layers_of
from fullrank.probe.model_probe import Arrays, ModelProbe, Numbers
from fullrank.randomness import generator, seeded
from fullrank.runs.callbacks import Callback
from fullrank.trees import Tensors

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly

MOST_KEPT = 2**18
"""Maximum number of weights, of the classifiers of all probed clients, that a probe keeps in half precision."""


class Prober(Callback):
    """Measures the representations of the global model and of some clients' models, without any effect on the run.

    Args:
        assembly: The parts of the run.
        path: The run directory; None if nothing is written.

    Raises:
        InputError: If there is no test set on which models could be probed.
    """

    def __init__(self, assembly: Assembly, path: Path | None = None):
        self.assembly, self.path = assembly, path
        self.found: list[dict[str, Any]] = []
        """The probes of the rounds so far."""
        self._clients: Collection[int] = ()
        """The clients whose models are probed in this round."""
        self._models: dict[int, Tensors] = {}
        """Their models as trained in this round."""
        table = assembly.experiment.probe
        self.every, self.number, self.rounds = table.every, table.clients, assembly.experiment.train.rounds
        self.embed = table.embed
        if self.every and assembly.federation.data.test is None:
            raise InputError(
                f"probe.every = {self.every}: representations are measured on the test set, and there is none; "
                "give one, or set probe.every = 0"
            )

    def is_due(self, round: int) -> bool:
        """Return whether the models are probed after a round: after each `probe.every` rounds, and after the last."""
        return bool(self.every) and (round % self.every == 0 or round == self.rounds)

    def resume(self, done: int) -> None:
        """Read the probes of the rounds that are saved.

        Args:
            done: The number of rounds that are saved.

        Raises:
            InputError: If a probe that was due is missing or damaged.
        """
        if self.path is None:
            return
        self.found = [probe for probe in read_probes(self.path, done) if self.is_due(probe["round"])]
        here = [probe["round"] for probe in self.found]
        # In a run that was extended, the former last round was due then, and may not be due any more.
        if missing := [round for round in range(1, done + 1) if self.is_due(round) and round not in here]:
            raise InputError(
                f'"{self.path / LINES}" lacks the probe of round {missing[0]}, which was due; put the file back, or '
                "start a new run"
            )

    def cut(self, done: int) -> None:
        """Delete the probes after the rounds that are saved, and those that are no longer due."""
        if self.path is not None:
            cut_probes(self.path, done, [probe["round"] for probe in self.found])

    def chosen(self, clients: Sequence[int]) -> list[int]:
        """Return the clients of a round whose models are probed.

        The seed determines one order of all clients for the whole run, and the first of them that take part are chosen:
        the same in every round if all take part, and as many as configured if enough take part.
        """
        here = set(clients)
        found = [client for client in self._order if client in here]
        return sorted(found[: self.number])

    def round_started(self, round: int, clients: Sequence[int]) -> Collection[int]:
        """Ask for the models of the chosen clients if a probe is due."""
        self._clients = self.chosen(clients) if self.is_due(round) else ()
        self._models = {}
        return self._clients

    def client_done(self, result: Result) -> None:
        """Keep the model of a chosen client; a client that made no step has sent nothing and is not probed."""
        if result.client in self._clients and result.model and result.steps:
            self._models[result.client] = result.model

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Probe the models of the round and write the probe, if one is due."""
        if not self.is_due(row["round"]):
            return
        probe = self.measure()
        self.found.append(probe.joined())
        if self.path is not None:
            write_probe(self.path, probe)
        self._clients, self._models = (), {}

    def measure(self) -> Probe:
        """Return the probe of the global model and of the clients' models of the round that has just ended."""
        server, experiment = self.assembly.server, self.assembly.experiment
        # A network may draw numbers even in eval mode; those of the run must not change.
        with seeded(experiment.seed, "probe", server.round, device=self.assembly.device):
            return self._probe(server.round, dict(sorted(self._models.items())))

    @cached_property
    def _order(self) -> list[int]:
        order: list[int] = (
            generator(self.assembly.experiment.seed, "probe").permutation(self.assembly.federation.seen).tolist()
        )
        return order

    @cached_property
    def _embedded(self) -> np.ndarray:
        """The test samples of which each probe keeps two coordinates and the label."""
        return choose_by_class(self._model_probe.y.cpu(), self.embed, self.assembly.experiment.seed)

    @cached_property
    def _model_probe(self) -> ModelProbe:
        test = self.assembly.federation.data.test
        assert test is not None
        return ModelProbe(self.assembly, test)

    def _probe(self, round: int, local: Mapping[int, Tensors]) -> Probe:
        model_probe = self._model_probe
        row: Numbers = {"round": round, "samples": len(model_probe.y), "features": self.assembly.network.feature_dim}
        row["clients"] = list(local)
        arrays: Arrays = {}
        counts = self.assembly.federation.class_counts[self.assembly.federation.seen]
        if reason := self.assembly.no_global_model:
            row["absent"] = reason
        else:
            model_probe.put(self.assembly.server.model)
            row["global"], found = model_probe.measure(counts.sum(0))
            row["global"]["eigenvalue_variance"] = model_probe.eigenvalue_variance()
            arrays |= {f"global/{name}": value for name, value in found.items()} | self._map("global")
        row["locals"] = []
        if self.embed:
            arrays["embedded_labels"] = model_probe.y.cpu().numpy()[self._embedded].astype(np.int32)
        prototypes, classifiers = [], []
        for index, (client, model) in enumerate(local.items()):
            model_probe.put(model)
            numbers, found = model_probe.measure(self.assembly.federation.class_counts[client])
            prototypes.append(model_probe.prototypes(client))
            if (classifier := classifier_of(self.assembly.network)) is not None:
                classifiers.append(classifier.rows.double().cpu().numpy())
            arrays |= {f"locals/{index}/{name}": value for name, value in found.items()} | self._map(f"locals/{index}")
            gap = _gap(found["spectrum"], arrays.get("global/spectrum"))
            row["locals"].append({"client": client, **numbers, **gap})
        if len(local) > 1:
            between, found = _between(prototypes, classifiers)
            row |= between
            similar = model_probe.similarity(list(local.values()), layers_of(self.assembly.network))
            row |= {"layers": list(similar), **_means(similar)}
            arrays |= found | {f"cka/{layer}": table.astype(np.float32) for layer, table in similar.items()}
        return Probe(writable(row), arrays)

    def _map(self, model: str) -> Arrays:
        """Return the coordinates of the chosen test samples under the model in the network, if any are kept."""
        return {f"{model}/embedding": self._model_probe.embedding(self._embedded)} if self.embed else {}


def _gap(local: np.ndarray, of_global: np.ndarray | None) -> dict[str, Any]:
    """Return R of a client's spectrum and the global model's as they are written, and its number of values."""
    if of_global is None:
        return {}
    gap, number = collapse.spectrum_gap(local, of_global, count=True)
    return {"gap": gap, "gap_values": number}


def _means(similar: Mapping[str, np.ndarray]) -> Numbers:
    """Return the mean of CKA over the pairs of clients by layer, and the mean of these over the layers."""
    by_layer = {layer: float(table[np.triu_indices(len(table), 1)].mean()) for layer, table in similar.items()}
    return {"cka_by_layer": by_layer, "cka_mean": float(np.mean(list(by_layer.values())))}


def _between(prototypes: list[np.ndarray], classifiers: list[np.ndarray]) -> tuple[Numbers, Arrays]:
    """Return how similar the clients' prototypes and classifiers are."""
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
