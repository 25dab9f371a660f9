"""The client as a method sees it: its data's numbers, its model, its state, and the fits that it can ask for."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fullrank.errors import InputError, WroteInPlace, nearest
from fullrank.local.entries import ClientEntries
from fullrank.local.loop import Eager, Fit, Report, Samples, StepperOf, train
from fullrank.local.optimiser import memory
from fullrank.local.plan import Plan, make_plan
from fullrank.local.settings import Settings, Travel
from fullrank.local.step import Bound, Context, Functional, State, Step
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
"""Settings that make another optimiser."""
OPTIMISER_SPACE = "optimizer"
"""Where a client's state holds an optimiser that is kept between rounds."""


class Client:
    """One client during one job. `own` and `sent` are those of the method whose hook is running."""

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
        received: Tensors,
        w0: Tensors,
        sent: dict[str, Tree],
        state: Tree,
        stepper_of: StepperOf = Eager,
        forward: Callable[[Tensor], Output] | None = None,
        aside: bool = False,
        peers: Sequence[int] | np.ndarray = (),
    ):
        self.id = id
        self.round = round
        self.n = len(samples)
        self.samples = samples
        self.counts = _class_counts(samples, network)
        self.home = ClientEntries(network, received, aside)
        self.entries = entries
        self.reports: list[Report] = []
        self.evaluate: Callable[[], dict[str, float]] | None = None
        """Scores of the current model on the client's hold-out, where there is one and somebody wants to know."""
        self.course: list[dict[str, float]] = []
        self._network = network
        self._seed = seed
        self._composition = composition
        self._settings = settings
        self._received = received
        self.w0 = dict(w0)
        """The shared entries as received."""
        self._sent = sent
        self._stepper_of = stepper_of
        self._forward = forward or network
        self._peers = peers
        self._state = state
        self._space = ""
        self._memory, self._travels = _kept_optimiser(state)
        self._side_fits = itertools.count()

    # What a method looks at

    def seen_by(self, part: Method) -> Client:
        """The same client with another method's `own` and `sent`."""
        view = copy.copy(self)
        view._space = part.name
        return view

    @property
    def own(self) -> Tree:
        """This method's state at this client; assign a new tree to change it."""
        state: Tree = self._state.get(self._space, {})
        return state

    @own.setter
    def own(self, tree: Mapping[str, Any]) -> None:
        self._state[self._space] = clone(tree)  # a copy, because the client's model goes on changing

    @property
    def sent(self) -> Tree:
        """What this method's server half broadcast."""
        return self._sent.get(self._space, {})

    @property
    def network(self) -> Network:
        """The network, with the client's entries."""
        return self.home.enter()

    @property
    def model(self) -> Tensors:
        """All entries of the client's model, current."""
        return self.home.all()

    @property
    def w(self) -> Tensors:
        """The shared entries, current."""
        return {name: tensor.detach() for name, tensor in self.home.some(self.entries.shared).items()}

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that a fit trains unless it says otherwise."""
        return self._trained(None)

    @property
    def travel(self) -> float:
        """How far a constant unit gradient would have moved a shared weight in this round's fits."""
        if self._settings.optimizer != "sgd":
            raise InputError(
                f"{self._settings.optimizer} has no travel, which this method needs; take train.optimizer = sgd"
            )
        found = {self._travels[name].distance for name in self.entries.shared if name in self._travels}
        if len(found) > 1:
            raise InputError(
                "the shared entries were trained for different numbers of steps, so they have no common travel"
            )
        return found.pop() if found else 0.0

    def one_of(self, share: float, purpose: str) -> bool:
        """Whether this client is in a fixed share of those that may take part, drawn from the seed for a purpose."""
        if share >= 1:
            return True
        rng = generator(self._seed, "share", self._space, purpose)
        return self.id in rng.choice(self._peers, max(1, round(share * len(self._peers))), replace=False)

    # What a method asks for

    def fit(
        self,
        only: str | tuple[str, ...] | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        model: Mapping[str, Tensor] | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
        criterion: Callable[[Batch], Tensor] | None = None,
        stats: Literal["move", "freeze"] = "move",
        **optimiser: Any,
    ) -> Tensors:
        """Train on this client's data and return the trained model's entries.

        `only` are selectors of what to train (a frozen entry only if named in full). With `model` it is a side fit:
        it starts from that tree, leaves the client's model alone and draws its own batches. `loss` is a further term
        of this fit, `criterion` replaces the method's, `stats="freeze"` keeps norm layers in eval mode. Optimiser
        settings of its own (lr, momentum …) mean an optimiser of its own; else the round's fits share one.
        """
        settings = self._adapted(epochs, steps, optimiser)
        if model is None:
            label = f"fit-{len(self.reports)}"
            fresh = bool(set(optimiser) & set(OPTIMISER))
            report = self._run(label, settings, self._trained(only), fresh, False, loss, criterion, stats)
            self.reports.append(report)
            return self.model
        label = f"side-{next(self._side_fits)}"
        with self._holding(model):
            self._run(label, settings, self._trained(only), True, True, loss, criterion, stats)
            return clone(self.model)

    def train(self) -> None:
        """The fit of a round that has no other, as the settings have it: `fit()` without a look at the result."""
        label = f"fit-{len(self.reports)}"
        self.reports.append(self._run(label, self._settings, self.trainable, False, False, None, None, "move"))

    def mark(self) -> None:
        """Note how good the current model is on the client's hold-out: the course of a personalisation."""
        if self.evaluate is not None:
            self.course.append(self.evaluate())

    @torch.no_grad()
    def features(self, batch_size: int = 0) -> tuple[Tensor, Tensor]:
        """z and y of all training samples under the current model: eval mode, no augmentation."""
        z, y = [], []
        with self.network.mode(train=False):
            device = self.samples.index.device
            for some, live in batches(self.n, batch_size or at_once(device), device):
                inputs, labels = self.samples.batch(some, None, self.network.dtype)
                z.append(self._forward(inputs).z[:live])
                y.append(labels[:live])
        return torch.cat(z), torch.cat(y)

    def prototypes(self, normalise: bool = False) -> tuple[Tensor, Tensor]:
        """Class sums (C, d) of z and class counts (C,) over the training samples; zeros for what the client lacks."""
        z, y = self.features()
        if normalise:
            z = torch.nn.functional.normalize(z)
        return class_prototypes(z, y, self.network.num_classes)[0], self.counts

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """A batch under the current model in its current mode, as `predict` sees it."""
        self.home.enter()
        output, model = self._forward(x), self.model

        def features(tree: Tree) -> Tensor:
            return self.network.at({**self._received, **tree}, x).z

        return Batch(
            output.extras,
            x=x,
            y=y,
            z=output.z,
            logits=output.logits,
            w={name: model[name] for name in self.entries.shared},
            model=model,
            w0=self.w0,
            own=self.own,
            sent=self.sent,
            fixed={},
            counts=self.counts,
            features=features,
        )

    # How it is done

    def _adapted(self, epochs: int | None, steps: int | None, optimiser: dict[str, Any]) -> Settings:
        known = [field.name for field in dataclasses.fields(Settings)]
        for key in optimiser:
            if key not in known:
                raise InputError(f'client.fit has no setting "{key}"; {nearest(key, known)}')
        if "lr" in optimiser:
            optimiser = {**optimiser, "moving": None}  # its own rate is no part of the schedule
        settings = dataclasses.replace(self._settings, **optimiser)
        if epochs is not None:
            settings = dataclasses.replace(settings, epochs=epochs, steps=0)
        if steps is not None:
            settings = dataclasses.replace(settings, steps=steps)
        settings.check()
        return settings

    def _trained(self, only: str | tuple[str, ...] | None) -> tuple[str, ...]:
        network, frozen = self._network, frozenset(self.entries.frozen)
        selectors = only if only is None or isinstance(only, str) else tuple(only)
        return network.fact(("trained", frozen, selectors), lambda: _trainable(network, frozen, selectors))

    def _run(
        self,
        label: str,
        settings: Settings,
        names: tuple[str, ...],
        fresh: bool,
        side: bool,
        loss: Callable[[Batch], Tensor] | None,
        criterion: Callable[[Batch], Tensor] | None,
        stats: Literal["move", "freeze"],
    ) -> Report:
        network, plan = self.network, self._plan(label, settings)
        with (
            self._training(names, stats),
            seeded(self._seed, "torch", self.round, self.id, label, device=self.counts.device),
        ):
            state = self._state_of(names, settings, {} if fresh else self._memory)
            step = self._step(Bound(network, state.trained), settings, side, stats, criterion, loss)
            context = self._context()
            kept = (context.received, context.own, context.sent, context.w0, context.fixed, {"counts": context.counts})
            writes = versions(*kept)
            report = train(Fit(step, state, context, self.samples, plan, network.dtype), self._stepper_of)
            if versions(*kept) != writes:
                raise WroteInPlace(self._composition.method.name)
        if not side:
            self._travel(names, report.steps, settings, fresh)
        return report

    def _plan(self, label: str, settings: Settings) -> Plan:
        return make_plan(
            self.n,
            settings,
            generator(self._seed, "batches", self.round, self.id, label),
            self.samples.prepare.draws,
            single=not self._network.has_batch_norm,
        )

    def _step(
        self,
        backend: Functional,
        settings: Settings,
        side: bool = False,
        stats: str = "move",
        criterion: Callable[[Batch], Tensor] | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
    ) -> Step:
        shared, acts_on = frozenset(self.entries.shared), decayed(self._network, settings)
        return Step(self._composition, backend, settings, shared, acts_on, side, stats, criterion, loss, self._space)

    def _context(self) -> Context:
        parts = self._composition.defined("before")
        fixed = {part.name: clone(part.before(self.seen_by(part))) for part in parts}  # the model goes on changing
        return Context(self._received, self._state, self._sent, self.counts, fixed=fixed)

    def _travel(self, names: tuple[str, ...], steps: int, settings: Settings, fresh: bool) -> None:
        """Note how far a fit went."""
        alone = Travel().on(steps, settings)
        for name in names:
            before = self._travels.get(name)
            if before is None:
                self._travels[name] = dataclasses.replace(alone, speed=0.0) if fresh else alone
            elif fresh:
                self._travels[name] = Travel(before.speed, before.distance + alone.distance)
            else:
                self._travels[name] = before.on(steps, settings)

    def _state_of(self, names: tuple[str, ...], settings: Settings, before: Tree) -> State:
        trained = self.home.some(names)
        buffers = self.home.some(self._network.buffer_names)
        rest = dict(self.home.some([n for n in self._network.parameter_names if n not in trained]))
        return State(trained, rest, buffers, memory(trained, settings, before))

    # The one fit of a method that does not say which, run by somebody else

    def asked(self) -> Fit:
        """That fit, to be run elsewhere: its state holds this client's tensors, which nobody may change there."""
        names, settings = self._trained(None), self._settings
        state = self._state_of(names, settings, dict(self._memory))
        step = self._step(Functional(self._network), settings)
        label = f"fit-{len(self.reports)}"
        if self._composition.defined("before"):
            with seeded(self._seed, "torch", self.round, self.id, label, device=self.counts.device):
                context = self._context()
        else:
            context = self._context()
        return Fit(step, state, context, self.samples, self._plan(label, settings), self._network.dtype)

    def answered(self, fit: Fit, state: State, report: Report) -> None:
        """Take what came of it: the state's tensors are this client's from now on."""
        self.home.move({**state.rest, **state.trained, **state.buffers})
        for slot, new in state.memory.items():
            self._memory[slot] = {**self._memory.get(slot, {}), **new}
        self._travel(tuple(state.trained), report.steps, fit.step.settings, fresh=False)
        self.reports.append(report)

    def keep_optimiser(self) -> None:
        """Put the round's optimiser into the client's state, for its next round."""
        speed = max((travel.speed for travel in self._travels.values()), default=0.0)
        kept = {slot: clone({**tree}) for slot, tree in self._memory.items()}
        self._state[OPTIMISER_SPACE] = {**kept, "u": torch.tensor(speed, dtype=torch.float64)}

    @contextlib.contextmanager
    def _training(self, names: tuple[str, ...], stats: Literal["move", "freeze"]) -> Iterator[None]:
        """Train mode, with gradients for the trained entries alone."""
        trained = set(names)
        parameters = self.network.parameters()
        others = [p for name, p in parameters.items() if p.requires_grad != (name in trained)]
        for parameter in others:
            parameter.requires_grad_(not parameter.requires_grad)
        try:
            with self.network.mode(train=True, stats=stats):
                yield
        finally:
            for parameter in others:
                parameter.requires_grad_(not parameter.requires_grad)

    @contextlib.contextmanager
    def _holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Another model in the network inside; the client's own afterwards."""
        before = clone(self.model)
        self.network.load(tensors)
        try:
            yield
        finally:
            self.network.load(before)


def _kept_optimiser(state: Tree) -> tuple[Tree, dict[str, Travel]]:
    """An optimiser that the client kept from its last round, if it did, and the speed that its momentum has."""
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
    """Names of the entries that weight decay acts on."""
    selectors = settings.decay_on if isinstance(settings.decay_on, str) else tuple(settings.decay_on)
    return network.fact(("decayed", selectors), lambda: _decayed(network, selectors))


def _decayed(network: Network, selectors: str | tuple[str, ...]) -> frozenset[str]:
    parameters = network.parameters()
    if selectors == "matrices":
        return frozenset(name for name, parameter in parameters.items() if parameter.dim() >= 2)
    return frozenset(select(network, selectors)) & frozenset(parameters)


def _trainable(network: Network, frozen: frozenset[str], only: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The parameters that selectors name; a frozen one only if it is named in full."""
    trainable = [name for name in network.parameter_names if name not in frozen]
    if only is not None:
        selectors = (only,) if isinstance(only, str) else only
        chosen = select(network, selectors)
        named = frozen & set(selectors)
        trainable = [n for n in network.parameter_names if n in chosen and (n not in frozen or n in named)]
    if not trainable:
        raise InputError(f"there is nothing to train: every parameter{f' of {only}' if only else ''} is frozen")
    return tuple(trainable)
