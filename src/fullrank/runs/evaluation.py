"""Evaluation between rounds: of the global model, or of the clients' models where there is no global one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from fullrank.data import Split
from fullrank.data.federation import Federation
from fullrank.data.split import choose_by_class
from fullrank.federated.server import Server
from fullrank.federated.site import Site
from fullrank.metrics.details import calibration, details, with_balanced
from fullrank.metrics.evaluate import FeatureRange, evaluate
from fullrank.metrics.registry import (
    ALWAYS,
    BY_SITE,
    MEAN,
    METRICS,
    SITE_ACCURACY,
    SITES_LISTED,
    Metric,
    single_numbers,
)
from fullrank.trees import Tensors


@dataclasses.dataclass(frozen=True)
class _Newest:
    """The newest evaluation of a global model on the test set that was kept."""

    model: Tensors
    scores: torch.Tensor
    found: Mapping[str, Any]


class GlobalEvaluator:
    """Evaluates global models at a site.

    Args:
        site: The site, whose network and metrics are used.
        federation: The data, with the test set and the validation set.
        no_global_model: Why there is no complete global model to evaluate, if there is none.
        samples: The number of test samples to evaluate on, of each class and domain its share; 0 is all.
        seed: The seed that draws them.
    """

    def __init__(
        self,
        site: Site,
        federation: Federation,
        no_global_model: str | None = None,
        *,
        samples: int = 0,
        seed: int = 0,
    ):
        self._site, self._federation, self._no_global_model = site, federation, no_global_model
        self._samples, self._seed = samples, seed
        self._newest: _Newest | None = None

    def evaluate_server(self, server: Server, keep: bool = False) -> dict[str, Any]:
        """Return the metrics of a server's global model, or of the models that clients receive if it is not complete.

        Args:
            server: The server.
            keep: As in `evaluate`.
        """
        return self.evaluate_received(server) if self._no_global_model else self.evaluate(server.model, keep)

    def evaluate(self, model: Tensors, keep: bool = False) -> dict[str, Any]:
        """Return the metrics of a global model by name; those of the validation set start with "validation_".

        Args:
            model: The entries of the model.
            keep: Whether the scores on the test set are kept for `rows`, which otherwise computes them again.
        """
        if self._no_global_model:
            return {}
        site = self._site
        site.network.load(model)
        site.restore_constants()
        measured: dict[str, Any] = {}
        for prefix, split in self._splits:
            features = FeatureRange()
            by_site = not prefix and self._federation.has_tests
            scores: list[torch.Tensor] | None = [] if (keep and not prefix) or by_site else None
            with site.network.mode(train=False):
                found = evaluate(
                    partial(self._scores, features),
                    split.x,
                    split.y,
                    self._federation.pipeline,
                    site.network.dtype,
                    site.metrics,
                    split.domain,
                    keep=scores,
                )
            measured |= {f"{prefix}{name}": self._by_name(value) for name, value in found.items()}
            if scores is not None:
                joined = torch.cat(scores).cpu()
                if by_site:
                    measured |= self._by_site(joined, split.y.cpu())
                if keep:
                    self._newest = _Newest(dict(model), joined, found)
            if "dead_features" not in measured:  # on the test set, where there is one
                measured["dead_features"] = features.dead_share()
        return measured

    def evaluate_mean(self, server: Server) -> dict[str, Any]:
        """Return the metrics of the mean of the clients' models on the test set, if a method needs it to be
        evaluated."""
        if not server.mean:
            return {}
        found = self.evaluate({**server.model, **server.mean})
        keys = (metric.key for metric in single_numbers(self._site.metrics))
        return {f"{MEAN}{key}": found[key] for key in keys if key in found}

    def _by_site(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        assert self._test is not None
        right, federation, tests = (scores.argmax(1) == labels).numpy(), self._federation, self._test[1]
        seen = _having(tests, federation.seen)
        return site_accuracies({federation.names[k]: float(right[tests[k]].mean()) for k in seen})

    def evaluate_received(self, server: Server) -> dict[str, Any]:
        """Return the metrics of the models as clients receive them, for methods without a complete global model.

        The model of a client, with its own personal entries, is evaluated on the test part of its site, if it has one,
        and on its part of the validation share (`Federation.validation_of`). The validation metrics are unweighted
        means over the clients that have such a part. Clients that never train are left out.
        """
        site, federation = self._site, self._federation
        accuracies: dict[str, float] = {}
        validated: list[dict[str, Any]] = []
        tested = set(_having(federation.tests, federation.seen))
        for k in federation.seen.tolist():
            kept_back = federation.validation_of(k)
            if k not in tested and not len(kept_back):
                continue
            client = site.received(server.job("personal", k))
            if k in tested:
                split = _taken(federation.data.test, federation.tests[k], site.device)
                accuracies[federation.names[k]] = site.evaluated(client, split.x, split.y, [])["accuracy"]
            if len(kept_back):
                split = _taken(federation.data.train, kept_back, site.device)
                validated.append(site.evaluated(client, split.x, split.y, site.metrics))
        means = _means(validated)
        return {**site_accuracies(accuracies), **{f"validation_{key}": value for key, value in means.items()}}

    def rows(self, model: Tensors) -> list[dict[str, Any]]:
        """Describe the global model on the whole test set and on the part of each site or domain
        (`metrics.details`)."""
        if self._no_global_model or self._test is None:
            return []
        test, tests = self._test
        if self._newest is None or not _same(self._newest.model, model):
            self.evaluate(model, keep=True)
        assert self._newest is not None
        metrics = with_balanced(self._site.metrics)
        missing = [metric for metric in metrics if metric.key not in self._newest.found]
        keys = {*ALWAYS, *(metric.key for metric in metrics)}
        whole = {key: value for key, value in self._newest.found.items() if key in keys}
        whole |= _measured(self._newest.scores, test.y, missing)
        kept = details([self._newest.scores], test.y, whole, self._site.seed, "test")
        rows = [{"site": None, **kept, "calibration": calibration([self._newest.scores], test.y)}]
        for number, name, places in self._places(test, tests):
            scores, labels = self._newest.scores[places], test.y[places]
            found = _measured(scores, labels, [*(METRICS.own[key] for key in ALWAYS), *metrics])
            kept = details([scores], labels, found, self._site.seed, number, "test")
            rows.append({"site": name, **kept})
        return [{"client": None, "stage": "global", "set": "test", **row} for row in rows]

    def _places(self, test: Split, tests: Sequence[np.ndarray]) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Yield the parts of the test set by site, or by domain where clients are not sites, with their names."""
        federation = self._federation
        if tests:
            for k in _having(tests, range(federation.clients)):
                yield k, federation.names[k], torch.from_numpy(tests[k])
        elif test.domain is not None:
            names = federation.data.domains
            for k in torch.unique(test.domain).tolist():
                yield k, names[k] if names else str(k), torch.nonzero(test.domain == k)[:, 0]

    def _by_name(self, value: Any) -> Any:
        """Return values by the names of the domains in place of their numbers; other values unchanged."""
        names = self._federation.data.domains
        return {names[int(k)]: inner for k, inner in value.items()} if names and isinstance(value, dict) else value

    def _scores(self, features: FeatureRange, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        out = self._site.forward(x)
        features.add(out.z)
        return out.logits

    @cached_property
    def _splits(self) -> list[tuple[str, Split]]:
        """The sets to evaluate on, on the site's device, with the prefix of their metrics."""
        data, kept_back = self._federation.data, torch.from_numpy(self._federation.validation)
        sets = [("", self._test[0])] if self._test is not None else []
        if len(kept_back):
            sets.append(("validation_", Split(data.train.x[kept_back], data.train.y[kept_back])))
        return [(prefix, _on(split, self._site.device)) for prefix, split in sets]

    @cached_property
    def _test(self) -> tuple[Split, list[np.ndarray]] | None:
        """The test samples to evaluate on, and the positions of each site's among them."""
        test, tests = self._federation.data.test, self._federation.tests
        if test is None or not self._samples:
            return None if test is None else (test, tests)
        classes = self._federation.data.num_classes
        stratum = test.y if test.domain is None else test.y + classes * test.domain
        chosen = choose_by_class(stratum, self._samples, self._seed)
        place = np.full(len(test), -1)
        place[chosen] = np.arange(len(chosen))
        return test.take(torch.from_numpy(chosen)), [found[found >= 0] for found in (place[of] for of in tests)]


def _having(tests: Sequence[np.ndarray], clients: Sequence[int] | np.ndarray) -> list[int]:
    """Return those of these clients whose sites have test samples."""
    return [int(k) for k in clients if tests and len(tests[k])]


def site_accuracies(by_site: Mapping[str, float]) -> dict[str, Any]:
    """Return the mean of accuracies by site, and the accuracies themselves unless there are very many sites."""
    if not by_site:
        return {}
    listed = {f"accuracy{BY_SITE}": dict(by_site)} if len(by_site) <= SITES_LISTED else {}
    return {**listed, SITE_ACCURACY.key: float(np.mean(list(by_site.values())))}


def _measured(scores: torch.Tensor, labels: torch.Tensor, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the metrics of scores that are one number."""
    functions = {metric.key: metric.function for metric in metrics if not metric.by_class}
    return {key: function(scores, labels) for key, function in functions.items() if function is not None}


def _means(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric that is one number, over the clients for which it is defined."""
    keys = dict.fromkeys(key for scores in found for key in scores)
    values = {key: [scores[key] for scores in found if isinstance(scores.get(key), (int, float))] for key in keys}
    return {key: float(np.mean(numbers)) for key, numbers in values.items() if numbers}


def _same(one: Tensors, other: Tensors) -> bool:
    """Return whether two models are the same tensors, which are never written in place."""
    return one.keys() == other.keys() and all(one[name] is tensor for name, tensor in other.items())


def _taken(split: Split | None, places: np.ndarray, device: torch.device) -> Split:
    assert split is not None
    index = torch.from_numpy(places)
    return Split(split.x[index].to(device), split.y[index].to(device))


def _on(split: Split, device: torch.device) -> Split:
    domain = split.domain.to(device) if split.domain is not None else None
    return dataclasses.replace(split, x=split.x.to(device), y=split.y.to(device), domain=domain)
