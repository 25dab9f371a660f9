"""The channel of a Flower run: messages to SuperNodes and back, through the SuperLink."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import flwr.app
from flwr.serverapp import Grid

from fullrank.deploy.flower.records import Known, from_records, to_records
from fullrank.deploy.sites.channel import Trouble
from fullrank.deploy.sites.message import Message
from fullrank.errors import RunFailed
from fullrank.federated.codec import BadMessage

PULL = 0.2
"""Seconds between two questions for answers."""
GONE = (3, 4, 5)
"""Flower's codes of errors after which a node may come back: a message or its reply is unavailable, or the node is."""
UNTRUSTED = 7
"""Flower's code of the error that a SuperNode with trusted entities does not know the signature of the app."""
TYPES = {"join": "query", "job": "train"}
"""Flower's types of messages by the kind of a request."""
T = TypeVar("T")


class GridChannel:
    """Carries requests over Flower's `Grid`.

    Args:
        grid: The grid of a `ServerApp`.
        keep: The number of seconds for which Flower keeps a message and its answer.
    """

    def __init__(self, grid: Grid, keep: float):
        self._grid, self._keep = grid, keep
        self._known: Known = {}
        self._not_sent: dict[str, Trouble] = {}
        self._number = 0

    def nodes(self) -> Collection[int]:
        """Return the SuperNodes that are connected now."""
        return tuple(_reached(self._grid.get_node_ids))

    def send(self, node: int, request: Message) -> str:
        """Send a request to a SuperNode."""
        content = to_records(request, self._known)
        message = flwr.app.Message(content, node, TYPES[request.kind], ttl=self._keep)
        tickets = _reached(lambda: [*self._grid.push_messages([message])])
        if tickets and tickets[0]:
            return str(tickets[0])
        # Flower returns an empty text for a node that is gone, and nothing for a message that is too large.
        self._number += 1
        ticket = f"not sent {self._number}"
        reason = "its node is not available" if tickets else "the SuperLink does not accept a message of this size"
        self._not_sent[ticket] = Trouble(reason, gone=bool(tickets))
        return ticket

    def receive(self, tickets: Collection[str], wait: float) -> Mapping[str, Message | Trouble]:
        """Return the answers that have arrived."""
        if lost := {ticket: self._not_sent.pop(ticket) for ticket in tickets if ticket in self._not_sent}:
            return lost
        end = time.monotonic() + wait
        while True:
            replies = _reached(lambda: [*self._grid.pull_messages(tickets)]) if tickets else []
            found = {str(reply.metadata.reply_to_message_id): _answer(reply) for reply in replies}
            left = end - time.monotonic()
            if found or left <= 0:
                return {ticket: answer for ticket, answer in found.items() if ticket in tickets}
            time.sleep(min(PULL, left))


def _answer(reply: flwr.app.Message) -> Message | Trouble:
    if reply.has_error():
        code = reply.error.code
        what = "its app stopped; the log of its SuperNode says why"
        if code in GONE:
            what = "its node is not available"
        elif code == UNTRUSTED:
            what = "its SuperNode runs only apps that are signed by those whom it trusts (--trusted-entities)"
        return Trouble(f"{what} (Flower's error {code})", gone=code in GONE)
    try:
        return from_records(reply.content)
    except BadMessage as problem:
        return Trouble(str(problem))


def _reached(call: Callable[[], T]) -> T:
    """Return the result of a call to the SuperLink; one that cannot be reached ends the run in one sentence."""
    try:
        return call()
    except Exception as error:
        raise RunFailed(
            f"the SuperLink cannot be reached ({type(error).__name__}: {str(error)[:200]}); when it runs again, start "
            "the app again, and the run continues from its last checkpoint"
        ) from error
