"""A client during one job: its samples, its model's entries, its state, and its fits."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fullrank.errors import InputError, WroteInPlace, nearest
from fullrank.local.entries import ClientEntries
from fullrank.local.loop import DRIFT, Eager, Fit, Report, Samples, StepperOf, train
from fullrank.local.optimiser import memory
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings, Travel
from fullrank.local.step import Bound, Context, Functional, State, Step
from fullrank.local.views import ClientView
from fullrank.methods._batch import Batch
from fullrank.methods._compose import Composition
from fullrank.methods._method import Method
from fullrank.metrics.evaluate import at_once, batches
from fullrank.models.entries import Entries, select
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.objectives import class_prototypes
from fullrank.randomness import generator, seeded
from fullrank.trees import Tensors, Tree, clone, versions

OPTIMISER = ("optimizer", "lr", "momentum", "nesterov", "weight_decay", "decay_on")
"""The settings that require another optimiser if a fit changes them."""
OPTIMISER_SPACE = "optimizer"
"""The name in a client's state under which an optimiser is kept between rounds."""


class Client:
    """A client during one job. The hooks of a method see it through `seen_by`.

    Every fit is planned by `plan_fit` and completed by `finish_fit`. In between, `run_fit` runs it in the client's
    network; an engine may run it in another way.

    Args:
        id: The number of the client.
        round: The round, from 0.
        seed: The seed of the run.
        network: The network.
        composition: The method.
        entries: The names of the network's entries by class.
        settings: The settings of the round.
        samples: The client's training samples.
        weight: The number of samples that count as the client's weight in a mean.
        received: All entries of the client's model at the start of the job.
        w0: The shared entries as received.
        sent: The entries of the server's state that were broadcast, by method.
        state: What the client keeps between rounds, by method.
        stepper_of: Creates what runs the steps of a fit.
        forward: A function in place of the network's forward in eval mode.
        detached: Whether the entries stay out of the network as long as they are not needed there.
        peers: The ids of all clients that may take part.
    """

    def __init__(
        self,
        id: int,
        round: int,
        *,
        seed: int,
        network: Network,
        composition: Composition,
        entries: Entries,
        settings: Settings,
        samples: Samples,
        weight: int,
        received: Tensors,
        w0: Tensors,
        sent: dict[str, Tree],
        state: Tree,
        stepper_of: StepperOf = Eager,
        forward: Callable[[Tensor], Output] | None = None,
        detached: bool = False,
        peers: Sequence[int] | np.ndarray = (),
    ):
        self.id = id
        self.round = round
        self.n = len(samples)
        self.weight = weight
        """The number of samples that count as the client's weight in a mean."""
        self.samples = samples
        self.counts = _class_counts(samples, network)
        self.entries = entries
        self.held = ClientEntries(network, received, detached)
        """The values of the client's entries."""
        self.reports: list[Report] = []
        self.evaluate: Callable[[], dict[str, float]] | None = None
        """Evaluates the current model on the client's hold-out; None if it is not to be evaluated."""
        self.course: list[dict[str, float]] = []
        self.state = state
        """The state that the client keeps between rounds, by method."""
        self.sent = sent
        """The entries that the server broadcast, by method."""
        self.w0 = dict(w0)
        """The shared entries as received."""
        self._network = network
        self._seed = seed
        self._composition = composition
        self._settings = settings
        self._received = received
        self._stepper_of = stepper_of
        self._forward = forward or network
        self._peers = peers
        self._memory, self._travels = _kept_optimiser(state)
        self._pulled_travels = dict(self._travels)
        self._side_fits = itertools.count()

    def seen_by(self, part: Method) -> ClientView:
        """Return the client as the hooks of a method see it, with that method's own state and broadcast."""
        return ClientView(self, part.name)

    @property
    def network(self) -> Network:
        """The network, with the client's entries."""
        return self.held.enter()

    @property
    def model(self) -> Tensors:
        """The current values of all entries of the client's model."""
        return self.held.all()

    @property
    def w(self) -> Tensors:
        """The current values of the shared entries."""
        some = self.held.some(self.entries.shared)
        return {name: some[name].detach() for name in self.entries.shared}

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that a fit trains by default."""
        return self._trained(None)

    @property
    def travel(self) -> float:
        """The distance that a constant unit gradient would have moved a shared weight in this round's fits."""
        return self._common(self._travels)

    @property
    def pulled_travel(self) -> float:
        """The same quantity as `travel`, under the pull of the methods' proximal terms."""
        return self._common(self._pulled_travels)

    def _common(self, travels: Mapping[str, Travel]) -> float:
        if self._settings.optimizer != "sgd":
            raise InputError(
                f"{self._settings.optimizer} has no travel, which this method needs; take train.optimizer = sgd"
            )
        found = {travels[name].distance for name in self.entries.shared if name in travels}
        if len(found) > 1:
            raise InputError(
                "the shared entries were trained for different numbers of steps, so they have no common travel"
            )
        return found.pop() if found else 0.0

    def one_of(self, share: float, purpose: str, space: str = "") -> bool:
        """Return whether the client is in a fixed share of those that may take part, chosen by the seed.

        Args:
            share: The share of the clients.
            purpose: A word that distinguishes this draw from others of the same method.
            space: The name of the method.
        """
        if share >= 1:
            return True
        rng = generator(self._seed, "share", space, purpose)
        return self.id in rng.choice(self._peers, max(1, round(share * len(self._peers))), replace=False)

    def generator(self, purpose: str, space: str = "") -> np.random.Generator:
        """Return a generator whose numbers depend on seed, method, purpose, round and client only.

        Args:
            purpose: A word that distinguishes this generator from others of the same method.
            space: The name of the method.
        """
        return generator(self._seed, "client", space, purpose, self.round, self.id)

    # Fits

    def fit(
        self,
        only: str | tuple[str, ...] | None = None,
        *,
        model: Mapping[str, Tensor] | None = None,
        **asked: Any,
    ) -> Tensors:
        """Run a fit of the client's model, or a side fit of another one, and return the trained model's entries.

        Args:
            only: Selectors of what to train.
            model: The tree that a side fit starts from.
            **asked: Further arguments of `plan_fit`.
        """
        if model is None:
            self._run(self.plan_fit(only, **asked))
            return self.model
        with self._holding(model):
            self._run(self.plan_fit(only, side=True, **asked))
            return clone(self.model)

    def train(self) -> None:
        """Run one fit with the client's settings, which is all that most methods do in a round."""
        self._run(self.plan_fit())

    def _run(self, fit: Fit) -> None:
        self.finish_fit(fit, self.run_fit(fit))

    def plan_fit(
        self,
        only: str | tuple[str, ...] | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        side: bool = False,
        loss: Callable[[Batch], Tensor] | None = None,
        criterion: Callable[[Batch], Tensor] | None = None,
        stats: Literal["move", "freeze"] = "move",
        space: str = "",
        **optimiser: Any,
    ) -> Fit:
        """Return a fit that is ready to be run: its step, its batches, and the state that the step changes.

        The state holds the client's own tensors, so an engine that runs the fit elsewhere works on copies of them.

        Args:
            only: Selectors of what to train; a frozen entry trains only if it is named in full.
            epochs: The number of passes over the samples, in place of the setting.
            steps: The number of batches, in place of passes.
            side: Whether it is a side fit: without drift corrections, with a separate optimiser, and not reported.
            loss: A further term of the loss in this fit.
            criterion: A criterion in place of the method's.
            stats: "freeze" keeps norm layers in evaluation mode.
            space: The name of the method that asks for the fit, whose state `loss` and `criterion` see.
            **optimiser: Settings of the optimiser. If any is given, the fit has a separate optimiser.
        """
        network, settings = self._network, self._adapted(epochs, steps, optimiser)
        names = self._trained(only)
        label = f"side-{next(self._side_fits)}" if side else f"fit-{len(self.reports)}"
        fresh = side or bool(set(optimiser) & set(OPTIMISER))
        plan = make_plan(
            self.n,
            settings,
            generator(self._seed, "batches", self.round, self.id, label),
            self.samples.prepare.draws,
            batch_norm=network.has_batch_norm,
        )
        step = Step(
            self._composition,
            Functional(network),
            settings,
            frozenset(self.entries.shared),
            decayed(network, settings),
            side,
            stats,
            criterion,
            loss,
            space,
        )
        state = self._state_of(names, settings, {} if fresh else self._memory)
        context = self._context(label, names, stats)
        return Fit(step, state, context, self.samples, plan, network.dtype, label, fresh)

    def run_fit(self, fit: Fit) -> Report:
        """Run a fit in the client's network, with the stepper of the site. The state of the fit changes in place.

        Raises:
            WroteInPlace: If the method wrote into a tensor that it received.
        """
        network, trained, context = self.network, fit.state.trained, fit.context
        received = (context.received, context.own, context.sent, context.fixed, {"counts": context.counts})
        bound = replace(fit, step=replace(fit.step, backend=Bound(network, trained)))
        with self._training(trained, fit.step.stats), self._seeded(fit.label):
            writes = versions(*received)
            report = train(bound, self._stepper_of)
            if versions(*received) != writes:
                raise WroteInPlace(self._composition.method.name)
        return report

    def finish_fit(self, fit: Fit, report: Report, state: State | None = None) -> None:
        """Complete a fit: put the trained entries into the client's model, and record what was measured.

        Args:
            fit: The fit that was planned.
            report: The measurements during the fit.
            state: The state after the last step, if the fit was not run on the planned state itself. Its tensors
                belong to the client from now on.
        """
        if state is not None:
            self.held.move({**state.rest, **state.trained, **state.buffers})
            for slot, new in state.memory.items():
                self._memory[slot] = {**self._memory.get(slot, {}), **new}
        if not fit.step.side:
            self._travels |= _travelled(self._travels, fit, report.steps)
            self._pulled_travels |= _travelled(self._pulled_travels, fit, report.steps, self._composition.pull)
            _add_proximal_terms(report, self._composition)
            self.reports.append(report)

    # The outputs of the client's model

    def mark(self) -> None:
        """Evaluate the current model on the client's hold-out, as one point in the course of a personalisation."""
        if self.evaluate is not None:
            self.course.append(self.evaluate())

    @torch.no_grad()
    def features(self, batch_size: int = 0) -> tuple[Tensor, Tensor]:
        """Compute the representation of all training samples, in eval mode and without augmentation.

        Args:
            batch_size: Samples per forward; 0 chooses it for the device.

        Returns:
            z (n, d) and y (n,).
        """
        z, y = [], []
        with self.network.mode(train=False):
            device = self.samples.index.device
            for some, live in batches(self.n, batch_size or at_once(device), device):
                inputs, labels = self.samples.batch(some, None, self.network.dtype)
                z.append(self._forward(inputs).z[:live])
                y.append(labels[:live])
        return torch.cat(z), torch.cat(y)

    def prototypes(self, normalise: bool = False) -> tuple[Tensor, Tensor]:
        """Compute class sums of the representation; they are zero for classes that the client lacks.

        Args:
            normalise: Whether each z is scaled to unit length first.

        Returns:
            The sums (C, d) and the class counts (C,).
        """
        z, y = self.features()
        if normalise:
            z = torch.nn.functional.normalize(z)
        return class_prototypes(z, y, self.network.num_classes)[0], self.counts

    def batch(self, x: Tensor, y: Tensor, space: str = "") -> Batch:
        """Return a batch under the current model in its current mode, as a method's `predict` sees it.

        Args:
            x: Inputs, prepared for the model.
            y: Their labels (N,).
            space: The name of the method.
        """
        self.held.enter()
        out, model = self._forward(x), self.model

        def output(tree: Tree) -> Output:
            return self.network.at({**self._received, **tree}, x)

        return Batch(
            out.extras,
            x=x,
            y=y,
            z=out.z,
            logits=out.logits,
            w={name: model[name] for name in self.entries.shared},
            model=model,
            w0=self.w0,
            own=self.state.get(space, {}),
            sent=self.sent.get(space, {}),
            fixed={},
            counts=self.counts,
            features=lambda tree: output(tree).z,
            logits_at=lambda tree: output(tree).logits,
            head=lambda z: self._network.classified(model, z),
        )

    # Parts of a fit

    def _adapted(self, epochs: int | None, steps: int | None, optimiser: dict[str, Any]) -> Settings:
        if epochs is None and steps is None and not optimiser:
            return self._settings
        known = [field.name for field in dataclasses.fields(Settings)]
        for key in optimiser:
            if key not in known:
                raise InputError(f'client.fit has no setting "{key}"; {nearest(key, known)}')
        if "lr" in optimiser:
            optimiser = {**optimiser, "moving": None}  # its own rate does not follow the schedule
        settings = replace(self._settings, **optimiser)
        if epochs is not None:
            settings = replace(settings, epochs=epochs, steps=0)
        if steps is not None:
            settings = replace(settings, steps=steps)
        settings.check()
        return settings

    def _trained(self, only: str | tuple[str, ...] | None) -> tuple[str, ...]:
        network, frozen = self._network, frozenset(self.entries.frozen)
        selectors = only if only is None or isinstance(only, str) else tuple(only)
        return network.fact(("trained", frozen, selectors), lambda: _trainable(network, frozen, selectors))

    def _state_of(self, names: tuple[str, ...], settings: Settings, before: Tree) -> State:
        trained = self.held.some(names)
        buffers = self.held.some(self._network.buffer_names)
        rest = dict(self.held.some([n for n in self._network.parameter_names if n not in trained]))
        return State(trained, rest, buffers, memory(trained, settings, before))

    def _context(self, label: str, names: tuple[str, ...], stats: Literal["move", "freeze"]) -> Context:
        fixed: dict[str, Tree] = {}
        if parts := self._composition.defined("before"):
            with self._training(names, stats), self._seeded(label):
                # A copy, because the model continues to change.
                fixed = {part.name: clone(part.before(self.seen_by(part))) for part in parts}
        return Context(self._received, self.state, self.sent, self.counts, fixed=fixed)

    def keep_optimiser(self) -> None:
        """Store the optimiser of the round in the client's state, for its next round."""
        speed = max((travel.speed for travel in self._travels.values()), default=0.0)
        kept = {slot: clone({**tree}) for slot, tree in self._memory.items()}
        self.state[OPTIMISER_SPACE] = {**kept, "u": torch.tensor(speed, dtype=torch.float64)}

    def _seeded(self, label: str) -> contextlib.AbstractContextManager[None]:
        return seeded(self._seed, "torch", self.round, self.id, label, device=self.counts.device)

    @contextlib.contextmanager
    def _training(self, names: Collection[str], stats: Literal["move", "freeze"] | str) -> Iterator[None]:
        """Set training mode inside the block, with gradients for the trained entries only."""
        trained = set(names)
        parameters = self._network.parameters()
        others = [p for name, p in parameters.items() if p.requires_grad != (name in trained)]
        for parameter in others:
            parameter.requires_grad_(not parameter.requires_grad)
        try:
            with self._network.mode(train=True, stats=stats):
                yield
        finally:
            for parameter in others:
                parameter.requires_grad_(not parameter.requires_grad)

    @contextlib.contextmanager
    def _holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Load another model into the network inside the block, and restore the client's afterwards."""
        before = clone(self.model)
        self.network.load(tensors)
        try:
            yield
        finally:
            self.network.load(before)


def _add_proximal_terms(report: Report, composition: Composition) -> None:
    """Add each method's proximal term, (μ/2)‖w − w0‖² at the end of a local epoch, which only its gradient enters."""
    for part in composition.defined("pull"):
        for epoch in report.epochs:
            epoch[part.name] = epoch.get(part.name, 0.0) + part.pull() / 2 * epoch[DRIFT] * epoch[DRIFT]


def _travelled(before: Mapping[str, Travel], fit: Fit, steps: int, pull: float = 0.0) -> dict[str, Travel]:
    """Return the travels of all entries after a fit; many entries have the same travel."""

    @cache
    def after(travel: Travel) -> Travel:
        if not fit.fresh:
            return travel.on(steps, fit.step.settings, pull)
        return replace(replace(travel, speed=0.0).on(steps, fit.step.settings, pull), speed=travel.speed)

    return {name: after(before.get(name, Travel())) for name in fit.state.trained}


def _kept_optimiser(state: Tree) -> tuple[Tree, dict[str, Travel]]:
    """Return the memory of an optimiser that the client kept from its last round, and the travel of its momentum."""
    if OPTIMISER_SPACE not in state:
        return {}, {}
    kept = clone(state[OPTIMISER_SPACE])  # training writes into it, and the round may fail
    speed = float(kept.pop("u"))
    return kept, {name: Travel(speed) for name in kept.get("velocity", {})}


def _class_counts(samples: Samples, network: Network) -> Tensor:
    counts = torch.bincount(samples.y[samples.index], minlength=network.num_classes)
    # floating, because methods take its logarithm and its powers; half precision would round counts from 257 on
    return counts.to(torch.promote_types(network.dtype, torch.float32))


def decayed(network: Network, settings: Settings) -> frozenset[str]:
    """Return the names of the entries to which weight decay applies."""
    selectors = settings.decay_on if isinstance(settings.decay_on, str) else tuple(settings.decay_on)
    return network.fact(("decayed", selectors), lambda: _decayed(network, selectors))


def _decayed(network: Network, selectors: str | tuple[str, ...]) -> frozenset[str]:
    parameters = network.parameters()
    if selectors == "matrices":
        return frozenset(name for name, parameter in parameters.items() if parameter.dim() >= 2)
    return frozenset(select(network, selectors)) & frozenset(parameters)


def _trainable(network: Network, frozen: frozenset[str], only: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the parameters that selectors name; frozen ones must be named in full."""
    trainable = [name for name in network.parameter_names if name not in frozen]
    if only is not None:
        selectors = (only,) if isinstance(only, str) else only
        chosen = select(network, selectors)
        named = frozen & set(selectors)
        trainable = [n for n in network.parameter_names if n in chosen and (n not in frozen or n in named)]
    if not trainable:
        raise InputError(f"there is nothing to train: every parameter{f' of {only}' if only else ''} is frozen")
    return tuple(trainable)
