"""Evaluation of a global model on the test set and the validation set."""

from __future__ import annotations

import dataclasses
from functools import cached_property, partial
from typing import Any

import torch

from fullrank.data import Split
from fullrank.data.federation import Federation
from fullrank.federated.server import Server
from fullrank.federated.site import Site
from fullrank.metrics.evaluate import FeatureRange, evaluate
from fullrank.metrics.measures import MEAN, single_numbers
from fullrank.trees import Tensors


class GlobalEvaluator:
    """Evaluates global models at a site.

    Args:
        site: The site, whose network and metrics are used.
        federation: The data, with the test set and the validation set.
        no_global_model: Why there is no complete global model to evaluate, if there is none.
    """

    def __init__(self, site: Site, federation: Federation, no_global_model: str | None = None):
        self._site, self._federation, self._no_global_model = site, federation, no_global_model

    def evaluate(self, model: Tensors) -> dict[str, Any]:
        """Return the metrics of a global model by name; those of the validation set start with "validation_"."""
        if self._no_global_model:
            return {}
        site = self._site
        site.network.load(model)
        site.restore_constants()
        measured: dict[str, Any] = {}
        for prefix, split in self._splits:
            features = FeatureRange()
            with site.network.mode(train=False):
                scores = evaluate(
                    partial(self._scores, features),
                    split.x,
                    split.y,
                    self._federation.pipeline,
                    site.network.dtype,
                    site.metrics,
                    split.domain,
                )
            measured |= {f"{prefix}{name}": self._by_name(value) for name, value in scores.items()}
            if "dead_features" not in measured:  # on the test set, where there is one
                measured["dead_features"] = features.dead_share()
        return measured

    def evaluate_mean(self, server: Server) -> dict[str, Any]:
        """Return the metrics of the clients' mean on the test set, where a method wants it to be evaluated."""
        if not server.mean:
            return {}
        found = self.evaluate({**server.model, **server.mean})
        keys = (metric.key for metric in single_numbers(self._site.metrics))
        return {f"{MEAN}{key}": found[key] for key in keys if key in found}

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
        sets = [("", data.test)] if data.test is not None else []
        if len(kept_back):
            sets.append(("validation_", Split(data.train.x[kept_back], data.train.y[kept_back])))
        return [(prefix, _on(split, self._site.device)) for prefix, split in sets]


def _on(split: Split, device: torch.device) -> Split:
    domain = split.domain.to(device) if split.domain is not None else None
    return dataclasses.replace(split, x=split.x.to(device), y=split.y.to(device), domain=domain)
