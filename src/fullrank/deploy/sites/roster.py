"""Which sites have joined, which clients they have, and the node at which each of them is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from fullrank.data.augment.registry import AUGMENTATIONS, is_import_path
from fullrank.deploy.sites.channel import Channel, Trouble
from fullrank.deploy.sites.federation import ClientFacts
from fullrank.deploy.sites.message import PROTOCOL, Message
from fullrank.errors import InputError, RunFailed, printable
from fullrank.local import interrupt

PAUSE = 1.0
"""Seconds between two questions for new nodes while the server waits for sites."""
MOST_VALUES = 2**28
"""The largest number of values of one sample; the server makes zeros of that shape."""
MOST_CLASSES = 1_000_000
LONGEST = 200
"""The largest number of characters of names in an answer."""

Number = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=LONGEST)]


class _Data(TypedDict):
    name: Text
    classes: Annotated[list[Text], Field(min_length=1, max_length=MOST_CLASSES)]
    input_shape: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(max_length=8)]
    dtype: Annotated[str, Field(pattern=r"^(uint8|int32|int64|float16|bfloat16|float32|float64)$")]
    mean: Annotated[list[float], Field(max_length=4096)] | None
    std: Annotated[list[float], Field(max_length=4096)] | None
    augment: Annotated[list[Text], Field(max_length=20)]


class _Client(TypedDict):
    client: Number
    name: Text
    samples: Number
    holdout: Number
    test: Number
    classes: NotRequired[Annotated[list[Number], Field(max_length=MOST_CLASSES)]]


class _Joined(TypedDict):
    kind: str
    release: Text
    data: _Data
    clients: Annotated[list[_Client], Field(min_length=1, max_length=100_000)]


_JOINED: TypeAdapter[Any] = TypeAdapter(_Joined)


@dataclass
class Entry:
    """A node whose site has joined."""

    node: int
    name: str
    clients: tuple[int, ...]

    @property
    def label(self) -> str:
        """The site in messages."""
        return f'the site "{printable(self.name)}" (node {self.node})' if self.name else f"the node {self.node}"


class Roster:
    """Keeps track of the sites of a federation.

    Args:
        channel: Carries the questions.
        experiment: The TOML text of the experiment, which sites check before they join.
        run: The identifier of the run.
        clients: The number of clients.
        recorded: What is known of clients from an earlier part of the run.
        patience: The number of seconds within which a site must answer whether it joins.
        say: Called with a sentence when a site has joined or cannot take part.
    """

    def __init__(
        self,
        channel: Channel,
        experiment: str,
        run: str,
        clients: int,
        recorded: Mapping[int, ClientFacts] | None = None,
        patience: float = 300.0,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.channel = channel
        self.known: dict[int, ClientFacts] = dict(recorded or {})
        self.described: dict[str, Any] | None = None
        """The form of the samples, which is the same at all sites."""
        self.problems: dict[int, str] = {}
        """The nodes that cannot take part, with the reasons."""
        self.joined: Callable[[ClientFacts], None] = lambda facts: None
        """Called with each client whose site joins."""
        self._request = Message({"kind": "join", "protocol": PROTOCOL, "run": run, "experiment": experiment})
        self._clients = clients
        self._patience, self._say = patience, say
        self._asked: dict[str, tuple[int, float]] = {}
        self._entries: dict[int, Entry] = {}
        self._node_of: dict[int, int] = {}
        self._connected: frozenset[int] = frozenset()

    def poll(self, wait: float = 0.0) -> None:
        """Ask new nodes to join, and take the answers that have arrived within some seconds."""
        self._connected = frozenset(self.channel.nodes())
        asked = {node for node, _ in self._asked.values()}
        for node in sorted(self._connected - asked - self._entries.keys() - self.problems.keys()):
            self._asked[self.channel.send(node, self._request)] = (node, time.monotonic())
        for node in [node for node in self.problems if node not in self._connected]:
            del self.problems[node]  # if it comes back, its site.toml may be another one
        if not self._asked:
            return
        for ticket, answer in self.channel.receive([*self._asked], wait).items():
            node, _ = self._asked.pop(ticket)
            self._take(node, answer)
        for ticket, (node, start) in list(self._asked.items()):
            if time.monotonic() - start > self._patience:
                del self._asked[ticket]
                self._reject(node, f"the node {node} did not answer within {self._patience:g} s whether it joins")

    def await_sites(self, wait: float, needed: int) -> None:
        """Wait until the sites of all clients have joined, or for some seconds.

        Args:
            wait: The number of seconds.
            needed: The number of clients without which the run cannot start.

        Raises:
            InputError: If a site cannot take part and every client is needed.
            RunFailed: If too few clients are there after these seconds.
        """
        end = time.monotonic() + wait
        while len(self._node_of) < self._clients:
            interrupt.check()
            left = end - time.monotonic()
            if left <= 0 or len(self.problems) + len(self._entries) >= self._clients:
                break
            self.poll(min(left, PAUSE))
            if self.problems and needed == self._clients:
                raise InputError(next(iter(self.problems.values())))
            if len(self._node_of) < self._clients and not self._asked:
                time.sleep(max(0.0, min(end - time.monotonic(), PAUSE)))
        if len(self._node_of) < needed:
            raise RunFailed(self._missing(wait))

    def node_of(self, client: int) -> int | None:
        """Return the node of a client's site if it is connected."""
        node = self._node_of.get(client)
        return node if node in self._connected else None

    def label(self, client: int) -> str:
        """Return the site of a client as messages name it."""
        node = self._node_of.get(client)
        if node is not None:
            return self._entries[node].label
        name = self.known[client].name if client in self.known else ""
        return f'the site "{printable(name)}"' if name else "its site"

    @property
    def nodes(self) -> int:
        """The number of nodes that are connected and whose sites have joined."""
        return len(self._connected & self._entries.keys())

    def _take(self, node: int, answer: Message | Trouble) -> None:
        """Note what a node answered to the question whether it joins."""
        if isinstance(answer, Trouble):
            if not answer.gone:
                self._reject(node, f"the node {node} cannot take part: {answer.reason}")
            return
        if answer.kind == "rejected":
            self._reject(node, f"the site of node {node} {shown_reason(answer)}")
            return
        try:
            told = _JOINED.validate_python(dict(answer.values), strict=True)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            self._reject(node, f"the node {node} sent no usable description of its site ({place[:LONGEST]})")
            return
        if problem := self._unfit(node, told):
            self._reject(node, problem)
            return
        self.described = self.described or told["data"]
        self._enter(node, [_facts(client) for client in told["clients"]])

    def _unfit(self, node: int, told: _Joined) -> str:
        """Return why a site does not fit the others, or ""."""
        name = next((printable(client["name"]) for client in told["clients"] if client["name"]), "")
        label = Entry(node, name, ()).label
        if math.prod(told["data"]["input_shape"]) > MOST_VALUES:
            return f"{label} has samples of more than {MOST_VALUES} values"
        for text in told["data"]["augment"]:
            if text.partition(":")[0] not in AUGMENTATIONS.names() or is_import_path(text):
                return (
                    f'{label} has data that name the augmentation "{printable(text)}", which the server would import; '
                    "leave it out of the data, and name it in the experiment (data.augment)"
                )
        if self.described is not None:
            for key, value in told["data"].items():
                if value != self.described[key]:
                    others = _short(self.described[key])
                    hint = _CLASSES if key == "classes" else ""
                    return f"{label} has data of another form: {key} is {_short(value)}, and {others} elsewhere{hint}"
        for client in told["clients"]:
            number = client["client"]
            if number >= self._clients:
                return f"{label} has client {number}, and the experiment has the clients 0 to {self._clients - 1}"
            other = self._node_of.get(number)
            if other is not None and other != node and other in self._connected:
                return f"{label} has client {number}, which {self._entries[other].label} has already"
            if len(client.get("classes", told["data"]["classes"])) != len(told["data"]["classes"]):
                return f"{label} sent numbers of samples of other classes than it has"
            before = self.known.get(number)
            if before is not None and not _same(before, _facts(client)):
                return (
                    f"{label} has {client['samples']} training, {client['holdout']} hold-out and {client['test']} "
                    f"test samples of client {number}, and had {before.samples}, {before.holdout} and {before.test} "
                    "when the run started; put its data back, or start a new run"
                )
        return ""

    def _reject(self, node: int, problem: str) -> None:
        self.problems[node] = problem
        self._say(problem)

    def _enter(self, node: int, clients: list[ClientFacts]) -> None:
        self._entries[node] = Entry(
            node, next((facts.name for facts in clients if facts.name), ""), tuple(facts.client for facts in clients)
        )
        self._say(
            f"{self._entries[node].label} has joined, with client {', '.join(str(k.client) for k in clients[:5])}"
        )
        for facts in clients:
            self._node_of[facts.client] = node
            new = facts.client not in self.known
            self.known[facts.client] = facts
            if new:
                self.joined(facts)

    def _missing(self, wait: float) -> str:
        absent = [client for client in range(self._clients) if client not in self._node_of]
        named = ", ".join(map(str, absent[:5])) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
        here = ", ".join(sorted(entry.name or str(node) for node, entry in self._entries.items())[:5])
        reasons = "".join(f"; {problem}" for problem in list(self.problems.values())[:3])
        return (
            f"{len(self._node_of)} of {self._clients} clients have joined within {wait:g} s"
            f"{f' (at {here})' if here else ''}, and client {named} has not{reasons}; start the missing sites and give "
            "the same command again"
        )


def shown_reason(answer: Message) -> str:
    """Return the reason in an answer, which a stranger may have written."""
    return " ".join(printable(str(answer.values.get("reason", "gave no reason"))).split())[:1000]


_CLASSES = "; list the classes of all sites in the same order, as data.classes in each site.toml"


def _facts(client: Mapping[str, Any]) -> ClientFacts:
    classes = client.get("classes")
    return ClientFacts(**{**client, "classes": None if classes is None else tuple(classes)})


def _same(one: ClientFacts, other: ClientFacts) -> bool:
    return (one.samples, one.holdout, one.test) == (other.samples, other.holdout, other.test)


def _short(value: Any) -> str:
    text = printable(", ".join(map(str, value)) if isinstance(value, list) else str(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def absent_clients(roster: Roster, clients: Collection[int]) -> list[int]:
    """Return those of some clients whose sites are not connected."""
    return [client for client in clients if roster.node_of(client) is None]
