"""One model's measures on a set of samples, which pass in batches: of the samples nothing is kept but moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import collapse
from ..assemble import Assembly
from ..data import Split
from ..evaluate import AT_ONCE, batches
from ..models.network import Output
from ..trees import Tensors
from .classifier import Classifier, classifier_of
from .layers import REPRESENTATION, caught

Numbers = dict[str, Any]
Arrays = dict[str, np.ndarray]


class Looking:
    """Models of one run on one set of samples, in eval mode, on the run's device."""

    def __init__(self, assembly: Assembly, split: Split):
        self.assembly, self.network = assembly, assembly.network
        self.x, self.y = split.x.to(assembly.device), split.y.to(assembly.device)
        self._classes = assembly.network.num_classes

    def put(self, model: Tensors) -> None:
        """Another model in the network."""
        self.network.load(model)
        self.assembly.site.restore_constants()

    @torch.no_grad()
    def outputs(self, x: Tensor, y: Tensor) -> Iterator[tuple[Output, Tensor]]:
        """Forwards of the model in the network, without augmentation, each batch with its labels."""
        for some, live in batches(len(y), AT_ONCE, y.device):
            with self.network.mode(train=False):
                out = self.network(self.assembly.federation.pipeline(x[some], None, self.network.dtype))
            extras = {name: value[:live] for name, value in out.extras.items()}
            yield Output(out.logits[:live], out.z[:live], extras), y[some[:live]]

    def measure(self, model: Tensors, counts: np.ndarray | None = None) -> tuple[Numbers, Arrays]:
        """Everything that is known of one model; `counts` are the class counts of what it was trained on."""
        return self.together([model], [counts])[0]

    def together(
        self, models: Sequence[Tensors], counts: Sequence[np.ndarray | None]
    ) -> list[tuple[Numbers, Arrays]]:
        """The same of several models, one after the other."""
        found = []
        for model, seen in zip(models, counts, strict=True):
            self.put(model)
            found.append(_Measured(self).all(seen))
        return found

    def prototypes(self, model: Tensors, client: int) -> np.ndarray:
        """Class means (C, d) of a client's own training samples under a model; zeros where it has none of a class."""
        self.put(model)
        samples = self.assembly.site.samples(client)
        sums = torch.zeros(self._classes, self.network.feature_dim, dtype=torch.float64, device=self.y.device)
        for out, y in self.outputs(samples.x[samples.index], samples.y[samples.index]):
            sums.index_add_(0, y, out.z.double())
        sizes = torch.bincount(samples.y[samples.index], minlength=self._classes)
        means: np.ndarray = (sums / sizes.clamp(min=1)[:, None]).cpu().numpy()
        return means

    @torch.no_grad()
    def similarity(self, models: Sequence[Tensors], layers: Sequence[str]) -> dict[str, np.ndarray]:
        """Linear CKA of every pair of models, by layer and of z: all see one batch before the next comes."""
        similarity = collapse.Similarity()
        for some, live in batches(len(self.y), AT_ONCE, self.y.device):
            x = self.assembly.federation.pipeline(self.x[some], None, self.network.dtype)
            seen: list[Tensors] = []
            for model in models:
                self.put(model)
                with self.network.mode(train=False), caught(self.network, layers) as found:
                    z = self.network(x).z
                seen.append({name: value[:live] for name, value in {**found, REPRESENTATION: z}.items()})
            similarity.add(seen)
        return similarity.matrices()


class _Measured:
    """The measures of the model that is in the network."""

    def __init__(self, looking: Looking):
        self._looking = looking
        self._classifier: Classifier | None = classifier_of(looking.network)

    def all(self, counts: np.ndarray | None) -> tuple[Numbers, Arrays]:
        """Numbers, and what is more than a number."""
        looking, classifier = self._looking, self._classifier
        of_classes = torch.bincount(looking.y)
        moments = collapse.Moments(of_classes)
        # what the classifier acts on is z itself, or FedETF's μ, whose classes are then looked at apart
        apart = None if classifier is None or isinstance(looking.network.head, torch.nn.Linear) else collapse.Moments(of_classes)
        table = np.zeros((looking._classes, looking._classes), np.int64)
        scores: list[Tensor] = []
        for out, y in looking.outputs(looking.x, looking.y):
            moments.add(out.z, y)
            if apart is not None and classifier is not None:
                apart.add(classifier.features(out), y)
            table += collapse.confusion(out.logits, y, looking._classes)
            if classifier is None:
                scores.append(out.logits)
        spectrum = collapse.spectrum(moments).astype(np.float32)
        numbers: Numbers = {
            "accuracy": float(table.diagonal().sum() / table.sum()),
            "effective_rank": collapse.effective_rank(moments),
            "significant": collapse.significant(spectrum),
            "singular_variance": collapse.singular_variance(moments),
            **self._neural(moments if apart is None else apart, scores),
        }
        arrays: Arrays = {"spectrum": spectrum, "confusion": table.astype(np.int32)}
        if classifier is not None:
            norms = collapse.classifier_norms(classifier.rows, counts)
            numbers |= {"classifier_cv": norms["cv"], "classifier_bias": norms["bias"]}
            arrays["classifier_norms"] = norms["norms"].astype(np.float32)
        return numbers, arrays

    def _neural(self, moments: collapse.Moments, scores: list[Tensor]) -> dict[str, float]:
        """NC1 to NC4; the last needs the class means, so the samples pass a second time."""
        classifier = self._classifier
        again = self._features()
        if classifier is None:
            return collapse.neural_collapse(moments, logits=torch.cat(scores), again=again)
        return collapse.neural_collapse(moments, classifier=classifier.rows, bias=classifier.bias, again=again)

    def _features(self) -> Iterator[tuple[Tensor, Tensor]]:
        looking, classifier = self._looking, self._classifier
        for out, y in looking.outputs(looking.x, looking.y):
            yield (out.z if classifier is None else classifier.features(out)), y
