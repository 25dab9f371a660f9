"""Comparisons: the numbers, what is rejected, the runs behind them, and what a person reads."""

import importlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

import fullrank
from commands import fullrank as run_command
from fullrank import compare_runs
from fullrank.cli import compare as comparecli
from fullrank.cli.several import parse_seeds
from fullrank.comparison.board import LiveBoard
from fullrank.comparison.derived import derived
from fullrank.comparison.directories import runs_in
from fullrank.comparison.intervals import interval, std, t_quantile
from fullrank.comparison.measured import measures as all_measures
from fullrank.comparison.parallel import ComparisonCallback, Task, pass_on
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError, Interrupted
from fullrank.files import read_json, write_json
from fullrank.metrics.evaluate import over_clients
from fullrank.metrics.registry import Metric, single_numbers
from fullrank.runs.directory import RunDirectory
from fullrank.runs.summary import measures, summarise
from killing import assert_equal_outcomes, nothing_changes

compare_module = importlib.import_module(
    "fullrank.comparison.compare"
)  # the package's attribute of that name is the function
QUICK = {"train.rounds": 2, "train.steps": 3, "data.clients": 3, "model.name": "mlp", "model.width": 8}
SETS = [piece for key, value in QUICK.items() for piece in ("--set", f"{key}={value}")]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    sys.modules.pop("ownmethods", None)
    yield
    sys.modules.pop("ownmethods", None)


def pretend(path, method="fedavg", seed=0, accuracy=(0.5,), *, fingerprint="f" * 64, division=None, ending=(), **keys):
    """A complete run directory with such accuracies, without the run."""
    values = {"seed": seed, "method.name": method, "train.rounds": len(accuracy)}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    experiment = Experiment.of(values).resolved()
    path.mkdir(parents=True)
    experiment.to_toml(path / "experiment.toml")
    data = {"name": experiment.data.name, "fingerprint": fingerprint}
    write_json(path / "partition.json", {"data": data, "hash": division or f"split{seed}" + "0" * 60})
    traffic = {"bytes_up": 10, "bytes_down": 20, "elements_up": 1, "elements_down": 2, "seconds": 1.0}
    rows = [
        {"round": number + 1, **({} if value is None else {"accuracy": value, "loss": 1 - value}), **traffic}
        for number, value in enumerate(accuracy)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(path / "summary.json", {"rounds": len(rows), "ending": dict(ending)})
    return path


def command(*arguments, capsys):
    return run_command("compare", *arguments, capsys=capsys)


# Numbers


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (100, 1.9840)],
)
def test_quantiles_of_students_t(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_other_confidences_and_closed_forms():
    # one degree: Cauchy, tan(π p / 2); two degrees: p √(2 / (1 − p²))
    for p in (0.5, 0.8, 0.9, 0.99):
        assert t_quantile(1, p) == pytest.approx(math.tan(math.pi * p / 2), rel=1e-12)
        assert t_quantile(2, p) == pytest.approx(p * math.sqrt(2 / (1 - p * p)), rel=1e-12)
    assert t_quantile(10_000) == pytest.approx(1.96, abs=3e-4)  # almost normal


def test_intervals_cover_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 4))
    covered = [low <= 3.0 <= high for low, high in (interval(list(row)) for row in draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_too_few_values_have_no_spread():
    assert std([1.0]) is None
    assert interval([1.0]) is None
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_mean_std_and_paired_interval_by_hand(tmp_path):
    for seed, (a, b) in enumerate([(0.70, 0.72), (0.80, 0.81), (0.60, 0.66)]):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, [0.1, a])
        pretend(tmp_path / f"b{seed}", "fedprox", seed, [0.1, b])
    found = compare_runs(sorted(tmp_path.iterdir()), value="last")
    first, second = found.table()
    assert first["values"] == {0: 0.70, 1: 0.80, 2: 0.60}
    assert first["mean"] == pytest.approx(0.70)
    assert first["std"] == pytest.approx(0.10)
    assert first["difference"] is None
    # differences 0.02, 0.01, 0.06: mean 0.03, std √(0.0014 / 2); far narrower than the spread of either method
    half = 4.302653 * math.sqrt(0.0007) / math.sqrt(3)
    difference = second["difference"]
    assert difference["mean"] == pytest.approx(0.03)
    assert difference["low"] == pytest.approx(0.03 - half, abs=1e-7)
    assert difference["high"] == pytest.approx(0.03 + half, abs=1e-7)
    assert difference["to"] == "fedavg"


def test_the_values_of_a_measure(tmp_path):
    pretend(tmp_path / "a", accuracy=[0.9, 0.1, 0.2, 0.3, 0.4, 0.5], ending={"accuracy": 0.7})
    found = compare_runs([tmp_path / "a"])

    def number(measure, value):
        return found.by(measure, value).rows()[0].mean

    assert number("accuracy", "last5") == pytest.approx(0.3)
    assert number("accuracy", "last") == 0.5
    assert number("accuracy", "best") == 0.9
    assert number("accuracy", "final") == 0.7
    assert number("loss", "best") == pytest.approx(0.1)
    assert number("loss", "final") == 0.5  # nothing was finished: the last
    assert number("bytes_up", "last5") == 60
    with pytest.raises(InputError, match=r"known: accuracy, bytes_down, bytes_up, .*, loss, rounds, seconds"):
        found.by("foo")
    with pytest.raises(InputError, match='no run has the measure "acuracy"; did you mean "accuracy"'):
        found.by("acuracy")
    with pytest.raises(InputError, match='no value "lst"'):
        found.by("accuracy", "lst")


def test_personal_accuracy_is_that_of_the_models_that_clients_end_with(tmp_path):
    stages = {"received": {"mean": 0.5}, "local": {"mean": 0.6, "worst_decile": 0.2}}
    pretend(tmp_path / "a", "fedavg", ending={"personal": stages})
    pretend(tmp_path / "b", "fedprox", ending={"personal": {**stages, "personalised": {"mean": 0.8}}})
    found = compare_runs([tmp_path / "a", tmp_path / "b"], measure="personal")
    assert [row.mean for row in found.rows()] == [0.6, 0.8]
    assert [row.mean for row in found.by("personal.local.worst_decile").rows()] == [0.2, 0.2]


def test_an_absent_measure_says_why(tmp_path):
    reason = "2 entries of the model are each client's own (head.weight …)"
    for seed in (0, 1):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, [0.5])
        pretend(tmp_path / f"b{seed}", "fedprox", seed, [None], ending={"absent": {"accuracy": reason}})
    found = compare_runs(sorted(tmp_path.iterdir()))
    row = found.rows()[1]
    assert row.mean is None
    assert row.difference is None
    assert row.absent == {0: reason, 1: reason}
    assert f"fedprox has no accuracy: {reason}" in found.remarks()
    assert found.by("loss").rows()[1].absent[0] == reason


def test_only_seeds_that_both_have_enter_a_difference(tmp_path, capsys):
    for seed, accuracy in enumerate((0.5, 0.6, 0.7, 0.9)):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, [accuracy])
    for seed in (0, 1):
        pretend(tmp_path / f"b{seed}", "fedprox", seed, [0.65])
    found = compare_runs(sorted(tmp_path.iterdir()))
    row = found.rows()[1]
    assert row.difference.values == pytest.approx({0: 0.15, 1: 0.05})
    assert row.difference.mean == pytest.approx(0.10)
    assert "fedprox was not run with seeds 2 and 3" in found.remarks()
    assert "the difference of fedprox to fedavg is over seeds 0 and 1, which both have" in found.remarks()
    _, out, err = command("--runs", tmp_path, capsys=capsys)
    assert "–" in out
    assert err == "fullrank: warning: two seeds say little; compare over three or more\n"


# What is rejected


def test_runs_of_one_method_are_told_apart_by_their_hyper_parameters(tmp_path):
    for seed in (0, 1):
        pretend(tmp_path / f"a{seed}", "fedprox", seed, method__fedprox__mu=0.1)
        pretend(tmp_path / f"b{seed}", "fedprox", seed, method__fedprox__mu=1.0)
        pretend(tmp_path / f"c{seed}", "fedavg", seed, method__fedprox__mu=5.0)  # not its own: no matter
    found = compare_runs(sorted(tmp_path.iterdir()))
    assert found.methods == ("fedprox (fedprox.mu=0.1)", "fedprox (fedprox.mu=1.0)", "fedavg")
    pretend(tmp_path / "again", "fedavg", 1)
    with pytest.raises(InputError, match=r'c1" and ".*again" are both fedavg with seed 1'):
        compare_runs([tmp_path / "c0", tmp_path / "c1", tmp_path / "again"])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"division": "another"}, "their clients have other samples .partition hash split0000000… and another…"),
        ({"fingerprint": "e" * 64}, "their data differ .fingerprint ffffffffffff… and eeeeeeeeeeee…"),
        ({"seed": 1, "fingerprint": "e" * 64}, "their data differ"),
    ],
)
def test_runs_with_the_same_keys_but_other_data_are_rejected_and_named(other, words, tmp_path, capsys):
    pretend(tmp_path / "a", "fedavg")
    pretend(tmp_path / "b", "fedprox", **other)
    with pytest.raises(InputError, match=f'a" and ".*b" cannot be compared: {words}'):
        compare_runs([tmp_path / "a", tmp_path / "b"])
    status, _, err = command("--runs", "a", "b", capsys=capsys)
    assert status == 2
    assert err.count("\n") == 1


def test_where_a_run_was_resumed_and_which_engine_computed_it_makes_no_difference(tmp_path):
    pretend(tmp_path / "a", "fedavg", engine__name="serial", run__keep=3, data__root="here")
    pretend(tmp_path / "b", "fedprox", engine__name="processes", engine__workers=2, engine__threads=2)
    assert compare_runs([tmp_path / "a", tmp_path / "b"]).methods == ("fedavg", "fedprox")


def test_data_that_are_divided_by_the_seed_may_differ_between_seeds_only(tmp_path):
    own = {"data__name": "mine.npz"}
    pretend(tmp_path / "a0", "fedavg", 0, fingerprint="a" * 64, **own)
    pretend(tmp_path / "a1", "fedavg", 1, fingerprint="b" * 64, **own)
    pretend(tmp_path / "b0", "fedprox", 0, fingerprint="a" * 64, **own)
    assert compare_runs([tmp_path / "a0", tmp_path / "a1", tmp_path / "b0"]).seeds == (0, 1)
    pretend(tmp_path / "b1", "fedprox", 1, fingerprint="c" * 64, **own)
    with pytest.raises(InputError, match=r'a1" and ".*b1" cannot be compared: their data differ'):
        compare_runs([tmp_path / "a0", tmp_path / "a1", tmp_path / "b0", tmp_path / "b1"])


WRONG = {
    "nothing": ([], "--methods fedavg,fedavg"),
    "unknown method": (["-m", "fedavg,fedavgg"], 'did you mean "fedavg"'),
    "twice": (["-m", "fedavg, fedprox ,fedprox"], 'the method "fedprox" is given twice'),
    "no such seed": (["-m", "fedavg", "-s", "0,x"], '--seeds "0,x"'),
    "a range backwards": (["-m", "fedavg", "-s", "4-1"], '--seeds "4-1"'),
    "a seed twice": (["-m", "fedavg", "-s", "0-2,1"], "the seed 1 is given twice"),
    "a seed set": (["-m", "fedavg", "--set", "seed=1"], "use --seeds"),
    "a method set": (["-m", "fedavg", "--set", "method.name=x"], "use --methods"),
    "jobs": (["-m", "fedavg", "-j", "-1"], "jobs = -1"),
    "value": (["-m", "fedavg", "--value", "lst"], 'did you mean "last"'),
    "measure": (["-m", "fedavg", "--measure", "acuracy"], 'no measure "acuracy"; did you mean "accuracy"'),
    "personal measure": (["-m", "fedavg", "--measure", "personal.local.maen"], 'did you mean "personal.local.mean"'),
    "misspelt key": (["-m", "fedavg", "--set", "data.alhpa=1"], 'did you mean "alpha"'),
    "two files": (["-m", "fedavg", "a.toml", "b.toml"], "use --runs"),
    "a run as the folder": (["-m", "fedavg", "--out", "run"], '"run" is a run itself'),
    "no run": (["--runs", "empty"], "holds none"),
    "not there": (["--runs", "nothing"], '"nothing" is not a run directory'),
    "no runs": (["--runs"], "no runs were given"),
    "runs and methods": (["--runs", "run", "-m", "fedavg"], "--runs compares existing runs"),
    "runs and a grid": (["--runs", "run", "--vary", "train.lr=1,2"], "--runs compares existing runs"),
    "a reference that is not there": (
        ["--runs", "run", "--reference", "fedprox"],
        'no row of the comparison is "fedprox"',
    ),
    "a reference that is not run": (["-m", "fedavg", "--reference", "moon"], 'no row of the comparison is "moon"'),
    "a folder as the table": (["--runs", "run", "--csv", "empty"], '"empty" cannot be written'),
    "a misspelt setting": (["-m", "feddecorr:bta=1"], 'feddecorr has no hyper-parameter "bta"; did you mean "beta"?'),
    "a setting of none": (["-m", "fedavg:mu=1"], 'fedavg has no hyper-parameter "mu"; it has none'),
    "a misspelt key": (["-m", "fedavg:train.lrr=1"], 'train.lrr: there is no such key; did you mean "lr"?'),
    "a seed of a method": (["-m", "fedavg:seed=1"], "seed cannot be a setting of a method"),
    "a setting twice": (["-m", "fedprox:mu=1:mu=2"], "mu is given twice"),
    "the same settings": (["-m", "fedprox:mu=0.5,fedprox:fedprox.mu=0.5"], "the same settings as another method"),
    "a grid without values": (["-m", "fedavg", "--vary", "train.lr"], "not of the form KEY=VALUE,VALUE"),
    "an empty grid": (["-m", "fedavg", "--vary", "train.lr="], "train.lr needs the values to take"),
    "a grid with a value twice": (["-m", "fedavg", "--vary", "train.lr=1,1"], "has the value 1 twice"),
    "a grid of seeds": (["-m", "fedavg", "--vary", "seed=1,2"], "seed cannot be varied"),
    "a grid of nobody": (["-m", "fedavg", "--vary", "method.moon.mu=1,2"], "no method of the comparison has"),
    "set and varied": (["-m", "fedavg:train.lr=1", "--vary", "train.lr=1,2"], "which is varied as well"),
    "unfinished": (["--runs", "unfinished"], "1 of 1 rounds, no result"),
    "another experiment": (["-m", "fedavg", "-s", "0", "--out", "there"], "holds another experiment: data.alpha"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gives_one_sentence_and_a_status(case, tmp_path, capsys):
    arguments, words = WRONG[case]
    pretend(tmp_path / "run")
    pretend(tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    pretend(tmp_path / "there" / "fedavg-seed0", accuracy=[0.5] * 10, data__alpha=7.0)
    (tmp_path / "empty").mkdir()
    status, _, err = command(*arguments, capsys=capsys)
    assert status == 2
    assert err.startswith("fullrank: ")
    assert err.count("\n") == 1
    assert words in err


def test_every_measure_of_a_summary_can_be_asked_for():
    stage = over_clients([0.5], [3])
    own = Metric("kappa", None)
    totals = ("bytes_up", "bytes_down", "elements_up", "elements_down", "seconds")
    row = {"round": 1, **dict.fromkeys((*measures([own]), *totals), 1.0), "skipped": {"0": "why"}}
    personal = {"received": stage, "local": stage, "personalised": stage}
    summary = summarise([row], {"personal": personal, "unseen": personal}, [own])
    metrics = ("", *(f"{metric.key}." for metric in single_numbers([own])[1:]))
    below = [
        f"{who}.{name}.{metric}{number}"
        for who in ("personal", "unseen")
        for name in personal
        for metric in metrics
        for number in stage
    ]
    assert {"kappa", "validation_kappa"} <= summary.keys()
    computed = {name for name in all_measures([own]) if derived(name)} | {"criterion"}
    assert {*summary, *below} - {"absent"} == set(all_measures([own])) - computed


def test_runs_in_the_folder_of_a_comparison_keep_its_order(tmp_path):
    for method in ("fedavg", "feddecorr", "fedprox"):
        pretend(tmp_path / "out" / method, method)
    assert compare_runs(["out"]).methods == ("fedavg", "feddecorr", "fedprox")
    write_json(tmp_path / "out" / "comparison.json", {"methods": ["fedprox", "fedavg"]})
    assert compare_runs(["out"]).methods == ("fedprox", "fedavg", "feddecorr")


def test_a_folder_of_folders_stands_for_the_runs_in_all_of_them(tmp_path):
    for place in ("b", "a"):
        pretend(tmp_path / "out" / place / "run", f"fedprox{'+feddecorr' if place == 'b' else ''}")
    (tmp_path / "out" / "notes.txt").write_text("not a folder")
    assert [run.path.parent.name for run in runs_in(tmp_path / "out")] == ["a", "b"]
    pretend(tmp_path / "out" / "z", "fedavg")
    assert [run.path.name for run in runs_in(tmp_path / "out")] == ["z", "run", "run"]
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(InputError, match=r'empty" is not a run directory and holds none'):
        runs_in(tmp_path / "empty")


def test_mixed_splits_are_rejected_before_anything_is_run(tmp_path):
    pretend(tmp_path / "out" / "fedavg-seed0", "fedavg", accuracy=[0.5] * 2)
    pretend(tmp_path / "out" / "fedprox-seed0", "fedprox", accuracy=[0.5] * 2, division="another")
    with pytest.raises(InputError, match="cannot be compared"):
        fullrank.compare({"train.rounds": 2}, ["fedavg", "fedprox"], [0, 1], "out")
    assert not (tmp_path / "out" / "fedavg-seed1").exists()


# The runs


class Seen(ComparisonCallback):
    """Keeps what it is told."""

    def __init__(self):
        self.began_with, self.rounds, self.ended_with = [], [], []

    def started(self, task):
        self.began_with.append((task.name, task.done))

    def round_done(self, task, row):
        self.rounds.append((task.name, row["round"]))

    def ended(self, task, summary):
        self.ended_with.append(task.name)


class Stopping(Seen):
    """Sends this process a signal after so many rounds."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def round_done(self, task, row):
        super().round_done(task, row)
        if len(self.rounds) == self.after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_every_method_has_the_split_of_the_seed_and_complete_runs_are_kept(tmp_path):
    methods, seen = ["fedavg", "fedavg+feddecorr"], Seen()
    found = fullrank.compare(QUICK, methods, [0, 1], "out", jobs=1, callbacks=[seen])
    assert seen.ended_with == [f"{method} seed {seed}" for seed in (0, 1) for method in methods]
    facts = found.facts()
    assert len({split["partition"] for split in facts["splits"].values()}) == 2
    single = fullrank.run({**QUICK, "seed": 1, "method.name": "fedavg"}, tmp_path / "single")
    assert found.rows()[0].values[1] == single.summary()["accuracy"]["last5"]
    assert_equal_outcomes(tmp_path / "out" / "fedavg-seed1", tmp_path / "single")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*")}
    with nothing_changes(tmp_path / "out"):
        again = fullrank.compare(QUICK, methods, [0, 1], "out", callbacks=[idle := Seen()])
    assert not idle.began_with
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*")} == times
    assert again.table() == found.table()
    assert read_json(tmp_path / "out" / "comparison.json") == json.loads(found.to_json())
    more = Seen()
    fullrank.compare({**QUICK, "train.rounds": 3}, methods, [1, 0, 2], "out", jobs=1, callbacks=[more])
    assert more.began_with[0] == ("fedavg seed 1", 2)
    assert more.began_with[-1] == ("fedavg+feddecorr seed 2", 0)


def test_one_split_for_all_seeds_where_the_partition_has_its_own_seed():
    found = fullrank.compare({**QUICK, "train.rounds": 1, "data.seed": 5}, ["fedavg"], [0, 1], "out", jobs=1)
    assert len({split["partition"] for split in found.facts()["splits"].values()}) == 1


def test_the_same_comparison_finds_its_own_directory():
    def name(seeds=(0,), **values):
        planned = compare_module._planned({**QUICK, **values}, ["fedavg", "fedprox"], seeds)
        return str(compare_module._named_after(planned))

    assert name().startswith("runs/compare-digits-")
    assert name(seeds=(3, 4), **{"train.rounds": 9, "engine.name": "serial"}) == name()
    assert name(**{"method.fedprox.mu": 0.5}) != name()
    assert name(**{"data.alpha": 0.5}) != name()


def test_in_processes_of_their_own_the_runs_are_the_same_also_stopped_and_continued(tmp_path):
    experiment = {**QUICK, "train.rounds": 60, "train.steps": 2}
    fullrank.compare(experiment, ["fedavg", "fedprox"], [3], "one-by-one", jobs=1)
    with pytest.raises(Interrupted, match=r'of 2 runs are complete .* saved in "together"; the same command continues'):
        fullrank.compare(experiment, ["fedavg", "fedprox"], [3], "together", jobs=2, callbacks=[Stopping(after=2)])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    seen = Seen()
    found = fullrank.compare(experiment, ["fedavg", "fedprox"], [3], "together", jobs=2, callbacks=[seen])
    assert max(done for _, done in seen.began_with) > 0
    for method in ("fedavg", "fedprox"):
        directory = tmp_path / "together" / f"{method}-seed3"
        assert_equal_outcomes(directory, tmp_path / "one-by-one" / f"{method}-seed3")
        assert fullrank.load_run(directory).experiment.engine.name == "serial"
    assert found.table() == compare_runs(["one-by-one"]).table()


def test_one_by_one_stopped_between_two_runs_and_continued(tmp_path):
    with pytest.raises(Interrupted, match="1 of 2 runs are complete"):
        fullrank.compare(QUICK, ["fedavg", "fedprox"], [0], "out", jobs=1, callbacks=[Stopping(after=2)])
    assert not (tmp_path / "out" / "fedprox-seed0").exists()
    seen = Seen()
    fullrank.compare(QUICK, ["fedavg", "fedprox"], [0], "out", jobs=1, callbacks=[seen])
    assert seen.began_with == [("fedprox seed 0", 0)]


@pytest.fixture
def _own_methods(tmp_path):
    (tmp_path / "ownmethods.py").write_text(
        "from dataclasses import dataclass\n"
        "from fullrank import Method\n"
        "@dataclass(frozen=True)\n"
        "class Fails(Method):\n"
        "    really: bool = True\n"
        "    def loss(self, b):\n"
        "        if self.really: raise RuntimeError('out of luck')\n"
        "        return 0 * b.logits.sum()\n"
    )


@pytest.mark.usefixtures("_own_methods")
def test_a_failure_in_this_process(capsys):
    status, _, err = command(*SETS, "-m", "ownmethods:Fails", "-s", "0", "--out", "out", capsys=capsys)
    assert status == 1
    assert "Traceback" in err
    assert "ownmethods.py" in err
    assert err.strip().splitlines()[-1].startswith("fullrank: fails seed 0: client ")


@pytest.mark.usefixtures("_own_methods")
def test_the_table_of_a_method_of_ones_own_stays_away_from_the_others(tmp_path):
    experiment = {**QUICK, "train.rounds": 1, "method.fails.really": False}
    fullrank.compare(experiment, ["fedavg", "fedavg+ownmethods:Fails"], [0], "out", jobs=1)
    assert "fails" not in (tmp_path / "out" / "fedavg-seed0" / "experiment.toml").read_text()
    own = fullrank.load_run(tmp_path / "out" / "fedavg+ownmethods.Fails-seed0").experiment
    assert own.method.tables["fails"] == {"really": False}
    with pytest.raises(InputError, match=r"method\.fials: there is no such method"):
        fullrank.compare({**QUICK, "method.fials.really": False}, ["fedavg"], [0], "out")


def test_a_class_of_ones_own_under_a_name_of_the_library_keeps_its_table_to_itself(tmp_path):
    (tmp_path / "ownmethods.py").write_text(
        "from dataclasses import dataclass\nfrom fullrank import Method\n\n\n"
        "@dataclass(frozen=True)\nclass FedProx(Method):\n    nu: float = 0.1\n"
    )
    planned = compare_module._planned({"method.fedprox.nu": 2.0}, ["fedavg", "ownmethods:FedProx"], [0])
    assert [e.method.tables for e in planned.values()] == [{}, {"fedprox": {"nu": 2.0}}]


def test_runs_of_ones_own_model_and_method_are_compared_where_these_are_not(tmp_path, capsys):
    own = tmp_path / "ownmethods.py"
    own.write_text(
        "from dataclasses import dataclass\nfrom fullrank import Method\n\n\n"
        "@dataclass(frozen=True)\nclass Own(Method):\n    nu: float = 0.1\n\n\n"
        "def tiny(num_classes, in_channels): ...\n"
    )
    keys = {"method": "ownmethods:Own", "model__name": "ownmethods:tiny"}
    pretend(tmp_path / "a", **keys)
    pretend(tmp_path / "b", **keys, method__own__nu=0.5)
    there = fullrank.load_run(tmp_path / "a", trust=True).experiment
    known = Experiment.of(there)
    assert (known, known.hash(), known.directory()) == (there, there.hash(), there.directory())
    own.unlink()
    del sys.modules["ownmethods"]
    importlib.invalidate_caches()
    status, out, _ = command("--runs", "a", "b", capsys=capsys)
    assert status == 0
    assert "own (own.nu=0.1)" in out
    assert "ownmethods:Own" not in out
    assert run_command("figure", "accuracy", "a", "--out", "a.pdf", capsys=capsys)[0] == 0
    for way in (fullrank.load_run("a", trust=True)._assembled, lambda: fullrank.run(there, "c")):
        with pytest.raises(InputError, match='there is no module "ownmethods"'):
            way()


def test_a_recorded_experiment_that_cannot_be_read_is_named(tmp_path, capsys):
    record = pretend(tmp_path / "a") / "experiment.toml"
    record.write_text(record.read_text().replace('name = "fedavg"', 'name = "fedavgg"'))
    status, _, err = command("--runs", "a", capsys=capsys)
    assert status == 2
    assert 'the experiment of the run in "a" cannot be read: method.name = "fedavgg" is not known' in err


def test_the_title_says_which_value_is_shown(tmp_path, capsys):
    pretend(tmp_path / "a", accuracy=[0.5, 0.6, 0.7], evaluate__every=2)
    assert "mean of the last 2 evaluations:" in command("--runs", "a", capsys=capsys)[1]
    _, out, _ = command("--runs", "a", "--value", "validated", capsys=capsys)
    assert "round with the best validation score:" in out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_to_the_command_leave_no_process_behind(number, tmp_path):
    line = [sys.executable, "-m", "fullrank", "compare", *SETS, "--set", "train.rounds=100000", "--out", "out"]
    line += ["-m", "fedavg,fedprox", "-s", "0", "-j", "2"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    directories = [RunDirectory(tmp_path / "out" / f"{name}-seed0") for name in ("fedavg", "fedprox")]
    deadline = time.monotonic() + 60
    while not all(directory.started and directory.last_round() for directory in directories):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert err.splitlines()[1].startswith("fullrank: stopped; 0 of 2 runs are complete")
    for directory in directories:
        for _ in range(100):
            try:
                directory.open()
                break
            except InputError:  # of a killed parent a child learns after its round
                time.sleep(0.1)
        else:
            pytest.fail(f"somebody still runs in {directory.path}")
        directory.close()


# What a person reads


def test_the_command_prints_the_table_and_continues(tmp_path, capsys):
    arguments = [*SETS, "-m", "fedavg,fedprox", "-s", "0-2", "-j", "1", "--out", "out"]
    status, out, err = command(*arguments, capsys=capsys)
    assert status == 0
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("2 methods × 3 seeds on digits: 3 clients")
    assert lines[1] == "writing to out"
    assert sum(line.endswith("(6 of 6)") for line in lines) == 1
    title = lines.index("Test accuracy in percent, mean of the last 2 rounds:")
    assert lines[title + 2].split("  ")[0] == "method"
    mean, spread = (lambda v: (100 * v.mean(), 100 * v.std(ddof=1)))(
        np.array([fullrank.load_run(f"out/fedavg-seed{seed}").summary()["accuracy"]["last5"] for seed in range(3)])
    )
    assert f"{mean:.2f} ± {spread:.2f}" in lines[title + 3]
    assert lines[-1] == "6 runs complete; results in out"
    status, out, _ = command(*arguments, capsys=capsys)
    assert "complete already in out" in out
    assert out.splitlines()[-1] == lines[-1]
    _, quiet, _ = command(*arguments, "--quiet", capsys=capsys)
    assert quiet.strip().splitlines() == lines[title:]
    _, text, err = command("--runs", "out", "--json", capsys=capsys)
    assert err == ""
    facts = json.loads(text)
    assert facts["methods"] == ["fedavg", "fedprox"]
    assert facts["rows"][0]["mean"] == pytest.approx(mean / 100)
    assert facts["warnings"] == []


def test_a_warning_below_three_seeds(tmp_path, capsys):
    pretend(tmp_path / "a")
    _, out, err = command("--runs", "a", capsys=capsys)
    assert "difference" not in out  # there is only the first method
    assert err == "fullrank: warning: one seed says nothing about the spread; compare over three or more\n"
    _, text, _ = command("--runs", "a", "--json", capsys=capsys)
    assert len(json.loads(text)["warnings"]) == 1


def test_the_interval_that_includes_nothing_new_is_said_so(tmp_path, capsys):
    for seed in range(3):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, [0.5 + 0.1 * seed])
        pretend(tmp_path / f"b{seed}", "fedprox", seed, [0.7 - 0.1 * seed])
        pretend(tmp_path / f"c{seed}", "fedavgm", seed, [0.7 + 0.1 * seed])
    _, out, _ = command("--runs", *sorted(tmp_path.iterdir()), capsys=capsys)
    assert "fedprox: the interval includes 0, so these 3 seeds do not tell it from fedavg" in out
    assert "fedavgm:" not in out
    assert "+20.00 (+20.00 to +20.00)" in out


def test_a_narrow_terminal_has_the_table_without_the_seeds(tmp_path, monkeypatch, capsys):
    for seed in range(9):
        pretend(tmp_path / f"a{seed}", "fedavg", seed)
        pretend(tmp_path / f"b{seed}", "fedprox", seed)
    stream = io.StringIO()

    def terminal(width=80, **options):
        return Console(file=stream, force_terminal=True, width=width, **options)

    _, out, _ = command("--runs", tmp_path, capsys=capsys)
    assert "seed 8" in out  # a file has lines of any length
    monkeypatch.setattr(comparecli, "Console", terminal)
    command("--runs", tmp_path, capsys=capsys)
    assert "seed 0" not in stream.getvalue()
    assert "mean ± std" in stream.getvalue()


def test_a_narrow_terminal_never_breaks_a_word_of_a_row_name(tmp_path, monkeypatch, capsys):
    for alpha in (0.05, 0.5):
        for seed in range(3):
            pretend(tmp_path / f"a{alpha}-{seed}", "fedavg", seed, **{"data.alpha": alpha})
            pretend(tmp_path / f"b{alpha}-{seed}", "fedavg+feddecorr", seed, **{"data.alpha": alpha})
    stream = io.StringIO()
    _, out, _ = command("--runs", tmp_path, capsys=capsys)
    assert "difference to" in out
    monkeypatch.setattr(
        comparecli, "Console", lambda width=80, **options: Console(file=stream, force_terminal=True, width=width)
    )
    command("--runs", tmp_path, capsys=capsys)
    table = stream.getvalue().partition("the rows differ")[0]
    assert "difference to" not in table
    assert table.count("fedavg+feddecorr") == table.count("(data.alpha=0.5)") == 2
    assert table.count("(data.alpha=0.05)") == 2


def test_live_display_of_several_runs():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with LiveBoard(console) as board:
        fullrank.compare(QUICK, ["fedavg", "fedprox"], [0], "out", jobs=1, callbacks=[board])
        (bar,) = board.progress.tasks
    assert bar.completed == bar.total == 4
    assert bar.fields["state"] == "2/2 complete"
    assert "fedprox seed 0: 2 rounds  accuracy" in stream.getvalue()


def test_what_a_runs_own_code_prints_is_passed_on(tmp_path):
    class Listening(Seen):
        said_by = []

        def printed(self, task, text):
            self.said_by.append((task.name, text))

    seen, task = Listening(), Task("fedavg seed 0", Experiment(), tmp_path)
    for line in ("hello", "[1]", '{"a": 1}', '{"event": "round", "round": 7}', '{"event": "end", "summary": {}}'):
        pass_on(task, line, seen)
    assert seen.said_by == [(task.name, text) for text in ("hello", "[1]", '{"a": 1}')]
    assert seen.rounds == [(task.name, 7)]
    assert seen.ended_with == [task.name]


def test_seeds_as_lists_and_ranges():
    assert parse_seeds("0,1,2") == [0, 1, 2]
    assert parse_seeds("0-2, 7") == [0, 1, 2, 7]


def test_help_has_an_example(capsys):
    status, out, _ = command("--help", capsys=capsys)
    assert status == 0
    assert "Example: fullrank compare" in out
