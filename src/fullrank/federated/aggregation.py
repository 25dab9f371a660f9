"""Aggregation: how the server combines the uploads of a round's clients into one.

`train.aggregator` names a subclass of `Aggregator`; the default is `RunningMean`. Uploads have been checked before an
aggregator sees them (`checks`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from fullrank.channels import Mean, Sum, Upload, form_of, is_whole, part_name, upload_names
from fullrank.errors import InputError
from fullrank.federated.checks import misplaced_number, no_tree, not_finite
from fullrank.federated.registry import AGGREGATORS
from fullrank.plugins import called
from fullrank.trees import Tree, clone, matching, misfit, pointwise, versions

Reduced: TypeAlias = dict[str, dict[str, Tree]]
"""The combined trees of all clients, by space and name as in an `Upload`."""


class Aggregator(ABC):
    """Combines the uploads of the clients of one round, or their answers to a method's query.

    The server creates a new aggregator for each round and each query, adds the uploads one after the other, that of
    the largest client first, and then reads the result. Each upload has been checked: form and values are valid for
    the method and the model. An upload maps a space ("" for the model itself, else the name of a method) to the
    parts that are sent under it, and each part is a `Sum` or a `Mean` with its `tree`. After training, the space ""
    holds the weights "w" and the BatchNorm statistics "buffers"; an answer to a query has no such space.

    The tensors of an upload belong to the aggregator, which may keep them. An aggregator that needs all uploads at the
    end needs memory for as many models as there are clients in a round, where `RunningMean` needs memory for one.

    Args:
        received: The weights "w" and the statistics "buffers" that the clients received. Nothing may be written into
            them.

    The example is a coordinate-wise median of the weights; everything else is combined as `RunningMean` does it:

    >>> import torch
    >>> from fullrank import Mean
    >>> from fullrank.federated.aggregation import RunningMean
    >>> class Median(RunningMean):
    ...     def __init__(self, received):
    ...         super().__init__(received)
    ...         self.weights = []
    ...
    ...     def add(self, client, upload):
    ...         super().add(client, upload)
    ...         if "" in upload:
    ...             self.weights.append(upload[""]["w"].tree)
    ...
    ...     def result(self):
    ...         reduced = super().result()
    ...         if self.weights:
    ...             names = self.weights[0]
    ...             stacked = {name: torch.stack([w[name] for w in self.weights]) for name in names}
    ...             reduced[""]["w"] = {name: values.quantile(0.5, dim=0) for name, values in stacked.items()}
    ...         return reduced
    >>> median = Median({"w": {"bias": torch.zeros(1)}, "buffers": {}})
    >>> for client, bias in enumerate([1.0, 2.0, 900.0]):
    ...     median.add(client, {"": {"w": Mean({"bias": torch.tensor([bias])}), "buffers": Mean({})}})
    >>> median.result()[""]["w"]
    {'bias': tensor([2.])}
    """

    def __init__(self, received: Mapping[str, Tree]):
        self.received = received

    @abstractmethod
    def add(self, client: int, upload: Upload) -> None:
        """Add one client's upload.

        Args:
            client: The client's number.
            upload: What it sent, by space and name.
        """

    @abstractmethod
    def result(self) -> Reduced:
        """Return the combined trees by space and name.

        The names and shapes are those of the uploads. Entries with whole numbers have whole numbers in the result, and
        all values are finite.
        """


class RunningMean(Aggregator):
    """The weighted mean of each `Mean` and the sum of each `Sum`, as running sums in float64.

    Clients are added in the order of the calls. Whole numbers of a `Mean` are counters and take the maximum, those of a
    `Sum` are added in 64 bits. Memory is that of one upload, for any number of clients.

    Args:
        received: The weights and statistics that the clients received, which it does not need.
    """

    def __init__(self, received: Mapping[str, Tree]):
        super().__init__(received)
        self._totals: Upload = {}
        self._form: Upload = {}
        """The first client's upload without values; results have its dtypes."""

    def add(self, client: int, upload: Upload) -> None:
        """Add one client's upload to the sums."""
        for space, parts in upload.items():
            for name, part in parts.items():
                self._accumulate(space, name, part)
        self._form = self._form or form_of(upload)

    def _accumulate(self, space: str, name: str, part: Sum | Mean) -> None:
        weight = part.weight if isinstance(part, Mean) else 1.0
        totals = self._totals.setdefault(space, {})
        if name not in totals:
            empty = pointwise(part.tree, _empty_sum if isinstance(part, Sum) else _empty_mean)
            totals[name] = Mean(empty, 0.0) if isinstance(part, Mean) else Sum(empty)
        total = totals[name]
        pairs = list(matching(total.tree, part.tree))
        counters = [(into, value) for into, value in pairs if is_whole(into)]
        if len(pairs) > len(counters):
            torch._foreach_add_(*_unzipped(pair for pair in pairs if not is_whole(pair[0])), alpha=weight)
        for into, value in counters:
            if isinstance(part, Mean):
                torch.maximum(into, value, out=into)
            else:
                into.add_(value)
        if isinstance(total, Mean):
            totals[name] = Mean(total.tree, total.weight + weight)

    def result(self) -> Reduced:
        """Return the sums and means in the dtypes in which they were sent; sums of whole numbers in 64 bits."""
        return {
            space: {
                name: pointwise(part.tree, _finish(part, part_name(space, name)), self._form[space][name].tree)
                for name, part in parts.items()
            }
            for space, parts in self._totals.items()
        }


def find_aggregator(name: str) -> type[Aggregator]:
    """Return the class behind the name of an aggregator or behind `package.module:Class`.

    Args:
        name: A name of the registry, or `package.module:Class`.

    Raises:
        InputError: If there is no such aggregator, or it is no subclass of `Aggregator`.

    >>> find_aggregator("mean").__name__
    'RunningMean'
    """
    found = AGGREGATORS.find(name)
    if not (isinstance(found, type) and issubclass(found, Aggregator)):
        raise InputError(f'train.aggregator = "{name}" is not a subclass of fullrank.Aggregator')
    return found


class Aggregation:
    """The aggregation of one round or query by the aggregator that an experiment names.

    Errors of a user's aggregator, and results that do not fit the uploads, become one sentence that names
    `train.aggregator` and the round.

    Args:
        kind: The class of the aggregator.
        name: The name of the aggregator in the experiment.
        received: What the clients received.
        round: The number of the round, from 0.
    """

    def __init__(self, kind: type[Aggregator], name: str, received: Mapping[str, Tree], round: int):
        self._name, self._received = name, received
        self._where = f"round {round + 1}: train.aggregator"
        self._form: Upload = {}
        self._writes = versions(received)
        self._aggregator: Aggregator = self._call(kind, received)

    def add(self, client: int, upload: Upload) -> None:
        """Pass one client's upload, which has been checked, to the aggregator."""
        self._form = self._form or form_of(upload)
        if type(self._aggregator) is not RunningMean:
            # It may keep the upload, and a method may have sent tensors that the next client overwrites.
            upload = {space: {name: _copied(part) for name, part in parts.items()} for space, parts in upload.items()}
        self._call(self._aggregator.add, client, upload)

    def result(self) -> Reduced:
        """Return the combined trees of all clients; empty if no client sent anything.

        Raises:
            CallFailed: If a user's aggregator raises an exception.
            InputError: If its result does not fit the uploads.
        """
        if not self._form:
            return {}
        reduced = self._call(self._aggregator.result)
        if problem := self._problem(reduced):
            raise InputError(f'{self._where} = "{self._name}": {problem}')
        return {space: dict(parts) for space, parts in reduced.items()}

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._name in AGGREGATORS.own:
            return function(*arguments)
        return called(partial(function, *arguments), self._name, self._where)

    def _problem(self, reduced: Any) -> str:
        """Describe how a result does not fit the uploads; empty if it fits."""
        if versions(self._received) != self._writes:
            return "it wrote into a tensor of `received` in place; make a new tensor, as in w + 1 in place of w.add_(1)"
        tables = [reduced, *reduced.values()] if isinstance(reduced, Mapping) else [reduced]
        if odd := [table for table in tables if not isinstance(table, Mapping)]:
            return f"its result must map spaces to names to trees, and has a {type(odd[0]).__name__} in place of a dict"
        got, want = upload_names(reduced), upload_names(self._form)
        if missing := sorted(want - got):
            return f"its result lacks {missing[0]}"
        if surplus := sorted(got - want):
            return f"its result has {surplus[0]}, which no client sent"
        for space, parts in self._form.items():
            for name, part in parts.items():
                tree = reduced[space][name]
                known = {} if space else self._received.get(name, {})
                problem = no_tree(tree) or misfit(tree, part.tree) or misplaced_number(tree, part.tree)
                if problem or (problem := not_finite(tree, known)):
                    return f"in its {part_name(space, name)}, {problem}"
        return ""


def _copied(part: Sum | Mean) -> Sum | Mean:
    return Mean(clone(part.tree), part.weight) if isinstance(part, Mean) else Sum(clone(part.tree))


def _unzipped(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    one, other = zip(*pairs, strict=True)
    return list(one), list(other)


def _empty_sum(tensor: torch.Tensor) -> torch.Tensor:
    # Integers are counters and masks: they add or compare exactly in 64 bits and never become floats.
    dtype = torch.int64 if is_whole(tensor) else torch.complex128 if tensor.is_complex() else torch.float64
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)


def _empty_mean(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64, copy=True) if is_whole(tensor) else _empty_sum(tensor)


def _finish(part: Sum | Mean, what: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if isinstance(part, Mean) and part.weight <= 0:
        raise InputError(f"the weights of all clients' {what} are 0, so it has no mean")

    def finish(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if isinstance(part, Mean) and not is_whole(total):
            total = total / part.weight
        if isinstance(part, Sum) and is_whole(total):
            return total  # the sum of many small integers need not be one
        return total.to(like.dtype)

    return finish
