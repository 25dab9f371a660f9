"""Methods by sites, over seeds: in Python and from the command line."""

import json
import re
import statistics

import numpy as np
import pytest

import fullrank
from commands import fullrank as command
from fullrank.comparison.measured import check_measure, measured
from fullrank.comparison.table import compare_runs
from fullrank.errors import InputError
from two_sites import NAMES, SETTINGS, arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods and two seeds."""
    place = tmp_path_factory.mktemp("runs")
    np.savez(place / "sites.npz", classes=np.array(["a", "b", "c"]), **arrays())
    for seed in (0, 1):
        for method in ("fedavg", "fedbn"):
            values = {**SETTINGS, "data.name": str(place / "sites.npz"), "data.validation": 0.2, "data.holdout": 0.2}
            values |= {"method.name": method, "seed": seed, "data.seed": 0, "evaluate.metrics": ["accuracy"]}
            fullrank.run(values, place / "runs" / f"{method}-{seed}")
    return place


@pytest.mark.parametrize(
    ("measure", "stage", "on"),
    [("accuracy", "received", "test"), ("loss", "local", "holdout"), ("balanced_accuracy", "local", "test")],
)
def test_each_cell_is_the_mean_over_seeds_of_what_the_runs_have(measure, stage, on, folder):
    found = compare_runs([folder / "runs"]).by_site(measure, stage, on)
    assert found.sites == (*NAMES, "average")
    for row in found.rows:
        runs = [fullrank.load_run(folder / "runs" / f"{row.method}-{seed}") for seed in (0, 1)]
        by_seed = []
        for run in runs:
            rows = run.clients().where(stage=stage, set=on, metric=measure)
            by_seed.append({each["site"]: each["value"] for each in rows if each["client"] is not None})
        for site in NAMES:
            values = [values[site] for values in by_seed]
            assert row.mean(site) == pytest.approx(np.mean(values))
            assert row.std(site) == pytest.approx(np.std(values, ddof=1))
        averages = [np.mean(list(values.values())) for values in by_seed]
        assert row.mean("average") == pytest.approx(np.mean(averages))
    assert len(found.table()) == 6


def test_the_best_round_by_validation(folder):
    found = compare_runs([folder / "runs"]).by_site(value="validated")
    for row in found.rows:
        values = []
        for seed in (0, 1):
            rows = fullrank.load_run(folder / "runs" / f"{row.method}-{seed}").metrics
            best = max(rows, key=lambda one: one["validation_accuracy"])
            values.append(best["accuracy_by_site"]["south"])
        assert row.mean("south") == pytest.approx(statistics.fmean(values))


def test_the_global_model_is_absent_for_a_method_that_has_none(folder, capsys):
    status, out, _ = command("compare", "--runs", folder / "runs", "--by=site", "--stage=global", capsys=capsys)
    assert status == 0
    assert re.search(r"fedbn +absent +absent +absent", out)
    assert 'fedbn: it has no models at the stage "global"' in out


def test_from_the_command_line(folder, capsys):
    status, out, _ = command("compare", "--runs", folder / "runs", "--by=site", capsys=capsys)
    assert status == 0
    assert "Accuracy in percent, models as received, on test parts of sites, after the last round" in out
    found = compare_runs([folder / "runs"]).by_site()
    row = found.rows[1]
    cells = " +".join(f"{100 * row.mean(site):.2f} ± {100 * row.std(site):.2f}" for site in found.sites)
    assert re.search(f"fedbn +{cells}", out)
    status, out, _ = command("compare", "--runs", folder / "runs", "--by=site", "--json", capsys=capsys)
    facts = json.loads(out)
    assert facts["sites"] == [*NAMES, "average"]
    assert facts["rows"][1]["values"]["north"]["0"] == row.values["north"][0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by=class"], "--by class: methods are compared by site only"),
        (["--stage=local"], "--stage and --on belong to --by site"),
        (["--by=site", "--stage=lokal"], 'there is no stage "lokal" of a model; did you mean "local"?'),
        (["--by=site", "--measure=auroc"], 'no run has "auroc" by site; known: accuracy, loss, balanced_accuracy'),
        (["--by=site", "--value=best"], 'there is no value "best" by site'),
        (["--by=site", "--value=validated", "--stage=local"], '"validated" by site is known only for the accuracy'),
        (["--by=site", "--on=training"], 'there is no set "training"'),
    ],
)
def test_wrong_options(options, sentence, folder, capsys):
    status, _, err = command("compare", "--runs", folder / "runs", *options, capsys=capsys)
    assert status == 2
    assert sentence in err


def test_runs_without_sites(tmp_path):
    settings = {"data.clients": 3, "model.name": "mlp", "train.rounds": 1, "train.steps": 1}
    fullrank.run(settings, tmp_path / "one")
    with pytest.raises(InputError, match="no run has a table by site: it has no models at the stage"):
        compare_runs([tmp_path / "one"]).by_site()


@pytest.mark.parametrize("value", ["last", "best", "last5", "validated", "final"])
def test_the_accuracy_at_one_site_is_a_measure(folder, value):
    found = compare_runs([folder / "runs"], measure="accuracy_by_site.south", value=value)
    for row in found.rows():
        for seed in (0, 1):
            rows = fullrank.load_run(folder / "runs" / f"{row.method}-{seed}").metrics
            values = [one["accuracy_by_site"]["south"] for one in rows]
            chosen = values[max(range(len(rows)), key=lambda k: rows[k]["validation_accuracy"])]
            by_value = {"best": max(values), "last5": statistics.fmean(values), "validated": chosen}
            assert row.values[seed] == pytest.approx(by_value.get(value, values[-1]))
    assert found.is_share
    assert found.lower_is_better is False


def test_a_site_that_is_not_there_is_named_with_the_nearest(folder, capsys):
    arguments = ["compare", "--runs", folder / "runs", "--measure"]
    status, out, _ = command(*arguments, "accuracy_by_site.south", "--value", "validated", capsys=capsys)
    assert status == 0
    assert "Test accuracy at the site south in percent, round with the best validation score:" in out
    for measure, says in (
        ("accuracy_by_site.sout", 'did you mean "accuracy_by_site.south"?'),
        ("accuracy_by_site", 'did you mean "accuracy_by_site.south"?'),
    ):
        status, _, err = command(*arguments, measure, capsys=capsys)
        assert (status, says in err) == (2, True), err


def test_sites_that_no_run_would_have_are_rejected_before_any_run():
    with pytest.raises(InputError, match="clients are no sites with data"):
        check_measure("accuracy_by_site.south", fullrank.Experiment())
    with pytest.raises(InputError, match=r"needs the name of a site, as in accuracy_by_site\.NAME"):
        check_measure("accuracy_by_site", fullrank.Experiment())
    check_measure("accuracy_by_site.south", fullrank.Experiment(data={"partition": "domain"}))
    check_measure("accuracy_by_domain.south", fullrank.Experiment())


def test_the_name_of_a_site_may_have_dots():
    rows = [{"round": 1, "accuracy_by_site": {"st. mary": 0.5, "st": 0.25}, "seconds": 1.0}]
    totals = dict.fromkeys(("bytes_up", "bytes_down", "elements_up", "elements_down"), 0)
    run = fullrank.Run(fullrank.Experiment(), [{**rows[0], **totals}])
    assert measured(run, "accuracy_by_site.st. mary", "last") == (0.5, "")
    assert measured(run, "accuracy_by_site.st", "last") == (0.25, "")


def test_a_value_that_a_site_lacks_is_absent_with_a_reason():
    totals = dict.fromkeys(("bytes_up", "bytes_down", "elements_up", "elements_down"), 0)
    row = {"round": 1, "accuracy_by_site": {"north": 0.5}, "seconds": 1.0, **totals}
    run = fullrank.Run(fullrank.Experiment(), [row])
    number, reason = measured(run, "accuracy_by_site.north", "validated")
    assert (number, reason) == (None, "there is none in its summary")
    assert measured(run, "accuracy_by_site.nort", "last") == (None, 'did you mean "accuracy_by_site.north"?')
