"""Bootstrap intervals: against SciPy's, against draws written out, and where a metric is not defined."""

import numpy as np
import pytest
import torch

from fullrank.metrics.measures import METRICS, Metric, find_metrics
from fullrank.metrics.resampling import bootstrap


def a_prediction(number=300, classes=4, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (number,), generator=drawn)
    scores = torch.randn(number, classes, generator=drawn) + 1.2 * torch.eye(classes)[labels]
    return scores, labels


def test_the_interval_of_a_mean_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    scores, labels = a_prediction()
    hits = (scores.argmax(1) == labels).double().numpy()
    theirs = stats.bootstrap((hits,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    low, high = bootstrap(find_metrics(["accuracy"]), scores, labels, resamples=20_000)["accuracy"]
    assert low == pytest.approx(theirs.low, abs=0.004)
    assert high == pytest.approx(theirs.high, abs=0.004)


@pytest.mark.parametrize("name", METRICS.own)
def test_vectorised_metrics_are_those_of_the_registry_on_every_draw(name):
    scores, labels = a_prediction(60, classes=7)
    scores = scores.round(decimals=1)  # with ties
    metric = METRICS.own[name]
    values = []
    for row in np.random.default_rng(3).integers(60, size=(40, 60)):
        found = metric.function(scores[row], labels[row])
        values.append([np.nan if v is None else v for v in found] if isinstance(found, list) else found)
    expected = np.nanquantile(np.array(values, dtype=float), (0.05, 0.95), axis=0).T
    ours = bootstrap([metric], scores, labels, resamples=40, level=0.9, seed=3)[metric.key]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_one_seed_gives_one_interval_and_another_seed_another():
    scores, labels = a_prediction()
    once, again, other = (bootstrap(find_metrics(["loss"]), scores, labels, seed=seed)["loss"] for seed in (0, 0, 1))
    assert once == again != other


def test_a_class_without_samples_has_no_interval():
    scores, labels = a_prediction(classes=3)
    found = bootstrap(find_metrics(["per-class", "balanced-accuracy"]), scores, labels.clamp(max=1), resamples=50)
    assert found["per_class"][2] is None
    assert found["per_class"][0] is not None
    assert found["balanced_accuracy"] is not None


def test_a_metric_that_is_never_defined_has_no_interval():
    scores, labels = a_prediction(20)
    assert bootstrap(find_metrics(["auroc"]), scores, labels * 0, resamples=5) == {"auroc": None}


def test_a_metric_of_a_user_is_computed_draw_by_draw():
    scores, labels = a_prediction(50)
    metric = Metric("share_of_0", lambda scores, labels: float((labels == 0).double().mean()))
    low, high = bootstrap([metric], scores, labels, resamples=200)["share_of_0"]
    assert low < float((labels == 0).double().mean()) < high


def test_one_sample_has_an_interval_of_no_width():
    assert bootstrap(find_metrics(["accuracy"]), torch.eye(2)[:1], torch.tensor([0])) == {"accuracy": (1.0, 1.0)}
