"""What crosses between a client and the server: uploads as sums and means, reduced as they come, and counted.

An upload is rejected, and the client that sent it is named, if

- it has other spaces, names, kinds (Sum or Mean), entries or shapes than the method sends for this model, or floating
  numbers in place of whole ones or the reverse;
- it holds something other than tensors with values: numbers, lists, meta tensors, names that are not text;
- a value is not finite or is larger than `LARGEST` in size, unless the model that was sent has the same value there;
- the weights together are more than `ABSURD` times as large as the model that was sent (by Euclidean norm, with 1 as
  the least size of the model);
- the weight of a mean is negative, not finite or larger than `LARGEST`;
- a variance that BatchNorm keeps is negative.

The server adds what it knows: see `Server`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from fullrank.errors import InputError
from fullrank.trees import Flat, Tree, beside, elements, flatten, misfit, nbytes, outline, pointwise, vectors

LARGEST = 1e18
"""The largest size of a value or a weight: the square of a larger one soon leaves the range of float32."""
ABSURD = 1e9
"""How many times larger than the model that a client received its weights may be before they are rejected."""


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


class Unusable(InputError):
    """An upload that is rejected, with the reason."""


class OtherForm(Unusable):
    """An upload that has another form than the expected one: names, kinds or shapes."""


class OtherSize(Unusable):
    """An upload that has the expected form, with values that are not finite or absurdly large."""


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
    """What every upload must look like, without values; where it is not known, the first client's upload decides."""
    query: tuple[str, str] = ("", "")
    """The method and its function whose answers these are; empty for what clients send after training."""
    variances: Collection[str] = ()
    """The buffers that cannot be negative."""
    clients: int = 0
    sizes: list[float] = field(default_factory=list)
    """The Euclidean norm of each client's weights, in the order in which they were added."""
    model_size: float = 0.0
    """The norm of the weights that clients received, once the first upload has come."""
    _sent: Upload = field(default_factory=dict)
    """The first upload, without values: sums are given back in its dtypes."""
    _outlines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The outline of each expected part, so that one comparison accepts most uploads."""

    def add(self, upload: Upload, model: Tree | None = None) -> None:
        """Add one client's upload, or raise `Unusable` and leave the sums as they were.

        `model` holds the weights ("w") and buffers that the client received, which those of its upload must look like.
        """
        self._check_form(upload, model or {})
        size = self._check_values(upload, model or {})
        for space, parts in upload.items():
            for name, part in parts.items():
                self._accumulate(space, name, part)
        self.clients += 1
        self.sizes.append(size)

    def _check_form(self, upload: Upload, model: Tree) -> None:
        if problem := malformed(upload):
            raise OtherForm(problem)
        expected = self.likeness or self._sent or upload
        if misnamed := _names(upload) ^ _names(expected):
            whose = "what the method sends" if self.likeness else "the other clients'"
            raise OtherForm(f"its uploads differ from {whose} in {', '.join(sorted(misnamed))}")
        for space, parts in upload.items():
            for name, part in parts.items():
                self._check_part(space, name, part, expected[space][name], {} if space else model)

    def _check_part(self, space: str, name: str, part: Sum | Mean, like: Sum | Mean, model: Tree) -> None:
        what = _called(space, name)
        if type(part) is not type(like):
            others = "the method sends" if self.likeness else "other clients'"
            raise OtherForm(f"its {what} is a {type(part).__name__}, {others} a {type(like).__name__}")
        reference = model.get(name, like.tree)
        known = bool(self.likeness) or name in model
        if what not in self._outlines and known:
            self._outlines[what] = outline(reference)
        if outline(part.tree) != self._outlines.get(what):
            if problem := misfit(part.tree, reference):
                first = "" if known or like is part else " (as the first client of the round sent it)"
                raise OtherForm(f"in its {what}, {problem}{first}")
            if path := _other_kind(part.tree, reference):
                raise OtherForm(f"in its {what}, {path} is not of the expected kind, floating or whole numbers")

    def _check_values(self, upload: Upload, model: Tree) -> float:
        """Reject values that cannot be; returns the norm of the weights."""
        for space, parts in upload.items():
            for name, part in parts.items():
                if isinstance(part, Mean) and not 0 <= part.weight <= LARGEST:
                    raise OtherSize(f"the weight of its {_called(space, name)} is {part.weight}")
        norms = _norms([part.tree for parts in upload.values() for part in parts.values()])
        places = [(space, name) for space, parts in upload.items() for name in parts]
        for (space, name), some in zip(places, norms, strict=True):
            like = {} if space else model.get(name, {})
            if problem := _too_large(upload[space][name].tree, some, like):
                raise OtherSize(f"in its {_called(space, name)}, {problem}")
        self._check_variances(upload)
        if "w" not in model:
            return 0.0
        return self._check_size(math.hypot(*norms[places.index(("", "w"))]), model)

    def _check_variances(self, upload: Upload) -> None:
        if not self.variances:
            return
        buffers = upload[""]["buffers"].tree
        if bool((torch.cat([buffers[name].reshape(-1) for name in self.variances]) < 0).any()):
            name = next(name for name in self.variances if bool((buffers[name] < 0).any()))
            raise OtherSize(f"in its buffers, {name} is negative, which a variance cannot be")

    def _check_size(self, size: float, model: Tree) -> float:
        if not self.clients:
            self.model_size = math.hypot(*_norms([model["w"]])[0])
        if not size <= ABSURD * max(self.model_size, 1.0):
            raise OtherSize(
                f"its w has norm {size:.2g}, more than {ABSURD:.0e} times that of the model it received "
                f"({self.model_size:.2g})"
            )
        return size

    def _accumulate(self, space: str, name: str, part: Sum | Mean) -> None:
        weight = part.weight if isinstance(part, Mean) else 1.0
        totals = self.totals.setdefault(space, {})
        if name not in totals:
            empty = pointwise(part.tree, _empty_sum if isinstance(part, Sum) else _empty_mean)
            totals[name] = Mean(empty, 0.0) if isinstance(part, Mean) else Sum(empty)
            self._sent.setdefault(space, {})[name] = type(part)(pointwise(part.tree, _meta))
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
                name: pointwise(part.tree, _finish(part, f"{space}/{name}"), self._sent[space][name].tree)
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


def malformed(upload: Any) -> str:
    """What keeps an upload from being a tree of tensors with values, or nothing."""
    if not isinstance(upload, Mapping):
        return f"it is a {type(upload).__name__}, not a table of uploads by method"
    for space, parts in upload.items():
        if not (isinstance(space, str) and isinstance(parts, Mapping)):
            return f"what it sends under {space!r} is a {type(parts).__name__}, not a table of uploads by name"
        for name, part in parts.items():
            if not isinstance(name, str):
                return f"it sends something under {name!r}, which is not text"
            what = _called(space, name)
            if not isinstance(part, (Sum, Mean)):
                return f"its {what} is a {type(part).__name__}; uploads are a Sum or a Mean"
            if isinstance(part, Mean) and not _is_number(part.weight):
                return f"the weight of its {what} is a {type(part.weight).__name__}, not a number"
            if problem := _no_tree(part.tree):
                return f"in its {what}, {problem}"
    return ""


def _is_number(weight: Any) -> bool:
    return isinstance(weight, (int, float, np.number)) or (isinstance(weight, torch.Tensor) and weight.numel() == 1)


def _no_tree(tree: Any, above: str = "") -> str:
    if isinstance(tree, Flat):
        return _no_values(tree.base, "its vector")
    if not isinstance(tree, Mapping):
        return f"{above or 'the tree'} is a {type(tree).__name__}, not a dict of tensors by name"
    for name, value in tree.items():
        if not isinstance(name, str) or "/" in name:
            return f"{name!r} cannot name an entry: names are text without a slash"
        path = f"{above}/{name}" if above else name
        if problem := _no_values(value, path) if isinstance(value, torch.Tensor) else _no_tree(value, path):
            return problem
    return ""


def _no_values(tensor: torch.Tensor, path: str) -> str:
    return f"{path} is a meta tensor, which has no values" if tensor.is_meta else ""


def _norms(trees: Sequence[Tree]) -> list[list[float]]:
    """The norms of the floating tensors of each tree; of a flat tree that of its vector.

    The device is asked once for all tensors of a dtype, where one question for each would stop it hundreds of times.
    """
    found: list[list[float]] = [[] for _ in trees]
    alike: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for number, tree in enumerate(trees):
        for tensor in vectors(tree):
            if not _counts(tensor) and tensor.numel():
                alike.setdefault((tensor.device, tensor.dtype), []).append((number, _dense(tensor.detach())))
    for (_, dtype), some in alike.items():
        wide = torch.float32 if dtype.itemsize < 4 else None  # a norm in half precision ends at 65,504
        norms = torch.stack(torch._foreach_norm([tensor for _, tensor in some], 2, dtype=wide))
        for (number, _), norm in zip(some, norms.tolist(), strict=True):
            found[number].append(norm)
    return found


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def too_large(tree: Tree, like: Tree) -> str | None:
    """Name an entry that is not finite or larger than `LARGEST` and was not so in the tree it is compared with.

    (An attention mask of −∞ is a constant of the model, not a failure.)
    """
    return _too_large(tree, _norms([tree])[0], like)


def _too_large(tree: Tree, norms: Iterable[float], like: Tree) -> str | None:
    if all(norm <= LARGEST for norm in norms):
        return None
    before = flatten(like)
    for path, value in flatten(tree).items():
        tensor, known = _dense(value), before.get(path)
        bad = ~(tensor.abs() <= LARGEST)
        if bad.any() and (known is None or not torch.equal(tensor[bad], known[bad])):
            finite = bool(torch.isfinite(tensor).all())
            return f"{path} has values above {LARGEST:.0e}" if finite else f"{path} is not finite"
    return None


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
