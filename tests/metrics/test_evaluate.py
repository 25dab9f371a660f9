"""Evaluation: of one model, over clients, and at no cost to the run's arithmetic."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fullrank
from fullrank import Method
from fullrank.data import Pipeline, load_dataset
from fullrank.metrics.evaluate import evaluate, over_clients

VALUES = {
    "data.clients": 4,
    "data.holdout": 0.3,
    "model.width": 4,
    "model.features": 16,
    "model.norm": "batch",
    "model.dropout": 0.1,
    "train.rounds": 2,
    "train.epochs": 2,
    "train.lr": 0.05,
}


def test_accuracy_and_loss_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 3.0]])
    y = torch.tensor([0, 1, 1, 0])
    found = evaluate(lambda x, _: x, logits, y, fullrank.data.Pipeline(), torch.float32, batch_size=3)
    # right: 0 by 2 > 0, 1 by 1 > 0, not the third, and the first class on a tie
    assert found["accuracy"] == 0.75
    losses = [np.log1p(np.exp(-2)), np.log1p(np.exp(-1)), np.log1p(np.exp(1)), np.log(2)]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_over_clients_by_hand():
    values, samples = [0.2, 0.4, 0.9, 0.5], [10, 20, 30, 40]
    found = over_clients(values, samples)
    assert found["mean"] == pytest.approx(0.5)
    assert found["weighted"] == pytest.approx((2 + 8 + 27 + 20) / 100)
    assert found["std"] == pytest.approx(np.sqrt((0.09 + 0.01 + 0.16 + 0) / 4))
    assert found["worst_decile"] == 0.2
    assert found["clients"] == 4
    # the worst tenth of 21 clients are three
    assert over_clients(np.arange(21) / 20, [1] * 21)["worst_decile"] == pytest.approx(0.05)


def test_personal_accuracy_is_that_of_the_models_themselves(tmp_path):
    """Recomputed from the run directory: the received model on each hold-out, prepared by hand."""
    run = fullrank.run(VALUES, tmp_path)
    personal = run.summary()["personal"]
    federation = run._assembled().federation
    model, images = run.model(), federation.data.train
    accuracies = []
    for index in federation.holdouts:
        x = (images.x[index].float() / 255 - 0.306) / 0.3762
        accuracies.append(float((model(x).argmax(1) == images.y[index]).double().mean()))
    assert personal["received"]["mean"] == pytest.approx(np.mean(accuracies), abs=1e-9)
    assert personal["received"]["clients"] == 4
    assert personal["local"]["mean"] > personal["received"]["mean"]
    assert "personalised" not in personal


def test_evaluating_changes_nothing_of_the_run(tmp_path):
    runs = {
        when: fullrank.run({**VALUES, "evaluate.personal": when}, tmp_path / when) for when in ("never", "end", "every")
    }
    weights = {when: run.model().state_dict() for when, run in runs.items()}
    for when in ("end", "every"):
        assert all(torch.equal(weights["never"][n], weights[when][n]) for n in weights["never"])
    assert "it was not asked for" in runs["never"].summary()["absent"]["personal"]
    assert "personal" not in runs["end"].metrics[0]
    for row in runs["every"].metrics:
        assert row["personal"].keys() == {"received", "local"}
        assert row["personal_accuracy"] == row["personal"]["local"]["mean"]
    # traffic of the evaluation is counted apart
    assert [r["bytes_down"] for r in runs["never"].metrics] == [r["bytes_down"] for r in runs["every"].metrics]


def test_clients_are_evaluated_after_training_as_in_the_last_round(tmp_path):
    """The cosine schedule would be at 0 one round later."""
    run = fullrank.run({**VALUES, "train.lr_schedule": "cosine", "train.epochs": 5}, tmp_path)
    personal = run.summary()["personal"]
    assert personal["local"]["mean"] > personal["received"]["mean"]


def test_without_a_holdout_it_is_absent_with_the_reason(tmp_path):
    run = fullrank.run({**VALUES, "data.holdout": 0.0}, tmp_path)
    assert "personal" not in run.summary()
    assert "hold-out" in run.summary()["absent"]["personal"]


@dataclass(frozen=True)
class Flips(Method):
    """Personalises by training the head only, and predicts the class that scores lowest."""

    upside_down: bool = False

    def personalise(self, client):
        client.fit("head", epochs=3, lr=0.1)

    def predict(self, b):
        return -b.logits if self.upside_down else b.logits


def test_personalise_and_predict_are_used(tmp_path):
    clients = []
    rng = np.random.default_rng(0)
    for k in range(3):
        y = torch.tensor(rng.integers(0, 2, 60))
        x = torch.tensor(rng.normal(size=(60, 4)), dtype=torch.float32) + (2 * y[:, None] - 1) * (1 if k else -1)
        clients.append((x, y))
    from fullrank.config.experiment import Experiment
    from fullrank.data import DataSet, Pipeline, Split
    from fullrank.data.federation import Federation
    from fullrank.engine.serial import Serial
    from fullrank.runs.assemble import assemble

    x, y = (torch.cat([c[i] for c in clients]) for i in (0, 1))
    ranges = [np.arange(60 * k, 60 * (k + 1)) for k in range(3)]
    data = DataSet("given", Split(x, y), None, ("0", "1"))
    federation = Federation(data, [r[:40] for r in ranges], [r[40:] for r in ranges], np.arange(0), Pipeline())
    found = {}
    for upside_down in (False, True):
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        torch.manual_seed(0)
        for p in net.parameters():
            torch.nn.init.normal_(p)
        experiment = Experiment(model={"name": "given"}, data={"name": "given", "partition": "given", "clients": 3})
        parts = assemble(experiment, federation=federation, module=net, method=Flips(upside_down))
        found[upside_down], _, _ = parts.server.evaluate_clients(Serial(parts.site))
    for client in range(3):
        for stage in ("received", "local", "personalised"):
            right, wrong = found[False][client][stage], found[True][client][stage]
            assert right["samples"] == 20
            # with two classes the lowest score is the other class
            assert right["accuracy"] + wrong["accuracy"] == pytest.approx(1.0)
        assert found[False][client]["personalised"]["accuracy"] >= found[False][client]["received"]["accuracy"]


def test_unseen_clients_never_train_and_are_evaluated_separately(tmp_path):
    values = {"data.clients": 6, "data.unseen": 0.34, "data.holdout": 0.3, "train.rounds": 4, "train.participation": 2}
    run = fullrank.run(values, tmp_path)
    unseen = set(fullrank.runs.directory.read_json(tmp_path / "partition.json")["unseen"])
    assert len(unseen) == 2
    trained = {client["client"] for row in run.metrics for client in row["clients"]}
    assert not trained & unseen
    summary = run.summary()
    assert summary["unseen"]["received"]["clients"] == 2
    assert summary["personal"]["received"]["clients"] == 4
    assert run._assembled().server.clients == 4
    with pytest.raises(fullrank.errors.InputError, match=r"data\.unseen = 0\.9"):
        fullrank.run({**values, "data.unseen": 0.95}, tmp_path / "other")


def test_measures_are_in_rows_and_the_summary_names_the_validated_round(tmp_path):
    asked = ["balanced-accuracy", "macro-f1", "auroc", "top5", "calibration", "per-class"]
    values = {"data.clients": 3, "data.validation": 0.1, "train.rounds": 3, "evaluate.metrics": asked}
    run = fullrank.run(values, tmp_path)
    last, summary = run.metrics[-1], run.summary()
    assert {"balanced_accuracy", "macro_f1", "auroc", "top5", "calibration", "per_class"} <= last.keys()
    assert len(last["per_class"]) == 10
    best = max(run.metrics, key=lambda row: row["validation_accuracy"])
    assert summary["validated_round"] == best["round"]
    assert summary["auroc"]["validated"] == best["auroc"]
    assert summary["calibration"]["best"] == min(row["calibration"] for row in run.metrics)


def test_accuracy_by_domain_and_its_plain_mean():
    y = torch.tensor([0, 1, 0, 1, 1])
    scores = torch.eye(2)[[0, 1, 0, 0, 0]]
    found = evaluate(lambda x, _: x, scores, y, Pipeline(), torch.float32, (), torch.tensor([0, 0, 1, 1, 1]))
    assert found["accuracy_by_domain"] == {"0": 1.0, "1": pytest.approx(1 / 3)}
    assert found["domain_accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy"] == pytest.approx(3 / 5)


def test_other_measures_on_hold_outs_over_the_clients_that_have_them(tmp_path):
    values = {**VALUES, "evaluate.metrics": ["accuracy", "balanced-accuracy", "auroc"], "data.holdout": 0.3}
    values |= {"data.partition": "pathological", "data.classes": 1, "data.clients": 10}
    run = fullrank.run({**values, "train.rounds": 1}, tmp_path)
    local = run.summary()["personal"]["local"]
    assert local["balanced_accuracy"]["clients"] == local["clients"]
    assert local["balanced_accuracy"]["mean"] == pytest.approx(local["mean"])  # of one class: its recall
    assert "auroc" not in local  # which a client of one class has not
    values |= {"data.partition": "iid", "data.clients": 3}
    several = fullrank.run({**values, "train.rounds": 1}, tmp_path / "iid").summary()["personal"]["local"]
    assert several["auroc"]["clients"] == 3
    assert 0 <= several["auroc"]["mean"] <= 1


def test_the_table_of_clients_has_the_calibration_of_the_global_model_by_bins(tmp_path):
    few = {"data.clients": 3, "model.name": "mlp", "train.rounds": 2, "evaluate.metrics": ["calibration"]}
    run = fullrank.run({**few, "data.holdout": 0.2}, tmp_path / "run")
    whole, *others = fullrank.load_run(tmp_path / "run").kept()
    assert all("calibration" not in row for row in others)
    bins = whole["calibration"]
    split = load_dataset("digits").test
    with torch.no_grad():
        pipeline = run._assembly.federation.pipeline
        p = run.model()(pipeline(split.x, None, torch.float32)).double().softmax(1).numpy()
    top, right = p.max(1), p.argmax(1) == split.y.numpy()
    for j in range(15):
        inside = (top > j / 15) & (top <= (j + 1) / 15)
        assert bins["counts"][j] == inside.sum()
        for name, values in (("confidence", top), ("accuracy", right)):
            assert bins[name][j] == (pytest.approx(values[inside].mean(), rel=1e-5) if inside.any() else None)
    gaps = [
        n * abs(a - c) for n, a, c in zip(*(bins[k] for k in ("counts", "accuracy", "confidence")), strict=True) if n
    ]
    assert sum(gaps) / 360 == pytest.approx(run.metrics[-1]["calibration"], rel=1e-6)
