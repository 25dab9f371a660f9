"""Measures of classifiers, against worked examples and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from fullrank.metrics import measures

Y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
PREDICTED = torch.eye(3)[[0, 0, 0, 1, 1, 1, 2]]


def test_worked_examples():
    assert measures.balanced_accuracy(PREDICTED, Y) == pytest.approx(0.916666667)
    assert measures.macro_f1(PREDICTED, Y) == pytest.approx(0.885714286)
    assert measures.top(1, PREDICTED, Y) == pytest.approx(0.857142857)
    assert measures._area(torch.tensor([0.7, 0.6, 0.4, 0.3, 0.2, 0.5, 0.1]), Y == 0) == pytest.approx(0.833333333)
    score = torch.tensor([0.2, 0.3, 0.4, 0.5, 0.6, 0.3, 0.2])
    assert measures._area(score, torch.tensor([0, 0, 0, 0, 1, 1, 0]).bool()) == pytest.approx(0.75)
    confidence, right = torch.tensor([0.95, 0.92, 0.65, 0.62, 0.55]), torch.tensor([1.0, 1, 1, 0, 0])
    assert [measures.binned_error(confidence, right, m) for m in (15, 10)] == pytest.approx([0.19, 0.19])


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(200, 6)).round(1)  # with ties
    y = rng.choice(6, 200, p=[0.5, 0.3, 0.1, 0.06, 0.04, 0.0])  # class 5 never occurs
    s, labels = torch.tensor(scores), torch.tensor(y)
    predicted = s.argmax(1).numpy()
    assert measures.balanced_accuracy(s, labels) == pytest.approx(
        metrics.recall_score(y, predicted, labels=np.unique(y), average="macro")
    )
    assert measures.macro_f1(s, labels) == pytest.approx(metrics.f1_score(y, predicted, average="macro"))
    p = s.softmax(1).numpy()
    want = np.mean([metrics.roc_auc_score(y == c, p[:, c]) for c in np.unique(y)])
    assert measures.auroc(s, labels) == pytest.approx(want)
    assert measures.confusion(s, labels).tolist() == metrics.confusion_matrix(y, predicted, labels=range(6)).tolist()
    found = measures.recalls(s, labels)
    assert found[5] is None
    assert found[:5] == pytest.approx(metrics.recall_score(y, predicted, labels=range(5), average=None).tolist())


def test_top_k_against_a_sort_with_lower_classes_first():
    rng = np.random.default_rng(0)
    scores, y = rng.integers(0, 4, (300, 8)).astype(float), rng.integers(0, 8, 300)
    order = np.argsort(-scores, axis=1, kind="stable")
    for k in (1, 3, 5, 8):
        want = np.mean([y[i] in order[i, :k] for i in range(300)])
        assert measures.top(k, torch.tensor(scores), torch.tensor(y)) == pytest.approx(want)


def test_a_single_class_has_no_auroc():
    assert measures.auroc(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)) is None


def test_calibration_of_a_perfect_and_of_a_boastful_classifier():
    sure = torch.tensor([[50.0, 0.0]]).expand(10, 2)
    assert measures.calibration_error(sure, torch.zeros(10, dtype=torch.int64)) == pytest.approx(0, abs=1e-12)
    assert measures.calibration_error(sure, torch.ones(10, dtype=torch.int64)) == pytest.approx(1)
