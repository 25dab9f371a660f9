"""Engines on a CUDA device: the same run as on the CPU, within rounding, and resumable to the bit."""

import json

import numpy as np
import pytest
import torch

import fullrank
from fullrank.runs.directory import read_rows
from small import on_its_network

pytestmark = pytest.mark.gpu

BASE = {
    "data.clients": 3,
    "data.augment": ["crop", "flip"],
    "model.norm": "batch",
    "model.width": 8,
    "train.rounds": 1,
    "train.steps": 20,
    "train.batch_size": 16,
    "train.weight_decay": 1e-4,
    "engine.precision": "float64",
}


@pytest.fixture(autouse=True)
def _needs_cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def weights(values, out):
    run = fullrank.run(values, out)
    return {name: value.cpu() for name, value in run.model().state_dict().items()}


OWN = ["stateful:Variates+fedprox", "stateful:OwnNorms", "stateful:Frame"]
SERIAL = ["fedavg", "fedprox+feddecorr", "scaffold", "moon", "fednh", "fedsam", *OWN]


def entries(run):
    """All entries of the global model, personal ones as they were at the start, and each client's own."""
    server = run._assembled().server
    own = {k: (server.store.get(k) or {}).get("model", {}) for k in sorted(server.store.contacts)}
    kept = {f"{client}/{name}": value for client, tree in own.items() for name, value in tree.items()}
    return {name: value.double().cpu() for name, value in {**server.model, **kept}.items()}


def distance(one, other):
    return sum(float((one[n] - other[n]).norm() ** 2) for n in one) ** 0.5


def cases():
    """Every method under the engine for this device; under `serial`, which shares its steps with the CPU's, a few."""
    methods = [*fullrank.methods.available(), "fedprox+feddecorr", *OWN]
    return [*((name, "cuda") for name in methods), *((name, "serial") for name in SERIAL)]


@pytest.mark.parametrize(("method", "engine"), cases())
def test_float64_agrees_with_the_cpu(method, engine, tmp_path):
    """20 steps, odd last batches among them; the difference against the size of the update.

    (No more steps and no larger ones: a feature that is almost constant in a batch makes FedDecorr's gradient multiply
    rounding errors, which then grow from step to step on any device.)
    """
    values = {**on_its_network(BASE, method), "train.rounds": 1, "train.steps": 20, "train.batch_size": 30}
    values |= {"train.lr": 0.003}
    start = entries(fullrank.run({**values, "train.rounds": 1, "train.lr": 1e-15}, tmp_path / "start"))
    cpu = entries(fullrank.run(values, tmp_path / "cpu"))
    gpu = entries(fullrank.run({**values, "engine.device": "cuda", "engine.name": engine}, tmp_path / "gpu"))
    assert distance(cpu, gpu) < 1e-8 * distance(cpu, start)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_captured_step_keeps_optimisers_schedules_and_terms(optimizer, tmp_path):
    values = {**BASE, "train.rounds": 3, "train.optimizer": optimizer, "train.optimizer_state": "keep"}
    values |= {"train.lr_schedule": "cosine", "train.clip_norm": 0.5, "train.label_smoothing": 0.1, "train.lr": 0.002}
    runs = [
        fullrank.run({**values, "engine.device": "cuda", "engine.name": name}, tmp_path / name)
        for name in ("serial", "cuda")
    ]
    one, other = (entries(run) for run in runs)
    assert distance(one, other) < 1e-6 * sum(float(t.norm() ** 2) for t in one.values()) ** 0.5
    for row, same in zip(runs[0].metrics, runs[1].metrics, strict=True):
        for client, twin in zip(row["clients"], same["clients"], strict=True):
            for epoch, again in zip(client["epochs"], twin["epochs"], strict=True):
                assert again == pytest.approx(epoch, rel=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_method_of_the_library_is_captured(precision):
    """Also the test methods of the core: client state, an extra forward, two fits, a side fit."""
    from hook_methods import __name__ as own

    methods = [*fullrank.methods.available(), *(f"{own}:{name}" for name in ("Variates", "Previous", "Sharpness"))]
    for name in [*methods, f"{own}:HeadThenBody", f"{own}:SideModel"]:
        values = {**on_its_network(BASE, name), "engine.device": "cuda", "engine.precision": precision}
        reasons, found = outcome(values)
        assert reasons == [], name
        assert found, name
        assert None not in found


@pytest.mark.parametrize("model", fullrank.models.available())
def test_every_model_of_the_library_is_captured(model, tmp_path):
    values = {"data.clients": 2, "model.name": model, "train.steps": 5, "train.batch_size": 8, "engine.device": "cuda"}
    reasons, found = outcome({**values, **images_for(model, tmp_path), "engine.slots": slots_for(model)})
    assert reasons == []
    assert found
    assert None not in found


def slots_for(model):
    """One where training draws numbers (and for one other network), else two."""
    with torch.device("meta"):
        net = fullrank.models.build(model, 10, 1)
    return 1 if model == "cnn" or any(isinstance(part, torch.nn.Dropout) for part in net.modules()) else 2


def images_for(model, folder):
    """Digits, or larger images for networks that need them."""
    if model not in ("alexnet-bn", "lenet"):
        return {}
    x = np.random.default_rng(0).integers(0, 256, (60, 64, 64, 1), dtype=np.uint8)
    np.savez(folder / "large.npz", x=x, y=np.arange(60) % 10)
    return {"data.name": str(folder / "large.npz"), "data.partition": "iid"}


def outcome(values):
    from fullrank.config.experiment import Experiment
    from fullrank.engine import open_engine
    from fullrank.runs.assemble import assemble

    parts = assemble(Experiment.of(values))
    engine = open_engine("cuda", parts.site, parts.engine.options(2))
    parts.server.run_round(engine)
    static = [buffers for worker in engine.workers for buffers in worker.recorder.static_buffers.values()]
    found = [recording for buffers in static for recording in buffers.recordings.values()]
    engine.close()
    return engine.reasons, found


@pytest.mark.parametrize("method", [*fullrank.methods.available(), *OWN])
def test_one_step_in_float32_agrees_with_the_cpu(method, tmp_path):
    values = {**on_its_network(BASE, method), "train.steps": 1, "engine.precision": "float32"}
    start = entries(fullrank.run({**values, "train.lr": 1e-15}, tmp_path / "start"))
    cpu = entries(fullrank.run(values, tmp_path / "cpu"))
    gpu = entries(fullrank.run({**values, "engine.device": "cuda"}, tmp_path / "gpu"))
    assert distance(cpu, gpu) < 1e-3 * distance(cpu, start)


def test_every_replay_draws_its_own_dropout(tmp_path):
    values = {**BASE, "model.dropout": 0.5, "engine.device": "cuda", "engine.name": "cuda"}
    first, again = (entries(fullrank.run(values, tmp_path / name)) for name in "ab")
    other = entries(fullrank.run({**values, "seed": 1, "data.seed": 0}, tmp_path / "c"))
    assert distance(first, again) < 1e-8 * distance(first, other)


@pytest.mark.parametrize("engine", ["serial", "cuda"])
def test_resume_on_the_device_is_exact(engine, tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        values = {**BASE, "engine.device": "cuda", "engine.name": engine, "method.name": "fedprox+feddecorr"}
        whole = weights({**values, "train.rounds": 3}, tmp_path / "whole")
        weights({**values, "train.rounds": 1}, tmp_path / "parts")
        parts = weights({**values, "train.rounds": 3}, tmp_path / "parts")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    rows = [
        [{k: v for k, v in row.items() if "seconds" not in k} for row in read_rows(tmp_path / n)]
        for n in ("whole", "parts")
    ]
    assert rows[0] == rows[1]
    assert json.loads((tmp_path / "parts" / "environment.json").read_text())["gpu"]
