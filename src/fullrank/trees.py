"""Trees: dicts of tensors keyed by name, possibly nested. Everything that is exchanged, kept or saved is one.

A path joins the names of nested trees with "/": `scaffold/c/head.weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .errors import Refusal

Tree: TypeAlias = dict[str, Any]
"""A dict whose values are tensors or trees."""

Tensors: TypeAlias = dict[str, Tensor]
"""A tree without nesting."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tensors:
    """The tensors of a tree by path. An empty subtree keeps its name, as `path/` with an empty tensor.

    >>> sorted(flatten({"a": {"b": torch.zeros(2)}, "c": {}}))
    ['a/b', 'c/']
    """
    flat: Tensors = {}
    for name, value in tree.items():
        if "/" in name:
            raise Refusal(f'the name "{name}" holds a "/", which joins the names of nested trees; rename it')
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}/") if value else {f"{path}/": torch.empty(0)}
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """The tree whose `flatten` is `flat`."""
    tree: Tree = {}
    for path, tensor in flat.items():
        *above, name = path.split("/")
        node = tree
        for step in above:
            node = node.setdefault(step, {})
        if name:
            node[name] = tensor
    return tree


def combine(tree: Mapping[str, Any], function: Callable[..., Tensor], *others: Mapping[str, Any]) -> Tree:
    """`function` of the tensors of the same name, for every name of the first tree.

    The other trees may hold more names; a missing one is an error, never a silent skip.

    >>> combine({"w": torch.tensor(1.0)}, lambda a, b: a + 2 * b, {"w": torch.tensor(3.0), "v": torch.tensor(0.0)})
    {'w': tensor(7.)}
    """
    return {
        name: combine(value, function, *(other[name] for other in others))
        if isinstance(value, Mapping)
        else function(value, *(other[name] for other in others))
        for name, value in tree.items()
    }


def zeros(tree: Mapping[str, Any]) -> Tree:
    """A tree of the same names and shapes, all 0."""
    return combine(tree, torch.zeros_like)


def clone(tree: Mapping[str, Any]) -> Tree:
    """An independent copy, detached, in the standard memory layout (which safetensors needs)."""
    return combine(tree, lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))


def moved(tree: Mapping[str, Any], device: torch.device) -> Tree:
    """The same tree on a device; nothing is copied that is there already."""
    return combine(tree, lambda tensor: tensor.to(device))


def elements(tree: Mapping[str, Any]) -> int:
    """How many numbers a tree holds."""
    return sum(tensor.numel() for tensor in flatten(tree).values())


def nbytes(tree: Mapping[str, Any]) -> int:
    """How many bytes a tree's numbers take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in flatten(tree).values())


def norm(tree: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm over all entries of a tree without nesting."""
    norms = [torch.linalg.vector_norm(value) for value in tree.values()]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    return total


def misfit(tree: Mapping[str, Any], like: Mapping[str, Any]) -> str | None:
    """What is different in names or shapes between a tree and the one it should be like, or None."""
    got, want = flatten(tree), flatten(like)
    if missing := sorted(want.keys() - got.keys()):
        return f"{missing[0]} is missing"
    if surplus := sorted(got.keys() - want.keys()):
        return f"{surplus[0]} is not expected"
    for path, tensor in got.items():
        if tensor.shape != want[path].shape:
            return f"{path} has shape {tuple(tensor.shape)} instead of {tuple(want[path].shape)}"
    return None


def not_finite(tree: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> str | None:
    """The path of the first tensor with a NaN or an infinity that `like` has not in the same place, or None.

    (An attention mask of −∞ is a constant of the model, not a failure.)
    """
    known = flatten(like) if like is not None else {}
    for path, tensor in flatten(tree).items():
        bad = ~torch.isfinite(tensor)
        if bad.any():
            before = known.get(path)
            if before is None or before.is_meta or not torch.equal(tensor[bad], before[bad]):
                return path
    return None
