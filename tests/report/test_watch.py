"""What `fullrank watch` knows of runs, from their directories."""

import json
import signal
import sys
import time

import pytest
from rich.console import Console

import fullrank
from deployments import deploy, experiment, network
from followed import Written
from fullrank.errors import InputError
from fullrank.files import write_json
from fullrank.report.watch.follow import POINTS, SMALL, Follower, Snapshot
from fullrank.report.watch.rows import Rows, newest_and_best
from fullrank.report.watch.terminal import line_of, view
from fullrank.runs.directory import RunDirectory
from killing import Strike, attempt

SETTINGS = {"train.rounds": 4, "train.epochs": 1, "data.clients": 3, "model.name": "mlp"}


def one(path) -> "fullrank.report.watch.follow.RunState":
    (run,) = Follower(path).snapshot().runs
    return run


def shown(snapshot: Snapshot, width=80, height=40) -> str:
    console = Console(width=width, height=height, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(snapshot, console))
    return console.export_text()


# One run


def test_a_run_from_before_its_directory_exists_to_its_end(tmp_path):
    path, follower = tmp_path / "run", Follower(tmp_path / "run")

    def state():
        (run,) = follower.snapshot().runs
        return run

    assert (state().state, state().reason) == ("waiting", "no run has started here yet")
    run = Written(path)
    assert (state().state, state().done, state().rounds, state().left) == ("running", 0, 5, None)
    run.row(1, accuracy=0.25, loss=2.0)
    run.row(2, accuracy=0.75, loss=1.0, seconds=4.0)
    run.row(3, accuracy=0.5, loss=1.5)
    # The mean of 2, 4 and 2 seconds, for two more rounds.
    assert (state().done, state().pace, state().left) == (3, pytest.approx(8 / 3), pytest.approx(16 / 3))
    accuracy, loss = state().measures
    assert (accuracy["newest"], accuracy["best"], accuracy["best_round"]) == ("50.00 %", "75.00 %", 2)
    assert (loss["newest"], loss["best"], loss["best_round"]) == ("1.5000", "1.0000", 2)
    assert state().curves["accuracy"] == [(1, 0.25), (2, 0.75), (3, 0.5)]
    run.row(4)
    run.row(5)
    (path / "ending.jsonl").write_text('{"rounds": 5, "client": 0}\n{"rounds": 5, "client": 1}\n')
    assert (state().state, state().phase) == ("running", "evaluating the clients' own models (2 so far)")
    run.complete(5)
    assert (state().state, state().left, state().phase) == ("complete", None, "")


def test_half_a_line_is_read_when_it_is_whole(tmp_path):
    run, follower = Written(tmp_path), Follower(tmp_path)
    run.row(1, accuracy=0.5)
    run.text('{"round": 2, "accur')
    assert follower.snapshot().runs[0].done == 1
    run.text('acy": 0.6, "seconds": 1.0}\n')
    assert follower.snapshot().runs[0].curves["accuracy"] == [(1, 0.5), (2, 0.6)]


def test_a_line_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path):
    run = Written(tmp_path)
    run.row(1, accuracy=0.5)
    run.text('nonsense\n[1]\n{"no": "round"}\n')
    run.row(2, accuracy=0.6)
    found = one(tmp_path)
    assert found.done == 2
    assert found.warnings == [f"line {number} of metrics.jsonl cannot be read" for number in (2, 3, 4)]


def test_rows_that_vanish_on_a_resume_come_again(tmp_path):
    run, follower = Written(tmp_path), Follower(tmp_path)
    for round in (1, 2, 3):
        run.row(round, accuracy=round / 10)
    assert follower.snapshot().runs[0].done == 3
    run.end()
    stopped = follower.snapshot()
    assert (stopped.state, stopped.runs[0].reason) == ("stopped", "no process on this machine is running it")
    again = RunDirectory(tmp_path)
    again.open()
    again.write_rows([{"round": 1, "accuracy": 0.1, "seconds": 2.0, "clients": []}])
    assert (follower.snapshot().state, follower.snapshot().runs[0].done) == ("running", 1)
    again.close()


@pytest.mark.parametrize("words", [["stopped: client 3: it failed\nin two lines"], ["Traceback", "stopped: no"]])
def test_a_failed_run_has_its_reason(words, tmp_path):
    Written(tmp_path).end(*words)
    found = one(tmp_path)
    assert (found.state, found.reason) == ("failed", words[-1].removeprefix("stopped: "))


def test_the_reason_of_a_failure_is_gone_when_the_run_was_resumed_and_killed(tmp_path):
    run = Written(tmp_path)
    run.end("stopped: it failed", "fedavg on digits", "writing to here, resuming after round 1")
    assert one(tmp_path).state == "stopped"


def test_a_run_that_a_signal_stopped_may_come_again(tmp_path):
    Written(tmp_path).end("stopped: by a signal")
    assert (one(tmp_path).state, one(tmp_path).reason) == ("stopped", "stopped by a signal")


def test_a_result_of_fewer_rounds_is_no_end(tmp_path):
    run = Written(tmp_path, rounds=2)
    run.row(1)
    (tmp_path / "summary.json").write_text('{"rounds": 1}')
    run.end()
    assert one(tmp_path).state == "stopped"


def test_clients_that_were_left_out_and_warnings_are_counted_once(tmp_path):
    run = Written(tmp_path)
    run.row(1, skipped={"3": "it failed"}, cautions=["the data are odd"])
    run.row(2, skipped={"1": "it failed", "3": "it failed"}, cautions=["the data are odd"])
    found = one(tmp_path)
    assert found.skipped == 3
    assert found.warnings == [
        "the data are odd",
        "round 1: client 3 was left out: it failed",
        "round 2: client 1 was left out: it failed",
        "round 2: client 3 was left out: it failed",
    ]


def test_a_damaged_experiment_is_a_reason_and_no_crash(tmp_path):
    run = Written(tmp_path)
    (tmp_path / "experiment.toml").write_text("[train\n")
    assert one(tmp_path).state == "stopped"
    assert "experiment.toml" in one(tmp_path).reason
    run.end()


def test_a_long_run_is_thinned_to_its_shape(tmp_path):
    run = Written(tmp_path, rounds=2000)
    run.text("".join(json.dumps({"round": r, "accuracy": r / 2000, "seconds": 1}) + "\n" for r in range(1, 2001)))
    curve = one(tmp_path).curves["accuracy"]
    assert (len(curve), curve[0], curve[-1]) == (POINTS, (1, 0.0005), (2000, 1.0))


def test_a_measure_without_values_has_no_best(tmp_path):
    assert newest_and_best(Rows(tmp_path / "metrics.jsonl"), "accuracy") is None


def test_a_real_run_that_is_killed_and_resumed(tmp_path):
    path, follower = tmp_path / "run", Follower(tmp_path / "run")
    settings = {**SETTINGS, "run.checkpoint_every": 3}
    kill = Strike("a row, not yet its checkpoint", 2)
    assert attempt(settings, path, kill).signal == signal.SIGKILL
    assert (follower.snapshot().state, follower.snapshot().runs[0].done) == ("stopped", 2)

    def watch(_):
        until = time.monotonic() + 60
        while not (path / "summary.json").exists() and time.monotonic() < until:
            follower.snapshot()

    assert attempt(settings, path, during=watch).succeeded()
    (ended,) = follower.snapshot().runs
    assert (ended.state, ended.done) == ("complete", 4)
    assert ended.curves["accuracy"] == [(r["round"], r["accuracy"]) for r in fullrank.load_run(path).metrics]


def test_following_does_not_keep_a_run_from_starting(tmp_path):
    for _ in range(50):
        assert not RunDirectory(tmp_path).in_use
        directory = RunDirectory(tmp_path)
        directory.open()
        assert RunDirectory(tmp_path).in_use
        directory.close()
    assert not RunDirectory(tmp_path / "absent").in_use


def test_nothing_that_a_run_names_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    run = Written(tmp_path / "run")
    text = (run.path / "experiment.toml").read_text().replace('"fedavg"', '"hostile:Method"')
    (run.path / "experiment.toml").write_text(text.replace('"mlp"', '"hostile:network"'))
    run.row(1, accuracy=0.5)
    assert one(run.path).state == "running"
    assert "hostile" not in sys.modules
    run.end()


def test_a_deployment_is_followed_as_any_run(tmp_path):
    deploy(tmp_path, experiment(), network(tmp_path))
    found = one(tmp_path / "deployed")
    assert (found.state, found.done) == ("complete", found.rounds)
    assert found.title.startswith("fedavg on ")
    assert found.pace > 0


# Several runs


def test_a_comparison_shows_its_plan_and_its_failures(tmp_path):
    settings = {**SETTINGS, "train.rounds": 1, "data.clients": 2}
    failing = "fedprox:train.lr=1e20"
    found = fullrank.compare(settings, ["fedavg", failing], [0], tmp_path / "out", jobs=1)
    assert [seed for _, seed in found.failed] == [0]
    snapshot = Follower(tmp_path / "out").snapshot()
    assert snapshot.several
    assert [(run.name, run.state, run.rounds) for run in snapshot.runs] == [
        ("fedavg (train.lr=0.1) seed 0", "complete", 1),
        ("fedprox (train.lr=1e+20) seed 0", "failed", 1),
    ]
    assert "is not finite" in snapshot.runs[1].reason
    assert snapshot.state == "failed"


def test_a_comparison_that_was_rejected_leaves_no_plan(tmp_path):
    with pytest.raises(InputError):
        fullrank.compare({**SETTINGS, "data.root": "absent", "data.name": "cifar10"}, ["fedavg"], [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def plan(folder, names, failed=""):
    runs = [{"path": name, "name": name, "rounds": 5, "failed": failed} for name in names]
    write_json(folder / "runs.json", {"runs": runs})


def test_runs_that_wait_run_and_have_ended_make_one_state(tmp_path):
    plan(tmp_path, ["a", "b", "c"])
    assert Follower(tmp_path).snapshot().state == "waiting"
    first, second = Written(tmp_path / "a"), Written(tmp_path / "b")
    first.row(1, accuracy=0.5)
    second.row(1, accuracy=0.25)
    second.row(2, accuracy=0.25)
    snapshot = Follower(tmp_path).snapshot()
    assert [run.state for run in snapshot.runs] == ["running", "running", "waiting"]
    # 4 + 3 + 5 rounds of two seconds, two runs at a time
    assert (snapshot.state, snapshot.left) == ("running", 12.0)
    for run in (first, second):
        run.end("stopped: it failed")
    assert Follower(tmp_path).snapshot().state == "waiting"
    plan(tmp_path, ["a", "b"])
    assert Follower(tmp_path).snapshot().state == "failed"


def test_a_run_that_failed_before_it_started_has_the_reason_of_the_plan(tmp_path):
    plan(tmp_path, ["a"], failed="its process was killed")
    (run,) = Follower(tmp_path).snapshot().runs
    assert (run.state, run.reason) == ("failed", "its process was killed")


def test_a_plan_that_points_elsewhere_is_not_followed(tmp_path):
    Written(tmp_path / "secret").row(1, accuracy=0.5)
    (tmp_path / "folder").mkdir()
    plan(tmp_path / "folder", ["../secret", str(tmp_path / "secret")])
    snapshot = Follower(tmp_path / "folder").snapshot()
    assert not any(run.done for run in snapshot.runs)


def test_trials_of_a_sweep_show_validation_scores_only(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    run = Written(tmp_path / "trials" / "000-seed0")
    run.row(1, accuracy=0.5, validation_accuracy=0.4)
    (found,) = Follower(tmp_path).snapshot().runs
    assert [facts["key"] for facts in found.measures] == ["validation_accuracy"]
    assert list(found.curves) == ["validation_accuracy"]
    assert Follower(tmp_path).snapshot().several


def test_a_pruned_trial_has_ended(tmp_path):
    run = Written(tmp_path / "trials" / "000-seed0")
    (run.path / "pruned.json").write_text('{"round": 2}')
    run.end("stopped: pruned after round 2")
    (found,) = Follower(tmp_path).snapshot().runs
    assert (found.state, found.reason) == ("pruned", "pruned after round 2, because other trials are better")
    assert Follower(tmp_path).snapshot().state == "complete"


def test_folders_without_a_plan_show_all_runs_in_them(tmp_path):
    Written(tmp_path / "b").row(1, accuracy=0.5)
    Written(tmp_path / "inner" / "a").row(1, accuracy=0.5)
    (tmp_path / ".hidden").mkdir()
    assert [run.name for run in Follower(tmp_path).snapshot().runs] == ["b", "inner/a"]


def test_of_several_runs_only_the_selected_has_its_whole_curves(tmp_path):
    for name in "ab":
        run = Written(tmp_path / name, rounds=100)
        for round in range(1, 101):
            run.row(round, accuracy=round / 100, loss=1.0)
    found = Follower(tmp_path).snapshot().as_json(selected=1)
    assert {key: len(curve) for key, curve in found["runs"][0]["curves"].items()} == {"accuracy": SMALL}
    assert {key: len(curve) for key, curve in found["runs"][1]["curves"].items()} == {"accuracy": 100, "loss": 100}


# The terminal


@pytest.mark.parametrize("width", [60, 80, 120])
def test_one_run_fits_the_terminal(width, tmp_path):
    run = Written(tmp_path / ("long-name-" * 4), rounds=1000)
    for round in range(1, 988):
        run.row(round, accuracy=0.5 + round / 3000, loss=12345.6789, validation_accuracy=0.9876, seconds=4000.5)
    run.row(
        988,
        skipped={"3": "a reason that is long enough to be wrapped in every terminal " * 2},
        accuracy=0.1234,
        seconds=4000.5,
    )
    text = shown(Follower(run.path).snapshot(), width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("round 988/1000", "12.34 %", "12345.6789", "98.76 %", "1:06:40 per round", "left 13:20:"):
        assert number in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_several_runs_fit_the_terminal(width, tmp_path):
    names = ["fedavg seed 0", "fedmr (fedmr.mu1=0.1, fedmr.mu2=0.2, fedmr.margin=0.5) seed 12"]
    plan(tmp_path, [*names, *(f"waits {number}" for number in range(40))])
    runs = [Written(tmp_path / name, rounds=1000) for name in names]
    for run in runs:
        run.row(1, validation_accuracy=0.9876, seconds=100.0)
        run.row(2, accuracy=0.1234, cautions=["something is odd"], seconds=100.0)
    text = shown(Follower(tmp_path).snapshot(), width, height=20)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 20 + 3  # the longer name takes several lines
    for number in ("42 runs: 2 running, 40 waiting", "2/1000", "12.34 %", "27:43:20", "… and 30 more", "seed 0 (1)"):
        assert number in text


def test_names_cannot_control_the_terminal(tmp_path):
    run = Written(tmp_path / "a\x1b[2Jb")
    run.row(1, accuracy=0.5, cautions=["\x1b]0;title\x07"])
    snapshot = Follower(run.path).snapshot()
    assert "\x1b" not in shown(snapshot) + line_of(snapshot.runs[0], several=True)
    assert "a?[2Jb" in shown(snapshot)


def test_a_course_is_drawn_from_its_least_to_its_largest_value(tmp_path):
    run = Written(tmp_path)
    for round, value in enumerate((0.0, 0.5, 1.0, 0.25), 1):
        run.row(round, accuracy=value)
    text = shown(Follower(tmp_path).snapshot())
    assert "accuracy, rounds 1 to 4, 0.00 % to 100.00 %" in text
    assert "▁▅█▃" in text
