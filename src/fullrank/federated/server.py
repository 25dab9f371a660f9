"""The server: samples clients, sends them the model, reduces what comes back, and lets the method decide."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fullrank.channels import Mean, OtherForm, OtherSize, Reduction, Sum, Traffic, Unusable, Upload, too_large
from fullrank.data.augment.pipeline import Pipeline
from fullrank.errors import ClientFailed, InputError, WroteInPlace, kind_of, said_by
from fullrank.federated.client_states import ClientStates
from fullrank.federated.site import Job, Kind, Result
from fullrank.federated.uploads import SYNTHETIC, Rehearsal, described, form_of
from fullrank.local.loop import Fit, Samples, train
from fullrank.local.optimiser import memory
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings
from fullrank.local.step import BadGradient, Bound, Context, State, Step
from fullrank.local.views import ClientView
from fullrank.methods._compose import Composition, defines
from fullrank.methods._method import Method
from fullrank.models.entries import Entries, select
from fullrank.models.net import Net
from fullrank.models.network import Network
from fullrank.plugins import hooked
from fullrank.randomness import generator, seeded
from fullrank.trees import Tensors, Tree, by_name, clone, flatten, misfit, moved, part_of

if TYPE_CHECKING:
    from fullrank.engine import Engine

Query = Callable[[ClientView], Mapping[str, Sum | Mean]]

SUSPICIOUS = 1e3
"""How many times larger than the model and than the round's median a client's weights are when a warning names it."""
CLIENTS_NAMED = 5


@dataclass
class RoundResult:
    """What is known of a round beside its model: who took part, what they measured, what crossed the channels."""

    round: int
    traffic: Traffic = field(default_factory=Traffic)
    results: list[Result] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    """Clients left out after a failure, with the reason."""
    idle: list[int] = field(default_factory=list)
    """Clients that made no step and so sent nothing."""
    cautions: list[str] = field(default_factory=list)
    """What a user should know of the round, in sentences."""


@dataclass(frozen=True)
class Progress:
    """Whom to tell how far the clients are with what follows the last round."""

    begin: Callable[[int, int], None] = lambda done, clients: None
    """So many clients will do something, some of whom have done it before."""
    client_done: Callable[[Result], None] = lambda result: None


class Server:
    """One federation's server. Methods see it through `seen_by`, with `own` as their own state.

    What an upload must look like follows from the method and the model, never from what other clients send: a method
    that declares `uploads` runs once on a synthetic client (`Rehearsal`) before the first round, and one that does not
    sends the weights and statistics alone. A client that sends something else is believed only if the synthetic client
    does so too. Where the method cannot run there, a warning says so, and the upload of the first client of a round
    decides. `channels` lists what is rejected; the server also rejects

    - an upload of nothing from a client that made steps;
    - a number of samples other than the one that the server knows, as the client's claim, as the weight of its buffers
      and, unless the method has a `weight` of its own, as the weight of its weights.

    Weights more than `SUSPICIOUS` times as large as both the model that was sent and the median of the round's clients
    are a warning that names the client.
    """

    def __init__(
        self,
        network: Network,
        composition: Composition,
        entries: Entries,
        *,
        sizes: Callable[[int], int],
        clients: int,
        unseen: Sequence[int] | np.ndarray = (),
        participation: float | int,
        seed: int,
        on_client_error: str = "stop",
        personal_travels: bool = False,
        rehearsal: Rehearsal | None = None,
    ):
        self.net = network
        self.clients = clients - len(unseen)
        """How many clients may take part."""
        self._everybody = clients
        self._seen = np.setdiff1d(np.arange(clients), np.asarray(unseen)) if len(unseen) else None
        self.round = 0
        self.taking_part: tuple[int, ...] = ()
        self.store = ClientStates()
        self.frozen_version = self._sent_version = 0
        self._composition = composition
        self._entries = entries
        self._sizes = sizes
        self._number = participants(participation, self.clients)
        self._seed = seed
        self._on_client_error = on_client_error
        self._personal_travels = personal_travels
        self._model: Tensors = clone(network.tensors())
        flatten(self._model)  # rejects a name with a slash
        self._own: dict[str, Tree] = {}
        self._space = ""
        self._engine: Engine | None = None
        self._traffic = Traffic()
        self._left_out: dict[int, str] = {}
        self._progress = Progress()
        self._rehearsal = rehearsal
        self._forms: dict[tuple[str, str], _Form] = {}
        self._variances = tuple(
            name
            for name in entries.buffers
            if name.endswith("running_var") and isinstance(network.owner(name), nn.modules.batchnorm._BatchNorm)
        )
        for part in composition.parts:
            if state := hooked(part, "server_state", self.seen_by(part)):
                self._own[part.name] = by_name(clone(state))
            for name in self._sent_of(part):
                if name not in self._own.get(part.name, {}):
                    raise InputError(f'"{part.name}" broadcasts "{name}", which its server_state does not have')

    # What a method looks at and asks for

    def seen_by(self, part: Method) -> Server:
        """The same server with a method's own state."""
        view = copy.copy(self)
        view._space = part.name
        return view

    @property
    def own(self) -> Tree:
        """This method's server state; assign a new tree to change it."""
        return self._own.get(self._space, {})

    @own.setter
    def own(self, tree: Tree) -> None:
        self._own[self._space] = by_name(clone(tree))

    @property
    def model(self) -> Tensors:
        """All entries of the global model; personal ones as they were at the start."""
        return dict(self._model)

    @property
    def w(self) -> Tensors:
        """The shared entries of the global model; in `finish`, assign some or all of them to change the result."""
        return {name: self._model[name] for name in self._entries.shared}

    @w.setter
    def w(self, new: Tensors) -> None:
        self._accept(new)

    def ask(self, query: Query) -> dict[str, Tree]:
        """Let every client answer `query(client)` under the current model; the reduced Sums and Means by name.

        `query` is a method of the asking method's class, so that a client elsewhere knows it by name.
        """
        part = getattr(query, "__self__", None)
        name = getattr(query, "__name__", "")
        if not (isinstance(part, Method) and part in self._composition.parts):
            raise InputError(f"server.ask takes a function of the method itself, not {query!r}")
        everybody = self.scheduled(self._named(range(self.clients)))
        reduction = self._reduction(query=(part.name, name))
        self._progress.begin(0, len(everybody))
        for result in self._collect("query", everybody, self._traffic, query=(part.name, name)):
            if self._usable(reduction, result, None, self._left_out):
                self._traffic.count_up(result.upload)
            self._progress.client_done(result)
        return reduction.result().get(part.name, {})

    def generator(self, purpose: str) -> np.random.Generator:
        """Random numbers for a method's own use: a function of seed, method, purpose and round."""
        return generator(self._seed, "server", self._space, purpose, self.round)

    def fit_head(self, z: Tensor, y: Tensor, *, epochs: int, batch_size: int = 64, **optimiser: Any) -> Tensors:
        """Train a copy of the classifier on features, by the loop that clients use; its entries under their names."""
        prefix = f"{self.net.head_name}." if self.net.head_name else ""
        body = Net(nn.Identity(), z.shape[1], self.net.num_classes)
        body.head = self.net.bare_head()
        network = Network(body, "head", "head", self.net.num_classes, z.shape[1])
        network.load({f"head.{n.removeprefix(prefix)}": self._model[n] for n in select(self.net, "head")})
        settings = Settings(epochs=epochs, batch_size=batch_size, **optimiser)
        plan = make_plan(len(z), settings, generator(self._seed, "head", self.round))
        trained: Tensors = {n: p.requires_grad_() for n, p in network.parameters().items()}
        step = Step(Composition(Method()), Bound(network, trained), settings, frozenset(trained), frozenset(trained))
        context = Context(clone(trained), {}, {}, torch.bincount(y, minlength=self.net.num_classes).to(z.dtype))
        samples = Samples(z, y, torch.arange(len(z), device=z.device), Pipeline())
        with seeded(self._seed, "head", self.round, device=z.device), network.mode(train=True):
            state = State(trained, {}, {}, memory(trained, settings))
            train(Fit(step, state, context, samples, plan, z.dtype))
        return {f"{prefix}{n.removeprefix('head.')}": t for n, t in clone(trained).items()}

    # A round

    def run_round(
        self,
        engine: Engine,
        watch: Callable[[Result], None] | None = None,
        evaluate: bool = False,
        show: Collection[int] = (),
    ) -> RoundResult:
        """Run one round; with `evaluate`, clients evaluate the received and the trained model on their hold-outs.

        The results of the clients in `show` carry the models that they trained: no traffic, but a look at them.
        Nothing of the server's or the clients' state changes before all of it has succeeded.
        """
        self._engine = engine
        self.taking_part = self.sample(self.round)
        outcome = RoundResult(self.round)
        reduction = self._reduction()
        expected = {"w": self.w, "buffers": {name: self._model[name] for name in self._entries.buffers}}
        states: dict[int, Tree] = {}
        for result in self._collect(
            "train", self.scheduled(self.taking_part), outcome.traffic, evaluate=evaluate, show=show
        ):
            if not self._usable(reduction, result, expected, outcome.skipped):
                continue
            if not result.steps:
                outcome.idle.append(result.client)
            outcome.traffic.count_up(result.upload)
            states[result.client] = result.state
            result.upload, result.state = {}, {}
            outcome.results.append(result)
            if watch is not None:
                watch(result)
        nobody_has_data = not any(map(self._sizes, self.taking_part))
        if not reduction.clients and not nobody_has_data:
            reasons = "; ".join(f"client {k}: {why}" for k, why in list(outcome.skipped.items())[:3])
            more = f"; and {len(outcome.skipped) - 3} more" if len(outcome.skipped) > 3 else ""
            reasons = reasons + more or (
                "none of them made a step; take a smaller train.batch_size, or train.last_batch = keep"
            )
            raise InputError(f"round {self.round + 1}: no client sent anything ({reasons}){self._model_at_fault()}")
        outcome.cautions = [*self._unknown_form(), *_suspicious(reduction, outcome)]
        self.taking_part = tuple(sorted(set(states) - set(outcome.idle)))  # those whose uploads are in the means
        if reduction.clients:  # else the draw met clients without data only: the model stays as it is
            self._aggregate(reduction)
        for client, state in states.items():
            self.store.meet(client, self._sent_version)
            if state:
                self.store.put(client, state)
        self.round += 1
        return outcome

    def sample(self, round: int) -> tuple[int, ...]:
        """Who takes part: a function of seed and round, the same for every method."""
        if self._number == self.clients:
            return self._named(range(self.clients))
        chosen = generator(self._seed, "clients", round).choice(self.clients, self._number, replace=False)
        return self._named(sorted(int(client) for client in chosen))

    def _named(self, places: Iterable[int]) -> tuple[int, ...]:
        """Clients by their places among those that may take part."""
        return tuple(places) if self._seen is None else tuple(int(self._seen[place]) for place in places)

    def scheduled(self, clients: tuple[int, ...]) -> list[int]:
        """The order of work and of summation: largest first, then by id."""
        return sorted(clients, key=lambda client: (-self._sizes(client), client))

    def job(self, kind: Kind, client: int, query: tuple[str, str] = ("", "")) -> Job:
        """What one client gets to work with."""
        return self._job(kind, client, self._broadcast(), query)

    def _job(
        self,
        kind: Kind,
        client: int,
        broadcast: Tree,
        query: tuple[str, str],
        evaluate: bool = False,
        show: bool = False,
    ) -> Job:
        entries, model = self._entries, self._model
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

    def _broadcast(self) -> Tree:
        """What every client is sent: the shared entries, the buffers, and the methods' own broadcasts."""
        return {
            "w": self.w,
            "buffers": {name: self._model[name] for name in self._entries.buffers},
            "sent": {
                part.name: {name: self._own[part.name][name] for name in names}
                for part in self._composition.parts
                if (names := self._sent_of(part))
            },
        }

    def _sent_of(self, part: Method) -> tuple[str, ...]:
        """What a method broadcasts: nothing where its hyper-parameters let it keep no state."""
        return part.broadcast if part.name in self._own or not defines(part, "server_state") else ()

    def _collect(
        self,
        kind: Kind,
        clients: list[int],
        traffic: Traffic,
        query: tuple[str, str] = ("", ""),
        evaluate: bool = False,
        show: Collection[int] = (),
        known: Collection[int] = (),
    ) -> Iterator[Result]:
        """The results of clients' jobs; those of `known` clients are there already, and only their traffic counts."""
        assert self._engine is not None
        self._sent_version = self.frozen_version
        broadcast, sent = self._broadcast(), Traffic()
        sent.count_down(broadcast)

        def jobs() -> Iterator[Job]:
            for client in clients:
                job = self._job(kind, client, broadcast, query, evaluate, client in show)
                traffic.add(sent)
                traffic.count_down(job.personal)
                if self.store.contacts.get(client) != self.frozen_version:
                    traffic.count_down(job.frozen)  # else the client has them from an earlier contact
                if client not in known:
                    yield job

        return self._engine.run(jobs())

    # What an upload must look like

    def expected_upload(self, query: tuple[str, str] = ("", "")) -> Upload:
        """What every client sends in this round, or as the answer to a query, without values.

        Raises:
            Exception: whatever the method raises on a synthetic client.
        """
        return form_of(self._rehearsed("query" if query[0] else "train", query).upload)

    def _rehearsed(self, kind: Kind, query: tuple[str, str] = ("", "")) -> Result:
        if self._rehearsal is None:
            raise InputError("there is no site on which the method could run")
        return self._rehearsal.do(self._job(kind, SYNTHETIC, self._broadcast(), query))

    def _reduction(self, query: tuple[str, str] = ("", "")) -> Reduction:
        """Sums that take the uploads that are expected, and no others."""
        if query not in self._forms:
            declared = query[0] or any(part.uploads for part in self._composition.parts)
            self._forms[query] = self._form(query) if declared else _Form(self._weights_alone())
        return Reduction(likeness=self._forms[query].upload, variances=() if query[0] else self._variances, query=query)

    def _weights_alone(self) -> Upload:
        sent = self._broadcast()
        return form_of({"": {"w": Mean(sent["w"]), "buffers": Mean(sent["buffers"])}})

    def _form(self, query: tuple[str, str]) -> _Form:
        try:
            return _Form(self.expected_upload(query), self.round)
        except Exception as error:
            return _Form({}, self.round, f"{kind_of(error)}: {said_by(error)}")

    def _unknown_form(self) -> list[str]:
        """A warning in the round in which the method could not be run on a synthetic client."""
        form = self._forms[("", "")]
        if not form.unknown or form.round != self.round:
            return []
        return [
            f'the method "{self._composition.method.name}" cannot run on a synthetic client ({form.unknown}), so the '
            "first upload of each round decides what the others must look like"
        ]

    def _has_another_form(self, reduction: Reduction) -> bool:
        """Whether the method sends something else in this round than before; then that is expected from now on."""
        known = self._forms[reduction.query]
        if known.unknown or known.round == self.round:
            return False
        fresh = self._forms[reduction.query] = self._form(reduction.query)
        if described(fresh.upload) == described(known.upload):
            return False
        if reduction.clients:
            new = ", ".join(sorted(described(fresh.upload).keys() - described(known.upload).keys()))
            raise InputError(
                f'"{self._composition.method.name}" sends {new or "less than before"}, and a client of round '
                f"{self.round + 1} that did not was counted already; declare what the method sends in its `uploads`"
            )
        reduction.likeness = fresh.upload
        return True

    def _model_at_fault(self) -> str:
        """A clause that says so if the model that was sent has no finite loss even on a synthetic client."""
        try:
            (first, *_) = self._rehearsed("train").metrics["epochs"]
        except Exception:
            return ""
        if all(math.isfinite(value) for value in (first["criterion"], first["grad_norm"])):
            return ""
        return (
            "; the global model is at fault and not a client: its loss is not finite on any data, so look at the "
            "rounds before, and start from an earlier checkpoint or with a smaller train.lr"
        )

    def _usable(self, reduction: Reduction, result: Result, expected: Tree | None, skipped: dict[int, str]) -> bool:
        """Reduce a result; where it is unusable, stop, or note who is left out, as `on_client_error` says."""
        try:
            self._reduce(reduction, result, expected)
        except ClientFailed as failure:
            if self._stops:
                raise
            skipped[result.client] = failure.reason
            return False
        return True

    def _reduce(self, reduction: Reduction, result: Result, expected: Tree | None) -> None:
        if result.error is not None:
            if kind_of(result.error) in (WroteInPlace.__name__, BadGradient.__name__):
                raise InputError(said_by(result.error))  # the method's fault and not the client's
            raise ClientFailed(result.client, f"{kind_of(result.error)}: {said_by(result.error)}") from result.error
        if not result.upload and not result.steps:
            return
        try:
            self._check_samples(result)
            try:
                reduction.add(result.upload, expected)
            except OtherForm:
                if not self._has_another_form(reduction):
                    raise
                reduction.add(result.upload, expected)
        except Unusable as problem:
            blame = self._model_at_fault() if isinstance(problem, OtherSize) and self._stops else ""
            raise ClientFailed(result.client, f"its upload is rejected: {problem}{blame}") from None

    @property
    def _stops(self) -> bool:
        """Whether a run ends with the first client that fails."""
        return self._on_client_error == "stop"

    def _check_samples(self, result: Result) -> None:
        """Reject an empty upload after steps, and sample counts that are not what the server knows."""
        if not result.upload:
            raise OtherForm("it is empty, although the client made steps")
        known = self._sizes(result.client)
        claims: dict[str, float] = {"it claims": result.samples}
        model = result.upload.get("", {}) if isinstance(result.upload, Mapping) else {}
        own_weight = bool(self._composition.defined("weight"))
        for name in ("buffers",) if own_weight else ("w", "buffers"):
            if isinstance(part := model.get(name), Mean):
                claims[f"the weight of its {name} is"] = part.weight
        for words, claim in claims.items():
            if isinstance(claim, (int, float)) and claim != known:
                raise OtherForm(f"{words} {claim:g}, but the client has {known} samples")

    def _aggregate(self, reduction: Reduction) -> None:
        reduced = reduction.result()
        mean = reduced.pop("")
        new: Tree = mean["w"]
        beside: Tensors = {}  # frozen entries that a method changes are no business of the next one's
        own = dict(self._own)  # so that an aggregation that fails leaves nothing behind
        try:
            for part in self._composition.aggregators:
                uploads = {**reduced.get(part.name, {}), "w": mean["w"]}
                new = hooked(part, "aggregate", self.seen_by(part), new, uploads)
                if not isinstance(new, Mapping):
                    raise InputError(f'"{part.name}".aggregate returned {new!r}; it must return the new shared entries')
                beside |= {name: value for name, value in new.items() if name not in mean["w"]}
                new = part_of(new, mean["w"])
            if lost := [name for name in self._entries.shared if name not in new]:
                raise InputError(f"the aggregated model does not fit: {lost[0]} is missing")
            self._accept({**new, **beside, **mean["buffers"]})
        except Exception:
            self._own.clear()
            self._own.update(own)
            raise

    def _accept(self, new: Tensors) -> None:
        """Take new values of shared, frozen or buffer entries into the model."""
        known = {name: self._model[name] for name in new if name in self._model}
        personal = set(new) & set(self._entries.personal)
        problem = misfit(new, known) or (f"{personal.pop()} is personal" if personal else None)
        problem = problem or _other_kind(new, known) or too_large(new, known)
        if problem:
            raise InputError(f"the aggregated model does not fit: {problem}")
        self._model.update({name: value.detach().to(known[name].dtype) for name, value in new.items()})
        if set(new) & set(self._entries.frozen):
            self.frozen_version += 1

    # After the last round

    def finished(self, engine: Engine, progress: Progress | None = None) -> tuple[Server, Traffic, dict[int, str]]:
        """A copy of this server on which every `finish` hook has run, its traffic, and who was left out of it."""
        final = copy.copy(self)
        final._model, final._own, final._engine = dict(self._model), dict(self._own), engine
        final._traffic, final._left_out, final._progress = Traffic(), {}, progress or Progress()
        for part in self._composition.defined("finish"):
            hooked(part, "finish", final.seen_by(part))
        return final, final._traffic, final._left_out

    def holding(self, model: Tensors) -> Server:
        """A copy of this server whose global model is another, as `finish` may have made one."""
        other = copy.copy(self)
        other._model = {**self._model, **model}
        return other

    def restored(self, state: Tree, device: torch.device) -> Server:
        """A copy of this server as `finished` gave it, from the state of that."""
        final = copy.copy(self)
        final.restore(state, self.round, device)
        return final

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
        """Evaluate every client's own models on its hold-out: scores by client and stage, and who failed.

        Clients in `known`, as an earlier process noted them, are not evaluated again; the others are noted as soon as
        they are done. `keep` is called with each result, which then carries the client's model; with `evaluate=False`
        nothing is evaluated. Nothing that the server knows changes.
        """
        self._engine, traffic = engine, Traffic()
        everybody = self.scheduled(tuple(range(self._everybody)))
        found: dict[int, Mapping[str, Any]] = dict(known or {})
        progress = progress or Progress()
        progress.begin(len(found), len(everybody))
        skipped: dict[int, str] = {}
        shown = frozenset(everybody if keep is not None else ())
        for result in self._collect("personal", everybody, traffic, evaluate=evaluate, show=shown, known=set(found)):
            if self._usable(Reduction(), result, None, skipped):
                found[result.client] = {key: result.metrics[key] for key in ("personal",) if key in result.metrics}
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
        """Everything the server must remember, but for what is known of clients."""
        return {
            "model": dict(self._model),
            "own": dict(self._own),
            "frozen_version": torch.tensor(self.frozen_version),
        }

    def restore(self, state: Tree, round: int, device: torch.device) -> None:
        """Continue from what `state` gave after `round` rounds."""
        self.round = round
        self.taking_part = self.sample(round - 1) if round else ()
        self._model = {name: state["model"][name].to(device, old.dtype) for name, old in self._model.items()}
        self._own = {name: by_name(moved(own, device)) for name, own in state.get("own", {}).items()}
        self.frozen_version = int(state["frozen_version"])


@dataclass(frozen=True)
class _Form:
    """What clients send, found in a round; or why it is unknown."""

    upload: Upload
    round: int = -1
    """The round in which the method ran on a synthetic client; before, what it declares is believed."""
    unknown: str = ""


def _other_kind(new: Tensors, known: Tensors) -> str | None:
    """Which entry holds whole numbers in place of floating ones or the reverse, in words."""
    for name, value in new.items():
        if value.is_floating_point() != known[name].is_floating_point():
            return f"{name} is of {value.dtype}, where the model has {known[name].dtype}"
    return None


def _suspicious(reduction: Reduction, outcome: RoundResult) -> list[str]:
    """A warning that names clients whose weights are far larger than the model that was sent and than the others'."""
    if not reduction.sizes:
        return []
    senders = [result.client for result in outcome.results if result.client not in outcome.idle]
    median = float(np.median(reduction.sizes))
    limit = SUSPICIOUS * max(reduction.model_size, median)
    odd = [(client, size) for client, size in zip(senders, reduction.sizes, strict=True) if limit and size > limit]
    if not odd:
        return []
    named = ", ".join(f"client {client}: {size:.2g}" for client, size in odd[:CLIENTS_NAMED])
    more = f" and {len(odd) - CLIENTS_NAMED} more" if len(odd) > CLIENTS_NAMED else ""
    return [
        f"round {outcome.round + 1}: weights of a norm more than {SUSPICIOUS:.0e} times that of the model sent "
        f"({reduction.model_size:.2g}) and of the median client ({median:.2g}) are in the mean ({named}{more})"
    ]


def participants(participation: float | int, clients: int) -> int:
    """How many clients take part: a share (the nearest number, at least one) or, as an integer, a number."""
    if isinstance(participation, int):
        if participation > clients:
            raise InputError(f"train.participation = {participation}: there are only {clients} clients")
        return participation
    return max(1, round(participation * clients))
