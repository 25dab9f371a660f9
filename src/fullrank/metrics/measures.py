"""The metrics: functions of a classifier's scores (N, C) and labels (N,), and the registry of all of them.

The functions are pure and work on any device. Formulas follow scikit-learn's where it has them.
"""

from __future__ import annotations

import importlib.util
import inspect
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.errors import InputError
from fullrank.plugins import Registry, called

Value: TypeAlias = float | list[float | None] | None
"""The value of a metric: a number, a list with one number per class, or None where it is not defined."""

BINS = 15
"""Number of bins of the expected calibration error, as in Guo et al. 2017."""


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class has the highest score; of equal scores that of the lower class counts.

    >>> accuracy(torch.eye(2)[[0, 1, 1]], torch.tensor([0, 1, 0]))
    0.6666666666666666
    """
    return int((scores.argmax(1) == labels).sum()) / len(labels)


def loss(scores: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy.

    >>> round(loss(torch.zeros(2, 4), torch.tensor([0, 3])), 4)
    1.3863
    """
    return float(F.cross_entropy(scores, labels, reduction="sum").double()) / len(labels)


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """Count the samples of each class (rows) that are predicted as each class (columns).

    >>> confusion(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    return counted_pairs(labels, scores.argmax(1), scores.shape[1])


def counted_pairs(rows: Tensor, columns: Tensor, classes: int) -> Tensor:
    """Count how often each pair of classes occurs.

    Args:
        rows: The first class of each pair.
        columns: The second class of each pair.
        classes: The number of classes.

    Returns:
        The counts, of shape (classes, classes).
    """
    return torch.bincount(rows * classes + columns, minlength=classes * classes).view(classes, classes)


def recalls(scores: Tensor, labels: Tensor) -> list[float | None]:
    """Return the recall of each class; None for a class without samples.

    >>> recalls(torch.eye(3)[[0, 1]], torch.tensor([0, 0]))
    [0.5, None, None]
    """
    table = confusion(scores, labels)
    counts, right = table.sum(1).tolist(), table.diagonal().tolist()
    return [hit / count if count else None for hit, count in zip(right, counts, strict=True)]


def balanced_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the mean recall over the classes that occur.

    >>> balanced_accuracy(torch.eye(3)[[0, 0, 0, 1, 1, 1, 2]], torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    0.9166666666666666
    """
    found = [recall for recall in recalls(scores, labels) if recall is not None]
    return sum(found) / len(found)


def macro_f1(scores: Tensor, labels: Tensor) -> float:
    """Return the mean of 2TP / (2TP + FP + FN) over the classes that occur among labels or predictions."""
    table = confusion(scores, labels).double()
    hits, given, taken = table.diagonal(), table.sum(1), table.sum(0)
    occurs = (given + taken) > 0
    return float((2 * hits[occurs] / (given + taken)[occurs]).mean())


def auroc(scores: Tensor, labels: Tensor) -> float | None:
    """Return the mean area under the ROC curve of each class against the rest, on softmax probabilities.

    The area is the probability that a sample of the class has a higher probability of it than a sample of another
    class; ties count half. The mean is over the classes that some samples have and others do not; without such a class
    it is None.
    """
    probabilities = scores.double().softmax(1)
    found = [_area(probabilities[:, c], labels == c) for c in range(scores.shape[1])]
    areas = [area for area in found if area is not None]
    return sum(areas) / len(areas) if areas else None


def _area(score: Tensor, positive: Tensor) -> float | None:
    """Compute the area from ranks (Mann and Whitney); equal scores have the mean of their ranks."""
    count = int(positive.sum())
    if count in (0, len(score)):
        return None
    _, place, ties = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0).double() - (ties - 1) / 2)[place]
    above = float(rank[positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(score) - count))


def top(k: int, scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class is among the k highest scores; ties are resolved as by `accuracy`.

    Args:
        k: The number of scores.
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
    """
    return float(among_highest(k, scores, labels).double().mean())


def among_highest(k: int, scores: Tensor, labels: Tensor) -> Tensor:
    """Return for each sample whether its class is among the k highest scores.

    Args:
        k: The number of scores.
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
    """
    own = scores.gather(1, labels[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & lower)
    return ahead.sum(1) < k


def top5(scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class is among the 5 highest scores."""
    return top(5, scores, labels)


def calibration_error(scores: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error.

    It is the mean of |accuracy − confidence| over bins of the highest probability, weighted by their samples.

    Args:
        scores: Scores of shape (N, C).
        labels: Labels of shape (N,).
        bins: The number of bins.
    """
    confidence, predicted = scores.double().softmax(1).max(1)
    return binned_error(confidence, (predicted == labels).double(), bins)


def binned_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Return Σ n_b/N · |accuracy − mean confidence| over the bins (j/M, (j+1)/M].

    Args:
        confidence: The highest probability of each sample.
        right: 1 for a sample whose prediction is right, 0 for another.
        bins: The number of bins M.

    >>> round(binned_error(torch.tensor([0.95, 0.92, 0.65, 0.62, 0.55]), torch.tensor([1.0, 1, 1, 0, 0])), 6)
    0.19
    """
    which = bin_of(confidence, bins)
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, which, right.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))


def bin_of(confidence: Tensor, bins: int = BINS) -> Tensor:
    """Return the number of each confidence's bin (j/M, (j+1)/M]."""
    return ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)


# The registry


@dataclass(frozen=True)
class Metric:
    """A metric of `evaluate.metrics`, with everything that summaries, comparisons and displays need to know of it."""

    key: str
    """The name of the metric in rows and summaries."""
    function: Callable[[Tensor, Tensor], Value] | None
    """The function of scores (N, C) and labels (N,). None for a metric of a run directory that has not been imported,
    and for a metric that is computed from others."""
    lower_is_better: bool = False
    is_share: bool = False
    """Whether the values are shares, which tables show in per cent."""
    by_class: bool = False
    """Whether the value is a list with one number per class."""

    def shown(self, value: float) -> str:
        """Return a value as displays show it: a share in per cent, another number with four digits.

        >>> METRICS.find("accuracy").shown(0.9444), METRICS.find("loss").shown(0.3)
        ('94.44 %', '0.3000')
        """
        return f"{100 * value:.2f} %" if self.is_share else f"{value:.4f}"


@dataclass(frozen=True)
class UserFunction:
    """A user's metric: a function of scores and labels.

    Args:
        name: The name by which `evaluate.metrics` has it.
        function: The function.
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]

    def __call__(self, scores: Tensor, labels: Tensor) -> Value:
        """Call the function.

        Args:
            scores: Scores of shape (N, C).
            labels: Labels of shape (N,).

        Raises:
            CallFailed: If the function raises an exception.
            InputError: If the function returns anything but a number, a list of numbers or None.
        """
        # Copies, because a function may write into what it is given.
        found = called(partial(self.function, scores.clone(), labels.clone()), self.name, METRICS.key)
        return _value(found, self.name)


@dataclass(frozen=True)
class MetricClass:
    """A class of torchmetrics, or another one with `update` and `compute`.

    Each evaluation creates an object, with the number of classes if the class takes `num_classes`, and passes it all
    samples at once: softmax probabilities (N, C), because torchmetrics takes scores between 0 and 1 for probabilities,
    and labels (N,).

    Args:
        name: The name by which `evaluate.metrics` has it.
        cls: The class.
    """

    name: str
    cls: Callable[..., Any]

    def __call__(self, scores: Tensor, labels: Tensor) -> Value:
        """Create an object, update it once, and return what it computes.

        Args:
            scores: Scores of shape (N, C).
            labels: Labels of shape (N,).

        Raises:
            CallFailed: If the class raises an exception.
            InputError: If it computes anything but a number or a list of numbers.
        """
        found = called(partial(self._computed, scores.double().softmax(1), labels.clone()), self.name, METRICS.key)
        return _value(found, self.name)

    def _computed(self, probabilities: Tensor, labels: Tensor) -> Any:
        takes_classes = "num_classes" in inspect.signature(self.cls).parameters
        built = self.cls(num_classes=probabilities.shape[1]) if takes_classes else self.cls()
        if hasattr(built, "to"):
            built = built.to(probabilities.device)
        built.update(probabilities, labels)
        return built.compute()

    def check(self) -> None:
        """Check that the class needs no argument but the number of classes.

        Raises:
            InputError: If it needs another one.
        """
        needed = [
            name
            for name, parameter in inspect.signature(self.cls).parameters.items()
            if parameter.default is parameter.empty and parameter.kind not in _OPEN_ENDED and name != "num_classes"
        ]
        if not needed:
            return
        advice = "name a subclass of your own that needs no argument but num_classes"
        if needed == ["task"]:
            one_task = f"torchmetrics.classification:Multiclass{self.name.rpartition(':')[2]}"
            advice = f'name the class for one task, such as "{one_task}"'
        raise InputError(f'{METRICS.key} = "{self.name}": the class needs the argument {needed[0]}; {advice}')


_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _value(found: Any, name: str) -> Value:
    """Convert the result of a user's metric to a value of a row."""
    shape = tuple(getattr(found, "shape", ()))
    if isinstance(found, (Tensor, np.ndarray, np.generic)):
        found = found.tolist()
    try:
        return [_number(value) for value in found] if isinstance(found, (list, tuple)) else _number(found)
    except (TypeError, OverflowError):
        kind = f"tensor of shape {shape}" if shape else type(found).__name__
        raise InputError(
            f'{METRICS.key} = "{name}": it returned {"an" if kind[0] in "aeiou" else "a"} {kind}; it must '
            "return a number, a list of numbers, or None"
        ) from None


def _number(value: Any) -> float | None:
    if value is not None and not isinstance(value, numbers.Real):
        raise TypeError
    return None if value is None else float(value)


class MetricRegistry(Registry[Metric]):
    """The registry of metrics: a function or a class that is found by its import path becomes a `Metric`."""

    def find(self, name: str, key: str = "") -> Metric:
        """Return the metric behind a name.

        The attributes `lower_is_better` and `is_share` of a user's function are those of its metric; both are False
        by default. Of a class of torchmetrics, `higher_is_better` counts as well.

        Raises:
            InputError: If the name is unknown or cannot be imported, or if a class needs further arguments.
        """
        if name.startswith(("torchmetrics:", "torchmetrics.")) and importlib.util.find_spec("torchmetrics") is None:
            raise InputError(f"{key or self.key} = \"{name}\" needs torchmetrics: pip install 'fullrank[metrics]'")
        found: Any = super().find(name, key)
        if isinstance(found, Metric):
            return found
        facts = {fact: bool(getattr(found, fact, False)) for fact in FACTS}
        if not (isinstance(found, type) and hasattr(found, "update") and hasattr(found, "compute")):
            return Metric(key_of(name), UserFunction(name, found), **facts)
        foreign = MetricClass(name, found)
        foreign.check()
        facts["lower_is_better"] |= getattr(found, "higher_is_better", None) is False
        return Metric(key_of(name), foreign, **facts)


FACTS = ("lower_is_better", "is_share")
"""The attributes of a user's function or class that describe its values."""
METRICS = MetricRegistry(
    "metrics",
    "evaluate.metrics",
    {
        "accuracy": Metric("accuracy", accuracy, is_share=True),
        "loss": Metric("loss", loss, lower_is_better=True),
        "balanced-accuracy": Metric("balanced_accuracy", balanced_accuracy, is_share=True),
        "macro-f1": Metric("macro_f1", macro_f1),
        "auroc": Metric("auroc", auroc),
        "top5": Metric("top5", top5, is_share=True),
        "calibration": Metric("calibration", calibration_error, lower_is_better=True),
        "per-class": Metric("per_class", recalls, is_share=True, by_class=True),
    },
)
"""All metrics. Validation, rows, summaries, comparisons, displays and the documentation read this registry."""
ALWAYS = ("accuracy", "loss")
"""Keys of the metrics that every evaluation has, even if `evaluate.metrics` does not name them."""
DOMAIN_ACCURACY = Metric("domain_accuracy", None, is_share=True)
"""The mean of the accuracies by domain, which every evaluation on data with domains has."""
SITE_ACCURACY = Metric("site_accuracy", None, is_share=True)
"""The mean of the accuracies on the sites' own test parts, where clients are sites that have one."""
SITES_LISTED = 50
"""The largest number of sites for which rows and summaries list a value by site; tables of clients have all."""

TAKEN = frozenset(
    """
    absent bytes_down bytes_up cautions checksum client clients course dead_features domain_accuracy elements
    elements_down elements_up ending ending_seconds epochs evaluation far_client idle last mean not_recorded one_by_one
    personal round rounds samples seconds site_accuracy sites skipped skipped_batches std steps terms training_seconds
    unseen validated_round weighted worst_decile
    """.split()  # noqa: SIM905
)
"""Other keys of rows and summaries, which no metric can have."""
MEAN = "mean_"
"""The prefix of the metrics of the clients' mean, where a method has it evaluated together with the global model."""
PREFIXES, SUFFIX, BY_SITE = ("validation_", MEAN, "personal_"), "_by_domain", "_by_site"
"""The prefixes and the suffixes of keys that are derived from the key of a metric."""


def facts_of(metrics: Iterable[Metric]) -> dict[str, dict[str, bool]]:
    """Return what a run directory records about metrics that are not the library's, by their keys."""
    foreign = (metric for metric in metrics if metric not in METRICS.own.values())
    return {metric.key: {fact: getattr(metric, fact) for fact in FACTS} for metric in foreign}


def recorded_metrics(names: Iterable[str], facts: Mapping[str, Mapping[str, Any]]) -> list[Metric]:
    """Return metrics that a run directory names. None that is not the library's is imported.

    Args:
        names: The names of the metrics.
        facts: What the run directory records about them (`facts_of`).
    """
    found = []
    for name in names:
        known = {fact: bool(facts.get(key_of(name), {}).get(fact, False)) for fact in FACTS}
        found.append(METRICS.own.get(name) or Metric(key_of(name), None, **known))
    return found


def key_of(name: str) -> str:
    """Return the key of a metric in rows: its name, or the name of the function of an import path.

    >>> key_of("balanced-accuracy"), key_of("mine:cohen_kappa")
    ('balanced_accuracy', 'cohen_kappa')
    """
    return name.rpartition(":")[2].replace("-", "_")


def find_metrics(names: Iterable[str]) -> list[Metric]:
    """Return the metrics of these names, each once.

    Raises:
        InputError: If a name is unknown, or if a key is taken by another metric or by something else in a row.
    """
    found: dict[str, Metric] = {}
    named = {metric.key: name for name, metric in METRICS.own.items()}
    names = list(dict.fromkeys(names))
    for name in names:
        metric = METRICS.find(name)
        if metric.key in TAKEN or _is_derived(metric.key, {*named, *map(key_of, names)}):
            raise InputError(f'{METRICS.key} = "{name}": the metrics of a run have "{metric.key}" already; {_RENAME}')
        if (other := named.setdefault(metric.key, name)) != name:
            raise InputError(f'{METRICS.key}: "{other}" and "{name}" would both be "{metric.key}"; {_RENAME}')
        found[metric.key] = metric
    return list(found.values())


_RENAME = "give the function another name"


def _is_derived(key: str, metrics: Collection[str]) -> bool:
    """Return whether a key is derived from that of a metric; other names may start with `mean_`."""
    if key.startswith(MEAN):
        return key.removeprefix(MEAN) in metrics
    return key.startswith(PREFIXES) or key.endswith((SUFFIX, BY_SITE))


def label_of(key: str) -> str:
    """Return the name of a metric in tables and lines.

    >>> label_of("validation_macro_f1"), label_of("mean_accuracy")
    ('validation macro f1', "accuracy of the clients' mean")
    """
    rest = key.removeprefix(MEAN)
    derived = rest != key and rest in {metric.key for metric in METRICS.own.values()}
    return f"{rest.replace('_', ' ')} of the clients' mean" if derived else key.replace("_", " ")


def single_numbers(metrics: Sequence[Metric] = ()) -> tuple[Metric, ...]:
    """Return all metrics whose value is one number: the library's, then those of `metrics` that are not the library's.

    >>> [metric.key for metric in single_numbers()][:3]
    ['accuracy', 'loss', 'balanced_accuracy']
    """
    own = tuple(metric for metric in METRICS.own.values() if not metric.by_class)
    return (*own, DOMAIN_ACCURACY, SITE_ACCURACY, *(metric for metric in metrics if metric not in METRICS.own.values()))
