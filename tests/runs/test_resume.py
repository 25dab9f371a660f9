"""A run that is killed, anywhere, and resumed equals one that was never interrupted, bit by bit."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys

import pytest

from commands import finding
from fullrank import methods
from killing import ANY, Strike, assert_equal_outcomes, assert_tidy, attempt
from small import on_its_network

SEED = 20_260_611
"""From which the kill points that nobody chose are drawn."""

SETTINGS = {
    "data.clients": 5,
    "data.alpha": 0.5,
    "model.width": 2,
    "model.features": 8,
    "train.rounds": 4,
    "train.participation": 3,
    "train.steps": 2,
    "train.batch_size": 8,
    "train.momentum": 0.9,
    "engine.name": "serial",  # whose functions the points lie in
}
CASES = {
    "fedavg": {"model.norm": "batch", "model.dropout": 0.3, "data.augment": ["crop", "flip"]},
    "fedprox+feddecorr": {"method.name": "fedprox+feddecorr", "method.fedprox.mu": 0.1, "train.weight_decay": 0.01},
    "state at clients and server": {"method.name": "stateful:Variates+stateful:Momentum", "model.norm": "group"},
    "personal norm layers": {"method.name": "stateful:OwnNorms", "model.norm": "batch", "train.buffers": "average"},
    "a frozen frame that changes": {"method.name": "stateful:Frame", "model.norm": "batch", "train.buffers": "local"},
    "fedavgm, kept momentum": {
        "method.name": "fedavgm",
        "model.norm": "batch",
        "train.optimizer_state": "keep",
        "train.nesterov": True,
    },
    "fedadam, kept adam": {
        "method.name": "fedadam+fedprox",
        "train.optimizer": "adam",
        "train.optimizer_state": "keep",
        "train.lr_schedule": "exponential",
        "train.warmup": 1,
        "train.clip_norm": 0.5,
        "data.holdout": 0.2,
        "evaluate.personal": "every",
    },
    "everything": {
        "method.name": "feddecorr+stateful:Variates+stateful:OwnNorms+stateful:Calibrated+stateful:Momentum",
        "model.norm": "batch",
        "model.dropout": 0.3,
        "data.augment": ["crop", "flip"],
        "data.validation": 0.1,
        "train.weight_decay": 0.01,
    },
}
IN_A_ROUND = (
    "a local step",
    "an upload, not yet summed",
    "a sum",
    "a round, not yet written",
    "half a row",
    "a row, not yet its checkpoint",
    "half of server",
    "bytes of server",
    "bytes of clients",
    "half a note",
    "a note, not yet its checkpoint",
    "bytes of manifest",
    "a checkpoint, not yet swept",
    "a deletion",
    "a checkpoint",
)
ESSENTIAL = ("a local step", "an upload, not yet summed", "a row, not yet its checkpoint", "bytes of manifest")
"""Points at which the quick tests kill every case; at the others one case, which has everything in it."""
AT_THE_ENDS = (
    "bytes of partition",
    "bytes of environment",
    "half of experiment",
    "name of experiment",
    "bytes of metrics",
    "the methods' finish",
    "half of model",
    "name of model",
    "bytes of summary",
    "name of summary",
)
SAVING = [(1, 1), (2, 1), (2, 2), (3, 2), (9, 1)]
"""Rounds between checkpoints, checkpoints kept."""


def settings_of(case, every=1, keep=1):
    return {**SETTINGS, **CASES[case], "run.checkpoint_every": every, "run.keep": keep}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Of a case (and how often it saves), an uninterrupted run's directory and the points that it passed."""
    known = {}

    def run(case, every=1, keep=1):
        if (case, every, keep) not in known:
            path = tmp_path_factory.mktemp("uninterrupted") / "run"
            known[case, every, keep] = path, attempt(settings_of(case, every, keep), path).succeeded()
        return known[case, every, keep]

    return run


def kill_and_resume(settings, out, strikes, reference, why=""):
    """Kill at each strike in turn, then let the run end, and compare."""
    why = why or ", ".join(map(str, strikes))
    for strike in strikes:
        ended = attempt(settings, out, strike)
        if ended.signal != signal.SIGKILL:  # a drawn strike may lie beyond what was left to do
            assert strike.point == ANY, f"{why}: never reached"
            ended.succeeded()
    attempt(settings, out).succeeded()
    assert_equal_outcomes(out, reference, why)
    assert_tidy(out, settings["run.keep"])


def middle(trace, point):
    return Strike(point, trace.count(point) // 2 + 1)


@pytest.mark.parametrize(
    ("case", "point"),
    [(case, point) for case in CASES for point in IN_A_ROUND if case == "everything" or point in ESSENTIAL],
)
def test_killed_in_a_round(case, point, uninterrupted, tmp_path):
    reference, trace = uninterrupted(case)
    kill_and_resume(settings_of(case), tmp_path / "run", [middle(trace, point)], reference)


@pytest.mark.parametrize("name", methods.available())
def test_every_method_is_killed_twice_and_resumed(name, tmp_path):
    settings = {**settings_of("fedavg"), "model.dropout": 0.0, "model.features": 12}
    settings = on_its_network(settings, name)
    attempt(settings, tmp_path / "whole").succeeded()
    strikes = [Strike("a local step", 9), Strike("bytes of manifest", 1)]  # in the second round, then in its checkpoint
    kill_and_resume(settings, tmp_path / "run", strikes, tmp_path / "whole")


@pytest.mark.parametrize("point", AT_THE_ENDS)
def test_killed_before_the_first_round_or_after_the_last(point, uninterrupted, tmp_path):
    reference, trace = uninterrupted("everything")
    kill_and_resume(settings_of("everything"), tmp_path / "run", [middle(trace, point)], reference)


@pytest.mark.parametrize("case", ["fedavg", "fedprox+feddecorr", "everything"])
def test_killed_at_drawn_points_also_while_resuming(case, uninterrupted, tmp_path):
    draw = random.Random(f"{SEED} {case}")
    reference, trace = uninterrupted(case, 2)
    for number in range(2):
        strikes = [Strike(ANY, draw.randint(1, len(trace))) for _ in range(2)]
        why = f"seed {SEED}, case {case!r}, number {number}: {', '.join(map(str, strikes))}"
        kill_and_resume(settings_of(case, 2), tmp_path / f"run-{number}", strikes, reference, why)


def test_how_often_a_run_saves_changes_nothing(uninterrupted):
    for every, keep in SAVING[1:]:
        assert_equal_outcomes(uninterrupted("everything", every, keep)[0], uninterrupted("everything")[0])


def test_killed_again_at_every_round(uninterrupted, tmp_path):
    """Whoever is killed in each round, after its checkpoint, arrives all the same."""
    reference, _ = uninterrupted("everything")
    strikes = [Strike("a local step", 8)] * 3  # six steps a round: always in the second round of an attempt
    kill_and_resume(settings_of("everything"), tmp_path / "run", strikes, reference)


@pytest.mark.slow
def test_a_process_of_its_own_is_killed_and_resumed(uninterrupted, tmp_path):
    program = (
        "import fullrank, killing\n"
        "killing.Points(killing.Strike('bytes of manifest', 2)).install()\n"
        f"fullrank.run({settings_of('everything')!r}, out={str(tmp_path / 'run')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=finding(__file__), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()
    reference, _ = uninterrupted("everything")
    kill_and_resume(settings_of("everything"), tmp_path / "run", [], reference)


IN_PROCESSES = [
    ("fedavgm, kept momentum", "an upload, not yet summed"),
    ("fedadam, kept adam", "bytes of manifest"),
    *(
        pytest.param(case, point, marks=pytest.mark.slow)
        for case in CASES
        for point in (*IN_A_ROUND, "bytes of summary")
        if point != "a local step"  # the workers' steps are in other processes
    ),
]


@pytest.mark.parametrize(("case", "point"), IN_PROCESSES)
def test_killed_and_resumed_with_worker_processes(case, point, uninterrupted, tmp_path):
    """The reference is the serial run: the engines agree to the bit, also when killed."""
    reference, trace = uninterrupted(case)
    if point not in trace:
        pytest.skip("clients of this case keep nothing")
    settings = {**settings_of(case), "engine.name": "processes", "engine.workers": 2}
    kill_and_resume(settings, tmp_path / "run", [middle(trace, point)], reference)


LONGER = [
    Strike("a deletion", 1),  # of the summary
    Strike("a deletion", 2),  # of the model
    Strike("a local step", 3),
    Strike("a checkpoint", 1),  # all rounds are there, the end is not
    Strike("the methods' finish", 1),
    Strike("name of model", 1),
]


@pytest.fixture(scope="module")
def shorter(tmp_path_factory):
    """A finished run of three rounds."""
    path = tmp_path_factory.mktemp("shorter") / "run"
    attempt({**settings_of("everything"), "train.rounds": 3}, path).succeeded()
    return path


@pytest.mark.parametrize("strike", LONGER, ids=lambda strike: f"{strike.point} {strike.arrival}")
def test_killed_while_a_finished_run_continues_for_more_rounds(strike, shorter, uninterrupted, tmp_path):
    """What the shorter run wrote at its end is never taken for the end of the longer one."""
    shutil.copytree(shorter, tmp_path / "run")
    kill_and_resume(settings_of("everything"), tmp_path / "run", [strike], uninterrupted("everything")[0])


# The full matrix


def saved(saving):
    return f"every{saving[0]}-keep{saving[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("saving", [(1, 1), (3, 2)], ids=saved)
@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_point(case, saving, uninterrupted, tmp_path):
    """First, middle and last arrival at every point that such a run passes."""
    reference, _ = uninterrupted(case)
    own, trace = uninterrupted(case, *saving)
    assert_equal_outcomes(own, reference)
    for point in dict.fromkeys(trace):
        for arrival in sorted({1, trace.count(point) // 2 + 1, trace.count(point)}):
            out = tmp_path / f"{point}-{arrival}"
            kill_and_resume(settings_of(case, *saving), out, [Strike(point, arrival)], reference)


@pytest.mark.slow
@pytest.mark.parametrize("saving", SAVING, ids=saved)
@pytest.mark.parametrize("case", CASES)
def test_killed_up_to_three_times_at_drawn_points(case, saving, uninterrupted, tmp_path):
    draw = random.Random(f"{SEED} {case} {saving}")
    reference, _ = uninterrupted(case)
    _, trace = uninterrupted(case, *saving)
    for number in range(8):
        strikes = [Strike(ANY, draw.randint(1, len(trace))) for _ in range(draw.randint(1, 3))]
        why = f"seed {SEED}, case {case!r}, saving {saving}, number {number}: {', '.join(map(str, strikes))}"
        kill_and_resume(settings_of(case, *saving), tmp_path / f"run-{number}", strikes, reference, why)


@pytest.mark.slow
def test_killed_at_each_single_arrival(uninterrupted, tmp_path):
    reference, trace = uninterrupted("everything", 3, 2)
    for arrival in range(1, len(trace) + 1):
        out = tmp_path / str(arrival)
        kill_and_resume(settings_of("everything", 3, 2), out, [Strike(ANY, arrival)], reference)
