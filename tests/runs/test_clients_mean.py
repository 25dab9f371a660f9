"""The mean of the clients' weights, evaluated in addition to the global model where the two differ."""

import sys

import pytest
import torch
import torch.nn.functional as F

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.metrics.registry import find_metrics
from fullrank.runs.assemble import assemble
from small import assert_same_bits

SMALL = {"model.name": "mlp", "model.width": 8, "data.clients": 3, "train.rounds": 1, "train.lr": 0.05}
SMALL |= {"method.name": "feddyn", "data.alpha": 1.0}


def scores(model, parts):
    data = parts.federation.data
    with torch.no_grad():
        return model(parts.federation.pipeline(data.test.x, None, torch.float32)), data.test.y


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_it_is_half_way_between_start_and_model_after_one_round_of_all_clients(method):
    """There w = mean + h and h = mean − w0, so the mean is (w + w0) / 2."""
    values = {**SMALL, "method.name": method, "evaluate.metrics": ["balanced-accuracy"]}
    parts = assemble(fullrank.Experiment.of(values))
    start = parts.server.model
    run = fullrank.run(values)
    model, row = run.model().eval(), run.metrics[0]
    logits, y = scores(model, parts)
    assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    model.load_state_dict({name: (w + start[name]) / 2 for name, w in model.state_dict().items()})
    logits, y = scores(model, parts)
    assert row["mean_loss"] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
    assert row["mean_accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()), abs=0.003)
    assert row["mean_loss"] != row["loss"]
    assert 0 < row["mean_balanced_accuracy"] < 1


def test_other_methods_have_none_and_checkpoints_as_before(tmp_path):
    run = fullrank.run({**SMALL, "method.name": "fedavg"}, tmp_path / "run")
    assert not any(key.startswith("mean_") for key in run.metrics[0])
    assert not any("mean" in name for name in assemble(run.experiment).server.state() if name != "mean")
    assert assemble(run.experiment).server.state()["mean"] == {}


def test_it_is_in_summary_and_display_and_can_be_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    _, out, _ = command("run", *options, "--out", "run", capsys=capsys)
    row = fullrank.load_run("run").metrics[0]
    assert f"  of the clients' mean {100 * row['mean_accuracy']:.2f} %  loss " in out
    assert any(line.startswith("loss of the clients' mean ") for line in out.splitlines())
    assert fullrank.load_run("run").summary()["mean_accuracy"]["last"] == row["mean_accuracy"]
    status, out, _ = command("compare", "--runs", "run", "--measure", "mean_accuracy", capsys=capsys)
    assert status == 0
    assert out.strip().startswith("Accuracy of the clients' mean in percent, ")
    assert f"{100 * row['mean_accuracy']:.2f}" in out


def test_the_last_evaluation_and_a_resumed_run_have_it(tmp_path):
    values = {**SMALL, "train.rounds": 3, "evaluate.every": 2}
    whole = fullrank.run(values, tmp_path / "whole")
    assert [("mean_accuracy" in row) for row in whole.metrics] == [False, True, False]
    fullrank.run({**values, "train.rounds": 2}, tmp_path / "half")
    half = fullrank.run(values, tmp_path / "half")
    assert_same_bits(half.model().state_dict(), whole.model().state_dict())
    assert half.summary()["mean_accuracy"] == whole.summary()["mean_accuracy"]
    # a process that ended after the last round and before its evaluation
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "half" / name).unlink()
    again = fullrank.run(values, tmp_path / "half")
    assert again.summary()["mean_accuracy"] == whole.summary()["mean_accuracy"]


def test_only_metrics_whose_key_would_be_the_same_are_rejected(tmp_path, monkeypatch):
    (tmp_path / "meanmetrics.py").write_text(
        "def mean_accuracy(scores, labels):\n    return 1.0\n\n"
        "def mean_distance(scores, labels):\n    return 1.0\n\n"
        "def distance(scores, labels):\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find_metrics(["meanmetrics:mean_distance"])[0].key == "mean_distance"
    for names in (["meanmetrics:mean_accuracy"], ["meanmetrics:mean_distance", "meanmetrics:distance"]):
        with pytest.raises(InputError, match='have "mean_'):
            find_metrics(names)
    sys.modules.pop("meanmetrics")
