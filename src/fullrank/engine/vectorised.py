"""The engine `vectorised`, which trains many small clients at a time: the local step is mapped over a group of clients.

The map is `torch.func.vmap`. If a step takes less time than Python needs to start it, a group's step costs little more
than one client's. The clients of a group wait for each other batch by batch, and those whose next batches have the same
size step together. The site does everything before and after a client's fit, one client after the other, as in every
engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fullrank.engine.base import Engine, EngineOptions
from fullrank.engine.facts import client_bytes, obstacle
from fullrank.federated.site import Job, Result, Site, Work
from fullrank.local import interrupt
from fullrank.local.loop import DRIFT, Fit, Report, drift, epochs_of, report_of
from fullrank.local.optimiser import descend_
from fullrank.local.plan import Plan
from fullrank.local.step import Bound, Context, State
from fullrank.randomness import global_state, restore_global_state
from fullrank.trees import Tree, combine, copy_, outline

STACK_BYTES = 2**24
"""The largest size in bytes of a group's weights and batches that fit into a processor's caches with the gradients."""
MOST_CLIENTS = 64
"""The largest number of clients in a group. More save little time, and the uploads of all are held at once."""
WORTH_MAPPING = 4
"""The smallest number of clients for which one mapped step is faster than a step of each."""


def width_of(site: Site, clients: int) -> int:
    """Return the number of clients of a group.

    Args:
        site: The site that has the clients.
        clients: The number of clients of a round.
    """
    shape = site.data.pipeline.shape(site.data.input_shape)
    one = client_bytes(site.network, shape, site.data.largest, site.settings.batch_size)
    return max(1, min(clients, MOST_CLIENTS, STACK_BYTES // one))


class Vectorised(Engine):
    """An engine that trains clients in groups, and clients that cannot be grouped one by one.

    Args:
        site: The site that has the clients.
        options: The settings of the engine.
    """

    def __init__(self, site: Site, options: EngineOptions):
        self.site = site
        self.width = width_of(site, options.clients)
        self.reasons: list[str] = list(options.last_row.get("one_by_one", ()))
        """The reasons why clients train one by one: known from the start, or found when a group failed as a whole."""
        if self.reasons:
            return
        if why := obstacle(site.network, site.composition, site.schedule):
            self.reasons.append(why)
        elif self.width < WORTH_MAPPING:
            self.reasons.append(f"groups would be of {self.width} clients, too few for their size or in a round")

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        waiting = iter(jobs)
        while taken := list(itertools.islice(waiting, 1 if self.reasons else self.width)):
            if self.reasons or any(job.kind != "train" for job in taken):
                yield from map(self._do_single, taken)
            else:
                yield from self._together(taken)

    def notes(self) -> dict[str, Any]:
        """Return the reasons why clients train one by one, if they do."""
        return {"one_by_one": list(self.reasons)} if self.reasons else {}

    def _do_single(self, job: Job) -> Result:
        interrupt.check()
        return self.site.do(job)

    def _together(self, jobs: Sequence[Job]) -> list[Result]:
        """Begin all jobs, run the fits of the same kind as groups, and finish all jobs."""
        results: dict[int, Result] = {}
        groups: dict[Hashable, dict[int, tuple[Work, Fit]]] = {}
        for number, job in enumerate(jobs):
            try:
                work = self.site.begin(job, detached=True)
                fit = work.client.plan_fit()
                groups.setdefault(_kind(fit), {})[number] = work, fit
            except BaseException as error:
                results[number] = self.site.failed(job, error)
        for group in groups.values():
            results |= self._group(group)
        return [results[number] for number in range(len(jobs))]

    def _group(self, group: dict[int, tuple[Work, Fit]]) -> dict[int, Result]:
        try:
            found = self._fitted([fit for _, fit in group.values()])
        except BaseException as error:
            if not interrupt.raised_by_code(error):
                raise
            return self._one_by_one({number: work.job for number, (work, _) in group.items()}, error)
        return {
            number: self._finished(work, fit, *done)
            for (number, (work, fit)), done in zip(group.items(), found, strict=True)
        }

    def _fitted(self, fits: Sequence[Fit]) -> list[tuple[State, Report]]:
        before = global_state(self.site.device)
        with self.site.network.mode(train=True):
            found = ClientGroup(fits).run()
        if global_state(self.site.device) != before:
            restore_global_state(self.site.device, before)
            raise RuntimeError("the model or the method draws random numbers in its local steps")
        return found

    def _finished(self, work: Work, fit: Fit, state: State, report: Report) -> Result:
        try:
            work.client.finish_fit(fit, report, state)
            return self.site.finish(work)
        except BaseException as error:
            return self.site.failed(work.job, error)

    def _one_by_one(self, jobs: dict[int, Job], error: BaseException) -> dict[int, Result]:
        """Run the jobs of a group that failed once more, one by one, so that a failure is attributed to its client."""
        results = {number: self._do_single(job) for number, job in jobs.items()}
        if all(result.error is None for result in results.values()):  # only the group as a whole fails
            self.reasons.append(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        return results


def _kind(fit: Fit) -> Hashable:
    """Return the kind of a fit. Fits of one kind have trees of the same names and shapes, so they can be stacked."""
    kept: Tree = {"own": fit.context.own, "fixed": fit.context.fixed, "memory": fit.state.memory}
    return fit.step.settings, tuple(sorted(outline(kept).items()))


def steps_together(plans: Sequence[Plan]) -> Iterator[tuple[int, ...]]:
    """Yield the clients that step together.

    These are one of the clients with the most steps left, and all whose next batches are as large. Each client follows
    its own plan in order. Those with few steps left wait until others reach their batch sizes.

    Args:
        plans: The plan of each client.

    Yields:
        The positions of the clients that run their next step.

    >>> def plan(*sizes): return Plan(np.arange(0), sizes, (0,) * len(sizes), np.empty((0, 0)), 0)
    >>> list(steps_together([plan(4, 4, 2), plan(4, 2), plan(4, 4, 2)]))
    [(0, 1, 2), (0, 2), (0, 1, 2)]
    """
    done = [0] * len(plans)
    ready: dict[int, list[int]] = {}
    for client, plan in enumerate(plans):
        if plan.sizes:
            ready.setdefault(plan.sizes[0], []).append(client)

    def most_left(size: int) -> tuple[int, int]:
        return max(plans[client].steps - done[client] for client in ready[size]), len(ready[size])

    while ready:
        size = max(ready, key=most_left)
        together = tuple(sorted(ready.pop(size)))
        yield together
        for client in together:
            done[client] += 1
            if done[client] < plans[client].steps:
                ready.setdefault(plans[client].sizes[done[client]], []).append(client)


class ClientGroup:
    """A group of clients that train together: fits of one kind, whose states are stacked along a new first axis.

    Args:
        fits: The fit of each client.
    """

    def __init__(self, fits: Sequence[Fit]):
        self.fits = fits
        self.stack = _stacked(fits)
        self.step = fits[0].step
        self._eager_step = replace(self.step, backend=Bound(self.step.backend.network, {}))
        self._names: list[str] = []
        """The names of a step's measurements."""
        self._known: dict[tuple[int, ...], Members] = {}

    def run(self) -> list[tuple[State, Report]]:
        """Run all fits to their ends, and return the state and the report of each client."""
        plans = [fit.plan for fit in self.fits]
        batches, measures = _Batches(self.fits), _Measures(plans)
        for who in steps_together(plans):
            interrupt.check()
            make = self._at_once if len(who) >= WORTH_MAPPING else self._one_by_one
            measures.add(who, *make(who, *batches.next(who), measures.is_due(who)))
        return list(zip(self.stack.unstacked(), measures.reports(self._names), strict=True))

    def _at_once(self, who: tuple[int, ...], x: Tensor, y: Tensor, due: bool) -> tuple[Tensor, Tensor | None]:
        """Run one mapped step; return the values of the terms (clients, terms) and, if due, the drifts (clients,)."""
        members = self._members(who)
        state, settings, decayed = members.state, self.step.settings, self.step.decayed
        g, buffers, values = members.mapped(self._gradient, x, y)
        if settings.optimizer == "sgd":  # an elementwise update, so the stacked tensors need no map
            descend_(state.trained, g, state.memory, settings, decayed)
        else:
            step = torch.vmap(lambda w, g, memory: descend_(w, g, memory, settings, decayed), out_dims=None)
            step(state.trained, g, state.memory)
        copy_(state.buffers, buffers)
        members.give_back()
        return values, members.mapped(self._drift) if due else None

    def _one_by_one(self, who: tuple[int, ...], x: Tensor, y: Tensor, due: bool) -> tuple[Tensor, Tensor | None]:
        """Run the step one client after the other, which is faster for a few clients."""
        values, drifts = [], []
        for number, client in enumerate(who):
            state, context = self.stack.one(client)
            place = state.buffers
            terms = self._eager_step.advance_(state, context, x[number], y[number])
            copy_(place, state.buffers)
            self._names = list(terms)
            values.append(torch.stack(list(terms.values())))
            drifts.append(self._drift(state, context) if due else values[0])
        return torch.stack(values), torch.stack(drifts) if due else None

    def _gradient(self, state: State, context: Context, x: Tensor, y: Tensor) -> tuple[Tree, Tree, Tensor]:
        g, buffers, terms = self.step.gradient(state, context, x, y)
        self._names = list(terms)
        return g, buffers, torch.stack(list(terms.values()))

    def _drift(self, state: State, context: Context) -> Tensor:
        return drift(self.step, state, context)

    def _members(self, who: tuple[int, ...]) -> Members:
        """Return the stacked tensors of some clients. Views are kept, because the same clients often step together
        again.
        """
        members = self._known.get(who) or Members(self.stack, who)
        if members.views:
            self._known[who] = members
        return members


class Members:
    """The stacked tensors of the clients that step together.

    They are views of the stack if the clients are adjacent in it, and otherwise copies whose values are written back.

    Args:
        stack: The stack.
        who: The positions of the clients in it.
    """

    def __init__(self, stack: Stack, who: tuple[int, ...]):
        self.views = who[-1] - who[0] + 1 == len(who)
        self._stack = stack
        self._place = slice(who[0], who[-1] + 1) if self.views else torch.tensor(who, device=stack.device)
        self.leaves = [leaf[self._place] if many else leaf for leaf, many in stack.parts]
        self.state: State = tree_unflatten(self.leaves, stack.spec)[0]

    def mapped(self, function: Callable[..., Any], *further: Tensor) -> Any:
        """Map a function of state, context and further tensors over the fits."""
        spec, number = self._stack.spec, len(self.leaves)

        def flat(*values: Any) -> Any:
            return function(*tree_unflatten(values[:number], spec), *values[number:])

        dims = (*(0 if many else None for _, many in self._stack.parts), *(0 for _ in further))
        return torch.vmap(flat, in_dims=dims)(*self.leaves, *further)

    def give_back(self) -> None:
        """Write the tensors that a step changed back into the stack, if they are copies."""
        if not self.views:
            for whole, part in zip(_changing(self._stack.state), _changing(self.state), strict=True):
                whole[self._place] = part


class Stack:
    """The states and contexts of several fits, stacked along a new first axis.

    Tensors that all fits have in common are not copied.

    Args:
        state: The stacked states.
        context: The stacked contexts.
        common: The ids of the tensors that all fits share.
        number: The number of fits.
    """

    def __init__(self, state: State, context: Context, common: Collection[int], number: int):
        self.state, self.number = state, number
        leaves, self.spec = tree_flatten((state, context))
        self.parts = [(leaf, isinstance(leaf, Tensor) and id(leaf) not in common) for leaf in leaves]
        """All tensors, each with whether it holds one value per fit."""
        self.device = context.counts.device

    def one(self, client: int) -> tuple[State, Context]:
        """Return one fit's tensors, as views.

        Args:
            client: The position of the fit.

        Returns:
            Its state and its context.
        """
        state, context = tree_unflatten([leaf[client] if many else leaf for leaf, many in self.parts], self.spec)
        return state, context

    def unstacked(self) -> list[State]:
        """Return each fit's state, as views."""
        leaves, spec = tree_flatten(self.state)
        of_state = self.parts[: len(leaves)]
        unbound = [leaf.unbind() if many else [leaf] * self.number for leaf, many in of_state]
        return [tree_unflatten(leaves, spec) for leaves in zip(*unbound, strict=True)]


def _stacked(fits: Sequence[Fit]) -> Stack:
    common: set[int] = set()

    def copied(*tensors: Tensor) -> Tensor:
        first = tensors[0]
        if all(tensor is first for tensor in tensors):
            return first.detach().expand(len(tensors), *first.shape).clone(memory_format=torch.contiguous_format)
        return torch.stack([tensor.detach() for tensor in tensors])

    def kept(*tensors: Tensor) -> Tensor:
        if all(tensor is tensors[0] for tensor in tensors):
            same = tensors[0].detach()  # a new object, because the same tensor may be one that changes elsewhere
            common.add(id(same))
            return same
        return copied(*tensors)

    def joined(how: Any, *trees: Tree) -> Tree:
        return combine(trees[0], how, *trees[1:])

    states, contexts = [fit.state for fit in fits], [fit.context for fit in fits]
    state = State(
        joined(copied, *(s.trained for s in states)),
        joined(kept, *(s.rest for s in states)),
        joined(copied, *(s.buffers for s in states)),
        joined(copied, *(s.memory for s in states)),
    )
    context = Context(
        joined(kept, *(c.received for c in contexts)),
        joined(kept, *(c.own for c in contexts)),
        joined(kept, *(c.sent for c in contexts)),
        torch.stack([c.counts for c in contexts]),
        fixed=joined(kept, *(c.fixed for c in contexts)),
    )
    return Stack(state, context, common, len(fits))


def _changing(state: State) -> list[Any]:
    """Return the tensors of a state that a step changes."""
    return tree_flatten((state.trained, state.buffers, state.memory))[0]


class _Batches:
    """The batches of several fits. Each fit goes through its own plan."""

    def __init__(self, fits: Sequence[Fit]):
        self._samples, self._dtype = fits[0].samples, fits[0].dtype
        self._rows: list[Iterator[Tensor]] = []
        self._draws: list[Iterator[Tensor] | None] = []
        for fit in fits:
            rows, draws = fit.rows()
            sizes = list(fit.plan.sizes)
            self._rows.append(iter(torch.split(rows, sizes)))
            self._draws.append(iter(torch.split(draws, sizes)) if draws is not None else None)

    def next(self, who: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the next batch of some clients, of one size: inputs and labels (clients, samples, …)."""
        rows = torch.stack([next(self._rows[client]) for client in who])
        drawn = [next(draws) for client in who if (draws := self._draws[client]) is not None]
        # Prepared in one batch of all: what happens to a sample does not depend on others.
        x = self._samples.prepare(self._samples.x[rows.view(-1)], torch.cat(drawn) if drawn else None, self._dtype)
        return x.view(*rows.shape, *x.shape[1:]), self._samples.y[rows]


class _Measures:
    """The measurements of several fits.

    They are read when all fits are complete, because reading synchronises with the device.
    """

    def __init__(self, plans: Sequence[Plan]):
        self._plans = plans
        self._epochs = [epochs_of(plan) for plan in plans]
        self._ends = [set(itertools.accumulate(map(len, epochs))) for epochs in self._epochs]
        self._done = np.zeros(len(plans), np.int64)
        self._values: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
        """Clients, the step of each, and the measurements."""
        self._drifts: list[tuple[np.ndarray, np.ndarray, Tensor]] = []

    def is_due(self, who: tuple[int, ...]) -> bool:
        """Return whether the next step of some clients ends a local epoch of one of them, so that drifts are due."""
        return any(int(self._done[client]) + 1 in self._ends[client] for client in who)

    def add(self, who: tuple[int, ...], values: Tensor, drifts: Tensor | None) -> None:
        """Add the terms (clients, terms) of one step of some clients and, if they were due, their drifts."""
        clients = np.array(who)
        steps = self._done[clients]
        self._done[clients] += 1
        self._values.append((clients, steps, values))
        if drifts is not None:
            self._drifts.append((clients, steps, drifts))

    def reports(self, names: Sequence[str]) -> list[Report]:
        """Return the report of every fit."""
        shape = len(self._plans), int(self._done.max(initial=0))
        terms, drifts = np.zeros((*shape, len(names))), np.zeros(shape)
        for table, measured in ((terms, self._values), (drifts, self._drifts)):
            for clients, steps, values in measured:
                table[clients, steps] = values.double().cpu().numpy()
        return [
            report_of(plan, [*names, DRIFT], _by_epoch(epochs, terms[client], drifts[client]))
            for client, (plan, epochs) in enumerate(zip(self._plans, self._epochs, strict=True))
        ]


def _by_epoch(epochs: Sequence[Sequence[int]], terms: np.ndarray, drifts: np.ndarray) -> list[list[float]]:
    """Return the mean of each term over an epoch's steps, and the drift at its end."""
    rows: list[list[float]] = []
    start = 0
    for sizes in epochs:
        end = start + len(sizes)
        rows.append([*terms[start:end].mean(0).tolist(), float(drifts[end - 1])])
        start = end
    return rows
