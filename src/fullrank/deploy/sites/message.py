"""The messages between a server and a site: plain values and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fullrank.federated.codec import BadMessage, seal, unseal

PROTOCOL = 1
"""The version of the protocol, which must be the same at the server and at the sites."""


@dataclass(frozen=True)
class Message:
    """A request of a server, or the answer of a site. Nothing in it is ever executed.

    >>> Message.from_bytes(Message({"kind": "join"}).to_bytes()).values
    {'kind': 'join'}
    """

    values: Mapping[str, Any]
    """Plain values, as JSON preserves them; "kind" says what is asked or answered."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors by their numbers as text, as `codec.pack` returns them."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """The path of each tensor, as in "broadcast/w/head.bias", for a channel that shows it; empty when received."""

    @property
    def kind(self) -> str:
        """The kind of the request or of the answer."""
        return str(self.values.get("kind", ""))

    @property
    def nbytes(self) -> int:
        """The number of bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def to_bytes(self) -> bytes:
        """Return the message as bytes, with a version and a checksum."""
        return seal(self.values, self.tensors)

    @classmethod
    def from_bytes(cls, content: bytes) -> Message:
        """Read the bytes of `to_bytes`.

        Raises:
            BadMessage: If they are cut off, changed, of another version, or hold something else.
        """
        values, tensors = unseal(content)
        if not isinstance(values, dict):
            raise BadMessage("a message holds no table of values")
        return cls(values, tensors)

    def text(self, name: str) -> str:
        """Return a value that must be text.

        Raises:
            BadMessage: If it is missing or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, str):
            raise BadMessage(f"a message cannot be used: its {name} is not text")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return a value that must be a table.

        Raises:
            BadMessage: If it is missing or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise BadMessage(f"a message cannot be used: its {name} is not a table")
        return value
