"""The facts about a model, its data and the machine on which the choice of an engine depends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from fullrank.data.federation import Federation
from fullrank.engine.machine import cores
from fullrank.engine.resolve import CHOICES, Facts
from fullrank.local.settings import Schedule
from fullrank.methods import Composition
from fullrank.models.net import Net
from fullrank.models.network import Network
from fullrank.trees import nbytes

DENSE = (nn.Linear, nn.LayerNorm)
"""The types of layers that are as fast vectorised over clients as for one client; convolutions are not."""


def facts_about(
    network: Network,
    composition: Composition,
    federation: Federation,
    schedule: Schedule,
    device: torch.device,
    *,
    clients: int,
    epochs: int,
    steps: int,
    batch_size: int,
    allowed: Sequence[str] = CHOICES,
    own_precision: str = "",
) -> Facts:
    """Return the facts about a run.

    Args:
        network: The network, shaped by the method.
        composition: The method.
        federation: The data, divided among clients.
        schedule: The schedule of the learning rate.
        device: The device on which clients train.
        clients: Number of clients per round.
        epochs: Local epochs.
        steps: Local steps instead of epochs, if above 0.
        batch_size: Samples per local step.
        allowed: The engines that `auto` may choose.
        own_precision: The precision that `auto` keeps on a GPU.
    """
    largest = max((federation.size(client) for client in range(federation.clients)), default=0)
    samples = sum(map(len, federation.parts)) * clients / federation.clients * epochs
    return Facts(
        parameters=sum(parameter.numel() for parameter in network.module.parameters()),
        dtype=str(network.dtype).removeprefix("torch."),
        library_model=isinstance(network.module, Net),
        dense=all(isinstance(network.owner(name), DENSE) for name in network.names),
        client_bytes=client_bytes(network, federation.pipeline.shape(federation.data.input_shape), largest, batch_size),
        obstacle=obstacle(network, composition, schedule),
        clients=clients,
        samples=clients * steps * batch_size if steps else samples,
        rounds=schedule.rounds,
        batch_size=batch_size,
        cores=cores(),
        capability=torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0,
        allowed=tuple(allowed),
        own_precision=own_precision,
    )


def client_bytes(network: Network, input_shape: Sequence[int], largest: int, batch_size: int) -> int:
    """Return how many bytes one client's weights and a batch of its inputs take.

    Args:
        network: The network.
        input_shape: The shape of one prepared input.
        largest: The number of samples of the largest client.
        batch_size: Samples per local step.
    """
    inputs = math.prod(input_shape) * min(batch_size, largest)
    return nbytes(network.parameters()) + inputs * network.dtype.itemsize


def obstacle(network: Network, composition: Composition, schedule: Schedule) -> str:
    """Describe why clients can never be trained as a group.

    Args:
        network: The network.
        composition: The method.
        schedule: The schedule of the learning rate.

    Returns:
        A clause; empty if they can.
    """
    if own := composition.defined("train"):
        return f'the method "{own[0].name}" defines which fits a client runs'
    if network.has_dropout:
        return "the model draws random numbers in its forward, which are each client's own"
    if schedule.by == "step":
        return "the learning rate changes from step to step, and clients have different numbers of steps"
    if {name for name, _ in network.module.named_buffers()} - set(network.buffer_names):
        return "the model has buffers that are no part of its state, which all clients would write into at once"
    return ""
