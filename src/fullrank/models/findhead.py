"""The search for the classifier of a module, by observing one forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.errors import InputError, nearest
from fullrank.models.net import Net

Dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def output_width(module: nn.Module, example: Tensor, head: str | None = None) -> int:
    """Return the number of scores per sample that a module's classifier computes.

    Args:
        module: The module.
        example: A small batch of inputs.
        head: The name of the classifier, if it cannot be found.

    Raises:
        InputError: If the module cannot process the batch, or its classifier is not found.
    """
    return int(find_head(module, example, head)[3].shape[-1])


def find_head(module: nn.Module, example: Tensor, head: str | None) -> tuple[str, str, Any, Any, Any]:
    """Run one forward in eval mode to find the classifier.

    Args:
        module: The module.
        example: A small batch of inputs.
        head: The name of the classifier; None for the last `nn.Linear` that is called.

    Returns:
        The name of the classifier, the name of the module whose input is z, z, the logits, and the model's result.

    Raises:
        InputError: If the module cannot process the batch, or its classifier is not found.
    """
    if isinstance(module, Net):
        if head not in (None, "head"):
            raise InputError(
                f'model.head = "{head}" (head= in a program) is for your own networks; the library\'s have theirs, '
                "so leave it out"
            )
        with _first_forward(module, example):
            out = module.represent(example)
        return "head", "head", out.z, out.logits, out.logits
    names = dict(module.named_modules())
    if head is not None and head not in names:
        raise InputError(f'the model has no part called "{head}"; {nearest(head, [n for n in names if n])}')
    calls: list[tuple[str, Any, Any]] = []
    versions: list[int] = []

    def record(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            calls.append((name, args[0] if args else None, result))
            versions.append(getattr(result, "_version", 0))

        return hook

    watched = {name: part for name, part in names.items() if name == head or isinstance(part, (nn.Linear, *Dropouts))}
    handles = [part.register_forward_hook(record(name)) for name, part in watched.items()]
    try:
        with _first_forward(module, example):
            result = module(example)
    finally:
        for handle in handles:
            handle.remove()
    candidates = (
        [c for c in calls if c[0] == head]
        if head is not None
        else [c for c in calls if isinstance(names[c[0]], nn.Linear)]
    )
    if not candidates:
        called = f'"{head}" is never called' if head is not None else "no nn.Linear is called"
        raise InputError(f"{called} in the model's forward; name the classifier with head= (model.head in a file)")
    name, z, logits = candidates[-1]
    if sum(c[0] == name for c in calls) > 1:
        raise InputError(f'the layer "{name}" is called more than once in a forward; name the classifier: head=')
    # In eval mode a dropout returns its input itself, so the one in front of the classifier is recognised by identity
    # (unless something wrote into the tensor in between, as an in-place ReLU does).
    in_front = [
        c[0]
        for c, version in zip(calls, versions, strict=True)
        if isinstance(names[c[0]], Dropouts) and c[2] is z and version == z._version
    ]
    if isinstance(logits, tuple):
        logits = logits[0]
    return name, (in_front[0] if in_front else name), z, logits, result


@contextlib.contextmanager
def _first_forward(module: nn.Module, example: Tensor) -> Iterator[None]:
    """Set eval mode inside the block, and convert errors of the forward pass to an `InputError` about the data."""
    try:
        with _eval(module):
            yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, MemoryError, OverflowError) as error:
        lines = str(error).strip().splitlines()
        raise InputError(
            f"the model ({type(module).__name__}) cannot take a batch of shape {tuple(example.shape)} and dtype "
            f"{example.dtype} ({': '.join([type(error).__name__, *lines[:1]])}); {_what_would_fit(example, error)}"
        ) from error


def _what_would_fit(example: Tensor, error: Exception) -> str:
    if isinstance(error, IndexError) and not example.is_floating_point() and example.numel():
        smallest, largest = int(example.min()), int(example.max())
        rows = (
            f"so an embedding needs at least {largest + 1} rows" if smallest >= 0 else "and an embedding has none < 0"
        )
        return f"samples hold whole numbers of {smallest} to {largest}, {rows}"
    if not example.is_floating_point():
        return "store the samples as floating-point numbers, or choose a model that takes whole numbers"
    otherwise = "choose a model for such data, as the library's mlp is for any shape"
    if example.dim() != 3:
        return otherwise
    height, width = example.shape[1:]
    return f"if these are grey images, add a channel axis: (N, 1, {height}, {width}); else {otherwise}"


@contextlib.contextmanager
def _eval(module: nn.Module) -> Iterator[None]:
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in before:
            part.training = training
