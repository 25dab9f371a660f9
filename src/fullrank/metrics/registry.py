"""The registry of metrics, with everything that summaries, comparisons and displays need to know of them."""

from __future__ import annotations

import importlib.util
import inspect
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fullrank.errors import InputError
from fullrank.plugins import Registry, called

if TYPE_CHECKING:
    from torch import Tensor

Value: TypeAlias = float | list[float | None] | None
"""The value of a metric: a number, a list with one number per class, or None where it is not defined."""


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
    if hasattr(found, "tolist"):  # a tensor, an array or a number of NumPy
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


@dataclass(frozen=True)
class _Own:
    """A function of `measures`, which is imported when it is first called, because it needs torch."""

    name: str

    def __call__(self, scores: Tensor, labels: Tensor) -> Value:
        from fullrank.metrics import measures

        found: Value = getattr(measures, self.name)(scores, labels)
        return found


FACTS = ("lower_is_better", "is_share")
"""The attributes of a user's function or class that describe its values."""
METRICS = MetricRegistry(
    "metrics",
    "evaluate.metrics",
    {
        "accuracy": Metric("accuracy", _Own("accuracy"), is_share=True),
        "loss": Metric("loss", _Own("loss"), lower_is_better=True),
        "balanced-accuracy": Metric("balanced_accuracy", _Own("balanced_accuracy"), is_share=True),
        "macro-f1": Metric("macro_f1", _Own("macro_f1")),
        "auroc": Metric("auroc", _Own("auroc")),
        "top5": Metric("top5", _Own("top5"), is_share=True),
        "calibration": Metric("calibration", _Own("calibration_error"), lower_is_better=True),
        "per-class": Metric("per_class", _Own("recalls"), is_share=True, by_class=True),
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
LEVEL, RESAMPLES = 0.95, 1000
"""The level of the bootstrap intervals of metrics, and the number of draws."""
MEAN = "mean_"
"""The prefix of the metrics of the clients' mean, where a method has it evaluated together with the global model."""
PREFIXES, BY_DOMAIN, BY_SITE = ("validation_", MEAN, "personal_"), "_by_domain", "_by_site"
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
    return key.startswith(PREFIXES) or key.endswith((BY_DOMAIN, BY_SITE))


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
