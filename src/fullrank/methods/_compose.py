"""The composition of methods. Each method has its own state and uploads; hooks are chained, summed or exclusive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fullrank.errors import Conflict, InputError
from fullrank.methods._method import Method
from fullrank.methods._weighted import Weighted
from fullrank.objectives.criteria import find_criterion
from fullrank.objectives.registry import CRITERIA, WEIGHTED

RESERVED = ("criterion", "drift", "fit", "grad_norm", "model", "optimizer")
"""Names that no method can have, because clients' states or metrics use them for other things."""
EXCLUSIVE = ("head", "criterion", "train", "weight", "personalise", "predict")


def defines(method: Method, hook: str) -> bool:
    """Return whether a method overrides a hook.

    A hyper-parameter with the name of a hook, such as MOON's `head`, does not override it.

    Args:
        method: The method.
        hook: The name of a hook.

    Returns:
        Whether the class of the method has a function for the hook other than that of `Method`.

    >>> defines(Method(), "loss")
    False
    """
    own = getattr(type(method), hook)
    return callable(own) and own is not getattr(Method, hook)


@dataclass(frozen=True)
class Composed(Method):
    """Several methods as one, made by `a + b`.

    Args:
        members: The methods.

    Raises:
        Conflict: If a method occurs twice, or two of them define the same exclusive hook.

    >>> from fullrank import methods
    >>> both = methods.build("fedprox") + methods.build("feddecorr")
    >>> both.name, [part.name for part in both.parts]
    ('fedprox+feddecorr', ['fedprox', 'feddecorr'])
    """

    members: tuple[Method, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.members]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Conflict(f'the method "{name}" occurs twice in "{"+".join(names)}"')
        for hook in EXCLUSIVE:
            owners = [part.name for part in self.members if defines(part, hook)]
            if len(owners) > 1:
                raise Conflict(
                    f'"{owners[0]}" and "{owners[1]}" cannot be combined: each has its own {_WHAT[hook]} (`{hook}`)'
                )

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods that this one is composed of."""
        return self.members

    @property
    def name(self) -> str:  # type: ignore[override]
        """The parts' names joined by "+"."""
        return "+".join(part.name for part in self.members)


_WHAT = {
    "head": "classifier",
    "criterion": "loss in place of cross-entropy",
    "train": "order of local fits",
    "weight": "weight of a client in the mean",
    "personalise": "way to a personal model",
    "predict": "personal prediction",
}


class Composition:
    """The hooks of a method's parts, each kind in the order in which it runs.

    Args:
        method: The method, or several of them composed.
        criterion: The name of the criterion that replaces cross-entropy, as in `train.criterion`; empty for none.

    Raises:
        Conflict: If a criterion is named and a part of the method has its own.

    >>> from fullrank import methods
    >>> composition = Composition(methods.build("scaffold+feddecorr"))
    >>> [part.name for part in composition.losses], [part.name for part in composition.corrections]
    (['feddecorr'], ['scaffold'])
    """

    def __init__(self, method: Method, criterion: str = ""):
        self.method = method
        self.parts = method.parts
        if criterion and (owners := self.defined("criterion")):
            raise Conflict(
                f'{CRITERIA.key} = "{criterion}" cannot be combined with the method "{owners[0].name}", which has its '
                f"own {_WHAT['criterion']}; leave {CRITERIA.key} empty or take another method"
            )
        self._criterion = None if criterion == WEIGHTED else find_criterion(criterion)
        self.correct: set[str] = set()
        """The parts whose gradient corrections have been checked to return gradients."""
        if taken := [part.name for part in self.parts if part.name in RESERVED]:
            raise InputError(
                f'no method can be called "{taken[0]}": states and metrics use this name for other things; '
                'rename the class, or set its name = "…"'
            )
        if criterion == WEIGHTED:
            self.parts = (*method.parts, Weighted())

    def exclusive(self, hook: str) -> tuple[Method, Callable[..., Any]]:
        """Return the part that defines an exclusive hook.

        A criterion that the experiment names takes the place of FedAvg's.

        Args:
            hook: The name of the hook.

        Returns:
            The part, or the first one if none defines the hook, and the hook as a function of the arguments after
            `self`.
        """
        if hook == "criterion" and (criterion := self._criterion) is not None:
            return self.parts[0], lambda b: criterion(b.logits, b.y)
        part = next((part for part in self.parts if defines(part, hook)), self.parts[0])
        return part, getattr(type(part), hook).__get__(part)  # from the class: a hyper-parameter may share its name

    def defined(self, hook: str) -> tuple[Method, ...]:
        """Return the parts that define a hook, in the order in which they were composed."""
        return tuple(part for part in self.parts if defines(part, hook))

    @cached_property
    def losses(self) -> tuple[Method, ...]:
        """The parts with a loss in the order of names, so that composition commutes to the bit."""
        return tuple(sorted(self.defined("loss"), key=lambda part: part.name))

    @cached_property
    def corrections(self) -> tuple[Method, ...]:
        """The parts with a gradient correction: in the order of composition, then drift corrections by name.

        A control variate that another correction scaled afterwards would no longer estimate the drift.
        """
        parts = self.defined("grad")
        drifting = sorted((part for part in parts if part.drift), key=lambda part: part.name)
        return tuple(part for part in parts if not part.drift) + tuple(drifting)

    @cached_property
    def pull(self) -> float:
        """The pull of all proximal terms together."""
        return sum(part.pull() for part in self.defined("pull"))

    @cached_property
    def aggregators(self) -> tuple[Method, ...]:
        """The parts that aggregate: first the one that weights the clients, then in the order of composition."""
        return tuple(sorted(self.defined("aggregate"), key=lambda part: not defines(part, "weight")))

    @cached_property
    def encoders(self) -> tuple[Method, ...]:
        """The parts with `upload` or `receive`, in the order in which `upload` runs; `receive` runs in reverse.

        A part with both can give the weights another form, which no other part would understand. Such parts come last.
        """
        parts = (part for part in self.parts if defines(part, "upload") or defines(part, "receive"))
        return tuple(sorted(parts, key=lambda part: defines(part, "upload") and defines(part, "receive")))

    @cached_property
    def personal(self) -> tuple[str, ...]:
        """The selectors of personal entries of all parts."""
        return tuple(selector for part in self.parts for selector in part.personal)

    def part(self, name: str) -> Method:
        """Return the part with a name."""
        return next(part for part in self.parts if part.name == name)
