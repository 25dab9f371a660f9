"""Federations in one process whose sites are reached over the in-memory channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import fullrank
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites import Host, Message, SiteSettings, serve
from fullrank.deploy.sites.channel import InMemory

VALUES = {
    "data.clients": 3,
    "data.partition": "iid",
    "data.share": 0.2,
    "data.holdout": 0.2,
    "model": {"name": "cnn", "norm": "batch", "width": 4, "features": 16},
    "train.rounds": 2,
    "train.steps": 3,
    "train.batch_size": 16,
    "engine.name": "serial",
}
"""An experiment of three small clients."""


def experiment(**changes: Any) -> Experiment:
    """The small experiment, with dotted keys changed (a__b stands for a.b)."""
    return Experiment.of({**VALUES, **{key.replace("__", "."): value for key, value in changes.items()}})


def host(folder: Path, client: int, **allow: Any) -> Host:
    """A site with one client's part of the experiment's data, whose states are in a folder."""
    return Host(SiteSettings(allow=allow).within(folder / f"site{client}"), [client])


def node(found: Host) -> Callable[[bytes], bytes]:
    """What a node of the in-memory channel does: bytes in, bytes out."""
    return lambda content: found.answer(Message.from_bytes(content)).to_bytes()


def network(folder: Path, clients: int = 3, **allow: Any) -> InMemory:
    """A channel to one site per client, at the nodes 100, 101, …"""
    return InMemory({100 + k: node(host(folder, k, **allow)) for k in range(clients)})


def deploy(folder: Path, what: Experiment, channel: InMemory, out: str = "deployed", **keys: Any) -> fullrank.Run:
    """Run an experiment over a channel; waits are short."""
    return serve(what, channel, folder / out, **{"wait": 1.0, "patience": 0.2, **keys})


def same_weights(one: Path, other: Path) -> bool:
    """Whether two run directories have the same final weights, to the bit."""
    first, second = (load_file(path / "model.safetensors") for path in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def shared_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the metrics of a round have in a simulation and in a deployment alike."""
    kept = ("round", "clients", "terms", "personal", "personal_accuracy", "bytes_up", "bytes_down", "elements_up")
    return {key: row[key] for key in kept if key in row}
