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
from fullrank.metrics.details import details, with_balanced
from fullrank.metrics.evaluate import evaluate
from fullrank.metrics.registry import ALWAYS, Metric
from fullrank.models.entries import Entries
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Tensors, Tree, clone, moved, versions

Kind: TypeAlias = Literal["train", "query", "data", "personal"]
"""The kind of a job: a client trains, answers a query, answers one about its data without having received a model, or
returns its own model."""
Stage: TypeAlias = Literal["received", "local", "personalised"]
"""A client's own model: as received from the server, after local training, or as the method personalises it."""

SETS = {"holdout": "personal", "test": "test"}
"""The sets on which a client's models are evaluated, and the key of each in the metrics of a result: the client's
hold-out, and the test part of its site, where it has them."""


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
    """The trees that every client of the round receives: "w", "buffers" and, by method, "sent"."""
    frozen: Tensors
    """The frozen entries as the client has them, from this contact or an earlier one."""
    personal: Tensors
    """The initial values of personal entries, at first contact and only if they differ from those of the seed."""
    state: Tree | None
    """The state that the client kept from its last round; None at first contact."""
    query: tuple[str, str] = ("", "")
    """The method's name and the name of its function, if the job is a query."""
    evaluate: bool = False
    """Whether the client's models are evaluated on its hold-out and on the test part of its site."""
    show: bool = False
    """Whether the result also has the client's model, if the job trains or evaluates."""
    stage: Stage | None = None
    """The stage of the client's model that a personal job returns; None means the method's last one."""


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
    """The state that the client keeps between rounds."""
    received: dict[str, dict[str, Any]]
    """The scores of the received model on the sets of the client, by their keys in `SETS`, if it was evaluated."""
    writes: int
    """The number of in-place writes into the tensors that the client received, when the job began."""


class Site:
    """Runs the jobs of the clients that it hosts. It has the data of these clients and no others.

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
        metrics: The metrics of clients' models.
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
        self._test = _on(device, data.test_x, data.test_y)

    def twin(self, device: torch.device) -> Site:
        """Return a site for the same clients with a copy of the network; data are shared if the device is the same."""
        other = copy.copy(self)
        other.network, other.device = copy.deepcopy(self.network), device
        other.network.module.to(device)
        other.forward = other.network
        other.start, other._constants = moved(self.start, device), moved(self._constants, device)
        other._x, other._y = self._x.to(device), self._y.to(device)
        other._test = _on(device, *self._test)
        return other

    def do(self, job: Job) -> Result:
        """Run one job.

        An exception of the client's code, including `sys.exit`, becomes the error of the result.

        Args:
            job: The job.

        Returns:
            The result.
        """
        writes = _writes(job)
        try:
            result: Result = getattr(self, f"_{job.kind}")(job)
        except BaseException as error:
            result = self.failed(job, error)
        if _writes(job) != writes:
            return self.failed(job, WroteInPlace(self.composition.method.name))
        return result

    def failed(self, job: Job, error: BaseException) -> Result:
        """Return the result of a job whose client raised an exception.

        Args:
            job: The job.
            error: The exception. One that a signal raised is raised again.
        """
        if not interrupt.raised_by_code(error):
            raise error
        return Result(job.client, len(self.data.training.get(job.client, ())), error=error)

    def _train(self, job: Job) -> Result:
        work = self.begin(job)
        self._fits(work.client)
        return self.finish(work)

    def begin(self, job: Job, detached: bool = False) -> Work:
        """Prepare a training job up to its fits.

        Args:
            job: The job.
            detached: Whether the client's entries stay out of the network until they are needed there, because other
                clients train in it as well.

        Returns:
            The client, ready to train.
        """
        writes = _writes(job)
        client, state = self._client(job, detached)
        work = Work(job, client, state, self._scores(client) if job.evaluate else {}, writes)
        if detached:
            client.held.leave()
        return work

    def finish(self, work: Work) -> Result:
        """Complete a training job after its fits.

        Args:
            work: The job, whose client has been trained.

        Returns:
            The result.

        Raises:
            WroteInPlace: If the method wrote into a tensor that the client received.
        """
        client, state = work.client, work.state
        metrics = _measured(client)
        if work.received:
            local = self._scores(client)
            metrics |= {key: {"received": found, "local": local[key]} for key, found in work.received.items()}
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
        """Return the client's model at the job's stage; with `evaluate`, every stage on the sets of the client.

        The metrics have the scores by set and stage, as those of a training job have, and as `rows` the description of
        each stage on each set (`metrics.details`).
        """
        known = stages(self.composition)
        wanted = job.stage or known[-1]
        names = self._sets(job.client) if job.evaluate else []
        result = Result(job.client, self.data.size(job.client))
        shown = wanted if job.show or not job.evaluate else None
        for stage in known:
            if not names and stage != shown:
                continue
            client = self._at(stage, job, names)
            for name in names:
                scores, kept = self._detailed(client, name)
                course = {"course": client.course} if client.course and name == names[0] else {}
                result.metrics.setdefault(SETS[name], {})[stage] = {**scores, **course}
                result.metrics.setdefault("rows", []).append({"stage": stage, "set": name, **kept})
            if stage == shown:
                result.model = clone(client.model)
        return result

    def _at(self, stage: Stage, job: Job, names: Sequence[str]) -> Client:
        """Return the client with its model at a stage; the course of a personalisation is on the first of the sets."""
        client = self.received(job)
        if stage == "local":
            self._fits(client)
        elif stage == "personalised":
            part, personalise = self.composition.exclusive("personalise")
            if names:
                client.evaluate = lambda: self._evaluated(client, names[0])
            if tree := personalise(client.seen_by(part)):
                client.network.load(tree)
        return client

    def received(self, job: Job) -> Client:
        """Return the client of a job with the model as it receives it: with its own personal entries."""
        return self._client(job)[0]

    def _sets(self, client: int) -> list[str]:
        """Return the names of the sets that a client has."""
        sizes = {"holdout": len(self.data.of_client(client)[1]), "test": len(self.data.test_of(client))}
        return [name for name in SETS if sizes[name]]

    def _samples_of(self, client: int, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples of a set of a client, and their labels."""
        if name == "test":
            index, (x, y) = self.data.test_of(client), self._test
            assert x is not None
            assert y is not None
        else:
            index, x, y = self.data.of_client(client)[1], self._x, self._y
        places = torch.from_numpy(index).to(self.device)
        return x[places], y[places]

    def _scores(self, client: Client) -> dict[str, dict[str, Any]]:
        """Return the scores of the client's current model on each of its sets, by their keys in `SETS`."""
        return {SETS[name]: self._evaluated(client, name) for name in self._sets(client.id)}

    def _evaluated(self, client: Client, name: str) -> dict[str, Any]:
        """Return the scores of the client's current model on one of its sets."""
        x, y = self._samples_of(client.id, name)
        return {**self.evaluated(client, x, y, self.metrics), "samples": len(y)}

    def _detailed(self, client: Client, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the scores of the client's current model on one of its sets, and its description there."""
        x, y = self._samples_of(client.id, name)
        given: list[torch.Tensor] = []
        found = self.evaluated(client, x, y, with_balanced(self.metrics), given)
        asked = {*ALWAYS, *(metric.key for metric in self.metrics)}
        scores = {**{key: value for key, value in found.items() if key in asked}, "samples": len(y)}
        return scores, details(given, y, found, self.seed, client.id, name)

    def evaluated(
        self,
        client: Client,
        x: torch.Tensor,
        y: torch.Tensor,
        metrics: Sequence[Metric],
        keep: list[torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Return the metrics of the client's current model on samples.

        Args:
            client: The client.
            x: The samples.
            y: Their labels.
            metrics: The metrics in addition to accuracy and loss.
            keep: A list to which the scores are appended, batch by batch.
        """
        part, predict = self.composition.exclusive("predict")
        view = client.seen_by(part)
        with self.network.mode(train=False):
            return evaluate(
                lambda x, y: predict(view.batch(x, y)),
                x,
                y,
                self.data.pipeline,
                self.network.dtype,
                metrics,
                keep=keep,
            )

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
            weight=self.data.weight(job.client),
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
            "buffers": Mean(client.held.copied(self.entries.buffers), float(client.weight)),
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


def _on(device: torch.device, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.to(device) for tensor in tensors)


def _writes(job: Job) -> int:
    """Return the number of in-place writes into the received tensors, which the server and other clients share."""
    return versions(job.broadcast, job.frozen, job.personal, job.state or {})


def _measured(client: Client) -> dict[str, Any]:
    epochs = [epoch for report in client.reports for epoch in report.epochs]
    return {
        "samples": client.n,
        "steps": sum(report.steps for report in client.reports),
        "skipped_batches": sum(report.skipped for report in client.reports),
        "epochs": epochs,
    }
