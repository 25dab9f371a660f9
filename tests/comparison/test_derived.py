"""Measures that a comparison computes from rows, probes, directories, or two runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.comparison.derived import accuracy_of, derived, rounds_to, time_ratio
from fullrank.comparison.measured import check_measure, measured
from fullrank.comparison.table import compare_runs
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.runs.memory import peak_memory, record_peak, recorded_peak

FEW = {
    "data.clients": 4,
    "model.name": "mlp",
    "model.width": 8,
    "train.epochs": 2,
    "train.rounds": 2,
    "engine.name": "serial",
    "evaluate.personal": "never",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("fedavg", {}), ("fedprox", {}), ("fedmr", {"probe.every": 2, "probe.clients": 0})):
        fullrank.run({**FEW, **more, "method.name": name, "method.fedprox.mu": 0.5}, folder / name)
    return folder


@pytest.fixture
def runs(folder):
    return {name: fullrank.load_run(folder / name) for name in ("fedavg", "fedprox", "fedmr")}


def rows(*accuracies):
    row = {"elements_up": 0, "elements_down": 0, "bytes_up": 0, "bytes_down": 0, "seconds": 1.0}
    return [{"round": number, "accuracy": value, **row} for number, value in enumerate(accuracies, 1)]


def run_of(*accuracies, **more):
    return fullrank.Run(Experiment(), rows(*accuracies), **more)


# --- Rounds to an accuracy --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measure", "wanted"),
    [("rounds_to.29", 2.0), ("rounds_to.28.5", 2.0), ("rounds_to.10", 1.0), ("rounds_to.75", 4.0), ("rounds_to.74", 4)],
)
def test_it_is_the_first_round_with_at_least_the_accuracy(measure, wanted):
    run = run_of(0.1, 29 / 100, None, 0.75, 0.5, 0.8)  # 100 · 0.29 is less than 29 in floating-point numbers
    assert measured(run, measure, "last5") == (wanted, "")


def test_an_accuracy_that_is_never_reached_is_absent_with_the_highest_one():
    number, reason = measured(run_of(0.1, 0.7, 0.6), "rounds_to.70.5", "last5")
    assert number is None
    assert reason == "its test accuracy never reached 70.5 % (highest: 70.00 %)"


def test_a_last_round_that_was_evaluated_at_the_end_only_counts():
    run = run_of(0.1, None, ending={"last": {"accuracy": 0.9}})
    assert rounds_to(run, 0.8, "80") == (2.0, "")


def test_a_run_without_evaluation_has_the_reason():
    assert measured(run_of(None), "rounds_to.75", "last5") == (None, "its global model was not evaluated")
    why = {"absent": {"accuracy": "no test set was given"}}
    assert measured(run_of(None, ending=why), "rounds_to.75", "last5") == (None, "no test set was given")


@pytest.mark.parametrize("text", ["", "x", "0", "101", "-3", "nan", "1/0", "7,5"])
def test_an_impossible_accuracy_is_rejected_in_one_sentence(text):
    with pytest.raises(
        InputError, match=r"takes a test accuracy in per cent, above 0 and at most 100, as in rounds_to\.75"
    ):
        derived(f"rounds_to.{text}")


def test_an_accuracy_is_the_share_that_counting_gives():
    assert all(accuracy_of(str(n)) == n / 100 for n in range(1, 101))
    assert accuracy_of("70.5") == 141 / 200


# --- Elements, time, memory -------------------------------------------------------------------------


def test_elements_are_those_of_a_client_in_a_round(runs):
    size = sum(parameter.numel() for parameter in runs["fedavg"].model().parameters())
    assert runs["fedavg"].summary()["elements"] == 2 * size  # down and up
    assert measured(runs["fedavg"], "elements", "last5") == (2 * size, "")


def test_a_skipped_client_has_received_the_model_but_sent_nothing():
    row = {**rows(0.5)[0], "elements_down": 30, "elements_up": 20, "clients": [{}, {}], "skipped": {"7": "why"}}
    assert fullrank.Run(Experiment(), [row]).summary()["elements"] == pytest.approx(50 / 3)


def test_time_is_relative_to_fedavg_without_the_first_round(tmp_path):
    found = {}
    for name, seconds in (("fedavg", [9.0, 1.0, 3.0]), ("fedprox", [1.0, 4.0, 6.0])):
        found[name] = fullrank.Run(Experiment(method={"name": name}), rows(0.1, 0.2, 0.3), tmp_path / name)
        for row, value in zip(found[name].metrics, seconds, strict=True):
            row["seconds"] = value
        (tmp_path / name).mkdir()
        machine = {"cpu": "one", "gpu": None, "threads": 1}
        (tmp_path / name / "environment.json").write_text(json.dumps(machine))
    assert time_ratio(found["fedprox"], found["fedavg"]) == (2.5, "")
    assert time_ratio(found["fedavg"], found["fedavg"]) == (1.0, "")
    number, reason = time_ratio(found["fedprox"], None)
    assert (number, reason) == (None, "there is no run of the reference with the same seed on the same data")
    (tmp_path / "fedprox" / "environment.json").write_text(json.dumps({**machine, "resumed": [{"cpu": "other"}]}))
    number, reason = time_ratio(found["fedprox"], found["fedavg"])
    assert number is None
    assert "same machine" in reason


def test_times_are_divided_by_those_of_the_chosen_reference(folder):
    compared = compare_runs([folder / "fedavg", folder / "fedprox"], measure="time_ratio", reference="fedprox")
    assert compared.timed_by == "fedprox"
    by_method = {row.method: row.mean for row in compared.rows()}
    assert by_method["fedprox"] == 1
    other = compare_runs([folder / "fedavg", folder / "fedprox"], measure="time_ratio")
    assert by_method["fedavg"] == pytest.approx(1 / next(row.mean for row in other.rows() if row.method == "fedprox"))


def test_without_fedavg_and_without_a_reference_there_is_no_ratio(folder):
    compared = compare_runs([folder / "fedmr", folder / "fedprox"], measure="time_ratio")
    assert {reason for row in compared.rows() for reason in row.absent.values()} == {
        "there is no run of the reference with the same seed on the same data"
    }


def test_parameters_are_those_that_are_trained(runs):
    # 64 pixels to 8 features, 8 to 8, and 8 to 10 classes, each with a bias
    assert measured(runs["fedavg"], "parameters", "last5") == ((64 + 1) * 8 + (8 + 1) * 8 + (8 + 1) * 10, "")


def test_parameters_of_a_given_model_are_absent_with_the_reason(tmp_path):
    x, y = torch.rand(20, 3), torch.arange(20) % 2
    fullrank.fit(torch.nn.Linear(3, 2), [(x, y)], rounds=1, out=tmp_path / "given")
    number, reason = measured(fullrank.load_run(tmp_path / "given"), "parameters", "last")
    assert number is None
    assert "was given to fullrank.fit by a program" in reason


def test_a_run_records_its_peak_memory(runs, folder):
    number, _ = measured(runs["fedavg"], "peak_memory", "last5")
    assert 5e7 < number < 1e11  # torch takes more than 50 MB
    kept = json.loads((folder / "fedavg" / "environment.json").read_text())["peak_memory"]
    assert kept == {"bytes": number, "of": kept["of"]}
    assert "peak_memory" not in json.dumps(runs["fedavg"].summary())  # results do not depend on it


def test_the_largest_peak_of_all_processes_of_a_run_counts(tmp_path):
    history = {"peak_memory": {"bytes": 3 * 2**50, "of": "processes"}, "resumed": [{"metrics": {}}]}
    (tmp_path / "environment.json").write_text(json.dumps(history))
    record_peak(tmp_path, torch.device("cpu"))
    history = json.loads((tmp_path / "environment.json").read_text())
    assert 5e7 < history["resumed"][0]["peak_memory"]["bytes"] < 1e11
    assert recorded_peak(tmp_path)["bytes"] == 3 * 2**50


def test_the_peak_of_a_worker_process_counts():
    code = "import time; x = bytearray(300_000_000); print(len(x), flush=True); time.sleep(60)"
    before = peak_memory(torch.device("cpu"))
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert worker.stdout.readline() == b"300000000\n"
        both = peak_memory(torch.device("cpu"))
    finally:
        worker.kill()
        worker.communicate()
    if both["of"] == "processes":
        assert both["bytes"] - before["bytes"] > 290_000_000


# --- Probes and terms -------------------------------------------------------------------------------


def test_the_variance_of_eigenvalues_is_that_of_the_last_probe(runs):
    probe = runs["fedmr"].probes[-1]
    assert measured(runs["fedmr"], "eigenvalue_variance", "last5") == (probe["global"]["eigenvalue_variance"], "")
    assert measured(runs["fedavg"], "eigenvalue_variance", "last5")[1] == "it has no probes (probe.every = 0)"


def test_terms_of_the_loss_are_measures_by_their_names(runs):
    run = runs["fedmr"]
    course = [row["terms"]["fedmr.inter"] for row in run.metrics]
    assert measured(run, "fedmr.inter", "last") == (course[-1], "")
    assert measured(run, "fedmr.inter", "best") == (min(course), "")
    assert measured(run, "fedmr.inter", "last5") == (pytest.approx(sum(course) / 2), "")
    assert set(run.metrics[0]["terms"]) == {"criterion", "fedmr", "fedmr.intra", "fedmr.inter"}


def test_a_measure_that_no_run_could_have_is_rejected_before_any_run():
    with pytest.raises(InputError, match=r"probes are needed for it: set probe\.every"):
        check_measure("eigenvalue_variance", Experiment())
    with pytest.raises(InputError, match=r'there is no measure "fedmr\.intra"'):
        check_measure("fedmr.intra", Experiment(), {"fedprox"})
    for fine in ("rounds_to.75", "time_ratio", "peak_memory", "elements", "criterion", "fedprox"):
        check_measure(fine, Experiment(), {"fedprox"})


def test_the_command_prints_them(folder, capsys):
    paths = [str(folder / name) for name in ("fedavg", "fedprox")]
    for measure, words in {
        "rounds_to.5": "\nRounds to 5 % test accuracy:",
        "elements": "\nElements sent and received per client and round:",
        "time_ratio": "\nSeconds per round, divided by those of fedavg:",
        "parameters": "\nTrained parameters:",
        "peak_memory": "\nPeak memory in bytes (resident",
        "fedprox": '\nThe term "fedprox" of the loss in training, mean of the last 2 rounds:',
        "criterion": "\nCriterion in training, mean of the last 2 rounds:",
    }.items():
        status, out, _ = command("compare", "--runs", *paths, "--measure", measure, capsys=capsys)
        assert status == 0
        assert words in out
    status, out, _ = command("compare", "--runs", *paths, "--measure", "fedprox", capsys=capsys)
    assert "fedavg has no fedprox: its method adds no such term to the loss" in out
    status, _, err = command("compare", "--runs", *paths, "--measure", "rounds_to", capsys=capsys)
    assert status == 2
    assert "as in rounds_to.75" in err
    assert compare_runs(paths).by("time_ratio").rows()[0].mean == 1
