"""Small networks and data that several test files share, and their training in plain torch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullrank import Method, Run, methods
from fullrank.config.experiment import Experiment, merged, nested
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import divide_by_sizes
from fullrank.runs.assemble import Assembly, assemble
from fullrank.testing import check as check_method

WIDTH, CLASSES, HIDDEN = 5, 3, 6


def blobs(sizes: Sequence[int] = (12, 9, 7), seed: int = 0, dtype: torch.dtype = torch.float64) -> list[tuple]:
    """One (x, y) a client: classes around three points, in other shares at every client, each class present."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, WIDTH)) * 1.5
    clients = []
    for size in sizes:
        y = rng.choice(CLASSES, size, p=rng.dirichlet(np.ones(CLASSES)))
        y[:CLASSES] = np.arange(CLASSES)[: len(y)]
        x = centres[y] + rng.normal(size=(size, WIDTH))
        clients.append((torch.tensor(x, dtype=dtype), torch.tensor(y)))
    return clients


def normed(seed: int = 0, dtype: torch.dtype = torch.float64, hidden: int = HIDDEN) -> nn.Sequential:
    """A perceptron with BatchNorm, whose last layer is its classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(WIDTH, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        return nn.Sequential(*layers).to(dtype)


def plain(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A perceptron without norm layers or dropout: its z is the same in training and in evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).to(dtype)


class Line(nn.Module):
    """One weight: logits = w · x[0]; the rest of x is for the criterion."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.head.weight, start)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, :1])


@dataclass(frozen=True)
class Quadratic(Method):
    """½(w − a)² of a `Line` on samples (1, a)."""

    def criterion(self, b):
        return 0.5 * (b.logits[:, 0] - b.x[:, 1]).square().mean()


@dataclass(frozen=True)
class Downhill(Method):
    """−w of a `Line`: a gradient of −1 everywhere."""

    def criterion(self, b):
        return -b.logits.mean()


def parabolas(a: Sequence[float], sizes: Sequence[int]) -> list[tuple]:
    """Clients of a `Line` whose samples all say (1, a_k)."""
    return [
        (torch.tensor([[1.0, centre]] * size, dtype=torch.float64), torch.zeros(size, dtype=torch.int64))
        for centre, size in zip(a, sizes, strict=True)
    ]


def the_weight(run: Run) -> float:
    """The one weight of a trained `Line`."""
    return float(run.model().head.weight.detach())


def on_its_network(values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Settings with a method of this name, and with the network that it is tried on where not any will do."""
    wanted = getattr(methods.available().get(method), "tried_on", {})
    rest = {key: value for key, value in values.items() if not wanted or key.split(".")[0] != "model"}
    return {**rest, "method.name": method, **({"model": dict(wanted)} if wanted else {})}


def put_together(
    module: nn.Module, clients: Sequence[tuple], method: Method, settings: Mapping[str, Any] | None = None
) -> Assembly:
    """The parts of a run that `fit` would put together."""
    data = DataSet(
        "given",
        Split(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])),
        None,
        tuple(str(c) for c in range(int(max(y.max() for _, y in clients)) + 1)),
    )
    federation = divide_by_sizes(data, Pipeline(), [len(y) for _, y in clients])
    table = {"model": {"name": "given"}, "method": {"name": f"given:{method.name}"}}
    experiment = Experiment(**merged(table, nested(settings or {})))
    return assemble(experiment, federation=federation, module=module, method=method)


def trained_by_torch(
    module: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    names: Callable[[str], bool] = lambda name: True,
    decayed: Callable[[str], bool] = lambda name: True,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda module, x, y: F.cross_entropy(module(x), y),
) -> nn.Module:
    """A copy of a module after one step of `torch.optim.SGD` on each batch."""
    module = copy.deepcopy(module).train()
    chosen = {name: p for name, p in module.named_parameters() if names(name)}
    groups = [
        {"params": [p for name, p in chosen.items() if decayed(name)], "weight_decay": weight_decay},
        {"params": [p for name, p in chosen.items() if not decayed(name)], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD([group for group in groups if group["params"]], lr=lr, momentum=momentum)
    for x, y in batches:
        optimiser.zero_grad()
        loss(module, x, y).backward()
        optimiser.step()
    return module


def averaged(modules: Sequence[nn.Module], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of floating entries in float64 NumPy, the maximum of counters."""
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    states = [module.state_dict() for module in modules]
    result = {}
    for name, first in states[0].items():
        values = np.stack([state[name].double().numpy() for state in states])
        whole = not first.is_floating_point()
        result[name] = torch.tensor(values.max(0) if whole else np.tensordot(shares, values, 1)).to(first.dtype)
    return result


def assert_close(got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float = 1e-10) -> None:
    """The same names, and values that differ by no more than the tolerance."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name].detach(), value.detach(), rtol=tolerance, atol=tolerance, msg=name)


def assert_same_bits(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    """The same names, and values that are equal to the last bit."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        assert torch.equal(got[name], value), f"{name} differs by {(got[name] - value).abs().max()}"


def softmax(a):
    """The softmax of each row of an array."""
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def kept(run, client):
    """What a client keeps after a run."""
    return run._assembly.server.store.get(client)


def server_state(run):
    """What the methods keep at the server after a run."""
    return run._assembly.server.state()["own"]


@functools.cache
def exchanged(name):
    """The numbers of elements that a method exchanges, in the check of the library."""
    done = check_method(name, only=("exchange",))
    assert done.results == {"exchange": "holds"}
    return done.exchange


def rerun(step, pool):
    """What stands for a capture here: warm-up steps, whose traces the engine must wipe out, then the step itself."""
    step()
    step()
    return step
