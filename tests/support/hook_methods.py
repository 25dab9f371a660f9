"""Small methods that between them use every hook; `test_hooks.py` says what must come of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from fullrank import Mean, Method, Sum
from fullrank.methods.fedrepopt import FedRepOpt
from fullrank.trees import combine, norm, pointwise, zeros

# --- State at clients and at the server -------------------------------------------------------------


@dataclass(frozen=True)
class Variates(Method):
    """SCAFFOLD, option II: client state, server state, a broadcast, a drift correction, an upload."""

    broadcast, drift = ("c",), True
    uploads = {"change": "the change of its control variate"}

    def server_state(self, server):
        return {"c": zeros(server.w)}

    def client_state(self, client):
        return {"c": zeros(client.sent["c"])}

    def grad(self, g, b):
        return pointwise(g, lambda g, c, ck: g + (c - ck), b.sent["c"], b.own["c"])

    def after(self, client):
        ck, travel = client.own["c"], client.travel
        new = combine(ck, lambda ck, c, w0, w: ck - c + (w0 - w) / travel, client.sent["c"], client.w0, client.w)
        client.own = {"c": new}
        return {"change": Sum(combine(new, torch.sub, ck))}

    def aggregate(self, server, new, up):
        server.own = {"c": combine(server.own["c"], lambda c, d: c + d / server.clients, up["change"])}
        return new


@dataclass(frozen=True)
class Counting(Method):
    """A client that counts the rounds in which it took part, and where it last did."""

    def client_state(self, client):
        return {"rounds": torch.tensor(0), "last": torch.tensor(-1)}

    def after(self, client):
        client.own = {"rounds": client.own["rounds"] + 1, "last": torch.tensor(client.round)}
        return {}


@dataclass(frozen=True)
class Previous(Method):
    """MOON: a previous model that the client keeps, and the batch's features under it and under the global one."""

    mu: float = 1.0
    temperature: float = 0.5

    def client_state(self, client):
        return {"model": client.model, "has": torch.tensor(0.0)}

    def loss(self, b):
        near = F.cosine_similarity(b.z, b.features(b.w0)) / self.temperature
        far = F.cosine_similarity(b.z, b.features(b.own["model"])) / self.temperature
        return self.mu * (b.own["has"] * F.softplus(far - near)).mean()

    def after(self, client):
        client.own = {"model": client.model, "has": torch.tensor(1.0)}
        return {}


# --- Gradients and criteria -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharpness(Method):
    """FedSAM: the gradient at w + ρ·g/‖g‖."""

    rho: float = 0.05

    def grad(self, g, b):
        step = self.rho / (norm(g) + 1e-12)
        return b.grad_at(combine(g, lambda g, w: w + step * g, b.model))


@dataclass(frozen=True)
class Doubled(Method):
    """Twice the gradient: a correction that is none of drift."""

    def grad(self, g, b):
        return combine(g, lambda g: 2 * g)


@dataclass(frozen=True)
class Prepared(Method):
    """Computed before each fit: how far the model is from the one received, and how rare the client's classes are."""

    def before(self, client):
        moved = combine(client.w, lambda w, w0: 1 + (w - w0).abs(), client.w0)
        return {"moved": moved, "rare": 1 / (1 + client.counts)}

    def loss(self, b):
        return (b.fixed["rare"][b.y] * b.logits.square().sum(1)).mean() / 10

    def grad(self, g, b):
        return pointwise(g, torch.mul, b.fixed["moved"])


@dataclass(frozen=True)
class Anchored(Method):
    """Pulled to where the fit started: the entries themselves, which then train."""

    def before(self, client):
        return {"start": client.network and client.model}

    def grad(self, g, b):
        return {name: slope + (b.model[name] - b.fixed["start"][name]) for name, slope in g.items()}


@dataclass(frozen=True)
class Sometimes(Method):
    """Only every other client has something computed."""

    def before(self, client):
        return {"times": torch.tensor(3.0, dtype=torch.float64)} if client.id % 2 else {}

    def loss(self, b):
        return b.base * b.fixed["times"] if "times" in b.fixed else b.base * 0


@dataclass(frozen=True)
class PreparedTwice(Prepared):
    """In two fits, of which the second begins where the first ended."""

    def train(self, client):
        client.fit(steps=4)
        client.fit(steps=4)


@dataclass(frozen=True)
class Tripled(FedRepOpt):
    """FedRepOpt three times as fast."""

    def grad(self, g, b):
        return combine(super().grad(g, b), lambda g: 3 * g)


@dataclass(frozen=True)
class Overheard(Method):
    """Uploads its weights once more, as they are; the server takes their mean for the model."""

    def after(self, client):
        return {"again": Mean(client.w, client.n)}

    def aggregate(self, server, new, up):
        return up["again"]


@dataclass(frozen=True)
class Balanced(Method):
    """Balanced softmax: the client's class counts in a criterion of its own."""

    def criterion(self, b):
        return F.cross_entropy(b.logits + b.counts.clamp(min=1).log(), b.y)


@dataclass(frozen=True)
class Shrink(Method):
    """A loss on the weights themselves."""

    strength: float = 0.1

    def loss(self, b):
        return self.strength * sum(w.square().sum() for w in b.w.values())


# --- Fits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadThenBody(Method):
    """FedRep: a personal head, trained first, then the rest."""

    personal = ("head",)
    head_epochs: int = 2

    def train(self, client):
        client.fit("head", epochs=self.head_epochs)
        client.fit("backbone")


@dataclass(frozen=True)
class SideModel(Method):
    """Ditto: a second model, trained by a side fit near the global one."""

    lam: float = 0.5

    def client_state(self, client):
        return {"v": client.model}

    def near(self, b):
        return self.lam / 2 * sum((w - b.w0[name]).square().sum() for name, w in b.w.items())

    def train(self, client):
        client.fit()
        client.own = {"v": client.fit(model=client.own["v"], loss=self.near)}

    def personalise(self, client):
        return client.own["v"]


@dataclass(frozen=True)
class OwnTerm(Method):
    """A fit with a term that holds a tensor of its own: it is another function in every round."""

    def train(self, client):
        factor = torch.tensor(0.1, dtype=client.network.dtype)
        client.fit(loss=lambda b: factor * b.base)


@dataclass(frozen=True)
class Memory(Method):
    """A fit whose further loss and criterion read the method's own state and broadcast."""

    broadcast = ("scale",)

    def server_state(self, server):
        return {"scale": torch.tensor(3.0, dtype=server.net.dtype)}

    def client_state(self, client):
        return {"power": torch.tensor(2.0, dtype=client.network.dtype)}

    def base(self, b):
        return b.sent["scale"] * F.cross_entropy(b.logits, b.y)

    def term(self, b):
        return b.own["power"] * b.logits.square().mean()

    def train(self, client):
        client.fit(criterion=self.base, loss=self.term)


@dataclass(frozen=True)
class FineTuned(Method):
    """A personal model by fits: the head from scratch, with an optimiser of its own."""

    steps: int = 2

    def personalise(self, client):
        client.fit("head", steps=self.steps, lr=0.3, momentum=0.5, stats="freeze")


# --- Entries and networks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnNorm(Method):
    """FedBN."""

    personal = ("norm",)


@dataclass(frozen=True)
class OwnHead(Method):
    """A personal head, trained with all the rest."""

    personal = ("head",)


class FrameHead(nn.Module):
    """A frozen frame (C × C) behind a trained projection; names the normalised projection `mu`."""

    def __init__(self, width: int, classes: int, dtype: torch.dtype):
        super().__init__()
        self.projection = nn.Linear(width, classes, bias=False, dtype=dtype)
        self.frame = nn.Parameter(torch.eye(classes, dtype=dtype) - 1 / classes, requires_grad=False)

    def forward(self, z):
        mu = F.normalize(self.projection(z))
        return mu @ self.frame, {"mu": mu}


@dataclass(frozen=True)
class Frame(Method):
    """FedETF: an own head, frozen in part, whose extras a loss reads."""

    pull: float = 0.1

    def head(self, net):
        return FrameHead(net.feature_dim, net.num_classes, net.dtype)

    def loss(self, b):
        return self.pull * b.mu.square().mean()


@dataclass(frozen=True)
class MovingFrame(Frame):
    """FedNH: the server doubles the frozen frame after some rounds; clients say what they see."""

    name = "movingframe"
    after_rounds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)

    def server_state(self, server):
        return {"seen": zeros(self._frame(server.net, server.model))}

    def after(self, client):
        return {"seen": Sum(self._frame(client.network, client.model))}

    def aggregate(self, server, new, up):
        server.own = {"seen": up["seen"]}
        if server.round not in self.after_rounds:
            return new
        return {**new, **combine(self._frame(server.net, server.model), lambda frame: 2 * frame)}

    def _frame(self, net, model):
        name = f"{net.head_name}.frame"
        return {name: model[name]}


@dataclass(frozen=True)
class Projection(Method):
    """MOON's projection: a neck that changes the width of the representation."""

    width: int = 4

    def model(self, net):
        net.neck = nn.Sequential(net.neck, nn.Linear(net.feature_dim, self.width), nn.Tanh())
        return net


@dataclass(frozen=True)
class Prototypes(Method):
    """FedProto: no weight travels, class sums do."""

    personal, broadcast = ("all",), ("sums", "counts")

    def server_state(self, server):
        sums = torch.zeros(server.net.num_classes, server.net.feature_dim, dtype=server.net.dtype)
        return {"sums": sums, "counts": sums[:, 0]}

    def after(self, client):
        sums, counts = client.prototypes()
        return {"prototypes": Sum({"sums": sums, "counts": counts})}

    def aggregate(self, server, new, up):
        server.own = up["prototypes"]
        return new


# --- The server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerMomentum(Method):
    """FedAvgM, m ← ρm + (1−ρ)Δ, w ← w + m, written so that ρ = 0 is FedAvg to the bit."""

    rho: float = 0.5

    def server_state(self, server):
        return {"m": zeros(server.w)}

    def aggregate(self, server, new, up):
        m, rho = server.own["m"], self.rho
        step = combine(new, torch.sub, server.w)
        server.own = {"m": combine(m, lambda m, d: rho * m + (1 - rho) * d, step)}
        return combine(new, lambda new, m, d: new + rho * (m - d), m, step)


@dataclass(frozen=True)
class Even(Method):
    """Every client counts the same."""

    def weight(self, client):
        return 1.0


@dataclass(frozen=True)
class Travelled(Method):
    """FedNova: clients make id + 1 steps, and are weighed by how far they travelled."""

    def train(self, client):
        client.fit(steps=client.id + 1)

    def weight(self, client):
        return client.n / client.travel

    def after(self, client):
        far = torch.tensor([client.travel, 1 / client.travel], dtype=torch.float64)
        return {"far": Mean({"a": far}, client.n)}

    def aggregate(self, server, new, up):
        share = up["far"]["a"].prod()
        return combine(server.w, lambda w, mean: torch.lerp(w, mean, share), new)


@dataclass(frozen=True)
class Calibrated(Method):
    """CCVR without its sampling: class statistics of all clients after the last round, and a head fitted to means."""

    epochs: int = 5
    answers: ClassVar[list[Any]] = []

    def moments(self, client):
        z, y = client.features()
        member = (y[:, None] == torch.arange(client.network.num_classes)).to(z.dtype)
        sums, counts = client.prototypes()
        return {"moments": Sum({"n": counts, "z": sums, "zz": torch.einsum("nc,nd,ne->cde", member, z, z)})}

    def finish(self, server):
        total = server.ask(self.moments)["moments"]
        self.answers.append(total)
        means = total["z"] / total["n"][:, None]
        classes = torch.arange(server.net.num_classes)
        server.w = server.fit_head(means, classes, epochs=self.epochs, lr=0.2, momentum=0.9)


# --- The classifier, a teacher, and what is sent of the weights ----------------------------------------


@dataclass(frozen=True)
class Distils(Method):
    """Distils what the received model says of classes into the client's, and classifies noisy representations."""

    beta: float = 1.0
    neutral = {"beta": 0.0}

    def loss(self, b):
        teacher = b.logits_at(b.w0).softmax(1)
        noisy = b.head(b.z + 0.1 * b.fixed["noise"])
        return self.beta * (F.kl_div(b.logits.log_softmax(1), teacher, reduction="batchmean") + noisy.square().mean())

    def before(self, client):
        noise = client.generator("noise").standard_normal(client.network.feature_dim)
        return {"noise": torch.from_numpy(noise).to(client.counts.device, client.network.dtype)}


@dataclass(frozen=True)
class TopK(Method):
    """Sends the largest changes of the weights and their places; what was left out is added the next time."""

    sends = "the largest changes of the weights, BatchNorm statistics, the number of samples"
    keeps = "the changes that it has not sent yet, as large as the weights"
    share: float = 0.1

    def client_state(self, client):
        return {"left": zeros(client.w0)}

    def upload(self, client, tree):
        change = {name: tree[name] - w0 + client.own["left"][name] for name, w0 in client.w0.items()}
        flat = torch.cat([value.flatten() for value in change.values()])
        places = flat.abs().topk(max(1, int(self.share * len(flat)))).indices
        left = flat.index_fill(0, places, 0).split([value.numel() for value in change.values()])
        client.own = {
            "left": {name: part.view_as(value) for (name, value), part in zip(change.items(), left, strict=True)}
        }
        return {"places": places, "values": flat[places]}

    def receive(self, server, tree):
        sizes = [value.numel() for value in server.w.values()]
        flat = tree["values"].new_zeros(sum(sizes)).index_put((tree["places"],), tree["values"])
        parts = zip(server.w.items(), flat.split(sizes), strict=True)
        return {name: value + part.view_as(value) for (name, value), part in parts}
