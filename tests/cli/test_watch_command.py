"""The command `fullrank watch`."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import pytest

from commands import fullrank
from followed import Written
from fullrank.cli import watch
from fullrank.files import write_json


def test_a_complete_run_ends_the_command(tmp_path, capsys):
    run = Written(tmp_path / "run", rounds=1)
    run.row(1, accuracy=0.5, cautions=["something is odd"])
    run.complete(1)
    status, out, err = fullrank("watch", run.path, capsys=capsys)
    assert (status, err) == (0, "")
    assert out.splitlines() == ["something is odd", "round 1/1  accuracy 50.00 %  complete"]


def test_a_failed_run_ends_the_command_with_its_reason(tmp_path, capsys):
    Written(tmp_path / "run").end("stopped: client 3: it failed")
    status, out, err = fullrank("watch", tmp_path / "run", capsys=capsys)
    assert status == 1
    assert out == "round 0/5  failed: client 3: it failed\n"
    assert err == "fullrank: run failed: client 3: it failed\n"


def test_a_run_is_followed_line_by_line_until_it_ends(tmp_path, monkeypatch, capsys):
    def written():
        run = Written(tmp_path / "run", rounds=2)
        for round in (1, 2):
            run.row(round, accuracy=round / 4)
            yield
        run.complete(2)
        yield

    steps = written()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: next(steps)))
    status, out, _ = fullrank("watch", tmp_path / "run", capsys=capsys)
    assert status == 0
    assert out.splitlines() == [
        "waiting: no run has started here yet",
        "round 1/2  accuracy 25.00 %  left 0:00:02",
        "round 2/2  accuracy 50.00 %  after the last round",
        "round 2/2  accuracy 50.00 %  complete",
    ]


def test_waiting_is_bounded(tmp_path, capsys):
    status, out, err = fullrank("watch", tmp_path / "absent", "--timeout", 0.1, capsys=capsys)
    assert (status, out) == (1, "waiting: no run has started here yet\n")
    assert f'nothing has changed in "{tmp_path / "absent"}" for 0.1 s: no run has started here yet' in err


def test_failures_of_a_comparison_are_counted(tmp_path, capsys):
    runs = [{"path": name, "name": f"run {name}", "rounds": 5, "failed": "no"} for name in "abcde"]
    write_json(tmp_path / "runs.json", {"runs": runs})
    status, out, err = fullrank("watch", tmp_path, capsys=capsys)
    assert (status, err) == (1, "fullrank: 5 of 5 runs failed: run a, run b, run c, …\n")
    assert out.splitlines()[0] == "run a: round 0/5  failed: no"


def test_the_state_as_json(tmp_path, capsys):
    run = Written(tmp_path / "run")
    run.row(1, accuracy=0.5)
    status, out, _ = fullrank("watch", run.path, "--once", "--json", capsys=capsys)
    found = json.loads(out)
    assert (status, found["state"], found["runs"][0]["done"]) == (0, "running", 1)
    run.end()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent", "--once"], '"absent" does not exist'),
        (["file.txt"], '"file.txt" is a file; give a run directory or a folder of runs'),
    ],
)
def test_what_cannot_be_followed_is_said(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("text")
    status, out, err = fullrank("watch", *arguments, capsys=capsys)
    assert (status, out, err) == (2, "", f"fullrank: {said}\n")


def test_the_page_is_served_until_ctrl_c(tmp_path):
    run = Written(tmp_path / "run", rounds=1)
    run.row(1, accuracy=0.5)
    run.complete(1)
    command = [sys.executable, "-m", "fullrank", "watch", str(run.path), "--port", "0", "--quiet"]
    # A shell that starts the tests in the background lets its children ignore Ctrl-C.
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **heeding) as process:
        try:
            said = process.stdout.readline()
            url = re.fullmatch(r"page  (http://127\.0\.0\.1:\d+/)\n", said)[1]
            with urllib.request.urlopen(f"{url}state", timeout=10) as answer:
                assert json.load(answer)["state"] == "complete"
            assert process.poll() is None  # a page of a complete run can be read too
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read() == ""
        finally:
            process.kill()
