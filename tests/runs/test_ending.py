"""What follows the last round is a phase of the run: it shows progress, its time counts, and it resumes by client."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import dataclass

import pytest
from rich.console import Console

import fullrank
from commands import fullrank as command
from fullrank import Method
from fullrank.federated.server import Server
from fullrank.federated.site import Site
from fullrank.runs import ending
from fullrank.runs.display import Live
from killing import assert_equal_outcomes, attempt, forked
from small import on_its_network

SETTINGS = {
    "data.clients": 6,
    "data.alpha": 0.5,
    "data.holdout": 0.2,
    "model.width": 2,
    "model.features": 12,
    "train.rounds": 2,
    "train.steps": 2,
    "train.batch_size": 8,
    "engine.name": "serial",
}
METHODS = {
    "fedetf": on_its_network(SETTINGS, "fedetf"),
    "own head": {**SETTINGS, "method.name": "stateful:OwnHead"},
    "ccvr": on_its_network(SETTINGS, "ccvr"),
    "ditto": on_its_network({**SETTINGS, "data.unseen": 0.34}, "ditto"),
    "fedavg": on_its_network({**SETTINGS, "evaluate.metrics": ["accuracy", "auroc"], "evaluate.every": 3}, "fedavg"),
    "skipped": {**SETTINGS, "method.name": "test_ending:Breaks", "run.on_client_error": "skip"},
}


@dataclass(frozen=True)
class Breaks(Method):
    """Client 2 cannot personalise."""

    def personalise(self, client):
        if client.id == 2:
            raise OSError("no power")


def killed_after(settings, out, clients, torn=False):
    """A run that is killed when so many clients are noted at its end, maybe in the middle of the next line."""

    def run():
        original = ending.append_line
        noted = []

        def append_line(path, value):
            if "client" in value and len(noted) == clients:
                if torn:
                    with path.open("a") as file:
                        file.write(json.dumps(value)[:20])
                os.kill(os.getpid(), signal.SIGKILL)
            original(path, value)
            noted.extend([1] if "client" in value else [])

        ending.append_line = append_line
        fullrank.run(settings, out=out)

    assert forked(run).signal == signal.SIGKILL


def counted_run(settings, out, monkeypatch):
    """Whose own models a run evaluates at its end, and how often it runs the methods' `finish`."""
    evaluated, finishes = [], []
    personal, finished = Site._personal, Server.finished
    monkeypatch.setattr(Site, "_personal", lambda self, job: evaluated.append(job.client) or personal(self, job))
    monkeypatch.setattr(Server, "finished", lambda self, *rest: finishes.append(1) or finished(self, *rest))
    fullrank.run(settings, out=out)
    monkeypatch.undo()
    return evaluated, len(finishes)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] if name == "fedetf" else []) for name in METHODS]
)
def test_killed_in_the_ending_and_resumed(method, torn, tmp_path, monkeypatch):
    settings = METHODS[method]
    attempt(settings, tmp_path / "whole").succeeded()
    killed_after(settings, tmp_path / "run", 2, torn)
    killed_after(settings, tmp_path / "run", 2, torn)
    evaluated, finishes = counted_run(settings, tmp_path / "run", monkeypatch)
    assert len(evaluated) == 2
    assert finishes == 0
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole", method)
    assert not list((tmp_path / "run").glob("ending.*"))


def test_worker_processes_resume_the_ending_too(tmp_path, monkeypatch):
    attempt(METHODS["own head"], tmp_path / "whole").succeeded()
    settings = {**METHODS["own head"], "engine.name": "processes", "engine.workers": 1}
    killed_after(settings, tmp_path / "run", 4)
    fullrank.run(settings, out=tmp_path / "run")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("damage", ["", "not JSON\n", "{}\n", "[1]\n"])
def test_more_rounds_and_damage_start_the_ending_from_scratch(damage, tmp_path, monkeypatch):
    settings = METHODS["own head"]
    killed_after(settings, tmp_path / "run", 3)
    longer = settings if damage else {**settings, "train.rounds": 3}
    file = tmp_path / "run" / "ending.jsonl"
    file.write_text(damage + file.read_text())
    evaluated, _ = counted_run(longer, tmp_path / "run", monkeypatch)
    assert len(evaluated) == 6
    fullrank.run(longer, out=tmp_path / "whole")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


def test_progress_and_time(tmp_path, capsys):
    sets = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    status, out, _ = command("run", *sets, "--out", tmp_path / "run", capsys=capsys)
    assert status == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    for text in (out, log):
        assert "clients' own models: 6 clients\n" in text
        assert "clients' own models: 6/6\n" in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rows = sum(row["seconds"] for row in fullrank.load_run(tmp_path / "run").metrics)
    assert summary["ending_seconds"] > 0
    assert summary["seconds"] == pytest.approx(rows + summary["ending_seconds"])
    status, out, _ = command("run", *sets, "--out", tmp_path / "other", "--json", capsys=capsys)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["done"] for event in events if event["event"] == "phase"] == list(range(7))


def test_the_second_command_says_that_the_end_is_left(tmp_path, capsys):
    killed_after(METHODS["own head"], tmp_path / "run", 3)
    status, out, err = command("run", tmp_path / "run" / "experiment.toml", "--out", tmp_path / "run", capsys=capsys)
    assert status == 0, err
    assert "all 2 rounds are complete, the steps after the last round remain" in out
    assert "clients' own models: 6 clients, 3 of them complete already" in out
    _, out, _ = command("run", tmp_path / "run" / "experiment.toml", "--out", tmp_path / "run", capsys=capsys)
    assert "complete already" in out


def test_the_live_display_shows_a_bar_of_the_clients(tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    states = []

    class Watching(Live):
        def client_done(self, result):
            super().client_done(result)
            if self.phase_name:
                bar = self.progress.tasks[-1]
                states.append((bar.description, bar.completed, bar.total))

    with Watching(console) as shown:
        fullrank.run(METHODS["ccvr"], out=tmp_path / "run", callbacks=[shown])
    names = list(dict.fromkeys(name for name, _, _ in states))
    assert names == ["the method's finish", "clients' own models"]
    assert states[-1] == ("clients' own models", 6, 6)
