"""Training a classifier on features, by the same loop that clients use."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fullrank.data.augment.pipeline import Pipeline
from fullrank.local.loop import Fit, Samples, train
from fullrank.local.optimiser import memory
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings
from fullrank.local.step import Bound, Context, State, Step
from fullrank.methods._compose import Composition
from fullrank.methods._method import Method
from fullrank.models.entries import select
from fullrank.models.net import Net
from fullrank.models.network import Network
from fullrank.randomness import generator, seeded
from fullrank.trees import Tensors, clone


def fit_head(
    network: Network, model: Mapping[str, Tensor], z: Tensor, y: Tensor, settings: Settings, *, seed: int, round: int
) -> Tensors:
    """Train a copy of a network's classifier on features, with cross-entropy.

    Args:
        network: The network, which is not changed.
        model: Entries of the network, among them those of the classifier, from which training starts.
        z: Features (N, d).
        y: Their labels (N,).
        settings: The settings of the fit.
        seed: The seed of the run. Seed and round determine the batches.
        round: The number of the round.

    Returns:
        The trained entries of the classifier under their names in the network.
    """
    prefix = f"{network.head_name}." if network.head_name else ""
    body = Net(nn.Identity(), z.shape[1], network.num_classes)
    body.head = network.bare_head()
    head = Network(body, "head", "head", network.num_classes, z.shape[1])
    head.load({f"head.{name.removeprefix(prefix)}": model[name] for name in select(network, "head")})
    plan = make_plan(len(z), settings, generator(seed, "head", round))
    trained: Tensors = {name: parameter.requires_grad_() for name, parameter in head.parameters().items()}
    step = Step(Composition(Method()), Bound(head, trained), settings, frozenset(trained), frozenset(trained))
    context = Context(clone(trained), {}, {}, torch.bincount(y, minlength=network.num_classes).to(z.dtype))
    samples = Samples(z, y, torch.arange(len(z), device=z.device), Pipeline())
    with seeded(seed, "head", round, device=z.device), head.mode(train=True):
        state = State(trained, {}, {}, memory(trained, settings))
        train(Fit(step, state, context, samples, plan, z.dtype))
    return {f"{prefix}{name.removeprefix('head.')}": tensor for name, tensor in clone(trained).items()}
