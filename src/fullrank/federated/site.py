"""The site, which runs the jobs of the clients whose data it has. Every engine uses it, in whatever process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from fullrank.channels import Mean, Sum, Upload
from fullrank.data.hosted import HostedData
from fullrank.errors import InputError, WroteInPlace
from fullrank.federated.checks import no_tree
from fullrank.local import interrupt
from fullrank.local.client import Client
from fullrank.local.loop import Eager, Samples, StepperOf
from fullrank.local.settings import Schedule, Settings
from fullrank.methods._compose import Composition, defines
from fullrank.metrics.evaluate import evaluate
from fullrank.metrics.measures import Metric
from fullrank.models.entries import Entries
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Tensors, Tree, clone, moved, versions

Kind: TypeAlias = Literal["train", "query", "data", "personal"]
"""What a client does: it trains, answers a query, answers one about its data without having received a model, or gives
its own model."""
Stage: TypeAlias = Literal["received", "local", "personalised"]
"""A client's own model: as received from the server, after local training, or as the method personalises it."""


def stages(composition: Composition) -> tuple[Stage, ...]:
    """Return the stages that a client's model has under a method; the last is used wherever no stage is named."""
    return ("received", "local", "personalised") if composition.defined("personalise") else ("received", "local")


@dataclass(frozen=True)
class Job:
    """A job for one client. It contains everything that the client receives.

    A job is plain data, which `codec` converts to bytes and back.
    """

    kind: Kind
    client: int
    round: int
    broadcast: Tree
    """What every client of the round is sent: "w", "buffers" and, by method, "sent"."""
    frozen: Tensors
    """The frozen entries as the client has them, from this contact or an earlier one."""
    personal: Tensors
    """The initial values of personal entries, at first contact and only if they differ from those of the seed."""
    state: Tree | None
    """What the client kept from its last round; None at first contact."""
    query: tuple[str, str] = ("", "")
    """The method's name and the name of its function, if the job is a query."""
    evaluate: bool = False
    """Whether the client's models are evaluated on its hold-out."""
    show: bool = False
    """Whether the result also has the client's model, if the job trains or evaluates."""
    stage: Stage | None = None
    """The stage of the client's model that a personal job gives; None means the method's last one."""


@dataclass
class Result:
    """The result of a job: plain data, except for the error."""

    client: int
    samples: int
    upload: Upload = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    model: Tensors = field(default_factory=dict)
    """The client's own model, if the job asked for it."""
    error: BaseException | None = None
    """The exception that the client's code raised; the job then has no other result."""

    @property
    def steps(self) -> int:
        """The number of optimiser steps of the client's own fits."""
        return int(self.metrics.get("steps", 0))


@dataclass(frozen=True)
class Work:
    """A training job that has begun and whose fits are still to be run."""

    job: Job
    client: Client
    state: Tree
    """What the client keeps."""
    received: dict[str, float]
    """The scores of the received model on the client's hold-out, if it was evaluated."""
    writes: int
    """The number of in-place writes into the tensors that the client received, when the job began."""


class Site:
    """Runs the jobs of the clients that it hosts. It has their data, and no other client's.

    The clients share the network, the method and the settings. In a simulation one site hosts all
    clients of a federation; in a deployment each site hosts its own.

    Args:
        network: The network, which holds the entries of one client at a time.
        composition: The method.
        entries: The names of the network's entries by class.
        data: The samples of the hosted clients.
        settings: How clients train.
        schedule: How the learning rate changes over rounds.
        keep_optimiser: Whether a client keeps its optimiser's memory between rounds.
        seed: The seed of all random numbers.
        device: Where clients train.
        metrics: The metrics of clients' models on their hold-outs.
    """

    def __init__(
        self,
        network: Network,
        composition: Composition,
        entries: Entries,
        data: HostedData,
        settings: Settings,
        schedule: Schedule,
        keep_optimiser: bool,
        seed: int,
        device: torch.device,
        metrics: Sequence[Metric] = (),
    ):
        network.still = tuple(name for name in network.buffer_names if name in entries.frozen)
        network.settle()
        self.network = network
        self.composition = composition
        self.entries = entries
        self.data = data
        self.settings = settings
        self.schedule = schedule
        self.keep_optimiser = keep_optimiser
        self.seed = seed
        self.metrics = metrics
        self.device = device
        self.stepper_of: StepperOf = Eager
        """Creates the stepper of a fit; an engine may replace it by a faster one."""
        self.start = clone(network.tensors())
        self.forward: Callable[[torch.Tensor], Output] = network
        """Runs the network on prepared inputs, in its current mode; an engine may replace it too."""
        self._constants = self._outside_the_state()
        self._x = data.x.to(device)
        self._y = data.y.to(device)

    def twin(self, device: torch.device) -> Site:
        """Return a site for the same clients with a copy of the network; data are shared if the device is the same."""
        other = copy.copy(self)
        other.network, other.device = copy.deepcopy(self.network), device
        other.network.module.to(device)
        other.forward = other.network
        other.start, other._constants = moved(self.start, device), moved(self._constants, device)
        other._x, other._y = self._x.to(device), self._y.to(device)
        return other

    def do(self, job: Job) -> Result:
        """Run one job and return its result. An exception of the client's code (or `sys.exit`) becomes its error."""
        writes = _writes(job)
        try:
            result: Result = getattr(self, f"_{job.kind}")(job)
        except BaseException as error:
            result = self.failed(job, error)
        if _writes(job) != writes:
            return self.failed(job, WroteInPlace(self.composition.method.name))
        return result

    def failed(self, job: Job, error: BaseException) -> Result:
        """Return the result of a job whose client raised an exception; one that a signal raised is raised again."""
        if not interrupt.raised_by_code(error):
            raise error
        return Result(job.client, len(self.data.training.get(job.client, ())), error=error)

    def _train(self, job: Job) -> Result:
        work = self.begin(job)
        self._fits(work.client)
        return self.finish(work)

    def begin(self, job: Job, detached: bool = False) -> Work:
        """Begin a training job, up to its fits.

        Args:
            job: The job.
            detached: Whether the client's entries stay out of the network until they are needed there, because others
                train in it as well.
        """
        writes = _writes(job)
        client, state = self._client(job, detached)
        work = Work(job, client, state, self._evaluated(client) if job.evaluate else {}, writes)
        if detached:
            client.held.leave()
        return work

    def finish(self, work: Work) -> Result:
        """Finish a training job, after its fits, and return its result."""
        client, state = work.client, work.state
        metrics = _measured(client)
        if work.received:
            metrics["personal"] = {"received": work.received, "local": self._evaluated(client)}
        result = Result(client.id, client.n, state=state, metrics=metrics)
        if work.job.show:
            result.model = clone(client.model)
        if result.steps:
            result.upload = self._upload(client)
        if self.keep_optimiser:
            client.keep_optimiser()
        if self.entries.personal:
            state["model"] = clone({**client.held.some(self.entries.personal)})
        if work.writes != _writes(work.job):  # an engine that groups clients does not call `do`
            raise WroteInPlace(self.composition.method.name)
        return result

    def _fits(self, client: Client) -> None:
        part, train = self.composition.exclusive("train")
        train(client.seen_by(part))

    def _query(self, job: Job) -> Result:
        client, state = self._client(job)
        part = self.composition.part(job.query[0])
        upload = {part.name: dict(getattr(part, job.query[1])(client.seen_by(part)) or {})}
        return Result(job.client, client.n, upload=upload, state=state)

    def _data(self, job: Job) -> Result:
        return self._query(job)

    def _personal(self, job: Job) -> Result:
        """Return the client's model at the job's stage; with `evaluate`, the scores of every stage on its hold-out."""
        known = stages(self.composition)
        wanted = job.stage or known[-1]
        evaluated = job.evaluate and len(self.data.of_client(job.client)[1]) > 0
        result = Result(job.client, self.data.size(job.client))
        shown = wanted if job.show or not job.evaluate else None
        for stage in known:
            if not evaluated and stage != shown:
                continue
            client = self._at(stage, job, evaluated)
            if evaluated:
                course = {"course": client.course} if client.course else {}
                result.metrics.setdefault("personal", {})[stage] = {**self._evaluated(client), **course}
            if stage == shown:
                result.model = clone(client.model)
        return result

    def _at(self, stage: Stage, job: Job, evaluated: bool) -> Client:
        """Return the client with its model at a stage."""
        client, _ = self._client(job)
        if stage == "local":
            self._fits(client)
        elif stage == "personalised":
            part, personalise = self.composition.exclusive("personalise")
            if evaluated:
                client.evaluate = lambda: self._evaluated(client)
            if tree := personalise(client.seen_by(part)):
                client.network.load(tree)
        return client

    def _evaluated(self, client: Client) -> dict[str, float]:
        """Return the scores of the client's current model on its hold-out; nothing if it has none."""
        index = torch.from_numpy(self.data.of_client(client.id)[1]).to(self.device)
        if not len(index):
            return {}
        part, predict = self.composition.exclusive("predict")
        view = client.seen_by(part)
        with self.network.mode(train=False):
            scores = evaluate(
                lambda x, y: predict(view.batch(x, y)),
                self._x[index],
                self._y[index],
                self.data.pipeline,
                self.network.dtype,
                self.metrics,
            )
        return {**scores, "samples": len(index)}

    def _client(self, job: Job, detached: bool = False) -> tuple[Client, Tree]:
        """Return the client with its model, and its state, which a first contact starts."""
        state: Tree = moved(job.state or {}, self.device)
        received = {**self.start, **job.frozen, **job.personal, **state.get("model", {})}
        received |= {**job.broadcast["w"], **job.broadcast["buffers"]}
        self.restore_constants()
        client = Client(
            job.client,
            job.round,
            seed=self.seed,
            network=self.network,
            composition=self.composition,
            entries=self.entries,
            # After the last round, clients train at its rate, because a schedule that ends at 0 would not change them.
            settings=self.schedule.at(min(job.round, self.schedule.rounds - 1), self.settings),
            samples=self.samples(job.client),
            received=received,
            w0=job.broadcast["w"],
            sent=job.broadcast["sent"],
            state=state,
            stepper_of=self.stepper_of,
            forward=self.forward,
            detached=detached,
            peers=self.data.peers,
        )
        for part in self.composition.parts:
            if job.kind != "data" and part.name not in state and defines(part, "client_state"):
                view = client.seen_by(part)
                view.own = part.client_state(view)
        return client, state

    def samples(self, client: int) -> Samples:
        """Return a client's training samples."""
        index = torch.from_numpy(self.data.of_client(client)[0]).to(self.device)
        return Samples(self._x, self._y, index, self.data.pipeline)

    def _upload(self, client: Client) -> Upload:
        part, weigh = self.composition.exclusive("weight")
        weight = float(weigh(client.seen_by(part)))
        w: Tree = client.held.copied(self.entries.shared)
        model: dict[str, Sum | Mean] = {
            "w": Mean(w, weight),
            "buffers": Mean(client.held.copied(self.entries.buffers), float(client.n)),
        }
        upload: Upload = {"": model}
        for part in self.composition.parts:
            if extra := dict(part.after(client.seen_by(part)) or {}):
                if reserved := {"w"} & set(extra):
                    raise InputError(f'"{part.name}" cannot upload under the reserved name "{reserved.pop()}"')
                upload[part.name] = extra
        if self.composition.encoders:
            model["w"] = Mean(self._encoded(client, w), weight)
        return upload

    def _encoded(self, client: Client, w: Tree) -> Tree:
        """Return what the methods send of the shared weights: independent tensors, which no later step changes."""
        tree = {name: w[name] for name in self.entries.shared}  # in every engine in the same order
        for part in self.composition.encoders:
            tree = part.upload(client.seen_by(part), tree)
            if problem := no_tree(tree):
                raise InputError(f'"{part.name}".upload must return a tree of tensors: {problem}')
        return clone(tree)

    def _outside_the_state(self) -> Tensors:
        """Return buffers outside the model's state, which must be restored, so that no client affects the next one."""
        state = set(self.network.buffer_names)
        return {name: t.clone() for name, t in self.network.module.named_buffers() if name not in state}

    @torch.no_grad()
    def restore_constants(self) -> None:
        """Set buffers outside the model's state to what they were at the start."""
        if self._constants:
            for name, buffer in self.network.module.named_buffers():
                if name in self._constants:
                    buffer.copy_(self._constants[name])


def _writes(job: Job) -> int:
    """Return how often the received tensors were written in place; the server and other clients share them."""
    return versions(job.broadcast, job.frozen, job.personal, job.state or {})


def _measured(client: Client) -> dict[str, Any]:
    epochs = [epoch for report in client.reports for epoch in report.epochs]
    return {
        "samples": client.n,
        "steps": sum(report.steps for report in client.reports),
        "skipped_batches": sum(report.skipped for report in client.reports),
        "epochs": epochs,
    }
