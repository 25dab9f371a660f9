"""A run can be stopped whatever its clients do: the first signal asks, the second ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fullrank
import stuck
from commands import finding
from fullrank.errors import ClientFailed, RunFailed
from fullrank.local import interrupt
from fullrank.runs.directory import RunDirectory
from killing import assert_equal_outcomes

SETTINGS = {
    "data.clients": 8,
    "data.holdout": 0.2,
    "model.name": "mlp",
    "model.width": 8,
    "train.rounds": 3,
    "train.steps": 1,
    "engine.workers": 1,
}


def started(tmp_path, settings):
    """`fullrank run` in a process of its own, once one of its clients hangs."""
    sets = [part for key, value in {**SETTINGS, **settings}.items() for part in ("--set", f"{key}={value}")]
    note = tmp_path / "stuck"
    around = finding(stuck.__file__, STUCK=str(note))
    command = [sys.executable, "-m", "fullrank", "run", *sets, "--out", str(tmp_path / "run"), "-q"]
    process = subprocess.Popen(command, env=around, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (note.is_file() and note.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, int(note.read_text())


def ended(process):
    """The status and what was said, or a failure if the process does not end."""
    try:
        _, err = process.communicate(timeout=interrupt.GRACE + 15)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("the process does not end")
    return process.returncode, err.splitlines()


HANGING = [
    ("serial", "spin", "round", signal.SIGTERM, signal.SIGTERM),
    ("vectorised", "sleep", "round", signal.SIGINT, signal.SIGTERM),
    ("serial", "c", "round", signal.SIGTERM, signal.SIGINT),
    ("vectorised", "spin", "end", signal.SIGTERM, signal.SIGTERM),
    *(
        pytest.param(engine, how, at, first, second, marks=pytest.mark.slow)
        for engine in ("serial", "vectorised")
        for how in ("spin", "sleep", "c")
        for at in ("round", "end")
        for first in (signal.SIGINT, signal.SIGTERM)
        for second in (signal.SIGINT, signal.SIGTERM)
    ),
]


@pytest.mark.skipif(sys.platform != "linux", reason="hangs in a mutex of glibc")
@pytest.mark.parametrize(("engine", "how", "at", "first", "second"), HANGING)
def test_the_second_signal_ends_a_run_whose_client_never_returns(engine, how, at, first, second, tmp_path):
    settings = {"method.name": "stuck:Hangs", "engine.name": engine, "method.hangs.how": how, "method.hangs.at": at}
    process, _ = started(tmp_path, settings)
    process.send_signal(first)
    time.sleep(interrupt.AGAIN + 0.3)
    assert process.poll() is None
    process.send_signal(second)
    status, lines = ended(process)
    assert status == 130
    if how != "c":  # there Python itself does not hear of the first signal
        assert "stopping after the current step" in lines[0]
    assert lines[-1].startswith("fullrank: stopped at once")
    assert "the same command" in lines[-1]
    rounds = 1 if at == "round" else 3
    assert RunDirectory(tmp_path / "run").last_round() == rounds
    assert len(RunDirectory(tmp_path / "run").rows()) == rounds


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
@pytest.mark.parametrize("at", ["round", pytest.param("end", marks=pytest.mark.slow)])
def test_one_signal_ends_a_run_whose_client_hangs_in_a_worker(at, tmp_path):
    settings = {"method.name": "stuck:Hangs", "engine.name": "processes", "method.hangs.at": at}
    process, _ = started(tmp_path, settings)
    process.send_signal(signal.SIGTERM)
    status, lines = ended(process)
    assert status == 130
    assert lines[-1].startswith("fullrank: stopped; the first ")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
def test_a_worker_that_was_stopped_keeps_no_signal_waiting(tmp_path):
    """The model is larger than a pipe, so that this process waits in the middle of a message."""
    out = tmp_path / "run"
    sets = {**SETTINGS, "model.width": 300, "train.rounds": 100000, "engine.name": "processes", "engine.workers": 2}
    line = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fullrank", "run", *line, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for text in process.stdout:
        if text.startswith("round 2/"):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(child) for child in children]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    time.sleep(0.7)  # the parent has run into one of them
    process.send_signal(signal.SIGTERM)
    status, lines = ended(process)
    assert status == 130
    assert lines[-1].startswith("fullrank: stopped; the first ")
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.slow  # also in cli/test_cli.py, where a run gets SIGTERM twice
def test_signals_that_come_together_are_one(tmp_path):
    """`timeout` sends each signal to the process and to its group."""
    command = [sys.executable, "-m", "fullrank", "run", "--set", "train.rounds=100000", "--out", str(tmp_path / "run")]
    command += ["--set", "run.checkpoint_every=1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for text in process.stdout:
        if text.startswith("round 2/"):
            break
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    status, lines = ended(process)
    assert status == 130
    assert lines[-1].startswith("fullrank: stopped; the first ")  # those since the last checkpoint too
    assert RunDirectory(tmp_path / "run").last_round() >= 2


# sys.exit and KeyboardInterrupt in a user's code


@pytest.mark.parametrize("engine", ["serial", "vectorised", "processes"])
@pytest.mark.parametrize(("how", "kind"), [("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt")])
def test_a_client_that_ends_the_process_is_named(engine, how, kind, tmp_path):
    settings = {**SETTINGS, "method.name": "stuck:Quits", "method.quits.how": how, "engine.name": engine}
    with pytest.raises(ClientFailed, match=f"client 1: {kind}"):
        fullrank.run(settings, out=tmp_path / "stopped")
    assert RunDirectory(tmp_path / "stopped").last_round() == 1
    run = fullrank.run({**settings, "run.on_client_error": "skip"}, out=tmp_path / "skipped")
    assert [list(row.get("skipped", {})) for row in run.metrics] == [[], ["1"], []]


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_code_at_the_server_that_ends_the_process_is_said(how, tmp_path):
    settings = {**SETTINGS, "method.name": "stuck:Quits", "method.quits.how": how, "engine.name": "serial"}
    with pytest.raises(RunFailed, match=r"the model, the method or the data raised .*; the first 1 of 3 rounds are"):
        fullrank.run({**settings, "method.quits.who": "server"}, out=tmp_path / "run")


@pytest.mark.slow  # for the directory it is the same as SIGKILL
def test_a_run_that_was_stopped_at_once_resumes_exactly(tmp_path, monkeypatch):
    settings = {"method.name": "stuck:Hangs", "method.hangs.at": "end", "engine.name": "serial"}
    process, _ = started(tmp_path, {**settings, "method.hangs.how": "sleep"})
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(interrupt.AGAIN + 0.1)
    assert ended(process)[0] == 130
    monkeypatch.setattr("stuck.stuck", lambda how: None)
    for out in ("run", "whole"):
        fullrank.run({**SETTINGS, **settings, "method.hangs.how": "sleep"}, out=tmp_path / out)
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")
