"""`fullrank inspect --by`: the results that a run recorded for its models."""

import json
import re

import numpy as np
import pytest

import fullrank
from commands import fullrank as command
from two_sites import SETTINGS, arrays


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    np.savez(place / "sites.npz", classes=np.array(["a", "b", "c"]), **arrays())
    values = {**SETTINGS, "data.name": str(place / "sites.npz"), "method.name": "fedbn", "data.holdout": 0.2}
    made = fullrank.run(values, place / "run")
    (place / "sites.npz").unlink()  # what was kept is shown without the data
    return made


def shown(run, *options, capsys):
    status, out, err = command("inspect", run.path, *options, capsys=capsys)
    assert status == 0, err
    return out


def test_sites_by_stages(run, capsys):
    out = shown(run, "--by=site", "--on=test", capsys=capsys)
    assert "of 2 sites on test parts of sites" in out
    assert "hold-outs" not in out
    (north,) = re.findall(r"^north +41 +(.*)$", out, re.MULTILINE)
    rows = run.clients().where(client=0, set="test")
    cells = []
    for stage in ("received", "local"):
        accuracy = rows.where(stage=stage, metric="accuracy")[0]
        balanced = rows.where(stage=stage, metric="balanced_accuracy")[0]
        cells.append(f"{accuracy['value']:.3f} ({accuracy['low']:.3f}–{accuracy['high']:.3f}) {balanced['value']:.3f}")
    assert re.sub(" +", " ", north).strip() == " ".join(cells)
    assert re.search(r"^mean +0\.\d{3}", out, re.MULTILINE)


def test_recalls_and_confusion(run, capsys):
    out = shown(run, "--by=class", "--stage=local", "--on=test", capsys=capsys)
    assert "models after local training, test parts of sites" in out
    value = run.clients("class").where(client=1, stage="local", set="test")[2]["value"]
    count = run.clients("class").where(client=1, stage="local", set="test")[2]["samples"]
    assert re.search(rf"^c .*{value:.3f} \(\S+\) of {count}$", out, re.MULTILINE)
    out = shown(run, "--by=confusion", "--stage=local", "--on=test", "--client=1", capsys=capsys)
    pairs = run.clients("confusion").where(client=1, stage="local", set="test")
    counted = {(row["class"], row["predicted"]): row["samples"] for row in pairs}
    for label in "abc":
        cells = " +".join(str(counted.get((label, predicted), 0)) for predicted in "abc")
        assert re.search(rf"^{label} +{cells}$", out, re.MULTILINE)


def test_the_end_of_a_run_shows_its_sites(run, tmp_path, capsys):
    np.savez(tmp_path / "sites.npz", classes=np.array(["a", "b", "c"]), **arrays())
    settings = {"data.name": tmp_path / "sites.npz", "data.partition": "domain", "data.clients": 2}
    settings |= {"model.name": "mlp", "train.rounds": 1, "train.steps": 1, "engine.name": "serial"}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    status, out, err = command("run", *sets, "--out", tmp_path / "run", capsys=capsys)
    assert status == 0, err
    rows = fullrank.load_run(tmp_path / "run").clients()
    (found,) = rows.where(client=1, stage="received", metric="accuracy")
    assert re.search(rf"^south +23 +{found['value']:.3f} \({found['low']:.3f}–{found['high']:.3f}\)", out, re.MULTILINE)


def test_json_is_the_table(run, capsys):
    found = json.loads(shown(run, "--by=class", "--client=0", "--json", capsys=capsys))
    assert found == run.clients("class").where(client=0)


def test_without_a_global_model_the_sites_are_shown_in_place_of_the_representation(run, capsys):
    status, out, err = command("inspect", run.path, "--trust", capsys=capsys)
    assert (status, err) == (0, "")
    assert "of 2 sites on test parts of sites" in out
    assert "no complete global model" in out
    assert "--client K" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by=klass"], '--by klass: did you mean "class"?'),
        (["--by=site", "--on=train"], "--on train: known:"),
        (["--by=site", "--client=7"], "has no results of its models (client 7)"),
    ],
)
def test_wrong_options(options, sentence, run, capsys):
    status, _, err = command("inspect", run.path, *options, capsys=capsys)
    assert status == 2
    assert sentence in err


def test_only_runs_keep_anything(capsys):
    status, _, err = command("inspect", "mine:model", "digits", "--by=site", capsys=capsys)
    assert status == 2
    assert '"mine:model" is not a run directory' in err


def test_without_results_by_client_the_key_that_records_them_is_named(tmp_path, capsys):
    run = fullrank.run({"model.name": "mlp", "train.rounds": 1, "train.steps": 1}, tmp_path / "run")
    assert "data.holdout=0.2" in shown(run, "--by=site", capsys=capsys)


def test_of_many_clients_quantiles_and_some_are_listed(tmp_path, capsys):
    settings = {
        "data.clients": 24,
        "data.partition": "iid",
        "data.holdout": 0.2,
        "model.name": "mlp",
        "train.rounds": 1,
        "train.steps": 1,
        "engine.name": "serial",
    }
    run = fullrank.run(settings, tmp_path / "run")
    out = shown(run, "--by=site", capsys=capsys)
    values = [row["value"] for row in run.clients().where(stage="local", metric="accuracy")]
    (median,) = re.findall(r"^median +(.*)$", out, re.MULTILINE)
    assert median.split()[2] == f"{np.median(values):.3f}"
    assert len(re.findall(r"^client \d+", out, re.MULTILINE)) == 8
    assert "of 24 clients on clients' hold-outs" in out
    out = shown(run, "--by=class", "--on=holdout", capsys=capsys)
    assert "all 24 clients" in out
