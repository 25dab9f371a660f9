"""The checks of uploads and of the results of aggregators.

An upload is rejected, and the client that sent it is named, if

- it has other spaces, names, kinds (Sum or Mean), entries or shapes than the method sends for this model, or
  floating-point numbers in place of integers or the reverse;
- it holds something other than tensors with values: numbers, lists, meta tensors, names that are not text;
- a value is not finite or is larger than `LARGEST` in absolute value, unless the model that was sent has the same
  value there;
- the weights together are more than `ABSURD` times as large as the model that was sent (by Euclidean norm, with 1 as
  the least size of the model);
- the weight of a mean is negative, not finite or larger than `LARGEST`;
- a variance that BatchNorm keeps is negative;
- it is empty, although the client made steps (`check_samples`);
- the number of samples is not the one that the server knows: as the client's claim, as the weight of its buffers in
  the mean and, unless the method defines `weight`, as the weight of its model (`check_samples`).

If a method sends the weights in another form (`Method.upload`), the check of the form is about that form, and the
values are checked after `Method.receive`.

A client whose weights are more than `SUSPICIOUS` times as large as both the model that was sent and the median of the
round's clients is named in a warning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fullrank.channels import Mean, Sum, Upload, form_of, is_whole, part_name
from fullrank.errors import InputError
from fullrank.trees import Flat, Tree, flatten, misfit, outline, vectors

LARGEST = 1e18
"""The largest absolute value that is accepted: the square of a larger one soon leaves the range of float32."""
ABSURD = 1e9
"""The largest ratio of the norm of a client's weights to that of the model it received."""
SUSPICIOUS = 1e3
"""The ratio of norms, to the model sent and to the round's median, above which a warning names the client."""
CLIENTS_NAMED = 5
"""The largest number of clients that a warning names."""


class Unusable(InputError):
    """Raised if an upload is rejected; the message is the reason."""


class OtherForm(Unusable):
    """Raised if an upload has other names, kinds or shapes than expected."""


class OtherSize(Unusable):
    """Raised if an upload has the expected form but values that are not finite or are absurdly large."""


class UploadCheck:
    """Checks the uploads of one round, or the answers to one query, and notes how large the weights are.

    Args:
        received: The weights "w" and the statistics "buffers" that the clients received, which those of an upload must
            look like. Empty for a query, whose answers contain neither.
        expected: The form of every upload, without values. If it is empty, the first upload that is accepted
            defines it.
        variances: The names of buffers that cannot be negative.
        receive: Returns a client's weights from what its methods sent in their place (`Method.upload`); None if clients
            send the weights themselves.
    """

    def __init__(
        self,
        received: Mapping[str, Tree],
        expected: Upload,
        variances: Collection[str] = (),
        receive: Callable[[Tree], Tree] | None = None,
    ):
        self.sizes: dict[int, float] = {}
        """The Euclidean norm of the weights of each client whose upload was accepted."""
        self._received = received
        self._expected = expected
        self._variances = variances
        self._receive = receive
        self._first: Upload = {}
        """The first upload that was accepted, without values."""
        self._outlines: dict[str, dict[str, Any]] = {}
        """The outline of each expected part, so that one comparison accepts most uploads."""
        self._received_size: float | None = None

    def accept(self, client: int, upload: Upload) -> Upload:
        """Check one client's upload.

        Args:
            client: The client.
            upload: The upload.

        Returns:
            The upload, with the weights as the methods received them.

        Raises:
            Unusable: If the upload is rejected.
            InputError: If the methods received something that does not fit the model.
        """
        self._check_form(upload)
        usable = self._with_weights(upload)
        size = self._check_values(usable)
        if not self._first:
            self._first = form_of(upload)
            for space, parts in upload.items():
                for name, part in parts.items():
                    self._outlines.setdefault(part_name(space, name), outline(part.tree))
        self.sizes[client] = size
        return usable

    def expect(self, form: Upload) -> None:
        """Replace the form that all further uploads must have."""
        self._expected, self._outlines = form, {}

    def suspicious(self, round: int) -> list[str]:
        """Return a warning that names clients whose weights are far larger than the received model and those of other
        clients."""
        if not self.sizes:
            return []
        sent, median = self._received_size or 0.0, float(np.median(list(self.sizes.values())))
        limit = SUSPICIOUS * max(sent, median)
        odd = [(client, size) for client, size in self.sizes.items() if limit and size > limit]
        if not odd:
            return []
        named = ", ".join(f"client {client}: {size:.2g}" for client, size in odd[:CLIENTS_NAMED])
        more = f" and {len(odd) - CLIENTS_NAMED} more" if len(odd) > CLIENTS_NAMED else ""
        return [
            f"round {round + 1}: weights of a norm more than {SUSPICIOUS:.0e} times that of the model sent "
            f"({sent:.2g}) and of the median client ({median:.2g}) are in the mean ({named}{more})"
        ]

    def _check_form(self, upload: Upload) -> None:
        if problem := malformed(upload):
            raise OtherForm(problem)
        expected = self._expected or self._first or upload
        if misnamed := _paths(upload) ^ _paths(expected):
            whose = "what the method sends" if self._expected else "the other clients'"
            raise OtherForm(f"its uploads differ from {whose} in {', '.join(sorted(misnamed))}")
        for space, parts in upload.items():
            for name, part in parts.items():
                as_sent = not space and (name != "w" or self._receive is None)
                self._check_part(space, name, part, expected[space][name], self._received if as_sent else {})

    def _check_part(
        self, space: str, name: str, part: Sum | Mean, like: Sum | Mean, received: Mapping[str, Tree]
    ) -> None:
        what = part_name(space, name)
        if type(part) is not type(like):
            others = "the method sends" if self._expected else "other clients'"
            raise OtherForm(f"its {what} is a {type(part).__name__}, {others} a {type(like).__name__}")
        reference = received.get(name, like.tree)
        known = bool(self._expected) or name in received
        if what not in self._outlines and known:
            self._outlines[what] = outline(reference)
        if outline(part.tree) != self._outlines.get(what):
            if problem := misfit(part.tree, reference):
                first = "" if known or like is part else " (as the first client of the round sent it)"
                raise OtherForm(f"in its {what}, {problem}{first}")
            if problem := misplaced_number(part.tree, reference):
                raise OtherForm(f"in its {what}, {problem}")

    def _with_weights(self, upload: Upload) -> Upload:
        """Replace what methods sent for the weights of the model by the weights themselves (`Method.receive`)."""
        if self._receive is None:
            return upload
        sent, like = upload[""]["w"], self._received["w"]
        tree = self._receive(sent.tree)
        if problem := no_tree(tree) or misfit(tree, like) or misplaced_number(tree, like):
            raise InputError(
                "what the server receives of the shared weights does not fit the model: "
                f"{problem}; the hook receive must return the entries of server.w from what the hook upload returned"
            )
        weights = {name: tree[name].to(value) for name, value in like.items()}
        return {**upload, "": {**upload[""], "w": dataclasses.replace(sent, tree=weights)}}

    def _check_values(self, upload: Upload) -> float:
        """Reject impossible values; return the norm of the weights."""
        for space, parts in upload.items():
            for name, part in parts.items():
                if isinstance(part, Mean) and not 0 <= part.weight <= LARGEST:
                    raise OtherSize(f"the weight of its {part_name(space, name)} is {part.weight}")
        norms = _norms([part.tree for parts in upload.values() for part in parts.values()])
        places = [(space, name) for space, parts in upload.items() for name in parts]
        for (space, name), some in zip(places, norms, strict=True):
            like = {} if space else self._received.get(name, {})
            if problem := _too_large(upload[space][name].tree, some, like):
                raise OtherSize(f"in its {part_name(space, name)}, {problem}")
        self._check_variances(upload)
        if "w" not in self._received:
            return 0.0
        return self._check_size(math.hypot(*norms[places.index(("", "w"))]))

    def _check_variances(self, upload: Upload) -> None:
        if not self._variances:
            return
        buffers = upload[""]["buffers"].tree
        if bool((torch.cat([buffers[name].reshape(-1) for name in self._variances]) < 0).any()):
            name = next(name for name in self._variances if bool((buffers[name] < 0).any()))
            raise OtherSize(f"in its buffers, {name} is negative, which a variance cannot be")

    def _check_size(self, size: float) -> float:
        if self._received_size is None:
            self._received_size = math.hypot(*_norms([self._received["w"]])[0])
        if not size <= ABSURD * max(self._received_size, 1.0):
            raise OtherSize(
                f"its w has norm {size:.2g}, more than {ABSURD:.0e} times that of the model it received "
                f"({self._received_size:.2g})"
            )
        return size


def check_samples(upload: Upload, claimed: int, known: int, weight: int, own_weight: bool) -> None:
    """Check that a client sent something, and has as many samples as the server knows.

    Args:
        upload: What the client sent.
        claimed: The number of training samples that the client says it has.
        known: The number of training samples that it has.
        weight: The number of samples that counts as its weight in the mean.
        own_weight: Whether the method sets the weight of the weights in the mean.

    Raises:
        OtherForm: If the upload is rejected.
    """
    if not upload:
        raise OtherForm("it is empty, although the client made steps")
    claims: dict[str, tuple[float, int]] = {"it claims": (claimed, known)}
    model = upload.get("", {}) if isinstance(upload, Mapping) else {}
    for name in ("buffers",) if own_weight else ("w", "buffers"):
        if isinstance(part := model.get(name), Mean):
            claims[f"the weight of its {name} is"] = part.weight, weight
    for words, (claim, number) in claims.items():
        if isinstance(claim, (int, float)) and claim != number:
            raise OtherForm(f"{words} {claim:g}, but the client has {number} samples")


def _paths(upload: Upload) -> set[str]:
    return {f"{space}/{name}" for space, parts in upload.items() for name in parts}


def malformed(upload: Any) -> str:
    """Describe why an upload is not a tree of tensors with values; empty if it is one."""
    if not isinstance(upload, Mapping):
        return f"it is a {type(upload).__name__}, not a table of uploads by method"
    for space, parts in upload.items():
        if not (isinstance(space, str) and isinstance(parts, Mapping)):
            return f"what it sends under {space!r} is a {type(parts).__name__}, not a table of uploads by name"
        for name, part in parts.items():
            if not isinstance(name, str):
                return f"it sends something under {name!r}, which is not text"
            what = part_name(space, name)
            if not isinstance(part, (Sum, Mean)):
                return f"its {what} is a {type(part).__name__}; uploads are a Sum or a Mean"
            if isinstance(part, Mean) and not _is_number(part.weight):
                return f"the weight of its {what} is a {type(part.weight).__name__}, not a number"
            if problem := no_tree(part.tree):
                return f"in its {what}, {problem}"
    return ""


def _is_number(weight: Any) -> bool:
    return isinstance(weight, (int, float, np.number)) or (isinstance(weight, torch.Tensor) and weight.numel() == 1)


def no_tree(tree: Any, above: str = "") -> str:
    """Describe why an object is not a tree of tensors with values; empty if it is one."""
    if isinstance(tree, Flat):
        return _no_values(tree.base, "its vector")
    if not isinstance(tree, Mapping):
        return f"{above or 'the tree'} is a {type(tree).__name__}, not a dict of tensors by name"
    for name, value in tree.items():
        if not isinstance(name, str) or "/" in name:
            return f"{name!r} cannot name an entry: names are text without a slash"
        path = f"{above}/{name}" if above else name
        if problem := _no_values(value, path) if isinstance(value, torch.Tensor) else no_tree(value, path):
            return problem
    return ""


def _no_values(tensor: torch.Tensor, path: str) -> str:
    return f"{path} is a meta tensor, which has no values" if tensor.is_meta else ""


def misplaced_number(tree: Tree, like: Tree) -> str | None:
    """Describe the first tensor with floating-point numbers in place of integers or the reverse.

    Args:
        tree: The tree to check.
        like: A tree with the expected kinds of numbers.

    Returns:
        A clause of an error message, or None.
    """
    want = flatten(like)
    for path, tensor in flatten(tree).items():
        if is_whole(tensor) != is_whole(want[path]):
            return f"{path} is not of the expected kind, floating or whole numbers"
    return None


def too_large(tree: Tree, like: Tree) -> str | None:
    """Describe the first entry with values that are not finite or too large, unless `like` has the same values there.

    An attention mask of −∞, for example, is a constant of the model and not a failure.

    Args:
        tree: The tree to check.
        like: A tree with the same names.

    Returns:
        A clause of an error message, or None.
    """
    return _too_large(tree, _norms([tree])[0], like)


def not_finite(tree: Tree, like: Tree) -> str | None:
    """Describe the first entry with values that are not finite, unless `like` has the same values there.

    Args:
        tree: The tree to check.
        like: A tree with the same names.

    Returns:
        A clause of an error message, or None.
    """
    return _too_large(tree, _norms([tree])[0], like, math.inf)


def _norms(trees: Sequence[Tree]) -> list[list[float]]:
    """Return the norms of the floating-point tensors of each tree, or of the vector of a flat tree.

    All norms of a dtype are read from the device at once, because each read synchronises with it.
    """
    found: list[list[float]] = [[] for _ in trees]
    alike: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for number, tree in enumerate(trees):
        for tensor in vectors(tree):
            if not is_whole(tensor) and tensor.numel():
                alike.setdefault((tensor.device, tensor.dtype), []).append((number, _dense(tensor.detach())))
    for (_, dtype), some in alike.items():
        wide = torch.float32 if dtype.itemsize < 4 else None  # a norm in half precision ends at 65,504
        norms = torch.stack(torch._foreach_norm([tensor for _, tensor in some], 2, dtype=wide))
        for (number, _), norm in zip(some, norms.tolist(), strict=True):
            found[number].append(norm)
    return found


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _too_large(tree: Tree, norms: Iterable[float], like: Tree, largest: float = LARGEST) -> str | None:
    if all(norm <= LARGEST for norm in norms):
        return None
    before = flatten(like)
    for path, value in flatten(tree).items():
        tensor, known = _dense(value), before.get(path)
        bad = ~(tensor.abs() <= largest) if largest < math.inf else ~torch.isfinite(tensor)
        if bad.any() and (known is None or not torch.equal(tensor[bad], known[bad])):
            finite = bool(torch.isfinite(tensor).all())
            return f"{path} has values above {largest:.0e}" if finite else f"{path} is not finite"
    return None
