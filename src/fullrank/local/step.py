"""The local step: a pure function of tensors for every method and every engine.

A backend decides how the network is called and how gradients are computed: `Functional` serves traced engines
(`vmap`, `make_fx`, compilation), `Bound` the eager ones, with a module whose own tensors are the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullrank.errors import InputError
from fullrank.local.optimiser import clipped, descend_
from fullrank.local.settings import Settings
from fullrank.methods._batch import Batch
from fullrank.methods._compose import Composition
from fullrank.methods._method import Method
from fullrank.models.net import Output
from fullrank.models.network import Network
from fullrank.trees import Flat, Tensors, Tree, combine, merged, misfit, norm, part_of

Objective = Callable[[Tensors], tuple[Tensor, Any]]


class BadGradient(InputError):
    """Raised if a gradient correction returns something other than a gradient."""


@dataclass(frozen=True)
class Context:
    """The tensors that a step reads and never changes."""

    received: Tensors
    """All entries as received."""
    own: dict[str, Tree]
    """Each method's state at the client."""
    sent: dict[str, Tree]
    """The entries that each method broadcast."""
    counts: Tensor
    """The client's number of samples of each class."""
    w0: Tensors = field(default_factory=dict)
    """The shared entries as received, if an engine keeps them as one vector; if not, they are in `received`."""
    lr: Tensor | None = None
    """The learning rate of a recorded step, which may be replayed at others; None if the settings give it."""
    fixed: dict[str, Tree] = field(default_factory=dict)
    """The tensors that each method computed before the fit."""

    def of(self, space: str) -> dict[str, Tree]:
        """Return the trees that the batch shows to one method only."""
        return {name: getattr(self, name).get(space, {}) for name in ("own", "sent", "fixed")}


@dataclass
class State:
    """The tensors that a step changes (trained entries, buffers, the optimiser's memory), and the entries that do not
    change.
    """

    trained: Tensors
    rest: Tensors
    buffers: Tensors
    memory: Tree = field(default_factory=dict)
    """The optimiser's memory."""


for _kind, _fields in (
    (Context, ("received", "own", "sent", "counts", "w0", "lr", "fixed")),
    (State, ("trained", "rest", "buffers", "memory")),
):
    torch.utils._pytree.register_dataclass(_kind, field_names=list(_fields), drop_field_names=[])


def depending(value: Tensor) -> Tensor:
    """Return the value of an objective unchanged, provided that it depends on a trained entry.

    Raises:
        InputError: If it does not; `torch.func.grad` would return zeros.
    """
    if not value.requires_grad:
        raise InputError(
            "the loss does not depend on any entry that trains, so there is no gradient: the model's forward (or the "
            "method's criterion) is detached, as under torch.no_grad() or by .detach()"
        )
    return value


class Functional:
    """A backend that calls the network by `functional_call`, so that a step is pure.

    Gradients are computed by `torch.func.grad`.

    Args:
        network: The network.
    """

    def __init__(self, network: Network):
        self.network = network

    def at(self, tensors: Tensors, x: Tensor) -> Output:
        """Run the network in its current mode with the given tensors in place of the module's."""
        return self.network.at(tensors, x)

    def call(self, trained: Tensors, rest: Tensors, buffers: Tensors, x: Tensor) -> tuple[Output, Tensors]:
        """Run the network with the given tensors in place of the module's.

        Args:
            trained: The entries that are trained.
            rest: The entries that are not.
            buffers: The buffers.
            x: The inputs.

        Returns:
            The output, and the buffers after the forward.
        """
        moved = {name: value.clone() for name, value in buffers.items()}  # BatchNorm writes into its buffers
        return self.at({**rest, **trained, **moved}, x), moved

    def gradient(self, objective: Objective, trained: Tensors) -> tuple[Tensors, Any]:
        """Compute the gradient of an objective.

        Args:
            objective: A function of the trained entries that returns a scalar, and further results.
            trained: The values of the entries.

        Returns:
            The gradient, and the further results.

        Raises:
            InputError: If the objective does not depend on the entries.
        """

        def dependent(trained: Tensors) -> tuple[Tensor, Any]:
            value, aux = objective(trained)
            return depending(value), aux

        g, aux = torch.func.grad(dependent, has_aux=True)(trained)
        return g, aux


class Bound(Functional):
    """A backend that calls the module itself, whose own tensors are those of the client.

    Args:
        network: The network.
        trained: The entries that are trained, which are tensors of the network.
    """

    def __init__(self, network: Network, trained: Tensors):
        super().__init__(network)
        self.bound = trained

    def call(self, trained: Tensors, rest: Tensors, buffers: Tensors, x: Tensor) -> tuple[Output, Tensors]:
        """Run the module itself, whose buffers change in place; arguments and results are as in `Functional.call`."""
        if trained is self.bound:
            return self.network(x), buffers
        return super().call(trained, rest, buffers, x)

    def gradient(self, objective: Objective, trained: Tensors) -> tuple[Tensors, Any]:
        """Compute the gradient by `torch.autograd.grad`, as `Functional.gradient` does.

        It takes half the time of `torch.func.grad` on a small network.
        """
        if trained is not self.bound:
            trained = self.leaves(trained)
        value, aux = objective(trained)
        return self.slopes(depending(value), trained), aux

    @staticmethod
    def leaves(trained: Tensors) -> Tensors:
        """Return detached entries that require gradients."""
        leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
        return Flat(trained.base, trained.layout, leaves) if isinstance(trained, Flat) else leaves

    @staticmethod
    def slopes(value: Tensor, trained: Tensors) -> Tensors:
        """Return the gradient of a value, with zeros for entries that have no effect on it.

        It is a `Flat` if the entries are one.
        """
        found = torch.autograd.grad(value, list(trained.values()), allow_unused=True, materialize_grads=True)
        g = dict(zip(trained, found, strict=True))
        return Flat.joined(g, trained.layout) if isinstance(trained, Flat) else g


def named_terms(name: str, found: Tensor | Mapping[str, Tensor]) -> Tensors:
    """Return the terms that the `loss` of a method adds.

    Args:
        name: The method's name.
        found: What the hook returned: a scalar, or scalars by name.

    Returns:
        The sum under the method's name, and each named term under `name.term`.

    Raises:
        InputError: If the hook returned anything else.

    >>> named_terms("mine", {"near": torch.tensor(1.0), "far": torch.tensor(2.0)})
    {'mine': tensor(3.), 'mine.near': tensor(1.), 'mine.far': tensor(2.)}
    """
    if isinstance(found, Tensor):
        return {name: found}
    if not isinstance(found, Mapping) or not found:
        raise InputError(f'"{name}".loss must return a scalar tensor, or a dict with at least one scalar tensor')
    first, *others = found.values()
    return {name: sum(others, first), **{f"{name}.{term}": value for term, value in found.items()}}


@dataclass(frozen=True)
class Step:
    """A local step of a composition of methods."""

    composition: Composition
    backend: Functional
    settings: Settings
    shared: frozenset[str]
    """The names of the shared entries, the only ones on which drift corrections act."""
    decayed: frozenset[str]
    """The names of the entries to which weight decay applies."""
    side: bool = False
    """Whether the step belongs to a side fit, which has no drift corrections."""
    stats: str = "move"
    """Whether norm layers train ("move") or stay in evaluation mode ("freeze")."""
    criterion: Callable[[Batch], Tensor] | None = None
    """A criterion in place of the method's."""
    loss: Callable[[Batch], Tensor] | None = None
    """A further term of the loss in this fit."""
    space: str = ""
    """The name of the method that asked for this fit, whose state `criterion` and `loss` see."""

    def __call__(self, state: State, context: Context, x: Tensor, y: Tensor) -> tuple[State, dict[str, Tensor]]:
        """Run the step without writing in place.

        Args:
            state: The tensors that the step changes.
            context: The tensors that it reads.
            x: The inputs of a batch.
            y: The labels.

        Returns:
            The new state, and the values of all terms with the gradient's norm.
        """
        new = State(
            {name: value.clone() for name, value in state.trained.items()},
            state.rest,
            state.buffers,
            combine(state.memory, torch.clone),
        )
        g, new.buffers, terms = self.gradient(state, context, x, y)
        descend_(new.trained, g, new.memory, self.settings, self.decayed, context.lr)
        return new, terms

    def advance_(self, state: State, context: Context, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Run the step in place, for engines that own the tensors of the state.

        Args:
            state: The tensors that the step changes.
            context: The tensors that it reads.
            x: The inputs of a batch.
            y: The labels.

        Returns:
            The values of all terms with the gradient's norm.
        """
        g, state.buffers, terms = self.gradient(state, context, x, y)
        with torch.no_grad():
            descend_(state.trained, g, state.memory, self.settings, self.decayed, context.lr)
        return terms

    def gradient(
        self, state: State, context: Context, x: Tensor, y: Tensor
    ) -> tuple[Tensors, Tensors, dict[str, Tensor]]:
        """Compute the gradient of criterion and losses, with all corrections.

        Args:
            state: The tensors that the step changes.
            context: The tensors that it reads.
            x: The inputs of a batch.
            y: The labels.

        Returns:
            The corrected gradient, the buffers after the step, and the value of each term.

        Raises:
            InputError: If the loss does not depend on a trained entry, or a correction does not return a gradient.
        """
        corrections = [part for part in self.composition.corrections if not (self.side and part.drift)]
        g, seen = self._corrected(state, context, x, y, state.trained, corrections)
        length = norm(g)
        terms = {**seen["terms"], "grad_norm": length}
        return clipped(g, length, self.settings.clip_norm), seen["buffers"], terms

    def _corrected(
        self, state: State, context: Context, x: Tensor, y: Tensor, at: Tensors, corrections: list[Method]
    ) -> tuple[Tensors, dict[str, Any]]:
        def objective(trained: Tensors) -> tuple[Tensor, dict[str, Any]]:
            return self._objective(state, context, x, y, trained)

        g, seen = self.backend.gradient(objective, at)
        if not corrections:
            return g, seen
        with torch.no_grad():
            b = self._batch(state, seen["buffers"], context, x, y, at, seen["output"], seen["terms"]["criterion"])
            for index, part in enumerate(corrections):

                def grad_at(w: Tensors, left: int = index) -> Tensors:
                    there = merged(at, part_of(w, at.keys()))
                    with torch.enable_grad():
                        return self._corrected(state, context, x, y, there, corrections[:left])[0]

                view = b.but(**context.of(part.name), grad_at=grad_at)
                g = merged(g, self._by(part, part_of(g, self.shared), view)) if part.drift else self._by(part, g, view)
        return g, seen

    def _by(self, part: Method, g: Tensors, b: Batch) -> Tensors:
        """Return the gradient after one correction; its form is checked in the first step of a run only."""
        new = part.grad(g, b)
        if part.name not in self.composition.correct:
            if not isinstance(new, Mapping):
                raise BadGradient(
                    f'"{part.name}".grad returned a {type(new).__name__}; it must return a tree of tensors'
                )
            if problem := misfit(new, g):  # another shape would be broadcast silently
                raise BadGradient(f'"{part.name}".grad returned a gradient that does not fit the model: {problem}')
            self.composition.correct.add(part.name)
        return new

    def _objective(
        self, state: State, context: Context, x: Tensor, y: Tensor, trained: Tensors
    ) -> tuple[Tensor, dict[str, Any]]:
        output, buffers = self.backend.call(trained, state.rest, state.buffers, x)
        part, criterion = self.composition.exclusive("criterion")
        b = self._batch(state, buffers, context, x, y, trained, output, None)

        def seen_by(space: str) -> Batch:
            return b.but(**context.of(space))

        given = self.criterion
        total = b.base = given(seen_by(self.space)) if given is not None else criterion(seen_by(part.name))
        terms = {"criterion": total}
        for part in self.composition.losses:
            added = named_terms(part.name, part.loss(seen_by(part.name)))
            total = total + added[part.name]
            terms |= added
        if self.loss is not None:
            terms["fit"] = self.loss(seen_by(self.space))
            total = total + terms["fit"]
        terms = {name: value.detach() for name, value in terms.items()}
        output = Output(output.logits.detach(), output.z.detach(), {k: v.detach() for k, v in output.extras.items()})
        return total, {"output": output, "buffers": buffers, "terms": terms}

    def _batch(
        self,
        state: State,
        buffers: Tensors,
        context: Context,
        x: Tensor,
        y: Tensor,
        trained: Tensors,
        output: Output,
        base: Tensor | None,
    ) -> Batch:
        model = {**state.rest, **trained, **buffers}

        def output_at(tree: Tree) -> Output:
            with torch.no_grad(), self.backend.network.mode(train=False):
                return self.backend.at({**context.received, **tree}, x)

        return Batch(
            output.extras,
            x=x,
            y=y,
            z=output.z,
            logits=output.logits,
            base=base,
            w=self._shared_of(trained, state.rest),
            model=model,
            w0=context.w0 or {name: context.received[name] for name in context.received if name in self.shared},
            counts=context.counts,
            label_smoothing=self.settings.label_smoothing,
            features=lambda tree: output_at(tree).z.detach(),
            logits_at=lambda tree: output_at(tree).logits.detach(),
            head=lambda z: self.backend.network.classified(model, z),
        )

    def _shared_of(self, trained: Tensors, rest: Tensors) -> Tensors:
        """Return the current shared entries, as one vector if all of them are trained and contiguous in one."""
        near = part_of(trained, self.shared)
        if len(near) == len(self.shared):
            return near
        return {**near, **{name: value for name, value in rest.items() if name in self.shared}}
