"""What is kept of each client's models on its hold-out and on the test part of its own site."""

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from test_ending import counted_run, killed_after

import fullrank
from fullrank.errors import InputError
from fullrank.federated.codec import decode, encode
from fullrank.runs.assemble import assemble, assemble_site, federate, hosted_data
from fullrank.runs.clients import Rows
from fullrank.runs.recorded import federation_facts
from killing import assert_equal_outcomes
from two_sites import NAMES, SETTINGS, arrays


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sites.npz"
    np.savez(file, classes=np.array(["a", "b", "c"]), **arrays())
    return file


@pytest.fixture(scope="module")
def run_of(data, tmp_path_factory):
    """A run of a method with these settings, each made once."""
    made = {}

    def run(method="fedavg", **settings):
        key = json.dumps([method, settings], sort_keys=True)
        if key not in made:
            values = {**SETTINGS, "data.name": str(data), "method.name": method, **settings}
            made[key] = fullrank.run(values, tmp_path_factory.mktemp("run"))
        return made[key]

    return run


def by_hand(model, data, site):
    """Labels and predictions of a model on the test samples of a site."""
    found = np.load(data)
    here = found["domain_test"] == site
    with torch.no_grad():
        scores = model(torch.from_numpy(found["x_test"][here]))
    return found["y_test"][here], scores.argmax(1).numpy(), scores


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "ditto"])
def test_each_stage_is_evaluated_on_the_test_part_of_the_clients_own_site(method, run_of, data):
    run = run_of(method, **{"data.holdout": 0.2})
    rows, known = run.clients(), ["received", "local", *(["personalised"] if method == "ditto" else [])]
    for k, site in enumerate(NAMES):
        for stage in known:
            labels, predicted, scores = by_hand(run.client_model(k, stage), data, site)
            found = {row["metric"]: row for row in rows.where(client=k, stage=stage, set="test")}
            assert {row["samples"] for row in found.values()} == {len(labels)}
            assert {row["site"] for row in found.values()} == {site}
            accuracy = (labels == predicted).mean()
            assert found["accuracy"]["value"] == pytest.approx(accuracy)
            assert found["accuracy"]["low"] <= accuracy <= found["accuracy"]["high"]
            want = reference.balanced_accuracy_score(labels, predicted)
            assert found["balanced_accuracy"]["value"] == pytest.approx(want)
            loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
            assert found["loss"]["value"] == pytest.approx(float(loss), rel=1e-5)
            area = reference.roc_auc_score(labels, scores.softmax(1), multi_class="ovr")
            assert found["auroc"]["value"] == pytest.approx(area, abs=1e-6)
            pairs = run.clients("confusion").where(client=k, stage=stage, set="test")
            counted = {(row["class"], row["predicted"]): row["samples"] for row in pairs}
            matrix = reference.confusion_matrix(labels, predicted, labels=range(3))
            assert counted == {("abc"[i], "abc"[j]): n for (i, j), n in np.ndenumerate(matrix) if n}
            recalls = {
                row["class"]: row["value"] for row in run.clients("class").where(client=k, stage=stage, set="test")
            }
            want = reference.recall_score(labels, predicted, labels=range(3), average=None)
            assert list(recalls.values()) == pytest.approx(want)
    assert {row["set"] for row in rows if row["client"] is not None} == {"holdout", "test"}
    assert [stage for stage in ("received", "local", "personalised") if rows.where(client=0, stage=stage)] == known


def test_the_global_model_on_the_whole_test_set_and_by_site(run_of, data):
    run = run_of()
    rows = run.clients().where(stage="global", metric="accuracy")
    assert [row["site"] for row in rows] == [None, *NAMES]
    right = []
    for row, site in zip(rows[1:], NAMES, strict=True):
        labels, predicted, _ = by_hand(run.model(), data, site)
        assert row["value"] == pytest.approx((labels == predicted).mean())
        right += (labels == predicted).tolist()
    assert rows[0]["value"] == pytest.approx(np.mean(right)) == run.metrics[-1]["accuracy"]
    assert rows[0]["samples"] == 64
    # without personal entries, clients receive the global model, and resamples of a site are the same for all models
    received = run.clients().where(stage="received", metric="accuracy", set="test")
    assert [(row["value"], row["low"]) for row in received] == [(row["value"], row["low"]) for row in rows[1:]]
    assert run_of("fedbn").clients().where(stage="global") == []


def test_the_summary_has_the_unweighted_mean_over_sites(run_of, data):
    run = run_of("fedbn")
    summary, rows = run.summary(), run.clients()
    for stage in ("received", "local"):
        values = [row["value"] for row in rows.where(stage=stage, metric="accuracy", set="test")]
        found = summary["sites"]["test"][stage]
        assert found["mean"] == pytest.approx(np.mean(values))
        assert found["weighted"] == pytest.approx(np.average(values, weights=[41, 23]))
        assert found["accuracy_by_site"] == dict(zip(NAMES, values, strict=True))
        assert found["samples_by_site"] == {"north": 41, "south": 23}
        # without a hold-out, the personal results are those on the test parts
        assert summary["personal"][stage]["mean"] == found["mean"]
        balanced = [row["value"] for row in rows.where(stage=stage, metric="balanced_accuracy", set="test")]
        assert found["balanced_accuracy"]["mean"] == pytest.approx(np.mean(balanced))
    assert "holdout" not in summary["sites"]
    assert "personal" not in summary["absent"]
    assert summary["site_accuracy"]["last"] == pytest.approx(summary["sites"]["test"]["received"]["mean"])


def test_with_a_hold_out_the_personal_results_are_those_of_the_hold_outs(run_of):
    run = run_of("fedavg", **{"data.holdout": 0.2})
    summary, rows = run.summary(), run.clients()
    values = [row["value"] for row in rows.where(stage="local", metric="accuracy", set="holdout")]
    assert summary["personal"]["local"]["mean"] == pytest.approx(np.mean(values))
    assert summary["sites"]["holdout"]["local"]["mean"] == pytest.approx(np.mean(values))
    assert "balanced_accuracy" not in summary["personal"]["local"]  # it was not asked for


def test_clients_that_are_no_sites_have_a_table_of_their_hold_outs(tmp_path):
    settings = {"data.clients": 3, "data.holdout": 0.2, "model.name": "mlp", "train.rounds": 1, "train.steps": 1}
    run = fullrank.run(settings, tmp_path / "run")
    rows = run.clients()
    assert {row["site"] for row in rows} == {None}
    assert {(row["client"], row["stage"], row["set"]) for row in rows} == {
        (None, "global", "test"),
        *((k, stage, "holdout") for k in range(3) for stage in ("received", "local")),
    }
    assert "sites" not in run.summary()
    assert "site_accuracy" not in run.summary()


def test_pandas_reads_the_table(run_of):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(run_of().clients())
    columns = ["client", "site", "stage", "set", "metric", "value", "low", "high", "samples"]
    assert frame.columns.tolist() == columns
    found = frame[(frame.metric == "accuracy") & (frame.stage == "local")]
    assert found.site.tolist() == list(NAMES)


def test_a_notebook_shows_the_table():
    rows = Rows([{"site": "<north>", "value": 0.25, "low": None}])
    assert rows._repr_html_() == (
        "<table><thead><tr><th>site</th><th>value</th><th>low</th></tr></thead><tbody>"
        "<tr><td>&lt;north&gt;</td><td>0.2500</td><td></td></tr></tbody></table>"
    )


def test_the_table_is_read_back_and_old_directories_load_without_it(run_of, tmp_path, data):
    run = run_of()
    loaded = fullrank.load_run(run.path)
    assert loaded.clients() == run.clients()
    assert loaded.clients("class") == run.clients("class")
    other = fullrank.run({**SETTINGS, "data.name": str(data)}, tmp_path / "old")
    file = tmp_path / "old" / "clients.jsonl"
    lines = file.read_text()
    file.unlink()
    old = fullrank.load_run(tmp_path / "old")
    assert old.summary() == other.summary()
    with pytest.raises(InputError, match=r"has no clients\.jsonl.*earlier version"):
        old.clients()
    file.write_text(lines.replace('"accuracy": 0.', '"accuracy": 1.', 1))
    with pytest.raises(InputError, match=r"clients\.jsonl.*damaged in line 1"):
        fullrank.load_run(tmp_path / "old").clients()
    with pytest.raises(InputError, match='by = "klass" is not a table of clients; did you mean "class"'):
        run.clients("klass")


def test_a_run_that_has_not_ended_has_no_table(tmp_path, data):
    settings = {**SETTINGS, "data.name": str(data)}
    killed_after(settings, tmp_path / "run", 1)
    with pytest.raises(InputError, match="has not ended"):
        fullrank.load_run(tmp_path / "run").clients()


@pytest.mark.parametrize("method", ["fedbn", "fedavg"])
def test_killed_in_the_ending_and_resumed(method, tmp_path, data, monkeypatch):
    settings = {**SETTINGS, "data.name": str(data), "method.name": method, "data.holdout": 0.2}
    killed_after(settings, tmp_path / "run", 1)
    evaluated, _ = counted_run(settings, tmp_path / "run", monkeypatch)
    assert len(evaluated) == 1
    fullrank.run(settings, tmp_path / "whole")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")
    longer = {**settings, "train.rounds": 3}
    fullrank.run(longer, tmp_path / "run")
    fullrank.run(longer, tmp_path / "long")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "long")


@pytest.mark.slow
def test_worker_processes_find_the_same(tmp_path, data):
    settings = {**SETTINGS, "data.name": str(data), "method.name": "fedbn", "evaluate.personal": "every"}
    one = fullrank.run(settings, tmp_path / "serial")
    settings |= {"engine.name": "processes", "engine.workers": 1}
    other = fullrank.run(settings, tmp_path / "processes")
    assert one.clients() == other.clients()
    assert (tmp_path / "serial" / "clients.jsonl").read_bytes() == (
        tmp_path / "processes" / "clients.jsonl"
    ).read_bytes()
    assert [row["personal"] for row in one.metrics] == [row["personal"] for row in other.metrics]


def test_every_round_may_have_the_accuracies_by_site(run_of):
    run = run_of("fedbn", **{"evaluate.personal": "every"})
    for row in run.metrics:
        own = [client["test"] for client in sorted(row["clients"], key=lambda client: client["client"])]
        for stage in ("received", "local"):
            values = [found[stage]["accuracy"] for found in own]
            assert row["personal"][stage]["mean"] == pytest.approx(np.mean(values))
        assert [found["received"]["samples"] for found in own] == [41, 23]
        assert row["personal_accuracy"] == row["personal"]["local"]["mean"]
        assert set(row["accuracy_by_site"]) == set(NAMES)
        assert row["site_accuracy"] == pytest.approx(np.mean(list(row["accuracy_by_site"].values())))
    last = {row["client"]: row["value"] for row in run.clients().where(stage="received", metric="accuracy")}
    assert list(run.metrics[-1]["accuracy_by_site"].values()) == pytest.approx([last[0], last[1]])


def test_without_a_global_model_the_best_round_is_that_of_the_received_models(run_of, data):
    run = run_of("fedbn", **{"data.validation": 0.2, "train.rounds": 3, "train.lr": 0.2})
    federation = run._assembled().federation
    x, y, domain = (getattr(federation.data.train, name).numpy() for name in ("x", "y", "domain"))
    accuracies = []
    for k in range(2):
        own = federation.validation[domain[federation.validation] == k]
        with torch.no_grad():
            predicted = run.client_model(k, "received")(torch.from_numpy(x[own])).argmax(1).numpy()
        accuracies.append((predicted == y[own]).mean())
    assert run.metrics[-1]["validation_accuracy"] == pytest.approx(np.mean(accuracies))
    summary = run.summary()
    best = max(run.metrics, key=lambda row: row["validation_accuracy"])
    assert summary["validated_round"] == best["round"]
    assert summary["site_accuracy"]["validated"] == best["site_accuracy"]
    assert "accuracy" not in summary


def test_without_sites_the_validation_share_is_dealt_out_to_the_clients(tmp_path):
    settings = {
        "data.clients": 3,
        "data.validation": 0.1,
        "model.width": 2,
        "model.features": 8,
        "model.norm": "batch",
        "method.name": "fedbn",
        "train.rounds": 1,
        "train.steps": 2,
    }
    run = fullrank.run(settings, tmp_path / "run")
    federation, pipeline = run._assembled().federation, run._assembled().federation.pipeline
    accuracies = []
    for k in range(3):
        own = federation.validation[np.arange(len(federation.validation)) % 3 == k]
        x = pipeline(federation.data.train.x[own], None, torch.float32)
        with torch.no_grad():
            predicted = run.client_model(k, "received")(x).argmax(1)
        accuracies.append(float((predicted == federation.data.train.y[own]).double().mean()))
    assert run.metrics[0]["validation_accuracy"] == pytest.approx(np.mean(accuracies))
    assert run.summary()["validated_round"] == 1


def test_clients_that_never_train_are_in_the_table_and_not_in_the_means(run_of):
    run = run_of("fedavg", **{"data.unseen": 0.5})
    unseen = int(run._assembled().federation.unseen[0])
    summary = run.summary()
    assert list(summary["sites"]["test"]["received"]["accuracy_by_site"]) == [NAMES[1 - unseen]]
    assert summary["unseen"]["received"]["clients"] == 1
    assert {row["client"] for row in run.clients()} == {None, 0, 1}


def test_it_is_absent_where_it_was_not_asked_for(run_of):
    run = run_of("fedbn", **{"evaluate.personal": "never"})
    assert run.clients() == []
    assert "evaluate.personal" in run.summary()["absent"]["personal"]
    assert "site_accuracy" in run.summary()


def test_a_site_of_a_deployment_has_its_own_test_samples_only(run_of):
    """It finds what the simulation found for its client, and its result goes through the codec."""
    run = run_of("fedbn")
    parts = assemble(run.experiment)
    facts = json.loads(json.dumps(federation_facts(parts.federation)))
    assert facts["sites"] == list(NAMES)
    federation = federate(run.experiment)
    job = run._assembled().server.job("personal", 1)
    job = type(job)(**{**job.__dict__, "evaluate": True})
    want = run._assembled().site.do(job).metrics
    train, test = federation.data.train, federation.data.test
    splits = (train.take(torch.from_numpy(federation.parts[1])), None, test.take(torch.from_numpy(federation.tests[1])))
    for data in (hosted_data(run.experiment, facts, {1: splits}), federation.hosted([1])):
        assert len(data.test_x) == 23
        result = assemble_site(run.experiment, facts, data).do(decode(encode(job)))
        assert result.error is None
        assert decode(encode(result)).metrics == want


def test_no_sample_is_in_the_files_of_a_run(run_of, data):
    run = run_of("fedbn", **{"data.holdout": 0.2})
    kept = ("clients.jsonl", "summary.json", "metrics.jsonl", "partition.json")
    text = "".join((run.path / name).read_text() for name in kept)
    for line in (run.path / "clients.jsonl").read_text().splitlines():
        row = json.loads(line)
        # lists by class, pairs of classes, and the two ends of intervals: nothing has one value a sample
        assert len(row["recall"]) == len(row["recall_intervals"]) == 3
        assert len(row["confusion"]) <= 9
        assert all(len(ends) == 2 for ends in row["intervals"].values())
        assert all(isinstance(value, (int, float)) for value in row["metrics"].values())
    for value in np.load(data)["x_test"].ravel()[:200]:
        assert f"{float(value)!r}" not in text
        assert f"{value:.6f}" not in text
