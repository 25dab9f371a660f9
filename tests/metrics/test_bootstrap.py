"""Bootstrap intervals, against resampling sample by sample in NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as reference

from fullrank.metrics.bootstrap import _ends, intervals, of_confusion
from fullrank.metrics.details import dense, details

KEYS = ("accuracy", "loss", "balanced_accuracy", "macro_f1", "auroc", "top5", "calibration")


def predictions(samples=300, classes=7, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, samples, p=rng.dirichlet(np.full(classes, 2.0)))
    scores = rng.normal(size=(samples, classes))
    scores[np.arange(samples), labels] += 1.5
    return torch.tensor(scores), torch.tensor(labels)


def calibration(probabilities, labels):
    """The definition of Guo et al., bin by bin."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    return total / len(labels)


def one_resample(scores, labels):
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    predicted = scores.argmax(1)
    there = np.unique(labels)
    areas = [reference.roc_auc_score(labels == c, probabilities[:, c]) for c in there]
    rank = (scores > scores[np.arange(len(labels)), labels][:, None]).sum(1)
    return {
        "accuracy": (predicted == labels).mean(),
        "loss": -np.log(probabilities[np.arange(len(labels)), labels]).mean(),
        "balanced_accuracy": np.mean([(predicted[labels == c] == c).mean() for c in there]),
        "macro_f1": reference.f1_score(labels, predicted, average="macro"),
        "auroc": np.mean(areas),
        "top5": (rank < 5).mean(),
        "calibration": calibration(probabilities, labels),
        **{f"recall {c}": (predicted[labels == c] == c).mean() for c in there},
    }


def test_intervals_are_those_of_resampled_samples():
    scores, labels = predictions()
    found, by_class = intervals(scores, labels, KEYS, 0, "test")
    rng = np.random.default_rng(1)
    drawn = [rng.integers(len(labels), size=len(labels)) for _ in range(1000)]
    resamples = [one_resample(scores.numpy()[index], labels.numpy()[index]) for index in drawn]
    for key in (*KEYS, *(f"recall {c}" for c in range(7))):
        values = [resample[key] for resample in resamples if key in resample]
        want = np.quantile(values, [0.025, 0.975])
        got = by_class[int(key[-1])] if key.startswith("recall") else found[key]
        # two estimates of the same percentiles from a thousand resamples each
        assert got == pytest.approx(want, abs=0.25 * (want[1] - want[0])), key
    assert set(found) == set(KEYS)


def test_the_interval_of_an_accuracy_has_the_ends_of_a_binomial_distribution():
    table = np.array([[60, 40], [10, 90]])  # accuracy 0.75 of 200
    found, _ = of_confusion(table, np.random.default_rng(0), resamples=20000)
    want = stats.binom(200, 0.75).ppf([0.025, 0.975]) / 200
    assert found["accuracy"] == pytest.approx(want, abs=0.0051)  # one sample is 0.005


def test_the_percentiles_are_numpys():
    values = np.random.default_rng(0).normal(size=(101, 3))
    values[:30, 1] = np.nan
    want = np.nanquantile(values, [0.025, 0.975], axis=0)
    assert _ends(values) == pytest.approx(want, abs=1e-12)


def test_equal_seeds_give_equal_intervals():
    scores, labels = predictions(50)
    one = intervals(scores, labels, KEYS, 3, 1, "test")
    assert one == intervals(scores, labels, KEYS, 3, 1, "test")
    assert one != intervals(scores, labels, KEYS, 4, 1, "test")
    assert one != intervals(scores, labels, KEYS, 3, 2, "test")


@pytest.mark.parametrize("samples", [1, 2])
def test_one_sample_has_an_interval(samples):
    scores, labels = predictions(samples, classes=3)
    found, by_class = intervals(scores, labels, KEYS, 0)
    right = (scores.argmax(1) == labels).double().mean()
    assert found["accuracy"][0] <= right <= found["accuracy"][1]
    assert sum(ends is not None for ends in by_class) == len(labels.unique())


def test_an_interval_for_what_is_not_known_by_name_is_left_out():
    scores, labels = predictions(20)
    assert set(intervals(scores, labels, ("accuracy", "mine"), 0)[0]) == {"accuracy"}


def test_details_by_hand():
    scores = [torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5]]), torch.tensor([[3.0, 0.0, 1.0]])]
    labels = torch.tensor([0, 1, 1])
    found = details(scores, labels, {"accuracy": 2 / 3, "auroc": None, "per_class": [1.0, 0.5, None]}, 0)
    assert found["samples"] == 3
    assert found["metrics"] == {"accuracy": 2 / 3, "auroc": None}
    assert found["recall"] == [1.0, 0.5, None]
    assert found["recall_intervals"][2] is None
    assert found["confusion"] == [[0, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert (
        dense(found["confusion"], 3).tolist()
        == reference.confusion_matrix(labels, torch.cat(scores).argmax(1), labels=[0, 1, 2]).tolist()
    )
