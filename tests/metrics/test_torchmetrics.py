"""The library's metrics against torchmetrics, and classes of torchmetrics as metrics of a run."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torchmetrics import classification

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.metrics.registry import METRICS, find_metrics

CLASSES = 6
KAPPA = "torchmetrics.classification:MulticlassCohenKappa"
SMALL = {"model.name": "mlp", "model.width": 8, "data.clients": 3, "data.partition": "iid", "train.rounds": 1}
THEIRS = {
    "accuracy": classification.MulticlassAccuracy(CLASSES, average="micro"),
    "balanced-accuracy": classification.MulticlassRecall(CLASSES, average="macro"),
    "macro-f1": classification.MulticlassF1Score(CLASSES, average="macro"),
    "auroc": classification.MulticlassAUROC(CLASSES, average="macro"),
    "top5": classification.MulticlassAccuracy(CLASSES, average="micro", top_k=5),
    "calibration": classification.MulticlassCalibrationError(CLASSES, n_bins=15, norm="l1"),
    "per-class": classification.MulticlassRecall(CLASSES, average="none"),
}


def samples(seed):
    """Scores without ties of equal classes, and labels among which every class occurs."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(CLASSES), rng.choice(CLASSES, 294, p=[0.4, 0.3, 0.1, 0.1, 0.06, 0.04])])
    scores = rng.normal(size=(300, CLASSES)) + 1.5 * np.eye(CLASSES)[y]
    return torch.tensor(scores), torch.tensor(y)


@pytest.mark.parametrize("name", sorted(METRICS.own.keys() - {"loss"}))  # which torchmetrics does not have
@pytest.mark.parametrize("seed", range(3))
def test_every_metric_of_the_library_agrees_with_torchmetrics(name, seed):
    scores, y = samples(seed)
    theirs = THEIRS[name].clone()
    theirs.update(scores.softmax(1), y)
    assert METRICS.own[name].function(scores, y) == pytest.approx(theirs.compute().tolist(), abs=1e-6)


def test_a_class_is_built_for_the_number_of_classes_and_given_all_samples():
    scores, y = samples(0)
    kappa, recalls, calibration = find_metrics(
        [KAPPA, "countedmetrics:Recalls", "torchmetrics.classification:MulticlassCalibrationError"]
    )
    assert kappa.function(scores, y) == pytest.approx(cohen_kappa_score(y, scores.argmax(1)))
    assert recalls.function(scores, y) == pytest.approx(METRICS.own["per-class"].function(scores, y))
    ours = METRICS.own["calibration"].function(scores, y)
    assert calibration.function(scores, y) == pytest.approx(ours, abs=1e-6)
    assert (kappa.lower_is_better, calibration.lower_is_better) == (False, True)
    # scores between 0 and 1 are still scores, not probabilities
    small = scores / 100 + 0.5
    assert calibration.function(small, y) == pytest.approx(METRICS.own["calibration"].function(small, y), abs=1e-6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's folder, with classes of their own."""
    (tmp_path / "countedmetrics.py").write_text(
        """
from torchmetrics.classification import MulticlassRecall

class Recalls(MulticlassRecall):
    is_share = True

    def __init__(self, num_classes):
        super().__init__(num_classes, average="none")

class Wrong:
    lower_is_better = True

    def update(self, probabilities, labels):
        self.wrong = float((probabilities.argmax(1) != labels).double().mean())

    def compute(self):
        return self.wrong
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")


def test_a_run_has_it_in_rows_summary_and_display(capsys):
    values = {**SMALL, "evaluate.metrics": [KAPPA, "countedmetrics:Wrong", "countedmetrics:Recalls"]}
    status, out, _ = command(
        "run", *(w for k, v in values.items() for w in ("--set", f"{k}={json.dumps(v)}")), "--out", "run", capsys=capsys
    )
    assert status == 0
    assert any(line.startswith("MulticlassCohenKappa ") for line in out.splitlines())
    run = fullrank.load_run("run")
    row = run.metrics[0]
    assert -1 <= row["MulticlassCohenKappa"] <= row["accuracy"]
    assert row["Wrong"] == pytest.approx(1 - row["accuracy"])
    assert len(row["Recalls"]) == 10
    assert run.summary()["Wrong"]["best"] == row["Wrong"]


REJECTED = {
    "torchmetrics.classification:MulticlassFBetaScore": "the class needs the argument beta; name a subclass of your own"
    " that needs no argument but num_classes",
    "torchmetrics:CohenKappa": 'needs the argument task; name the class for one task, such as "torchmetrics.'
    'classification:MulticlassCohenKappa"',
    "torchmetrics.classification:MulticlassKappa": 'has no function "MulticlassKappa"',
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_class_that_cannot_be_built_is_rejected_before_the_run(name):
    with pytest.raises(InputError) as caught:
        fullrank.run({**SMALL, "evaluate.metrics": [name]})
    assert REJECTED[name] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_matrix_is_one_sentence():
    metric = find_metrics(["torchmetrics.classification:MulticlassConfusionMatrix"])[0]
    with pytest.raises(InputError, match=r"it returned a tensor of shape \(6, 6\); it must return a number, a list"):
        metric.function(*samples(0))


def test_without_torchmetrics_the_extra_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchmetrics" else found(name))
    with pytest.raises(InputError, match=r"needs torchmetrics: pip install 'fullrank\[metrics\]'$"):
        find_metrics([KAPPA])
