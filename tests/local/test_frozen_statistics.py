"""`model.freeze` of a BatchNorm layer keeps its statistics too, in every engine."""

import pytest
import torch
from torch import nn

import fullrank as fr
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.cuda.compiled import Forward
from fullrank.engine.cuda.engine import Cuda
from fullrank.runs.assemble import assemble
from small import CLASSES, WIDTH, averaged, blobs, normed, trained_alone

STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def with_statistics():
    """A network whose statistics are neither those it would start with nor those of the data."""
    network = normed(dtype=torch.float32)
    network[1].running_mean += 0.5
    network[1].running_var *= 2
    network[1].num_batches_tracked += 7
    return network


def fitted(freeze, engine="serial", **settings):
    clients = blobs((16, 16, 16, 16), dtype=torch.float32)
    values = {"model.freeze": freeze, **settings}
    run = fr.fit(with_statistics(), clients, "fedavg", rounds=2, batch_size=8, engine=engine, set=values)
    return run.model().state_dict()


def moved(after):
    before = with_statistics().state_dict()
    return {name for name in STATISTICS if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("engine", ["serial", "vectorised", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("freeze", [["1"], ["norm"], ["1.weight", "1.bias"], ["1.running_*", "1.num*"], ["buffers"]])
def test_statistics_of_a_frozen_layer_stay(freeze, engine):
    after = fitted(freeze, engine)
    assert moved(after) == set()
    assert not torch.equal(after["0.weight"], with_statistics().state_dict()["0.weight"])


@pytest.mark.parametrize("freeze", [[], ["1.weight"], ["0"]])
def test_statistics_of_a_layer_that_is_not_frozen_whole_move(freeze):
    assert moved(fitted(freeze)) == STATISTICS


def test_parameters_without_gradient_alone_leave_the_statistics_moving():
    network = with_statistics()
    network[1].requires_grad_(False)
    run = fr.fit(network, blobs(dtype=torch.float32), "fedavg", rounds=1)
    assert moved(run.model().state_dict()) == STATISTICS


def test_a_frozen_layer_computes_as_in_evaluation():
    class Still(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    clients = blobs((16, 12), dtype=torch.float64)
    network = with_statistics().double()
    run = fr.fit(network, clients, "fedavg", rounds=1, batch_size=16, lr=0.1, momentum=0.0, set={"model.freeze": ["1"]})
    network[1].__class__ = Still
    alone = [trained_alone(network, [data], lr=0.1, names=lambda name: name[0] != "1") for data in clients]
    want = averaged(alone, [16, 12])
    for name, value in run.model().state_dict().items():
        torch.testing.assert_close(value, want[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("compile", [False, True])
def test_recorded_steps_leave_frozen_statistics_alone(compile, monkeypatch):
    if compile and torch.version.cuda is not None and not torch.cuda.is_available():
        pytest.skip("this PyTorch compiles in one thread only")
    torch.compiler.reset()  # other tests compile the same function, and it may be compiled eight times only
    monkeypatch.setattr(
        "fullrank.engine.cuda.engine.Forward", lambda network, stats: Forward(network, stats, "aot_eager")
    )
    values = {"model": {"name": "cnn", "norm": "batch", "width": 2, "freeze": ["backbone.1"]}, "data.clients": 2}
    parts = assemble(Experiment.of({**values, "train.batch_size": 100, "engine.precision": "float64"}))
    start = {name: tensor.clone() for name, tensor in parts.server.model.items()}
    engine = Cuda(
        parts.site,
        EngineOptions(slots=1, compile=compile),
        record=lambda step, pool: step,
        devices=(torch.device("cpu"),),
    )
    try:
        parts.server.run_round(engine)
    finally:
        engine.close()
    stayed = {name for name, tensor in parts.server.model.items() if torch.equal(tensor, start[name])}
    assert {name for name in start if name.startswith("backbone.1.")} <= stayed
    assert not {name for name in start if name.startswith("backbone.5.")} & stayed


def test_frozen_statistics_travel_once(tmp_path):
    table = {"model": {"name": "cnn", "norm": "batch", "width": 2}, "data.clients": 3, "train.rounds": 2}
    free = fr.run(table, tmp_path / "free").metrics
    still = fr.run({**table, "model.freeze": ["norm"]}, tmp_path / "still").metrics
    assert [row["bytes_up"] for row in still] < [row["bytes_up"] for row in free]
    assert still[1]["bytes_down"] < still[0]["bytes_down"]


def test_other_buffers_that_are_named_stay_too():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.layer = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            if self.training:
                self.calls.add_(1)
            return self.layer(x)

    clients = blobs(dtype=torch.float32)
    for freeze, calls in (([], 1.0), (["calls"], 0.0)):
        run = fr.fit(Counting(), clients, "fedavg", rounds=1, set={"model.freeze": freeze})
        assert run.model().state_dict()["calls"] == calls
