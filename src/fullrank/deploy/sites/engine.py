"""The engine of a deployment: it runs each job at the site that has the client, over a channel."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fullrank.deploy.sites.channel import Channel, Trouble
from fullrank.deploy.sites.host import frozen_digest
from fullrank.deploy.sites.message import PROTOCOL, Message
from fullrank.deploy.sites.metrics import check_metrics
from fullrank.deploy.sites.roster import Roster, shown_reason
from fullrank.deploy.sites.states import Receipt
from fullrank.engine.base import Engine
from fullrank.errors import FullrankError, RemoteError, SiteFailed
from fullrank.federated.codec import BadMessage, pack, unpack
from fullrank.federated.site import Job, Result
from fullrank.local import interrupt
from fullrank.trees import Tree

POLL = 1.0
"""The largest number of seconds of one request for answers."""
AHEAD = 8
"""The number of answers, of the clients next in order, that the server takes before their turn."""
METHOD_AT_FAULT = ("WroteInPlace", "BadGradient")
"""Errors of which the method is the cause, and not the site."""


@dataclass(frozen=True)
class Limits:
    """The waiting times of a server, and the number of clients that train at the same time.

    Args:
        timeout: The number of seconds within which a client must answer.
        patience: The number of seconds within which a site that is gone must be back.
        at_once: The number of clients that train at the same time; 0 is all of a round.
    """

    timeout: float = 3600.0
    patience: float = 60.0
    at_once: int = 0


@dataclass
class _Pending:
    """A job on its way."""

    job: Job
    start: float
    """When it was first handed out."""
    ticket: str = ""
    """The ticket of the request; empty while the site is gone."""
    gone_since: float | None = None
    reason: str = ""
    """Why the site was lost."""
    result: Result | None = None
    sends: int = 0
    nodes: set[int] = field(default_factory=set)


class RemoteEngine(Engine):
    """Runs jobs at the sites of a roster, and yields their results in the order of the jobs.

    A job is sent without the client's state, which its site has; the state of the job holds only the receipt of it.

    Args:
        channel: Carries the jobs.
        roster: Says at which node each client is.
        request: What every request contains: the run, the experiment and the facts of the federation.
        oldest: Returns the number of rounds of the oldest checkpoint to which the server can return.
        limits: How long the server waits.
    """

    def __init__(
        self,
        channel: Channel,
        roster: Roster,
        request: Callable[[], Mapping[str, Any]],
        oldest: Callable[[], int],
        limits: Limits,
    ):
        self._channel, self._roster, self._request, self._oldest = channel, roster, request, oldest
        self._limits = limits
        self._frozen_at: dict[int, tuple[int, str]] = {}
        """The node and the digest of the frozen entries that each client's site has."""
        self._digests: dict[int, tuple[Any, str]] = {}
        self._lost: set[int] = set()
        """The clients whose sites were lost in an earlier round and have not come back."""
        self._sent = self._answered = 0

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Send the jobs to their sites, and yield the results in the order of the jobs."""
        self._roster.poll()
        waiting = iter(jobs)
        pending: deque[_Pending] = deque()
        ended = False
        while True:
            while not ended and (not self._limits.at_once or len(pending) < self._limits.at_once):
                job = next(waiting, None)
                if job is None:
                    ended = True
                else:
                    pending.append(self._started(job))
            if not pending:
                return
            self._await_first(pending)
            first = pending.popleft()
            assert first.result is not None
            yield first.result

    def notes(self) -> dict[str, Any]:
        """Return the numbers of sites that are connected and of jobs, and why nodes cannot take part, if any cannot."""
        found: dict[str, Any] = {"sites": self._roster.nodes}
        found |= {"jobs_sent": self._sent, "jobs_answered": self._answered}
        if self._roster.problems:
            found["problems"] = list(self._roster.problems.values())
        self._sent = self._answered = 0
        return {"deployment": found}

    def _started(self, job: Job) -> _Pending:
        entry = _Pending(job, time.monotonic())
        self._send(entry)
        return entry

    def _send(self, entry: _Pending, frozen: bool = False) -> None:
        """Send a job to the node of its client, or note that it is gone."""
        node = self._roster.node_of(entry.job.client)
        if node is None:
            self._note_gone(entry, "it is not connected")
            return
        self._lost.discard(entry.job.client)
        digest = self._digest(entry.job.frozen)
        kept = not frozen and self._frozen_at.get(entry.job.client) == (node, digest)
        job = dataclasses.replace(entry.job, state=None, frozen={} if kept else entry.job.frozen)
        packed, receipt = pack(job), Receipt.of_tree(entry.job.state)
        values = {
            **self._request(),
            "kind": "job",
            "protocol": PROTOCOL,
            "job": packed.form,
            "receipt": None if receipt is None else [receipt.round, receipt.token],
            "oldest": self._oldest(),
            "frozen": digest,
        }
        entry.ticket = self._channel.send(node, Message(values, packed.tensors, packed.paths))
        entry.gone_since = None
        entry.sends += 1
        entry.nodes.add(node)
        self._sent += 1

    def _digest(self, frozen: Tree) -> str:
        """Return the digest of frozen entries, computed once for tensors that are the same objects."""
        marks = tuple(map(id, frozen.values()))
        known = self._digests.get(0)
        if known is None or known[0][0] != marks:
            known = self._digests[0] = ((marks, dict(frozen)), frozen_digest(frozen))
        return known[1]

    def _note_gone(self, entry: _Pending, reason: str) -> None:
        entry.ticket, entry.reason = "", reason
        if entry.gone_since is None:
            entry.gone_since = time.monotonic()

    def _await_first(self, pending: deque[_Pending]) -> None:
        """Wait for the result of the first of these jobs; answers to the next ones are taken meanwhile."""
        first = pending[0]
        asked = False
        while first.result is None:
            interrupt.check()
            if first.gone_since is not None:
                self._return(first)
                if first.result is not None or first.gone_since is not None:
                    continue
            left = first.start + self._limits.timeout - time.monotonic()
            if left <= 0 and asked:
                self._fail(first, f"did not answer within {self._limits.timeout:g} s (run.client_timeout)")
                return
            near = {entry.ticket: entry for entry in list(pending)[:AHEAD] if entry.ticket and entry.result is None}
            for ticket, answer in self._channel.receive([*near], max(0.0, min(left, POLL))).items():
                self._take(near[ticket], answer)
            asked = True

    def _return(self, entry: _Pending) -> None:
        """Send a job again if its site is back; give up after some time."""
        assert entry.gone_since is not None
        now = time.monotonic()
        patience = 0.0 if entry.job.client in self._lost else self._limits.patience
        end = min(entry.gone_since + patience, entry.start + self._limits.timeout)
        self._roster.poll(max(0.0, min(POLL, end - now)))
        if self._roster.node_of(entry.job.client) is not None:
            self._send(entry)
        elif time.monotonic() >= end:
            self._lost.add(entry.job.client)
            self._fail(entry, f"was lost: {entry.reason}")
        else:
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))

    def _take(self, entry: _Pending, answer: Message | Trouble) -> None:
        """Note an answer to a job."""
        entry.ticket = ""
        client = entry.job.client
        if isinstance(answer, Trouble):
            if answer.gone and entry.sends < 3:
                self._frozen_at.pop(client, None)
                self._note_gone(entry, answer.reason)
            else:
                self._fail(entry, f"sent no usable answer: {answer.reason}")
            return
        self._answered += 1
        if answer.kind == "lacks" and entry.sends < 3:
            self._send(entry, frozen=True)
        elif answer.kind == "rejected":
            self._fail(entry, shown_reason(answer))
        elif answer.kind == "failed":
            self._failed(entry, answer)
        else:
            self._accept(entry, answer)

    def _accept(self, entry: _Pending, answer: Message) -> None:
        client = entry.job.client
        try:
            if answer.kind != "result":
                raise BadMessage(f'an answer of the kind "{answer.kind[:40]}" is not known')
            result = unpack(answer.table("result"), answer.tensors)
            receipt = Receipt.of_values(answer.values.get("receipt"))
            if not isinstance(result, Result) or result.client != client:
                raise BadMessage("it is not the result of this client's job")
            if receipt is not None and (receipt.round != entry.job.round or entry.job.kind != "train"):
                raise BadMessage("it has the receipt of another round")
            check_metrics(result.metrics, entry.job.kind, len((self._roster.described or {}).get("classes", [])))
        except FullrankError as problem:
            self._fail(entry, f"sent no usable answer: {problem}")
            return
        result.state = {} if receipt is None else receipt.as_tree()
        result.error = None
        if not entry.job.show and entry.job.kind != "personal":
            result.model = {}
        node = self._roster.node_of(client)
        if entry.job.frozen and node is not None:
            self._frozen_at[client] = (node, self._digest(entry.job.frozen))
        entry.result = result

    def _failed(self, entry: _Pending, answer: Message) -> None:
        """Note that the code of a client raised an exception."""
        kind, reason = str(answer.values.get("error", "")), shown_reason(answer)
        if kind in METHOD_AT_FAULT:
            entry.result = Result(entry.job.client, 0, error=RemoteError(kind, reason, ""))
        else:
            self._fail(entry, f"failed: {reason}")

    def _fail(self, entry: _Pending, what: str) -> None:
        label = self._roster.label(entry.job.client)
        entry.ticket, entry.gone_since = "", None
        entry.result = Result(entry.job.client, 0, error=SiteFailed(f"{label} {what}"))
