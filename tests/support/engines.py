"""Rounds on several engines, compared with the serial one."""

from __future__ import annotations

import pytest
import torch

from fullrank.config.experiment import Experiment
from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.serial import Serial
from fullrank.runs.assemble import assemble


def run_rounds(values, engine_of, rounds=2):
    parts = assemble(Experiment.of(values))
    engine = engine_of(parts.site)
    try:
        outcome = [parts.server.run_round(engine) for _ in range(rounds)]
        if isinstance(engine, Cuda):
            engine.recorded_then = recordings(engine)
    finally:
        engine.close()
    return parts, outcome, engine


def recordings(engine):
    static = [buffers for worker in engine.workers for buffers in worker.recorder.static_buffers.values()]
    return [recording for buffers in static for recording in buffers.recordings.values()]


def distance(one, other):
    return sum(float((one[n].double() - other[n].double()).norm() ** 2) for n in one) ** 0.5


def check_same(values, engine_of, tolerance=1e-9, rounds=2):
    start = assemble(Experiment.of(values)).server.model
    want, rows, _ = run_rounds(values, Serial, rounds)
    got, same, engine = run_rounds(values, engine_of, rounds)
    one, other = want.server.model, got.server.model
    assert distance(one, other) <= tolerance * distance(one, start)
    for a, b in zip(rows, same, strict=True):
        assert [r.client for r in a.results] == [r.client for r in b.results]
        for left, right in zip(a.results, b.results, strict=True):
            assert left.metrics["steps"] == right.metrics["steps"]
            for epoch, again in zip(left.metrics["epochs"], right.metrics["epochs"], strict=True):
                assert again == pytest.approx(epoch, rel=1e-6)
    return engine


def result(run):
    """Everything that must agree: weights, metrics but times and places, and what the clients keep."""
    rows = [{key: value for key, value in row.items() if "seconds" not in key and key != "ray"} for row in run.metrics]
    assembly = run._assembled()
    states = {client: assembly.server.store.get(client) for client in range(assembly.federation.clients)}
    return dict(assembly.server.model), rows, states


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other
