"""The reference engine on a CUDA device: the same run as on the CPU, within rounding, and resumable to the bit."""

import json

import pytest
import torch

import fullrank
from fullrank.rundir import read_rows

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


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddecorr", "fedprox+feddecorr"])
def test_float64_agrees_with_the_cpu(method, tmp_path):
    values = {**BASE, "method.name": method}
    start = fullrank.models.build("cnn", 10, 1, norm="batch", width=8).state_dict()
    cpu = weights(values, tmp_path / "cpu")
    gpu = weights({**values, "engine.device": "cuda"}, tmp_path / "gpu")
    assert cpu.keys() == gpu.keys() == start.keys()
    difference = sum(float((cpu[n].double() - gpu[n].double()).norm() ** 2) for n in cpu) ** 0.5
    size = sum(float(cpu[n].double().norm() ** 2) for n in cpu) ** 0.5
    assert difference < 1e-8 * size


def test_resume_on_the_device_is_exact(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        values = {**BASE, "engine.device": "cuda", "method.name": "fedprox+feddecorr"}
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
