"""Methods that keep something between rounds, or that fail on demand. Named in experiments as `stateful:Class`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fullrank import Mean, Method, Sum
from fullrank.trees import combine, zeros


@dataclass(frozen=True)
class Variates(Method):
    """SCAFFOLD's control variates at clients and server, and a counter and an empty tree."""

    broadcast, drift = ("c",), True

    def server_state(self, server):
        return {"c": zeros(server.w), "rounds": torch.tensor(0)}

    def client_state(self, client):
        return {"c": zeros(client.sent["c"]), "seen": {"rounds": torch.tensor(0), "nothing": {}}}

    def grad(self, g, b):
        return combine(g, lambda g, c, ck: g + (c - ck), b.sent["c"], b.own["c"])

    def after(self, client):
        seen, travel = client.own["seen"], client.travel
        new = combine(
            client.own["c"],
            lambda ck, c, w0, w: ck - c + (w0 - w) / travel,
            client.sent["c"],
            client.w0,
            client.w,
        )
        change = combine(new, torch.sub, client.own["c"])
        client.own = {"c": new, "seen": {"rounds": seen["rounds"] + 1, "nothing": {}}}
        return {"change": Sum(change)}

    def aggregate(self, server, new, up):
        moved = combine(server.own["c"], lambda c, d: c + d / server.clients, up["change"])
        server.own = {"c": moved, "rounds": server.own["rounds"] + 1}
        return new


@dataclass(frozen=True)
class OwnNorms(Method):
    """Norm layers that never leave a client."""

    personal = ("norm",)


@dataclass(frozen=True)
class OwnHead(Method):
    """A classifier that never leaves a client, which a last local fit adapts."""

    personal = ("head",)

    def personalise(self, client):
        client.fit("head", steps=2)


@dataclass(frozen=True)
class Momentum(Method):
    """A server that keeps its last step and takes a share of it again."""

    share: float = 0.5

    def server_state(self, server):
        return {"step": zeros(server.w)}

    def aggregate(self, server, new, up):
        step = combine(new, lambda new, w, m: new - w + self.share * m, server.w, server.own["step"])
        server.own = {"step": step}
        return combine(server.w, torch.add, step)


@dataclass(frozen=True)
class Frame(Method):
    """A frozen classifier that the server changes once, after the first round."""

    def head(self, net):
        head = nn.Linear(net.feature_dim, net.num_classes, dtype=net.dtype)
        return head.requires_grad_(False)

    def aggregate(self, server, new, up):
        if server.round > 0:
            return new
        return {**new, "head.weight": server.model["head.weight"].roll(1, 0) * 2}


@dataclass(frozen=True)
class Calibrated(Method):
    """After the last round asks every client for class sums of z, and moves the classifier along their mean."""

    def sums(self, client):
        sums, counts = client.prototypes()
        return {"sums": Sum({"z": sums, "n": counts})}

    def finish(self, server):
        total = server.ask(self.sums)["sums"]
        means = total["z"] / total["n"].clamp(min=1)[:, None]
        server.w = {"head.weight": server.w["head.weight"] + means}


@dataclass(frozen=True)
class Failing(Method):
    """One client fails in one round (-1: in every), in one of several ways; all clients count their rounds."""

    who: int = 1
    when: int = 1
    how: Literal["raise", "nan", "shape", "type", "missing", "weight"] = "raise"

    def client_state(self, client):
        return {"rounds": torch.tensor(0)}

    def _now(self, client, how):
        return self.how == how and client.id == self.who and self.when in (-1, client.round)

    def train(self, client):
        client.own = {"rounds": client.own["rounds"] + 1}
        client.fit()
        if self._now(client, "raise"):
            raise KeyError("the disk at this client is full")
        if self._now(client, "nan"):
            client.network.load({"head.weight": torch.full_like(client.model["head.weight"], float("nan"))})

    def after(self, client):
        if self._now(client, "missing"):
            return {}
        size = 3 if self._now(client, "shape") else 2
        tree = {"t": torch.zeros(size)}
        return {"extra": Mean(tree) if self._now(client, "type") else Sum(tree)}

    def weight(self, client):
        return float("inf") if self._now(client, "weight") else client.n


@dataclass(frozen=True)
class AllFail(Method):
    """Every client fails, from one round on."""

    when: int = 1

    def train(self, client):
        if client.round >= self.when:
            raise OSError(f"client {client.id} has no power")
        client.fit()
