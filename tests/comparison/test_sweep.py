"""Sweeps: the trials, how the best is chosen, pruning, and a sweep that was killed."""

import json
import math
import os
import signal
import statistics
import sys

import optuna
import pytest

import fullrank
from fullrank.comparison.parallel import ComparisonCallback
from fullrank.comparison.space import Choice, Range, grid_of, make_space, parse_over
from fullrank.comparison.study import Study
from fullrank.comparison.sweep import sweep
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError, Interrupted, RunFailed
from fullrank.files import read_json
from fullrank.runs.pruning import MARK
from killing import forked, timeless

FEW = {
    "train.rounds": 1,
    "train.steps": 2,
    "data.clients": 2,
    "data.validation": 0.2,
    "model.name": "mlp",
    "model.width": 8,
}
GRID = {"train.lr": [0.01, 0.1]}
SEEDS = (0,)


def trials_of(folder):
    """What a sweep recorded of its trials."""
    return [
        (trial["settings"], trial["state"], trial["values"]) for trial in read_json(folder / "sweep.json")["trials"]
    ]


# The space


def test_values_as_the_command_line_takes_them():
    texts = [
        "train.lr=0.01:1:log",
        "train.epochs=1:5",
        "model.width=8,16",
        "train.momentum=0:0.9",
        'data.augment=none,["flip"]',
    ]
    space = make_space(parse_over(texts), Experiment(model={"name": "mlp"}))
    assert space == {
        "train.lr": Range(0.01, 1, log=True),
        "train.epochs": Range(1, 5, whole=True),
        "model.width": Choice((8, 16)),
        "train.momentum": Range(0, 0.9),
        "data.augment": Choice(("none", ["flip"])),
    }


def test_whole_bounds_of_a_key_that_takes_fractions_are_a_range_of_fractions():
    assert make_space({"train.momentum": (0, 0.5)}, Experiment())["train.momentum"] == Range(0, 0.5)
    assert make_space({"train.lr": "1:2"}, Experiment())["train.lr"] == Range(1, 2, whole=False)
    assert make_space({"train.lr": (0.1, 1, "log")}, Experiment())["train.lr"] == Range(0.1, 1, log=True)


def test_the_order_of_a_grid_is_that_of_its_keys():
    space = make_space({"train.lr": [0.1, 1.0], "train.epochs": [1, 2]}, Experiment())
    assert [tuple(point.values()) for point in grid_of(space)] == [(0.1, 1), (0.1, 2), (1.0, 1), (1.0, 2)]


# Choosing


def test_the_best_on_validation_data_is_chosen_and_its_test_scores_are_read(tmp_path):
    found = sweep({**FEW, "train.rounds": 2}, GRID, sampler="grid", seeds=[0, 1], out=tmp_path / "s", jobs=1)
    assert [trial.settings for trial in found.trials] == [{"train.lr": 0.01}, {"train.lr": 0.1}]
    means = []
    for number in range(2):
        runs = [fullrank.load_run(tmp_path / "s" / "trials" / f"{number:03d}-seed{seed}") for seed in (0, 1)]
        best = [max(row["validation_accuracy"] for row in run.metrics) for run in runs]
        assert found.trials[number].values == dict(enumerate(best))
        assert found.trials[number].std == pytest.approx(statistics.stdev(best))
        means.append(statistics.fmean(best))
    assert [trial.mean for trial in found.trials] == pytest.approx(means)
    assert found.best.number == means.index(max(means))
    tests = []
    for seed in (0, 1):
        rows = fullrank.load_run(found.best.path(tmp_path / "s", seed)).metrics
        tests.append(max(rows, key=lambda row: row["validation_accuracy"])["accuracy"])
    assert found.test["accuracy"]["values"] == dict(enumerate(tests))
    record = read_json(tmp_path / "s" / "sweep.json")
    assert record["best"] == found.best.number
    assert all("accuracy" not in trial for trial in record["trials"])
    assert found.table()[0]["number"] == found.best.number


def test_the_winning_file_is_a_complete_experiment(tmp_path):
    keys, over = {**FEW, "method.name": "feddecorr"}, {"method.feddecorr.beta": [0.01, 0.5]}
    found = sweep(keys, over, sampler="grid", seeds=[3], out=tmp_path / "s", jobs=1)
    again = fullrank.run(tmp_path / "s" / "best.toml", tmp_path / "again")
    assert again.experiment.seed == 3
    assert again.experiment.method.tables["feddecorr"]["beta"] == found.best.settings["method.feddecorr.beta"]
    assert max(row["validation_accuracy"] for row in again.metrics) == found.best.mean
    assert found.experiment == Experiment.from_toml(tmp_path / "s" / "best.toml")


def test_lower_is_better_for_a_loss(tmp_path):
    found = sweep(FEW, GRID, sampler="grid", measure="validation_loss", out=tmp_path / "s", jobs=1)
    assert found.best.mean == min(trial.mean for trial in found.trials)
    assert set(found.test) == {"accuracy", "loss"}


def test_all_trials_have_the_same_splits_and_no_test_score_is_shown(tmp_path):
    class Seen(ComparisonCallback):
        rows = []

        def round_done(self, task, row):
            self.rows.append(row)

        def ended(self, task, summary):
            self.rows.append(summary)

    sweep(FEW, GRID, sampler="grid", seeds=[0, 1], out=tmp_path / "s", jobs=1, callbacks=[Seen()])
    assert all("validation_accuracy" in row and not {"accuracy", "loss"} & row.keys() for row in Seen.rows)
    hashes = [read_json(path)["hash"] for path in sorted((tmp_path / "s" / "trials").glob("*/partition.json"))]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]


def test_a_failed_trial_is_not_chosen(tmp_path):
    found = sweep(FEW, {"train.lr": [1e25, 0.1]}, sampler="grid", out=tmp_path / "s", jobs=1)
    assert [trial.state for trial in found.trials] == ["failed", "complete"]
    assert "upload is rejected" in found.trials[0].reason
    assert found.best.number == 1
    with pytest.raises(RunFailed, match="no trial of the sweep is complete: trial 0: client"):
        sweep(FEW, {"train.lr": [1e25]}, sampler="grid", out=tmp_path / "t", jobs=1)


FLAKY = """
import os
from dataclasses import dataclass

import fullrank


@dataclass(frozen=True)
class Flaky(fullrank.Method):
    \"\"\"It fails as long as a file is there, at some values of its hyper-parameter.\"\"\"

    level: float = 0.0

    def loss(self, b):
        if os.path.exists("broken") and self.level > 0.55:
            raise RuntimeError("it is broken")
        return self.level * b.z.square().mean()
"""


def test_a_failed_trial_is_repeated_once_by_each_further_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    (tmp_path / "flaky.py").write_text(FLAKY)
    (tmp_path / "broken").touch()
    attempts = []

    class Seen(ComparisonCallback):
        def started(self, task):
            attempts.append(task.name)

    def whole(folder, number=3):
        keys = {**FEW, "method.name": "flaky:Flaky"}
        over = {"method.flaky.level": (0.0, 1.0)}
        return sweep(keys, over, number, sampler="tpe", out=tmp_path / folder, jobs=1, callbacks=[Seen()])

    first = whole("s")
    failed = [trial.number for trial in first.trials if trial.state == "failed"]
    assert 0 < len(failed) < 3
    assert "it is broken" in first.trials[failed[0]].reason
    attempts.clear()
    again = whole("s")
    assert again.trials == first.trials
    assert attempts == [f"trial {number} seed 0" for number in failed]
    (tmp_path / "broken").unlink()
    mended = whole("s")
    assert {trial.state for trial in mended.trials} == {"complete"}
    assert [trial.settings for trial in mended.trials] == [trial.settings for trial in first.trials]
    attempts.clear()
    more = whole("s", 4)
    assert attempts == ["trial 3 seed 0"]
    assert more.trials[:3] == mended.trials
    stored = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 's' / 'optuna.db'}")
    assert stored.best_value == more.best.mean


def test_more_trials_are_added_to_those_that_there_are(tmp_path):
    over = {"train.lr": "0.001:1:log"}
    first = sweep(FEW, over, 2, sampler="random", out=tmp_path / "s", jobs=1)
    second = sweep(FEW, over, 3, sampler="random", out=tmp_path / "s", jobs=1)
    at_once = sweep(FEW, over, 3, sampler="random", out=tmp_path / "t", jobs=1)
    assert second.trials[:2] == first.trials
    assert second.trials == at_once.trials
    assert all(0.001 <= trial.settings["train.lr"] <= 1 for trial in second.trials)
    with pytest.raises(InputError, match=r"holds another sweep: over was .*; choose another --out"):
        sweep(FEW, {"train.lr": "0.01:1:log"}, 3, sampler="random", out=tmp_path / "s", jobs=1)


# Optuna


@pytest.mark.parametrize("lower", [True, False])
def test_tpe_learns_from_earlier_trials(lower, tmp_path):
    """On a function with its optimum at 0.1; the first ten trials are random."""
    space = make_space({"train.lr": "0.001:1:log"}, Experiment())
    study = Study(tmp_path / "optuna.db", space, "tpe", lower, 0)
    values = []
    for number in range(25):
        settings = study.suggest(number, before=number)
        assert settings == study.suggest(number, before=number)
        study.add(settings)
        score = abs(math.log10(settings["train.lr"]) + 1)
        study.tell(number, "complete", score if lower else -score, {1: score})
        values.append(settings["train.lr"])
    study.close()
    stored = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    assert [trial.params["train.lr"] for trial in stored.trials] == values
    assert stored.best_trial.number == min(range(25), key=lambda n: abs(math.log10(values[n]) + 1))
    spread = [abs(math.log10(value) + 1) for value in values]
    assert statistics.median(spread[10:]) < statistics.median(spread[:10])


def test_an_absent_optuna_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"a sweep needs Optuna: pip install 'fullrank\[sweep\]'"):
        sweep(FEW, GRID, sampler="grid", out=tmp_path / "s", jobs=1)
    assert not (tmp_path / "s").exists()


# Pruning


def test_runs_that_are_worse_than_the_median_stop_as_optunas_median_pruner_says(tmp_path):
    rates = [0.05, 0.1, 0.2, 1e-9, 1e-8]
    keys = {**FEW, "train.rounds": 3, "train.steps": 20}

    def whole(folder, pruner):
        options = {"sampler": "grid", "pruner": pruner, "seeds": SEEDS, "jobs": 1}
        return sweep(keys, {"train.lr": rates}, out=tmp_path / folder, **options)

    found, full = whole("s", "median"), whole("t", "none")
    runs = {(trial.number, seed): trial.path(full.path, seed) for trial in full.trials for seed in SEEDS}
    courses = {
        pair: [row["validation_accuracy"] for row in fullrank.load_run(path).metrics] for pair, path in runs.items()
    }
    pruned = 0
    for seed in SEEDS:
        study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
        for number in range(5):
            trial, stopped = study.ask(), 0
            for step, value in enumerate(courses[number, seed], 1):
                trial.report(value, step)
                if not stopped and trial.should_prune():
                    stopped = step
            mark = found.trials[number].path(found.path, seed) / MARK
            assert (read_json(mark)["round"] if mark.exists() else 0) == stopped
            pruned += bool(stopped)
            if found.trials[number].state == "complete":
                study.tell(trial, 0.0)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert pruned
    assert found.trials[3].state == "pruned"
    assert found.trials[3].reason.startswith("after round ")
    path = next(path for path in (found.path / "trials").glob("003-*") if (path / MARK).exists())
    assert not (path / "summary.json").exists()
    stored = optuna.load_study(study_name="sweep", storage=f"sqlite:///{found.path / 'optuna.db'}").trials[3]
    assert stored.state == optuna.trial.TrialState.PRUNED
    assert stored.intermediate_values
    assert found.best.number < 3
    times = {file: file.stat().st_mtime_ns for file in (found.path / "trials").rglob("*")}
    assert whole("s", "median") == found
    assert {file: file.stat().st_mtime_ns for file in (found.path / "trials").rglob("*")} == times


# Killed and continued


class Ending(ComparisonCallback):
    """Sends this process a signal when a number of rounds are complete."""

    def __init__(self, number, after):
        self.number, self.left = number, after

    def round_done(self, task, row):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_killed_and_continued_it_has_the_same_trials(sampler, tmp_path):
    keys = {**FEW, "train.rounds": 2}
    over = {"train.lr": [0.01, 0.1, 0.5] if sampler == "grid" else "0.001:1:log"}

    def whole(folder, *callbacks):
        return sweep(keys, over, 3, sampler=sampler, out=tmp_path / folder, jobs=1, callbacks=callbacks)

    whole("reference")
    assert forked(lambda: whole("killed", Ending(signal.SIGKILL, 3))).signal == signal.SIGKILL
    assert len(read_json(tmp_path / "killed" / "sweep.json").get("trials", [])) < 3
    with pytest.raises(Interrupted, match=r"of 3 trials have ended .* the same command continues from there"):
        whole("killed", Ending(signal.SIGTERM, 2))
    whole("killed")
    assert trials_of(tmp_path / "killed") == trials_of(tmp_path / "reference")
    one, two = (timeless(json.loads((tmp_path / name / "sweep.json").read_text())) for name in ("killed", "reference"))
    assert {**one, "checksum": 0} == {**two, "checksum": 0}


def test_in_processes_of_their_own_the_trials_are_the_same(tmp_path):
    one = sweep(FEW, GRID, sampler="grid", out=tmp_path / "one", jobs=1)
    two = sweep(FEW, GRID, sampler="grid", out=tmp_path / "two", jobs=2)
    assert one.trials == two.trials


# What is rejected


@pytest.mark.parametrize(
    ("over", "options", "words"),
    [
        ({}, {}, "a sweep needs keys to search"),
        ({"train.lrr": [1.0]}, {}, 'there is no such key; did you mean "lr"'),
        ({"train.lr": (1.0, 0.1)}, {}, "the range from 1.0 to 0.1 is empty"),
        ({"train.lr": (0, 1, "log")}, {}, "must start above 0"),
        ({"train.lr": (0.1, 1, "ln")}, {}, "a range is"),
        ({"train.lr": "0.1:1:ln"}, {}, 'not "ln"'),
        ({"train.lr": (0.1, math.inf)}, {}, "must be finite numbers"),
        ({"train.lr": 0.1}, {}, "give a list of values or a range"),
        ({"train.lr": [0.1, 0.1]}, {}, "given twice"),
        ({"train.lr": [0.1, -1.0]}, {}, r"train\.lr cannot be -1\.0: .*greater than 0"),
        ({"train.epochs": (1.5, 3.5)}, {}, "must be a whole number"),
        ({"seed": [0, 1]}, {}, "all trials have the same seeds"),
        ({"data.alpha": [0.1, 1.0]}, {}, "all trials must have the same data and splits"),
        ({"engine.threads": [1, 2]}, {}, "does not change what is learned"),
        ({"method.fedprox.mu": [0.1, 1.0]}, {}, r"has no effect, because the method is fedavg"),
        ({"train.lr": (0.1, 1.0)}, {"sampler": "grid"}, "a grid needs the values of train.lr as a list"),
        (GRID, {"sampler": "gird"}, 'no sampler "gird"; did you mean "grid"'),
        (GRID, {"pruner": "mean"}, 'no pruner "mean"'),
        (GRID, {"measure": "accuracy"}, "never on the test set"),
        (GRID, {"measure": "validation_acuracy"}, 'did you mean "validation_accuracy"'),
        (GRID, {"value": "bst"}, 'did you mean "best"'),
        (GRID, {"trials": 0}, "trials = 0: must be at least 1"),
        (GRID, {"jobs": -1}, "jobs = -1"),
        (GRID, {"seeds": []}, "give at least one seed"),
    ],
)
def test_wrong_input_gives_one_sentence_and_leaves_nothing(over, options, words, tmp_path):
    with pytest.raises(InputError, match=words) as raised:
        sweep(FEW, over, out=tmp_path / "s", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "s").exists()


def test_without_validation_data_the_key_is_named(tmp_path):
    with pytest.raises(InputError, match=r"set data\.validation, as in data\.validation=0\.1"):
        sweep({**FEW, "data.validation": 0.0}, GRID, out=tmp_path / "s")


def test_data_that_are_not_there_leave_no_folder(tmp_path):
    keys = {**FEW, "data.name": "cifar10", "data.root": str(tmp_path), "model.name": "cnn"}
    del keys["model.width"]
    with pytest.raises(InputError, match="CIFAR-10"):
        sweep(keys, GRID, sampler="grid", out=tmp_path / "s", jobs=1)
    assert not (tmp_path / "s").exists()


def test_the_folder_of_a_run_or_a_comparison_is_rejected(tmp_path):
    fullrank.compare(FEW, ["fedavg"], [0], tmp_path / "c", jobs=1)
    for folder in (tmp_path / "c", tmp_path / "c" / "fedavg-seed0"):
        with pytest.raises(InputError, match="holds runs of another kind"):
            sweep(FEW, GRID, sampler="grid", out=folder, jobs=1)
