"""Trees: dicts of tensors keyed by name, possibly nested. Everything that is exchanged, kept or saved is a tree.

A path joins the names of nested trees with "/": `scaffold/c/head.weight`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fullrank.errors import InputError

Tree: TypeAlias = dict[str, Any]
"""A dict whose values are tensors or trees."""

Tensors: TypeAlias = dict[str, Tensor]
"""A tree without nesting."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tensors:
    """Return the tensors of a tree by path. An empty subtree keeps its name, as `path/` with an empty tensor.

    Args:
        tree: The tree.
        prefix: The path of the tree itself, with which all paths begin.

    Raises:
        InputError: If a name is not text, or contains a "/".

    >>> sorted(flatten({"a": {"b": torch.zeros(2)}, "c": {}}))
    ['a/b', 'c/']
    """
    flat: Tensors = {}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise InputError(f"the name {name!r} of an entry is not text")
        if "/" in name:
            raise InputError(f'the name "{name}" holds a "/", which joins the names of nested trees; rename it')
        path = f"{prefix}{name}"
        if isinstance(value, Tensor) or not isinstance(value, Mapping):
            flat[path] = value
        else:
            flat |= flatten(value, f"{path}/") if value else {f"{path}/": torch.empty(0)}
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """Rebuild a tree from its tensors by path, the inverse of `flatten`.

    >>> unflatten({"a/b": torch.tensor(1.0), "c/": torch.empty(0)})
    {'a': {'b': tensor(1.)}, 'c': {}}
    """
    tree: Tree = {}
    for path, tensor in flat.items():
        *above, name = path.split("/")
        node = tree
        for step in above:
            node = node.setdefault(step, {})
        if name:
            node[name] = tensor
    return tree


def by_name(tree: Mapping[str, Any]) -> Tree:
    """Return the same tree with its names in alphabetical order.

    Trees that are kept between rounds have this order, in memory as well as after they were read from a file: sums
    over a tree, and whether clients train as a group, must not depend on where a tree comes from.

    >>> by_name({"b": {}, "a": {"d": 1, "c": 2}})
    {'a': {'c': 2, 'd': 1}, 'b': {}}
    """
    return {name: by_name(tree[name]) if isinstance(tree[name], Mapping) else tree[name] for name in sorted(tree)}


def combine(tree: Mapping[str, Any], function: Callable[..., Tensor], *others: Mapping[str, Any]) -> Tree:
    """Apply a function to the tensors of the same name, for every name of the first tree.

    Args:
        tree: The tree whose names the result has.
        function: A function of one tensor from each tree.
        *others: Trees that hold at least the names of the first; a missing name is an error.

    >>> combine({"w": torch.tensor(1.0)}, lambda a, b: a + 2 * b, {"w": torch.tensor(3.0), "v": torch.tensor(0.0)})
    {'w': tensor(7.)}
    """
    return {
        name: combine(value, function, *(other[name] for other in others))
        if isinstance(value, Mapping)
        else function(value, *(other[name] for other in others))
        for name, value in tree.items()
    }


@dataclass(frozen=True)
class FlatLayout:
    """The layout of a flat tree in its vector: the names, shapes and strides of its tensors, in order."""

    places: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> FlatLayout:
        """Return the layout of dense tensors, in their order; a tensor in channels-last form keeps that form."""
        return cls(tuple((name, tuple(t.shape), t.stride()) for name, t in tensors.items()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in order."""
        return tuple(name for name, _, _ in self.places)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The position at which each tensor begins, and under "" the end of the last one."""
        found, at = {}, 0
        for name, shape, _ in self.places:
            found[name] = at
            at += math.prod(shape)
        return {**found, "": at}

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    @cached_property
    def _shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        return {name: (shape, strides) for name, shape, strides in self.places}

    def view(self, base: Tensor, name: str) -> Tensor:
        """Return one tensor of a flat tree as a view of its vector.

        Args:
            base: The vector, which has this layout.
            name: The name of the tensor.
        """
        return base.as_strided(*self._shapes[name], base.storage_offset() + self.offsets[name])

    def fits(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has exactly these names and shapes."""
        return len(tree) == len(self.places) and all(
            isinstance(tree.get(name), Tensor) and tuple(tree[name].shape) == shape for name, shape, _ in self.places
        )


class Flat(dict[str, Tensor]):
    """A tree without nesting whose tensors are views of one vector, so that `pointwise` is one operation on it.

    The views are made when they are first used: hundreds of them cost more than an operation on the vector.

    Args:
        base: The vector.
        layout: The positions and shapes of the tensors in the vector.
        tensors: Views of the vector that exist already, by name.
    """

    def __init__(self, base: Tensor, layout: FlatLayout, tensors: Mapping[str, Tensor] | None = None):
        self.base = base
        self.layout = layout
        self._known = dict(tensors) if tensors is not None else {}

    def __getitem__(self, name: str) -> Tensor:
        if (found := self._known.get(name)) is None:
            found = self._known[name] = self.layout.view(self.base, name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tensor with a name, or the default if there is none."""
        if name not in self.layout:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.layout

    def __len__(self) -> int:
        return len(self.layout.places)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self.layout.names)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, Flat) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return {**self, **other}

    def copy(self) -> Tensors:
        """Return the same tensors in a plain dict."""
        return {**self}

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Return the names, in the layout's order."""
        return KeysView(self)

    def values(self) -> ValuesView[Tensor]:  # type: ignore[override]
        """Return the tensors, in the layout's order."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Tensor]:  # type: ignore[override]
        """Return names and tensors, in the layout's order."""
        return ItemsView(self)

    @classmethod
    def copied(cls, tensors: Mapping[str, Tensor], layout: FlatLayout) -> Flat:
        """Copy tensors into a new vector.

        Args:
            tensors: The tensors by name, all of one dtype and on one device.
            layout: The layout of the vector.
        """
        first = next(iter(tensors.values()))
        flat = cls(torch.empty(layout.offsets[""], dtype=first.dtype, device=first.device), layout)
        copy_(flat, tensors)
        return flat

    @classmethod
    def joined(cls, tensors: Mapping[str, Tensor], layout: FlatLayout) -> Flat:
        """Concatenate tensors into a new vector.

        Args:
            tensors: The tensors by name, with the shapes of the layout.
            layout: The layout of the vector.
        """
        vectors = [_vector(tensors[name], strides) for name, _, strides in layout.places]
        return cls(torch.cat(vectors), layout)

    def _reject(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a tree is never written in place: make a new one, {**tree, name: value}")

    __setitem__ = __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = _reject

    def part(self, names: Iterable[str]) -> Tensors:
        """Return some of the entries, as a `Flat` if they are contiguous in the vector."""
        wanted = set(names)
        if wanted == self.keys():
            return self
        chosen = [index for index, name in enumerate(self.layout.names) if name in wanted]
        if not chosen or len(chosen) < len(wanted) or chosen[-1] - chosen[0] + 1 != len(chosen):
            return {name: tensor for name, tensor in self.items() if name in wanted}
        places = self.layout.places[chosen[0] : chosen[-1] + 1]
        start = self.layout.offsets[places[0][0]]
        size = sum(math.prod(shape) for _, shape, _ in places)
        return Flat(self.base[start : start + size], FlatLayout(places), {name: self[name] for name, _, _ in places})

    def __reduce__(self) -> tuple[Any, ...]:
        return Flat, (self.base, self.layout)

    def __deepcopy__(self, memo: dict[int, Any]) -> Flat:
        return Flat(self.base.detach().clone(), self.layout)


def _vector(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the elements of a tensor in their order in memory with these strides."""
    if tensor.stride() != strides:
        tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def outline(tree: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Return shape and dtype of a tree's tensors by path: trees with equal outlines can be combined and stacked.

    Args:
        tree: The tree.
        prefix: The path of the tree itself, with which all paths begin.

    >>> outline({"a": {"b": torch.zeros(2)}, "c": {}})
    {'a/b': ((2,), torch.float32), 'c/': ((), None)}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{name}"] = tuple(value.shape), value.dtype
        elif isinstance(value, Mapping):
            found |= outline(value, f"{prefix}{name}/") or {f"{prefix}{name}/": ((), None)}
        else:
            found[f"{prefix}{name}"] = (), None
    return found


def flats(*trees: Mapping[str, Any]) -> list[Flat]:
    """Return the trees themselves if all are flat with the same layout, else an empty list."""
    found = [tree for tree in trees if isinstance(tree, Flat)]
    return found if len(found) == len(trees) and all(f.layout == found[0].layout for f in found) else []


def pointwise(tree: Mapping[str, Any], function: Callable[..., Tensor], *others: Mapping[str, Any]) -> Tree:
    """Combine trees by an elementwise function, with a single call for flat trees of the same layout.

    Args:
        tree: The tree whose names the result has.
        function: An elementwise function of one tensor from each tree.
        *others: Trees that hold at least the names of the first.

    >>> pointwise({"w": torch.tensor(1.0)}, torch.add, {"w": torch.tensor(3.0)})
    {'w': tensor(4.)}
    """
    if alike := flats(tree, *others):
        return Flat(function(*(flat.base for flat in alike)), alike[0].layout)
    if any(isinstance(value, Mapping) for value in tree.values()):
        return {
            name: pointwise(value, function, *(other[name] for other in others))
            if isinstance(value, Mapping)
            else function(value, *(other[name] for other in others))
            for name, value in tree.items()
        }
    return combine(tree, function, *others)


def part_of(tree: Tensors, names: Collection[str]) -> Tensors:
    """Return some entries of a tree.

    Args:
        tree: A tree without nesting.
        names: The names of the entries.

    Returns:
        The entries, as a `Flat` if the tree is one and they are contiguous.
    """
    if isinstance(tree, Flat):
        return tree.part(name for name in tree if name in names)
    return {name: tensor for name, tensor in tree.items() if name in names}


def merged(tree: Tensors, changed: Mapping[str, Tensor]) -> Tensors:
    """Replace some entries of a tree.

    Args:
        tree: A tree without nesting, which is not changed.
        changed: The new entries by name.

    Returns:
        A new tree, as a `Flat` if both arguments are.

    >>> merged({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"b": torch.tensor(3.0)})
    {'a': tensor(1.), 'b': tensor(3.)}
    """
    if changed.keys() >= tree.keys():
        return changed if isinstance(changed, Flat) else dict(changed)
    if isinstance(tree, Flat) and isinstance(changed, Flat):
        into = Flat(tree.base.clone(), tree.layout)
        copy_(into.part(changed), changed)
        return into
    return {**tree, **changed}


@torch.no_grad()
def copy_(into: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Copy the values of a tree into the tensors of `into` with the same names, in place.

    Args:
        into: The tree that is overwritten.
        values: A tree that holds at least the names of `into`.
    """
    pairs = [(place, value) for place, value in matching(into, values) if place.numel()]
    if pairs:
        torch._foreach_copy_([place for place, _ in pairs], [value for _, value in pairs])


def matching(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the pairs of tensors with the same name in two trees, or the two vectors if both are flat in one layout.

    Args:
        tree: The tree whose names are used.
        other: A tree that holds at least these names.
    """
    if alike := flats(tree, other):
        yield alike[0].base, alike[1].base
        return
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from matching(value, other[name] if value else {})
        else:
            yield value, other[name]


def zeros(tree: Mapping[str, Any]) -> Tree:
    """Return a tree of zeros with the same names and shapes.

    >>> zeros({"w": torch.ones(2)})
    {'w': tensor([0., 0.])}
    """
    return pointwise(tree, torch.zeros_like)


def clone(tree: Mapping[str, Any]) -> Tree:
    """Return an independent, detached copy of a tree. Trees that are not flat get the standard memory layout."""
    return pointwise(tree, lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))


def moved(tree: Mapping[str, Any], device: torch.device) -> Tree:
    """Return a tree on a device. Tensors that are there already are not copied."""
    return pointwise(tree, lambda tensor: tensor.to(device))


def versions(*trees: Mapping[str, Any]) -> int:
    """Return how often the tensors of the trees have been written in place, which two calls compare."""
    return sum(tensor._version for tree in trees for tensor in vectors(tree))


def elements(tree: Mapping[str, Any]) -> int:
    """Return the number of elements of a tree."""
    return sum(tensor.numel() for tensor in vectors(tree))


def nbytes(tree: Mapping[str, Any]) -> int:
    """Return the number of bytes that the elements of a tree take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in vectors(tree))


def vectors(tree: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a tree, or only its vector if it is flat."""
    if isinstance(tree, Flat):
        yield tree.base
        return
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from vectors(value)
        else:
            yield value


def norm(tree: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean norm over all entries of a tree without nesting."""
    values = [tree.base] if isinstance(tree, Flat) else list(tree.values())
    norms = [torch.linalg.vector_norm(value) for value in values]
    total: Tensor = (
        norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    )
    return total


def misfit(tree: Mapping[str, Any], like: Mapping[str, Any]) -> str | None:
    """Describe the first difference in names or shapes between a tree and the expected one.

    Args:
        tree: The tree to check.
        like: A tree with the expected names and shapes.

    Returns:
        A clause of an error message, or None if there is no difference.

    >>> misfit({"w": torch.zeros(2)}, {"w": torch.zeros(3)})
    'w has shape (2,) instead of (3,)'
    """
    got, want = flatten(tree), flatten(like)
    if missing := sorted(want.keys() - got.keys()):
        return f"{missing[0]} is missing"
    if surplus := sorted(got.keys() - want.keys()):
        return f"{surplus[0]} is not expected"
    for path, tensor in got.items():
        if getattr(tensor, "shape", None) != want[path].shape:
            if not hasattr(tensor, "shape"):
                return f"{path} is a {type(tensor).__name__}, not a tensor"
            return f"{path} has shape {tuple(tensor.shape)} instead of {tuple(want[path].shape)}"
    return None
