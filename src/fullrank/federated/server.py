"""The server: it samples clients, sends them the model, aggregates their uploads, and calls the method's hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fullrank.channels import Traffic, Upload
from fullrank.errors import (
    ClientFailed,
    InputError,
    SiteFailed,
    TooFewClients,
    WroteInPlace,
    kind_of,
    message_of,
)
from fullrank.federated.aggregation import Aggregation, find_aggregator
from fullrank.federated.checks import OtherForm, OtherSize, Unusable, UploadCheck, check_samples, too_large
from fullrank.federated.client_states import ClientStates
from fullrank.federated.sampling import ClientSampler
from fullrank.federated.site import Job, Kind, Result
from fullrank.federated.state import ServerState
from fullrank.federated.uploads import SYNTHETIC, ExpectedUploads
from fullrank.federated.views import Query, ServerView
from fullrank.local.step import BadGradient
from fullrank.methods._compose import Composition, defines
from fullrank.methods._method import Method
from fullrank.models.entries import Entries
from fullrank.models.network import Network
from fullrank.plugins import hooked
from fullrank.trees import Tensors, Tree, by_name, clone, flatten, misfit, part_of, versions

if TYPE_CHECKING:
    from fullrank.engine import Engine

NO_QUERY = ("", "")
CLIENT_KEYS = ("personal", "test", "rows")
"""The keys of the result of an evaluation of a client's own models, as far as the client has the sets."""


@dataclass
class RoundResult:
    """The result of a round besides the model: the clients' results, those left out, the traffic, and warnings."""

    round: int
    traffic: Traffic = field(default_factory=Traffic)
    results: list[Result] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    """The clients that were left out after a failure, with the reason."""
    idle: list[int] = field(default_factory=list)
    """The clients that made no step and so sent nothing."""
    cautions: list[str] = field(default_factory=list)
    """Warnings for the user, in sentences."""


@dataclass(frozen=True)
class Progress:
    """Functions that are called as clients progress in a phase after the last round."""

    begin: Callable[[int, int], None] = lambda done, clients: None
    """Called with the number of clients that are done already, by an earlier process, and the number of all clients."""
    client_done: Callable[[Result], None] = lambda result: None


@dataclass
class Questions:
    """The engine on which clients answer a method's queries, and the traffic and failures of their answers."""

    engine: Engine
    traffic: Traffic = field(default_factory=Traffic)
    skipped: dict[int, str] = field(default_factory=dict)
    """The clients that did not answer, with the reason."""
    progress: Progress = field(default_factory=Progress)
    kind: Kind = "query"
    """Whether clients answer under the current model ("query"), or from their data, without having received one."""


class Server:
    """The server of one federation. The hooks of a method see it through a `ServerView`.

    The expected form of uploads follows from the method and the model, never from what other clients send
    (`ExpectedUploads`). The module `checks` lists what is rejected.

    Args:
        network: The network, whose values are the initial model.
        composition: The methods.
        entries: The names of the model's entries by class: shared, buffers, personal, frozen.
        sampler: Draws the clients of each round.
        weights: A function that returns the number of samples by which a client is weighted; by default the number of
            its training samples.
        aggregator: The name of the aggregator.
        on_client_error: Whether the first client that fails stops the run ("stop") or is left out ("skip").
        min_clients: The number of clients that must send something in a round, as far as as many take part in it.
        personal_travels: Whether the initial values of personal entries are sent to a client at its first contact.
        expected: The expected form of uploads.
        store: The states of clients.
        state: The state to continue from; None begins with the values of the network.
    """

    def __init__(
        self,
        network: Network,
        composition: Composition,
        entries: Entries,
        sampler: ClientSampler,
        *,
        weights: Callable[[int], int] | None = None,
        aggregator: str = "mean",
        on_client_error: str = "stop",
        min_clients: int = 1,
        personal_travels: bool = False,
        expected: ExpectedUploads,
        store: ClientStates | None = None,
        state: ServerState | None = None,
    ):
        self.net = network
        self.store = store if store is not None else ClientStates()
        self._composition = composition
        self._entries = entries
        self._sampler = sampler
        self._weights = weights or sampler.size
        self._aggregator = aggregator
        self._aggregator_class = find_aggregator(aggregator)
        self._on_client_error = on_client_error
        self._min_clients = min_clients
        self._personal_travels = personal_travels
        self._expected = expected
        self._variances = tuple(
            name
            for name in entries.buffers
            if name.endswith("running_var") and isinstance(network.owner(name), nn.modules.batchnorm._BatchNorm)
        )
        self._state = state if state is not None else ServerState(clone(network.tensors()))
        if state is None:
            self._begin()

    def _begin(self) -> None:
        """Create the initial states of the methods."""
        flatten(self._state.model)  # rejects a name with a slash
        for part in self._composition.parts:
            if state := hooked(part, "server_state", self.seen_by(part)):
                self.own[part.name] = by_name(clone(state))
            for name in self._sent_of(part):
                if name not in self.own.get(part.name, {}):
                    raise InputError(f'"{part.name}" broadcasts "{name}", which its server_state does not have')

    def over(self, state: ServerState) -> Server:
        """Return a server of the same federation with another state."""
        return Server(
            self.net,
            self._composition,
            self._entries,
            self._sampler,
            weights=self._weights,
            aggregator=self._aggregator,
            on_client_error=self._on_client_error,
            min_clients=self._min_clients,
            personal_travels=self._personal_travels,
            expected=self._expected,
            store=self.store,
            state=state,
        )

    def seen_by(self, part: Method, questions: Questions | None = None) -> ServerView:
        """Return the view of the server for the hooks of a method.

        Args:
            part: The method.
            questions: The engine on which clients can be queried; None if the hook cannot query them.
        """
        return ServerView(self, part, questions)

    # The state

    @property
    def round(self) -> int:
        """The number of rounds that are complete."""
        return self._state.round

    @property
    def taking_part(self) -> tuple[int, ...]:
        """The clients whose uploads are in the means of the newest round."""
        return self._state.taking_part

    @property
    def frozen_version(self) -> int:
        """The number of times that the frozen entries have changed."""
        return self._state.frozen_version

    @property
    def model(self) -> Tensors:
        """All entries of the global model; personal entries have their initial values."""
        return dict(self._state.model)

    @property
    def w(self) -> Tensors:
        """The shared entries of the global model."""
        return {name: self._state.model[name] for name in self._entries.shared}

    @property
    def mean(self) -> Tensors:
        """The mean of the clients' weights in the newest round; empty unless a method needs it to be evaluated."""
        return self._state.mean

    @property
    def own(self) -> dict[str, Tree]:
        """The server's state of each method, by the method's name."""
        return self._state.own

    def update_model(self, new: Tensors) -> None:
        """Change shared, frozen or buffer entries of the global model.

        Raises:
            InputError: If the values do not fit the model.
        """
        known = {name: self._state.model[name] for name in new if name in self._state.model}
        personal = set(new) & set(self._entries.personal)
        problem = misfit(new, known) or (f"{personal.pop()} is personal" if personal else None)
        problem = problem or _other_kind(new, known) or too_large(new, known)
        if problem:
            raise InputError(f"the aggregated model does not fit: {problem}")
        self._state.model.update({name: value.detach().to(known[name]) for name, value in new.items()})
        if set(new) & set(self._entries.frozen):
            self._state.frozen_version += 1

    # The clients

    @property
    def clients(self) -> int:
        """The number of clients that may take part."""
        return self._sampler.number

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._sampler.seed

    def sample(self, round: int) -> tuple[int, ...]:
        """Return the clients that take part in a round: a function of seed and round, the same for every method."""
        return self._sampler.sample(round)

    # Jobs

    def job(self, kind: Kind, client: int) -> Job:
        """Return a job of one client under the current model.

        Args:
            kind: What the client does.
            client: The client.
        """
        return self._job(kind, client, self._broadcast(kind))

    def _job(
        self,
        kind: Kind,
        client: int,
        broadcast: Tree,
        query: tuple[str, str] = NO_QUERY,
        evaluate: bool = False,
        show: bool = False,
    ) -> Job:
        entries, model = self._entries, self._state.model
        if kind == "data":
            return Job(kind, client, self.round, broadcast, frozen={}, personal={}, state=None, query=query)
        first = self._personal_travels and client not in self.store.contacts
        return Job(
            kind,
            client,
            self.round,
            broadcast=broadcast,
            frozen={name: model[name] for name in entries.frozen},
            personal={name: model[name] for name in entries.personal} if first else {},
            state=self.store.get(client),
            query=query,
            evaluate=evaluate,
            show=show,
        )

    def _synthetic_job(self, kind: Kind = "train", query: tuple[str, str] = NO_QUERY) -> Job:
        """Return the job of a client that does not exist, which shows what clients send."""
        return self._job(kind, SYNTHETIC, self._broadcast(kind), query)

    def _model_sent(self) -> Tree:
        return {"w": self.w, "buffers": {name: self._state.model[name] for name in self._entries.buffers}}

    def _broadcast(self, kind: Kind) -> Tree:
        """Return what every client is sent: the shared entries, the buffers, and the methods' own broadcasts.

        A client that is asked about its data is sent none of them.
        """
        if kind == "data":
            return {"w": {}, "buffers": {}, "sent": {}}
        sent = {
            part.name: {name: self.own[part.name][name] for name in names}
            for part in self._composition.parts
            if (names := self._sent_of(part))
        }
        return {**self._model_sent(), "sent": sent}

    def _sent_of(self, part: Method) -> tuple[str, ...]:
        """Return what a method broadcasts: nothing where its hyper-parameters let it keep no state."""
        return part.broadcast if part.name in self.own or not defines(part, "server_state") else ()

    def _collect(
        self,
        engine: Engine,
        kind: Kind,
        clients: list[int],
        traffic: Traffic,
        query: tuple[str, str] = NO_QUERY,
        evaluate: bool = False,
        show: Collection[int] = (),
        known: Collection[int] = (),
    ) -> Iterator[Result]:
        """Return the results of clients' jobs; for `known` clients, only the traffic is counted."""
        broadcast, sent = self._broadcast(kind), Traffic()
        sent.count_down(broadcast)

        def jobs() -> Iterator[Job]:
            for client in clients:
                job = self._job(kind, client, broadcast, query, evaluate, client in show)
                traffic.add(sent)
                traffic.count_down(job.personal)
                if job.frozen and self.store.contacts.get(client) != self.frozen_version:
                    traffic.count_down(job.frozen)  # else the client has them from an earlier contact
                if client not in known:
                    yield job

        return engine.run(jobs())

    # A round

    def run_round(
        self,
        engine: Engine,
        watch: Callable[[Result], None] | None = None,
        evaluate: bool = False,
        show: Collection[int] = (),
    ) -> RoundResult:
        """Run one round. The state of server and clients changes only if the whole round succeeds.

        Args:
            engine: Where clients train.
            watch: Called with the result of each client.
            evaluate: Whether clients evaluate the received and the trained model on their hold-outs.
            show: Clients whose results contain the models that they trained, which is not counted as traffic.

        Returns:
            What happened in the round.

        Raises:
            ClientFailed: If a client fails and `train.on_client_error` is "stop".
            InputError: If no client sent anything, or the method or the aggregator returns something unusable.
        """
        outcome = RoundResult(self.round)
        if not self.round:
            self._prepare(Questions(engine, outcome.traffic, outcome.skipped, kind="data"))
        self._state.taking_part = self.sample(self.round)
        intake, version = self._intake(), self.frozen_version
        states: dict[int, Tree] = {}
        clients = self._sampler.scheduled(self.taking_part)
        for result in self._collect(engine, "train", clients, outcome.traffic, evaluate=evaluate, show=show):
            if not self._succeeds(result, outcome.skipped, intake):
                continue
            if not result.steps:
                outcome.idle.append(result.client)
            outcome.traffic.count_up(result.upload)
            states[result.client] = result.state
            result.upload, result.state = {}, {}
            outcome.results.append(result)
            if watch is not None:
                watch(result)
        senders = tuple(sorted(intake.check.sizes))
        if not senders and any(map(self._sampler.size, self.taking_part)):
            raise InputError(self._nothing_sent(outcome))
        self._check_number(len(senders), outcome.skipped)
        outcome.cautions = [
            *self._expected.caution(self._synthetic_job()),
            *intake.check.suspicious(self.round),
        ]
        self._state.taking_part = senders
        if senders:  # else only clients without data were drawn, and the model stays as it is
            self._aggregate(intake.aggregation, Questions(engine, outcome.traffic, outcome.skipped))
        for client, state in states.items():
            self.store.meet(client, version)
            if state:
                self.store.put(client, state)
        self._state.round += 1
        return outcome

    def _prepare(self, questions: Questions) -> None:
        """Run the methods' `begin` hooks."""
        before = self._state.copy()
        try:
            for part in self._composition.defined("begin"):
                hooked(part, "begin", self.seen_by(part, questions))
        except Exception:
            self._state = before
            raise

    def _check_number(self, senders: int, skipped: Mapping[int, str]) -> None:
        """Raise an error if too few clients have sent something in a round."""
        needed = min(self._min_clients, sum(1 for client in self.taking_part if self._sampler.size(client)))
        if skipped and senders < needed:
            raise TooFewClients(
                f"round {self.round + 1}: {senders} of {len(self.taking_part)} clients sent something, and "
                f"run.min_clients = {self._min_clients} ({_reasons(skipped)})"
            )

    def _nothing_sent(self, outcome: RoundResult) -> str:
        reasons = _reasons(outcome.skipped) or (
            "none of them made a step; take a smaller train.batch_size, or train.last_batch = keep"
        )
        return f"round {self.round + 1}: no client sent anything ({reasons}){self._model_at_fault()}"

    def _aggregate(self, aggregation: Aggregation, questions: Questions) -> None:
        """Update the model from the aggregated uploads, by the methods' `aggregate` hooks."""
        reduced = aggregation.result()
        mean = reduced.pop("")
        new: Tree = mean["w"]
        frozen: Tensors = {}  # frozen entries that a method changes are not given to the next one
        before = self._state.copy()
        try:
            for part in self._composition.aggregators:
                uploads = {**reduced.get(part.name, {}), "w": mean["w"]}
                new = hooked(part, "aggregate", self.seen_by(part, questions), new, uploads)
                if not isinstance(new, Mapping):
                    raise InputError(f'"{part.name}".aggregate returned {new!r}; it must return the new shared entries')
                frozen |= {name: value for name, value in new.items() if name not in mean["w"]}
                new = part_of(new, mean["w"])
            if lost := [name for name in self._entries.shared if name not in new]:
                raise InputError(f"the aggregated model does not fit: {lost[0]} is missing")
            self.update_model({**new, **frozen, **mean["buffers"]})
            if any(part.evaluate_mean for part in self._composition.parts):
                self._state.mean = {name: mean["w"][name] for name in self._entries.shared}
        except Exception:
            self._state = before  # an aggregation that fails leaves nothing behind
            raise

    # Uploads

    def _intake(self, kind: Kind = "train", query: tuple[str, str] = NO_QUERY) -> _Intake:
        """Return the checks and the aggregation of a round's uploads or of the answers to a query."""
        sent, asks = self._model_sent(), bool(query[0])
        check = UploadCheck(
            {} if asks else sent,
            self._expected.form(self._synthetic_job(kind, query)),
            () if asks else self._variances,
            self._receive if self._composition.encoders and not asks else None,
        )
        return _Intake(kind, query, check, Aggregation(self._aggregator_class, self._aggregator, sent, self.round))

    def _receive(self, tree: Tree) -> Tree:
        """Convert what a client's methods sent (`Method.upload`) to its shared weights."""
        writes = versions(self._state.model, self.own)
        for part in reversed(self._composition.encoders):
            try:
                tree = part.receive(ServerView(self, part, read_only=True), tree)
            except Exception as error:
                reason = f'the hook receive of "{part.name}" raised {kind_of(error)}: {message_of(error)}'
                raise Unusable(reason) from error
        if versions(self._state.model, self.own) != writes:
            raise WroteInPlace(self._composition.method.name)
        return tree

    def _succeeds(self, result: Result, skipped: dict[int, str], intake: _Intake | None = None) -> bool:
        """Accept a result and return True. A client that failed stops the run or is skipped (`on_client_error`)."""
        upload = result.upload
        try:
            _check_result(result)
            if intake is not None and (result.upload or result.steps):
                upload = self._check_upload(result, intake)
        except ClientFailed as failure:
            if self._stops:
                raise
            skipped[result.client] = failure.reason
            return False
        if intake is not None and result.client in intake.check.sizes:
            intake.aggregation.add(result.client, upload)
        return True

    def _check_upload(self, result: Result, intake: _Intake) -> Upload:
        """Check a client's upload and return it as the aggregator takes it."""
        try:
            own_weight = bool(self._composition.defined("weight"))
            size, weight = self._sampler.size(result.client), self._weights(result.client)
            check_samples(result.upload, result.samples, size, weight, own_weight)
            try:
                return intake.check.accept(result.client, result.upload)
            except OtherForm:
                form = self._expected.renew(self._synthetic_job(intake.kind, intake.query), bool(intake.check.sizes))
                if form is None:
                    raise
                intake.check.expect(form)
                return intake.check.accept(result.client, result.upload)
        except Unusable as problem:
            blame = self._model_at_fault() if isinstance(problem, OtherSize) and self._stops else ""
            raise ClientFailed(result.client, f"its upload is rejected: {problem}{blame}") from problem.__cause__

    def _model_at_fault(self) -> str:
        """Return a clause about the model that was sent if its loss is not finite even on a synthetic client."""
        if self._expected.finite_loss(self._synthetic_job()):
            return ""
        return (
            "; the global model is at fault and not a client: its loss is not finite on any data, so inspect the "
            "rounds before, and start from an earlier checkpoint or with a smaller train.lr"
        )

    @property
    def _stops(self) -> bool:
        """Whether a run ends with the first client that fails."""
        return self._on_client_error == "stop"

    # Questions of methods

    def ask(self, query: Query, questions: Questions) -> dict[str, Tree]:
        """Ask all clients for `query(client)`, and aggregate the answers.

        Args:
            query: A function of a method, so that a client in another process can find it by name.
            questions: The engine, the counters of traffic and failures, and what clients have received.

        Returns:
            The aggregated answers by name.

        Raises:
            InputError: If the query is not a function of a method.
            ClientFailed: If a client fails and `train.on_client_error` is "stop".
        """
        part = getattr(query, "__self__", None)
        if not (isinstance(part, Method) and part in self._composition.parts):
            raise InputError(f"server.ask takes a function of the method itself, not {query!r}")
        name = (part.name, getattr(query, "__name__", ""))
        everybody = self._sampler.scheduled(self._sampler.all())
        intake = self._intake(questions.kind, name)
        questions.progress.begin(0, len(everybody))
        skipped: dict[int, str] = {}
        for result in self._collect(questions.engine, questions.kind, everybody, questions.traffic, query=name):
            if self._succeeds(result, skipped, intake):
                questions.traffic.count_up(result.upload)
            questions.progress.client_done(result)
        questions.skipped.update(skipped)
        if skipped and len(everybody) - len(skipped) < min(self._min_clients, len(everybody)):
            raise TooFewClients(
                f'{len(everybody) - len(skipped)} of {len(everybody)} clients answered the question "{name[1]}" of '
                f'"{name[0]}", and run.min_clients = {self._min_clients} ({_reasons(skipped)})'
            )
        return intake.aggregation.result().get(part.name, {})

    # After the last round

    def finished(self, engine: Engine, progress: Progress | None = None) -> tuple[Server, Traffic, dict[int, str]]:
        """Run the `finish` hooks of the methods. This server does not change.

        Args:
            engine: Where clients answer queries.
            progress: Called as clients answer.

        Returns:
            The server with the finished model, the traffic, and the clients that were left out, with the reasons.
        """
        final = self.over(self._state.copy())
        questions = Questions(engine, progress=progress or Progress())
        for part in self._composition.defined("finish"):
            hooked(part, "finish", final.seen_by(part, questions))
        return final, questions.traffic, questions.skipped

    def holding(self, model: Tensors) -> Server:
        """Return a server with other entries of the global model, such as those that `finish` made."""
        return self.over(dataclasses.replace(self._state.copy(), model={**self._state.model, **model}))

    def restored(self, saved: Tree, device: torch.device) -> Server:
        """Return the server that `finished` returned, from a checkpoint.

        Args:
            saved: Its `state`.
            device: The device of the tensors.
        """
        return self.over(self._state.restored(saved, device))

    def evaluate_clients(
        self,
        engine: Engine,
        *,
        known: Mapping[int, Mapping[str, Any]] | None = None,
        note: Callable[[int, Mapping[str, Any]], None] | None = None,
        progress: Progress | None = None,
        keep: Callable[[Result], None] | None = None,
        evaluate: bool = True,
    ) -> tuple[dict[int, dict[str, Any]], Traffic, dict[int, str]]:
        """Evaluate every client's own models on its hold-out and on the test part of its site.

        The state of the server does not change.

        Args:
            engine: Where clients are evaluated.
            known: The saved results of clients from an earlier process; these clients are not evaluated again.
            note: Called with each client that has finished and its result, to be saved.
            progress: Called as clients finish.
            keep: Called with each result, which then contains the client's model.
            evaluate: Whether anything is evaluated.

        Returns:
            The scores on the hold-outs by client and stage, the traffic, and the clients that failed, with the
            reasons. Further results are passed to `note` only.
        """
        traffic = Traffic()
        skipped: dict[int, str] = {}
        everybody = self._sampler.scheduled(self._sampler.with_unseen())
        found: dict[int, Mapping[str, Any]] = dict(known or {})
        progress = progress or Progress()
        progress.begin(len(found), len(everybody))
        shown = frozenset(everybody if keep is not None else ())
        for result in self._collect(
            engine, "personal", everybody, traffic, evaluate=evaluate, show=shown, known=set(found)
        ):
            if self._succeeds(result, skipped):
                found[result.client] = {key: result.metrics[key] for key in CLIENT_KEYS if key in result.metrics}
                if keep is not None:
                    keep(result)
            else:
                found[result.client] = {"skipped": skipped[result.client]}
            if note is not None:
                note(result.client, found[result.client])
            progress.client_done(result)
        personal = {client: found[client]["personal"] for client in everybody if "personal" in found[client]}
        return personal, traffic, {k: found[k]["skipped"] for k in everybody if "skipped" in found[k]}

    # Checkpoints

    def state(self) -> Tree:
        """Return everything that a checkpoint contains of the server, except for the states of clients."""
        return self._state.tensors()

    def restore(self, saved: Tree, round: int, device: torch.device) -> None:
        """Restore the state that a checkpoint contains.

        Args:
            saved: What `state` returned.
            round: The number of rounds that were complete.
            device: The device of the tensors.
        """
        taking_part = self.sample(round - 1) if round else ()
        state = dataclasses.replace(self._state, round=round, taking_part=taking_part)
        self._state = state.restored(saved, device)


def _reasons(skipped: Mapping[int, str]) -> str:
    """Return the reasons why clients were left out, for the first of them."""
    more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    return "; ".join(f"client {client}: {why}" for client, why in list(skipped.items())[:3]) + more


@dataclass(frozen=True)
class _Intake:
    """The checks and the aggregation of the uploads of a round, or of the answers to a query."""

    kind: Kind
    query: tuple[str, str]
    check: UploadCheck
    aggregation: Aggregation


def _check_result(result: Result) -> None:
    """Raise an error if a client's job has failed."""
    if result.error is None:
        return
    if kind_of(result.error) in (WroteInPlace.__name__, BadGradient.__name__):
        raise InputError(message_of(result.error))  # the method is at fault, and not the client
    if isinstance(result.error, SiteFailed):
        raise ClientFailed(result.client, message_of(result.error))
    raise ClientFailed(result.client, f"{kind_of(result.error)}: {message_of(result.error)}") from result.error


def _other_kind(new: Tensors, known: Tensors) -> str | None:
    """Describe the first entry with integers in place of floating-point numbers or the reverse, if there is one."""
    for name, value in new.items():
        if value.is_floating_point() != known[name].is_floating_point():
            return f"{name} is of {value.dtype}, where the model has {known[name].dtype}"
    return None
