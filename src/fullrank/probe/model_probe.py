"""The measurement of a run's models on a set of samples, batch by batch. Only moments and counts are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fullrank import collapse
from fullrank.data import Split
from fullrank.metrics.evaluate import at_once, batches
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.objectives import class_prototypes
from fullrank.probe.classifier import Classifier, classifier_of
from fullrank.probe.layers import CLASSIFIER, REPRESENTATION, caught
from fullrank.randomness import generator
from fullrank.trees import Tensors

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly

Numbers: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, np.ndarray]
MOST_SAMPLES = 80 * 128
"""Maximum number of samples of which FedMR's variance of eigenvalues is computed, 80 of its mini-batches."""
KEPT_BYTES = 2**26
"""Maximum size of the features that are kept for the second pass; larger ones are computed again."""


@contextmanager
def unrounded(network: Network, device: torch.device) -> Iterator[None]:
    """Compute all forward passes in the block in the dtype of the model, even if the run trains in a shorter one.

    Rounding to 8 bits adds noise of the same size in all directions, which would hide the tail of a spectrum.

    Args:
        network: The network.
        device: Its device.
    """
    half, network.half = network.half, None
    try:
        with _without_tf32() if device.type == "cuda" else nullcontext():
            yield
    finally:
        network.half = half


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Disable TF32 in the block. Only used on a GPU: even reading these flags interferes with torch's newer ones."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


class ModelProbe:
    """Measures models in the network of a run: in eval mode, without rounding or augmentation, on the run's device.

    Args:
        assembly: The parts of the run.
        split: The samples on which models are measured.

    >>> from fullrank import Experiment
    >>> from fullrank.runs.assemble import assemble
    >>> parts = assemble(Experiment.of({"model.name": "mlp", "data.clients": 4}))
    >>> probe = ModelProbe(parts, parts.federation.data.test)
    >>> numbers, arrays = probe.measure()
    >>> arrays["spectrum"].shape
    (128,)
    """

    def __init__(self, assembly: Assembly, split: Split):
        self.assembly, self.network = assembly, assembly.network
        self.classes = assembly.network.num_classes
        self.x, self.y = split.x.to(assembly.device), split.y.to(assembly.device)

    def put(self, model: Tensors) -> None:
        """Load a model into the network."""
        self.network.load(model)
        self.assembly.site.restore_constants()

    @torch.no_grad()
    def outputs(self, x: Tensor, y: Tensor) -> Iterator[tuple[Output, Tensor]]:
        """Yield the outputs of the model in the network, each batch with its labels."""
        for some, live in batches(len(y), at_once(y.device), y.device):
            with self.network.mode(train=False), unrounded(self.network, self.x.device):
                out = self.network(self.assembly.federation.pipeline(x[some], None, self.network.dtype))
            extras = {name: value[:live] for name, value in out.extras.items()}
            yield Output(out.logits[:live], out.z[:live], extras), y[some[:live]]

    def measure(self, counts: np.ndarray | None = None) -> tuple[Numbers, Arrays]:
        """Measure the model in the network.

        Args:
            counts: The class counts of the model's training data.

        Returns:
            The measures, which are numbers and arrays.
        """
        classifier = classifier_of(self.network)
        sizes = torch.bincount(self.y)
        of_z = collapse.Moments(sizes)
        of_classifier = collapse.Moments(sizes) if classifier is not None and classifier.on else of_z
        table = np.zeros((self.classes, self.classes), np.int64)
        scores: list[Tensor] = []
        kept: list[tuple[Tensor, Tensor]] = []
        for out, y in self.outputs(self.x, self.y):
            of_z.add(out.z, y)
            features = out.z if classifier is None else classifier.features(out)
            if of_classifier is not of_z:
                of_classifier.add(features, y)
            if classifier is None:
                scores.append(out.logits)
            if len(self.y) * features.shape[1] * features.itemsize <= KEPT_BYTES:
                kept.append((features, y))
            table += collapse.confusion(out.logits, y, self.classes)
        spectrum = collapse.spectrum(of_z)
        numbers: Numbers = {
            "accuracy": float(table.diagonal().sum() / table.sum()),
            "effective_rank": collapse.effective_rank(spectrum),
            "significant": collapse.significant(spectrum),
            "singular_variance": collapse.singular_variance(of_z),
            **self._neural(of_classifier, classifier, scores, kept),
        }
        arrays: Arrays = {"spectrum": spectrum.astype(np.float32), "confusion": table.astype(np.int32)}
        if classifier is not None:
            norms = collapse.classifier_norms(classifier.rows, counts)
            numbers |= {"classifier_cv": norms["cv"], "classifier_bias": norms["bias"]}
            arrays["classifier_norms"] = norms["norms"].astype(np.float32)
        return numbers, arrays

    def _neural(
        self,
        moments: collapse.Moments,
        classifier: Classifier | None,
        scores: list[Tensor],
        kept: list[tuple[Tensor, Tensor]],
    ) -> dict[str, float]:
        """Return NC1 to NC4; the last needs the class means first, so there is a second pass over the samples."""
        again = kept or (
            (out.z if classifier is None else classifier.features(out), y) for out, y in self.outputs(self.x, self.y)
        )
        if classifier is None:
            return collapse.neural_collapse(moments, logits=torch.cat(scores), again=again)
        return collapse.neural_collapse(moments, classifier=classifier.rows, bias=classifier.bias, again=again)

    def eigenvalue_variance(self) -> float:
        """Return FedMR's variance of the eigenvalues within classes, of z of the model in the network.

        The mini-batches are drawn by the seed of the run, because a test set may be sorted by class. Of a large test
        set, a part of `MOST_SAMPLES` samples is enough.
        """
        order = generator(self.assembly.experiment.seed, "probe", "mini-batches").permutation(len(self.y))
        chosen = torch.from_numpy(order[:MOST_SAMPLES]).to(self.y.device)
        labels = self.y[chosen]
        z = torch.cat([out.z for out, _ in self.outputs(self.x[chosen], labels)])
        # on the CPU, where thousands of small matrices take less time
        return collapse.mean_class_eigenvalue_variance(z.cpu(), labels.cpu())

    def embedding(self, samples: np.ndarray) -> np.ndarray:
        """Return two coordinates for each of some test samples, from the model in the network, in single precision.

        Only these coordinates leave the function, and no feature.
        """
        chosen = torch.from_numpy(samples).to(self.y.device)
        z = torch.cat([out.z for out, _ in self.outputs(self.x[chosen], self.y[chosen])])
        return collapse.principal_map(z).astype(np.float32)

    def prototypes(self, client: int) -> np.ndarray:
        """Return the class means (C, d) of a client's training samples under the model in the network.

        The mean of a class without samples is zero.
        """
        samples = self.assembly.site.samples(client)
        x, y = samples.x[samples.index], samples.y[samples.index]
        sums = torch.zeros(self.classes, self.network.feature_dim, dtype=torch.float64, device=y.device)
        for out, labels in self.outputs(x, y):
            sums += class_prototypes(out.z.double(), labels, self.classes)[0]
        sizes = torch.bincount(y, minlength=self.classes)
        means: np.ndarray = (sums / sizes.clamp(min=1)[:, None]).cpu().numpy()
        return means

    @torch.no_grad()
    def similarity(self, models: Sequence[Tensors], layers: Sequence[str]) -> dict[str, np.ndarray]:
        """Compute the linear CKA of every pair of models by layer, of z, and of the classifier's scores.

        All models process each batch in turn.

        Args:
            models: The entries of each model.
            layers: The names of the layers.

        Returns:
            A matrix (models, models) for each layer.
        """
        similarity = collapse.Similarity()
        for some, live in batches(len(self.y), at_once(self.y.device), self.y.device):
            x = self.assembly.federation.pipeline(self.x[some], None, self.network.dtype)
            seen: list[Tensors] = []
            for model in models:
                self.put(model)
                with (
                    self.network.mode(train=False),
                    unrounded(self.network, self.x.device),
                    caught(self.network, layers) as found,
                ):
                    out = self.network(x)
                # without layers that are called twice in a forward pass or do not return one row per sample
                of_layers = {n: torch.cat(parts) for n, parts in found.items() if sum(map(len, parts)) == len(out.z)}
                named = {**of_layers, REPRESENTATION: out.z, CLASSIFIER: out.logits}
                seen.append({name: value[:live] for name, value in named.items()})
            similarity.add(seen)
        return similarity.matrices()
