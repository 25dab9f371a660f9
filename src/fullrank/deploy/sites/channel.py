"""The channel between a server and its sites: the protocol, and a channel within one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fullrank.deploy.sites.message import Message
from fullrank.federated.codec import BadMessage


@dataclass(frozen=True)
class Trouble:
    """The reason that a server receives in place of an answer."""

    reason: str
    """The reason, as a clause."""
    gone: bool = False
    """Whether the node is gone, so that the same request may succeed when it is back."""


class Channel(Protocol):
    """Carries requests from a server to named nodes, and their answers back. No call waits longer than it is told."""

    def nodes(self) -> Collection[int]:
        """Return the nodes that are connected now."""

    def send(self, node: int, request: Message) -> str:
        """Send a request to a node, and return the ticket with which its answer is collected.

        Args:
            node: The number of the node.
            request: The request.
        """

    def receive(self, tickets: Collection[str], wait: float) -> Mapping[str, Message | Trouble]:
        """Return the answers that have arrived, each of them once.

        Args:
            tickets: The requests whose answers are wanted. Answers to others stay where they are.
            wait: The number of seconds after which the call returns in any case. It returns earlier with any answer.
        """


Answer = Callable[[bytes], "bytes | None"]
"""A node of an in-memory channel: it takes the bytes of a request and returns those of its answer. With None
it never answers; an exception means that the node is gone."""


class InMemory:
    """A channel to nodes in this process, which answer one after the other when their answers are wanted.

    Requests and answers are bytes on their way, as they would be in a network.

    Args:
        nodes: The nodes by their numbers. A node is a function that takes the bytes of a request and returns those of
            its answer, or None if it never answers; an exception means that the node is gone.

    >>> channel = InMemory({7: lambda request: request})
    >>> ticket = channel.send(7, Message({"kind": "echo"}))
    >>> channel.receive([ticket], wait=1.0)[ticket].values
    {'kind': 'echo'}
    """

    def __init__(self, nodes: Mapping[int, Answer] | None = None):
        self.connected: dict[int, Answer] = dict(nodes or {})
        """The nodes by their numbers; they may be added and removed at any time."""
        self.bytes_down = 0
        """The number of bytes of all requests."""
        self.bytes_up = 0
        """The number of bytes of all answers."""
        self._sent: dict[str, tuple[int, bytes]] = {}
        self._number = 0

    def nodes(self) -> Collection[int]:
        """Return the nodes that are connected now."""
        return tuple(self.connected)

    def send(self, node: int, request: Message) -> str:
        """Send a request to a node, as `Channel.send` describes it."""
        self._number += 1
        ticket = str(self._number)
        content = request.to_bytes()
        self.bytes_down += len(content)
        self._sent[ticket] = (node, content)
        return ticket

    def receive(self, tickets: Collection[str], wait: float) -> Mapping[str, Message | Trouble]:
        """Let the node of the first of these requests answer, and return its answer, as `Channel.receive` describes
        it."""
        for ticket in tickets:
            if ticket not in self._sent:
                continue
            node, content = self._sent.pop(ticket)
            if node not in self.connected:
                return {ticket: Trouble("it is not connected", gone=True)}
            try:
                answer = self.connected[node](content)
            except Exception as error:
                return {ticket: Trouble(f"it stopped ({type(error).__name__})", gone=True)}
            if answer is None:
                continue
            self.bytes_up += len(answer)
            try:
                return {ticket: Message.from_bytes(answer)}
            except BadMessage as problem:
                return {ticket: Trouble(str(problem))}
        time.sleep(min(wait, 0.01))
        return {}
