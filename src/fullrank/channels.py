"""What crosses between a client and the server: uploads as sums and means, reduced as they come, and counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from .errors import Refusal
from .trees import Tree, beside, elements, flatten, misfit, nbytes, not_finite, outline, pointwise


@dataclass(frozen=True)
class Sum:
    """An upload of which the server sees the sum over clients."""

    tree: Tree


@dataclass(frozen=True)
class Mean:
    """An upload of which the server sees the weighted mean over clients. Counters (integers) take the maximum."""

    tree: Tree
    weight: float = 1.0


Upload: TypeAlias = dict[str, dict[str, "Sum | Mean"]]
"""What one client sends: by space (a method's name; "" for the model itself), then by name."""


class Unusable(Refusal):
    """An upload that is refused, with the reason."""


@dataclass
class Traffic:
    """How much crossed a channel: elements and bytes, down and up."""

    elements_down: int = 0
    elements_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def count_down(self, tree: Mapping[str, Any]) -> None:
        """Count a tree that travels from the server to one client."""
        self.elements_down += elements(tree)
        self.bytes_down += nbytes(tree)

    def add(self, other: Traffic) -> None:
        """Count once more what another has counted."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)

    def count_up(self, upload: Upload) -> None:
        """Count one client's upload."""
        for space in upload.values():
            for part in space.values():
                self.elements_up += elements(part.tree)
                self.bytes_up += nbytes(part.tree)


@dataclass
class Reduction:
    """Running float64 sums of uploads, in the order in which they are added. Memory is that of one upload."""

    totals: Upload = field(default_factory=dict)
    likeness: Upload = field(default_factory=dict)
    clients: int = 0
    _outlines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of what is expected: most uploads are found to be right by one comparison."""

    def add(self, upload: Upload, model: Tree | None = None) -> None:
        """Add one client's upload, or raise `Unusable` and leave the sums as they were.

        `model` is what the upload of the model itself must look like; every other part must look like the first
        client's.
        """
        self._check(upload, model)
        for space, parts in upload.items():
            for name, part in parts.items():
                self._accumulate(space, name, part)
        self.clients += 1

    def _check(self, upload: Upload, model: Tree | None) -> None:
        expected = self.likeness or upload
        if misnamed := _names(upload) ^ _names(expected):
            raise Unusable(f"its uploads differ from the other clients' in {', '.join(sorted(misnamed))}")
        for space, parts in upload.items():
            for name, part in parts.items():
                what = _called(space, name)
                like = expected[space][name]
                if not isinstance(part, (Sum, Mean)):
                    raise Unusable(f"its {what} is a {type(part).__name__}; uploads are a Sum or a Mean")
                if type(part) is not type(like):
                    raise Unusable(f"its {what} is a {type(part).__name__}, other clients' a {type(like).__name__}")
                known = model[name] if model is not None and not space else None
                reference = like.tree if known is None else known
                if known is not None and what not in self._outlines:
                    self._outlines[what] = outline(known)
                if outline(part.tree) != self._outlines.get(what):
                    if problem := misfit(part.tree, reference):
                        first = (
                            "" if known is not None or like is part else " (as the first client of the round sent it)"
                        )
                        raise Unusable(f"in its {what}, {problem}{first}")
                    if path := _other_kind(part.tree, reference):
                        raise Unusable(f"in its {what}, {path} is not of the expected kind, floating or whole numbers")
                if path := not_finite(part.tree, known):
                    raise Unusable(f"in its {what}, {path} is not finite")
                if isinstance(part, Mean) and not (math.isfinite(part.weight) and part.weight >= 0):
                    raise Unusable(f"the weight of its {what} is {part.weight}")

    def _accumulate(self, space: str, name: str, part: Sum | Mean) -> None:
        weight = part.weight if isinstance(part, Mean) else 1.0
        totals = self.totals.setdefault(space, {})
        if name not in totals:
            empty = pointwise(part.tree, _empty_sum if isinstance(part, Sum) else _empty_mean)
            totals[name] = Mean(empty, 0.0) if isinstance(part, Mean) else Sum(empty)
            self.likeness.setdefault(space, {})[name] = type(part)(pointwise(part.tree, _meta))
            self._outlines.setdefault(_called(space, name), outline(part.tree))
        total = totals[name]
        pairs = list(beside(total.tree, part.tree))
        counters = [(into, value) for into, value in pairs if _counts(into)]
        if len(pairs) > len(counters):
            torch._foreach_add_(*_apart(pair for pair in pairs if not _counts(pair[0])), alpha=weight)
        for into, value in counters:
            if isinstance(part, Mean):
                torch.maximum(into, value, out=into)
            else:
                into.add_(value)
        if isinstance(total, Mean):
            totals[name] = Mean(total.tree, total.weight + weight)

    def result(self) -> dict[str, dict[str, Tree]]:
        """The reduced trees by space and name, in the dtype in which they were sent; sums of integers in 64 bits."""
        return {
            space: {
                name: pointwise(part.tree, _finish(part, f"{space}/{name}"), self.likeness[space][name].tree)
                for name, part in parts.items()
            }
            for space, parts in self.totals.items()
        }


def _apart(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    one, other = zip(*pairs, strict=True)
    return list(one), list(other)


def _called(space: str, name: str) -> str:
    return f"{space}/{name}" if space else name


def _names(upload: Upload) -> set[str]:
    return {f"{space}/{name}" for space, parts in upload.items() for name in parts}


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


def _other_kind(tree: Tree, like: Tree) -> str | None:
    """The path of the first tensor that is floating where it should be whole, or the reverse, or None."""
    want = flatten(like)
    return next((path for path, tensor in flatten(tree).items() if _counts(tensor) != _counts(want[path])), None)


def _counts(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds whole numbers or truth values."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def _empty_sum(tensor: torch.Tensor) -> torch.Tensor:
    # Integers are counters and masks: they add or compare exactly in 64 bits and never become floats.
    dtype = torch.int64 if _counts(tensor) else torch.complex128 if tensor.is_complex() else torch.float64
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)


def _empty_mean(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64, copy=True) if _counts(tensor) else _empty_sum(tensor)


def _finish(part: Sum | Mean, what: str) -> Any:
    if isinstance(part, Mean) and part.weight <= 0:
        raise Unusable(f"the weights of all clients' {what.lstrip('/')} are 0, so it has no mean")

    def finish(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if isinstance(part, Mean) and not _counts(total):
            total = total / part.weight
        if isinstance(part, Sum) and _counts(total):
            return total  # the sum of many small integers need not be one
        return total.to(like.dtype)

    return finish
