"""Bootstrap intervals, against SciPy, and against resampling sample by sample in NumPy."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as reference

from fullrank.metrics.bootstrap import _OF_PREDICTIONS, _WEIGHTED, _counted, _ends, _weights, bootstrap
from fullrank.metrics.details import MOST_RANKED, dense, details
from fullrank.metrics.registry import METRICS, Metric, find_metrics

OWN = {metric.key: metric for metric in METRICS.own.values()}


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


def area(score, positive):
    """The share of pairs of a positive and a negative sample that are in order, from ranks; ties count half."""
    ahead = stats.rankdata(score)[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return ahead / (positive.sum() * (~positive).sum())


def one_resample(scores, labels):
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    predicted = scores.argmax(1)
    there = np.unique(labels)
    seen = np.union1d(labels, predicted)
    doubled = [2 * ((labels == c) & (predicted == c)).sum() for c in seen]
    f1 = [both / ((labels == c).sum() + (predicted == c).sum()) for c, both in zip(seen, doubled, strict=True)]
    rank = (scores > scores[np.arange(len(labels)), labels][:, None]).sum(1)
    return {
        "accuracy": (predicted == labels).mean(),
        "loss": -np.log(probabilities[np.arange(len(labels)), labels]).mean(),
        "balanced_accuracy": np.mean([(predicted[labels == c] == c).mean() for c in there]),
        "macro_f1": np.mean(f1),
        "auroc": np.mean([area(probabilities[:, c], labels == c) for c in there]),
        "top5": (rank < 5).mean(),
        "calibration": calibration(probabilities, labels),
        **{f"recall {c}": (predicted[labels == c] == c).mean() for c in there},
    }


def test_intervals_are_those_of_resampled_samples():
    scores, labels = predictions()
    found = bootstrap([*OWN.values()], scores, labels)
    assert set(found) == set(OWN)
    rng = np.random.default_rng(1)
    drawn = [rng.integers(len(labels), size=len(labels)) for _ in range(1000)]
    resamples = [one_resample(scores.numpy()[index], labels.numpy()[index]) for index in drawn]
    for key in (*(OWN.keys() - {"per_class"}), *(f"recall {c}" for c in range(7))):
        values = [resample[key] for resample in resamples if key in resample]
        want = np.quantile(values, [0.025, 0.975])
        got = found["per_class"][int(key[-1])] if key.startswith("recall") else found[key]
        # two estimates of the same percentiles from a thousand resamples each
        assert got == pytest.approx(want, abs=0.25 * (want[1] - want[0])), key


def test_the_interval_of_a_mean_is_that_of_scipy():
    scores, labels = predictions(classes=4)
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none").numpy()
    found = bootstrap(find_metrics(["accuracy", "loss"]), scores, labels, resamples=20_000, level=0.9)
    for key, values in (("accuracy", (scores.argmax(1) == labels).double().numpy()), ("loss", losses)):
        theirs = stats.bootstrap(
            (values,), np.mean, n_resamples=20_000, batch=1000, method="percentile", confidence_level=0.9, rng=1
        ).confidence_interval
        assert found[key] == pytest.approx(theirs, abs=0.004)


def test_the_interval_of_an_accuracy_has_the_ends_of_a_binomial_distribution():
    scores = torch.eye(2)[torch.tensor([0] * 60 + [1] * 40 + [0] * 10 + [1] * 90)]
    labels = torch.tensor([0] * 100 + [1] * 100)  # accuracy 0.75 of 200
    found = bootstrap([OWN["accuracy"]], scores, labels, resamples=20000)
    want = stats.binom(200, 0.75).ppf([0.025, 0.975]) / 200
    assert found["accuracy"] == pytest.approx(want, abs=0.0051)  # one sample is 0.005


def test_the_percentiles_are_numpys():
    values = np.random.default_rng(0).normal(size=(101, 3))
    values[:30, 1] = np.nan
    want = np.nanquantile(values, [0.05, 0.95], axis=0)
    assert _ends(values, 0.9) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("key", [*_OF_PREDICTIONS, *_WEIGHTED])
def test_vectorised_metrics_are_those_of_the_registry_on_every_draw(key):
    scores, labels = predictions(60)
    scores = scores.round(decimals=1)  # with ties
    draws = np.random.default_rng(3).integers(60, size=(40, 60))
    weights = _weights(draws)
    if key in _WEIGHTED:
        ours = _WEIGHTED[key](scores, labels)(weights)
    else:
        predicted, one_each = scores.argmax(1).numpy(), np.arange(7)
        assert set(one_each) == {*labels.tolist()}
        ours = _OF_PREDICTIONS[key](_counted(weights, labels.numpy(), predicted, 7))
    expected = []
    for row in draws:
        found = OWN[key].function(scores[row], labels[row])
        expected.append([np.nan if v is None else v for v in found] if isinstance(found, list) else found)
    np.testing.assert_allclose(ours, np.array(expected, dtype=float), rtol=1e-6)


def test_equal_seeds_and_purposes_give_equal_intervals():
    scores, labels = predictions(50)

    def found(seed, *purpose):
        return bootstrap([*OWN.values()], scores, labels, seed=seed, purpose=purpose)

    assert found(3, 1, "test") == found(3, 1, "test")
    for other in (found(4, 1, "test"), found(3, 2, "test")):
        assert all(other[key] != ends for key, ends in found(3, 1, "test").items() if key != "top5")


def test_an_interval_does_not_depend_on_other_metrics():
    scores, labels = predictions(50)
    together = bootstrap([*OWN.values()], scores, labels)
    for key, metric in OWN.items():
        assert bootstrap([metric], scores, labels) == {key: together[key]}


@pytest.mark.parametrize("samples", [1, 2])
def test_one_sample_has_an_interval(samples):
    scores, labels = predictions(samples, classes=3)
    found = bootstrap([*OWN.values()], scores, labels)
    right = (scores.argmax(1) == labels).double().mean()
    assert found["accuracy"][0] <= right <= found["accuracy"][1]
    assert sum(ends is not None for ends in found["per_class"]) == len(labels.unique())


def test_a_class_without_samples_has_no_interval():
    scores, labels = predictions(classes=3)
    found = bootstrap(find_metrics(["per-class", "balanced-accuracy"]), scores, labels.clamp(max=1), resamples=50)
    assert found["per_class"][2] is None
    assert found["per_class"][0] is not None
    assert found["balanced_accuracy"] is not None


def test_a_metric_that_is_never_defined_has_no_interval():
    scores, labels = predictions(20)
    assert bootstrap(find_metrics(["auroc"]), scores, labels * 0, resamples=5) == {"auroc": None}
    assert bootstrap([Metric("site_accuracy", None)], scores, labels) == {}


def test_a_metric_of_a_user_is_computed_draw_by_draw():
    scores, labels = predictions(50)
    share = float((labels == 0).double().mean())
    metric = Metric("share_of_0", lambda scores, labels: float((labels == 0).double().mean()))
    by_class = Metric("shares", lambda scores, labels: [float((labels == 0).double().mean()), None])
    found = bootstrap([metric, by_class], scores, labels, resamples=2000)
    want = stats.binom(50, share).ppf([0.025, 0.975]) / 50
    assert found["share_of_0"] == pytest.approx(want, abs=0.021)  # one sample is 0.02
    assert found["shares"] == [found["share_of_0"], None]


def test_details_by_hand():
    scores = [torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5]]), torch.tensor([[3.0, 0.0, 1.0]])]
    labels = torch.tensor([0, 1, 1])
    found = details(scores, labels, {"accuracy": 2 / 3, "auroc": None, "mine": 1.0, "per_class": [1.0, 0.5, None]}, 0)
    assert found["samples"] == 3
    assert found["metrics"] == {"accuracy": 2 / 3, "auroc": None, "mine": 1.0}
    assert set(found["intervals"]) == {"accuracy", "auroc"}
    assert found["recall"] == [1.0, 0.5, None]
    assert found["recall_intervals"][2] is None
    assert found["confusion"] == [[0, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert (
        dense(found["confusion"], 3).tolist()
        == reference.confusion_matrix(labels, torch.cat(scores).argmax(1), labels=[0, 1, 2]).tolist()
    )


def test_details_leave_out_the_interval_of_an_area_that_takes_long():
    scores, labels = predictions(MOST_RANKED // 7 + 1)
    assert set(details([scores], labels, {"accuracy": 1.0, "auroc": 1.0}, 0)["intervals"]) == {"accuracy"}
