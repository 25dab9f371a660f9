"""The positions of a module's entries, which are found once and looked up afterwards."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Structure:
    """The layers that hold a module's entries, and the entries' names in them.

    Tensors are not kept, because they may be replaced.
    """

    parameters: tuple[tuple[str, dict[str, Any], str], ...]
    """Each parameter's name, the table of the layer that holds it, and its name there."""
    buffers: tuple[tuple[str, dict[str, Any], str], ...]
    """These facts about each buffer that belongs to the model's state."""
    modules: tuple[nn.Module, ...]
    facts: dict[Hashable, Any] = field(default_factory=dict)
    """Values that depend on the structure only and have been computed before."""

    @classmethod
    def of(cls, module: nn.Module) -> Structure:
        """Return the structure of a module."""
        state = module.state_dict(keep_vars=True)
        parameters = [name for name, _ in module.named_parameters()]
        buffers = [name for name, _ in module.named_buffers() if name in state]
        return cls(
            tuple((name, *_place(module, name, "_parameters")) for name in parameters),
            tuple((name, *_place(module, name, "_buffers")) for name in buffers),
            tuple(module.modules()),
        )


def _place(module: nn.Module, name: str, kind: str) -> tuple[dict[str, Any], str]:
    owner, _, local = name.rpartition(".")
    return getattr(module.get_submodule(owner), kind), local
