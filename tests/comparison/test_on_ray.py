"""Comparisons, sweeps and reproductions whose runs are made on the nodes of a Ray cluster.

What takes longer: `python -m pytest tests/comparison/test_on_ray.py -m slow`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import fullrank
import ray_cluster
from fullrank import papers
from fullrank.errors import InputError

psutil = pytest.importorskip("psutil")
ray = pytest.importorskip("ray")
cluster = ray_cluster.cluster

QUICK = {"data.clients": 3, "model.name": "mlp", "model.width": 8, "train.rounds": 2, "train.steps": 1}


def results(found):
    """The metrics of the runs of a comparison without times."""
    rows = {pair: run.metrics for pair, run in found.runs.items()}
    return {
        pair: [{key: value for key, value in row.items() if "seconds" not in key} for row in several]
        for pair, several in rows.items()
    }


class Events(fullrank.ComparisonCallback):
    def __init__(self):
        self.seen, self.lines = [], []

    def started(self, task):
        self.seen.append(("started", task.name))

    def round_done(self, task, row):
        self.seen.append(("round", task.name, row["round"]))

    def printed(self, task, text):
        self.lines.append(text)

    def ended(self, task, summary):
        self.seen.append(("ended", task.name))


def test_a_comparison_is_the_same_on_a_cluster_and_is_followed(cluster, tmp_path):
    events = Events()
    out = tmp_path / "ray"
    there = fullrank.compare(
        QUICK, ["fedavg", "fedprox"], [0], out, ray=cluster.address, callbacks=[events], progress=False
    )
    here = fullrank.compare(QUICK, ["fedavg", "fedprox"], [0], tmp_path / "here", jobs=1)
    assert results(there) == results(here)
    for name in ("fedavg seed 0", "fedprox seed 0"):
        own = [event for event in events.seen if event[1] == name]
        assert own == [("started", name), ("round", name, 1), ("round", name, 2), ("ended", name)]
    assert not list((out / "experiments").glob(".ray*"))
    again = Events()
    fullrank.compare(QUICK, ["fedavg", "fedprox"], [0], out, ray=cluster.address, callbacks=[again])
    assert again.seen == []


def test_a_folder_that_a_node_cannot_see_is_named(cluster, tmp_path):
    """The path exists in this process only."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(InputError, match=r"node .* cannot see \"/proc/self/fd/.*put the runs into a folder that"):
            fullrank.compare(QUICK, ["fedavg"], [0], f"/proc/self/fd/{folder}/out", ray=cluster.address)
    finally:
        os.close(folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "address", "message"),
    [
        ({}, "127.0.0.1:1", r'ray = "127.0.0.1:1": no Ray cluster answers there'),
        ({"engine.name": "ray"}, "", r'engine.name = "ray" is for a run that trains on several nodes'),
        ({"engine.threads": 8}, "", "needs 8 CPU, and the Ray cluster .* has no node with more than 1"),
        ({"engine.device": "cuda"}, "", "needs 1 GPU, and the Ray cluster .* has no node with more than 0"),
    ],
)
def test_wrong_values_are_rejected_before_a_run_starts(cluster, values, address, message, tmp_path):
    with pytest.raises(InputError, match=message):
        fullrank.compare({**QUICK, **values}, ["fedavg"], [0], tmp_path / "out", ray=address or cluster.address)
    assert not (tmp_path / "out").exists()


def test_without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^--ray \(ray=\) needs Ray; pip install 'fullrank\[ray\]'$"):
        fullrank.compare(QUICK, ["fedavg"], [0], tmp_path / "out", ray="auto")


@pytest.mark.slow
def test_a_run_that_fails_is_marked_and_the_others_continue(cluster, tmp_path):
    fullrank.compare(QUICK, ["fedavg"], [0], tmp_path / "out", ray=cluster.address)
    found = fullrank.compare(QUICK, ["fedavg", "fedbn"], [0], tmp_path / "out", ray=cluster.address)
    assert list(found.failed) == [("fedbn", 0)]
    with pytest.raises(InputError, match="fedbn seed 0: "):
        fullrank.compare(QUICK, ["fedbn"], [0], tmp_path / "other", ray=cluster.address)


@pytest.mark.slow
def test_a_run_whose_node_is_lost_continues_elsewhere(cluster, tmp_path):
    events = Events()
    long = {**QUICK, "train.rounds": 60, "train.steps": 20}
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not any(event[0] == "round" for event in events.seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in psutil.process_iter(["name", "cmdline"]):
            if "ray::RunActor" in " ".join(process.info["cmdline"] or []):
                killed.append(process.pid)
                process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    there = fullrank.compare(long, ["fedavg"], [0], tmp_path / "ray", ray=cluster.address, callbacks=[events])
    thread.join()
    assert len(killed) == 1
    assert "its process died; the run continues on another worker" in events.lines[0]
    here = fullrank.compare(long, ["fedavg"], [0], tmp_path / "here", jobs=1)
    assert results(there) == results(here)


@pytest.mark.slow
def test_a_signal_saves_the_runs_and_the_same_command_continues(cluster, tmp_path):
    command = [sys.executable, "-m", "fullrank", "compare", "-m", "fedavg,fedprox", "-s", "0", "--ray", cluster.address]
    command += ["--out", str(tmp_path / "out"), "--set", "train.rounds=400", "--set", "model.name=mlp"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    files = [tmp_path / "out" / f"{name}-seed0" / "metrics.jsonl" for name in ("fedavg", "fedprox")]
    while not all(file.is_file() and file.read_text().count("\n") > 2 for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "0 of 2 runs are complete and the rounds of the others are saved" in error
    done = [file.read_text().count("\n") for file in files]
    assert all(2 < number < 400 for number in done)
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, done[0] + 1))


@pytest.mark.slow
def test_a_sweep_on_a_cluster_chooses_the_same_trial(cluster, tmp_path):
    pytest.importorskip("optuna")
    values = {**QUICK, "data.validation": 0.2, "train.steps": 4}
    over = {"train.lr": [0.001, 0.1]}
    there = fullrank.sweep(values, over, sampler="grid", out=tmp_path / "ray", ray=cluster.address)
    here = fullrank.sweep(values, over, sampler="grid", out=tmp_path / "here", jobs=1)
    assert [trial.values for trial in there.trials] == [trial.values for trial in here.trials]
    assert there.best.settings == here.best.settings


@pytest.mark.slow
def test_a_reproduction_on_a_cluster_gives_the_same_values(cluster, tmp_path):
    settings = """
[data]
name = "digits"
clients = 2
[model]
name = "mlp"
[train]
rounds = 2
"""
    table = """
title = "A table"
settings = "settings"
value = "last"
columns = [{ rate = 0.1 }]
[axes]
rate = "train.lr"
[[rows]]
at = { method = "fedavg" }
printed = ["70.00 ± 30.00"]
"""
    (tmp_path / "paper.toml").write_text('title = "A paper"')
    (tmp_path / "settings.toml").write_text(settings)
    (tmp_path / "table.toml").write_text(table)
    there = papers.reproduce(tmp_path / "table.toml", [], [0, 1], out=tmp_path / "ray", ray=cluster.address)
    here = papers.reproduce(tmp_path / "table.toml", [], [0, 1], out=tmp_path / "here", jobs=1)
    assert [result.values for result in there.selected] == [result.values for result in here.selected]
    assert len(there.selected[0].values) == 2
