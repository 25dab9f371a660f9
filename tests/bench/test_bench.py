"""Benchmarks measure what they say: known answers for the measuring, and one tiny pass through each command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank as fullrank_package
from commands import fullrank
from fullrank import __version__
from fullrank.bench import cpu, eager, figures, gpu, overheads, proctree
from fullrank.bench.race import Contestant, Lap, lap
from fullrank.bench.standalone.task import NETWORKS, RaceTask
from fullrank.bench.workload import TINY, Workload
from fullrank.errors import InputError, RunFailed
from fullrank.federated.sampling import participants

BUSY = "import time\nwhile time.process_time() < 0.5: pass\n"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts whole process trees")


def a_lap(name="bare loop", cpu=1.0, steps=10, loss=2.0):
    return Lap(name, cpu, cpu, 3.0, 3.0, 2**20, 2, steps, loss)


# Measuring


@linux
def test_cpu_seconds_of_live_and_of_ended_children_count():
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\n"
    alive = (
        f"live = subprocess.Popen([sys.executable, '-c', {BUSY + 'print(flush=True); time.sleep(60)'!r}], stdout=-1)\n"
    )
    script = child + alive + "live.stdout.readline(); print(flush=True); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        alive = proctree.tree(process.pid)
        measured = proctree.cpu_seconds(process.pid)
    finally:
        for child in reversed(proctree.tree(process.pid)):
            child.kill()
        process.wait()
        process.stdout.close()
    assert len(alive) == 2
    assert measured > 0.97  # half a second each, counted in hundredths


@linux
def test_memory_of_a_child_counts():
    script = "held = bytearray(b'x' * 2**26); print(flush=True); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert proctree.memory(process.pid) > 2**26
        assert proctree.memory(os.getpid()) > proctree.memory(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@linux
def test_a_process_that_is_gone_has_used_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert proctree.cpu_seconds(process.pid) == proctree.memory(process.pid) == 0


PLAYER = """
import json, os, socket, time
def mark(**facts):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.environ["FULLRANK_BENCH_SOCKET"])
        s.sendall(json.dumps(facts).encode() + b"\\n")
        s.recv(1)
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
burn(0.4); mark(round=1, steps=5)
burn(0.2); mark(round=2, steps=5)
burn(0.2); mark(round=3, steps=5)
burn(0.3); mark(loss=1.5, versions={})
"""


@linux
def test_a_lap_keeps_the_first_round_apart_and_leaves_out_what_comes_after_the_last(tmp_path):
    found = lap(Contestant("player", (sys.executable, "-c", PLAYER.replace("{", "{{").replace("}", "}}"))), tmp_path)
    assert found.rounds == 2
    assert found.steps == 15
    assert found.loss == 1.5
    assert found.first_cpu > 0.38
    assert found.cpu == pytest.approx(0.2, abs=0.03)  # CPU time, which no other load stretches


@linux
def test_a_contestant_that_fails_says_why(tmp_path):
    with pytest.raises(RunFailed, match="player ended before its last round") as failure:
        lap(Contestant("player", (sys.executable, "-c", "raise SystemExit('no such thing')")), tmp_path)
    assert "no such thing" in failure.value.traceback


# Arithmetic


def test_median_spread_and_ratio():
    figure = figures.Figure.of([4.0, 1.0, 2.0])
    assert (figure.median, figure.low, figure.high, figure.n) == (2.0, 1.0, 4.0, 3)
    assert figures.ratio(figure, figures.Figure.of([4.0])) == 0.5
    assert figures.Figure.of([1.0]).text() == "1.00"
    with pytest.raises(InputError):
        figures.Figure.of([])


def test_overheads_are_paired_by_turn():
    found = overheads.overheads({"fedavg": [1.0, 10.0, 2.0], "other": [1.1, 11.0, 2.4]})
    assert found["other"]["percent"]["median"] == pytest.approx(10)
    assert found["other"]["percent"]["max"] == pytest.approx(20)
    assert found["other"]["beyond"]["median"] == pytest.approx(0.4)
    assert found["fedavg"]["percent"]["max"] == 0


def test_the_table_of_a_race():
    summary = cpu.summary([a_lap(cpu=1.0), a_lap("other", 2.0), a_lap(cpu=3.0), a_lap("other", 4.0)])
    machine = {"cpu": "a", "cores": 2, "python": "3", "torch": "2", "fullrank": "0"}
    text = cpu.report({"machine": machine, "repeats": 2, "networks": {"cnn": summary}})
    other = next(line for line in text.splitlines() if line.startswith("other"))
    assert other.split()[1:5] == ["3.000", "[2.000,", "4.000]", "1.50×"]
    assert "NOT ALIKE" not in text


def test_unlike_work_is_told():
    assert cpu.differences([a_lap(), a_lap("other", loss=2.1)]) == []
    assert "steps differ" in cpu.differences([a_lap(), a_lap("other", steps=11)])[0]
    assert "nan" in cpu.differences([a_lap(), a_lap(), a_lap("other", loss=float("nan"))])[0]


# The tasks


def test_the_network_has_the_published_size():
    assert sum(p.numel() for p in NETWORKS["cnn"]().parameters()) == 1_626_442
    assert sum(p.numel() for p in NETWORKS["linear"]().parameters()) == 30_730


def test_the_plan_is_the_servers_own(tmp_path):
    from fullrank.bench import ours
    from fullrank.runs.assemble import assemble

    TINY.write(tmp_path)
    task = RaceTask(tmp_path)
    parts = {"federation": ours.federation(task), "module": task.network()}
    server = assemble(ours.experiment(task, "serial"), **parts).server
    assert [list(server.sample(number)) for number in range(task.rounds)] == task.cohorts
    assert task.steps == 2 * 2
    assert participants(50, 1000) == Workload().cohort
    assert RaceTask(tmp_path).network()[0].weight.equal(task.network()[0].weight)


def test_eager_batches_keep_odd_ones_but_for_a_single_sample():
    recipe = eager.Recipe(epochs=2, batch_size=4)
    assert [len(rows) for rows in eager.batches(10, recipe)] == [4, 4, 2, 4, 4, 2]
    assert [len(rows) for rows in eager.batches(9, recipe)] == [4, 4, 4, 4]


def test_eager_crops_are_windows_of_the_framed_image_flipped_or_not():
    x = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).repeat(64, 1, 1, 1)
    images = eager.Images(x, torch.zeros(64, dtype=torch.int64), [0.0], [1 / 255], torch.device("cpu"))
    torch.manual_seed(0)
    cut, _ = images.batch(torch.arange(64), border=1)
    framed = np.pad(x[0, 0].numpy(), 1)
    windows = [framed[i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    allowed = {image.astype(np.float32).tobytes() for window in windows for image in (window, window[:, ::-1])}
    seen = {image.numpy().tobytes() for image in cut[:, 0].contiguous()}
    assert seen <= allowed
    assert len(seen) > 9


def test_the_eager_round_makes_as_many_steps_as_fullranks():
    result = gpu.measure(gpu.feddecorr_round("cpu", tiny=True), rounds=1, eager_decorrelation=True)
    assert not result["failed"]
    assert result["eager"]["steps"] == result["methods"]["fedavg"]["steps"] == 6
    assert result["methods"]["fedavg+feddecorr"]["later"]["n"] == 1
    assert not result["eager"]["extrapolated"]


def test_a_share_of_the_eager_steps_is_marked_as_such():
    timed = eager.Timed(seconds=2.0, steps=4, round_steps=12, loss=0.0)
    assert timed.round_seconds == 6.0
    assert timed.as_dict()["extrapolated"]


def test_a_stage_that_fails_does_not_keep_the_next_from_running(monkeypatch):
    kept = []
    monkeypatch.setattr(gpu, "eager_round", lambda *_: 1 / 0)
    result = gpu.measure(
        gpu.feddecorr_round("cpu", tiny=True), rounds=1, methods=["fedavg"], keep=lambda r: kept.append(json.dumps(r))
    )
    assert result["failed"][0]["error"].startswith("ZeroDivisionError")
    assert "later" in json.loads(kept[-1])["methods"]["fedavg"]
    assert "times_eager" not in result["methods"]["fedavg"]


# The commands


@linux
def test_bench_cpu(capsys, monkeypatch):
    both = cpu.own_contestants()[:2]  # each is a process that imports torch
    monkeypatch.setattr(cpu, "own_contestants", lambda: both)
    status, out, _ = fullrank("bench", "cpu", "--tiny", "--networks", "linear", "--repeats", 1, "--json", capsys=capsys)
    assert status == 0
    found = json.loads(out)["networks"]["linear"]
    # Losses are not compared: after so few steps they depend on the order of batches more than on anything else.
    assert {system["steps"] for system in found["systems"].values()} == {2 * 4}


def cpu_round(*arguments):
    script = Path(__file__).parents[2] / "benchmarks" / "cpu_round.py"
    return subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True)


@linux
def test_two_checkouts_are_raced_in_pairs(tmp_path):
    other = tmp_path / "other"
    (other / "src").mkdir(parents=True)
    shutil.copytree(Path(fullrank_package.__file__).parent, other / "src" / "fullrank")
    package = other / "src" / "fullrank" / "_version.py"
    package.write_text(package.read_text().replace('__version__ = "', '__version__ = "other-'))
    kept = tmp_path / "found.json"
    tiny = ("--tiny", "--networks", "linear", "--engines", "serial", "--repeats", 1)
    done = cpu_round("--with", other, *tiny, "--json", kept)
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())["networks"]["linear"]
    versions = {lap["contestant"]: lap["facts"]["versions"]["fullrank"] for lap in found["laps"]}
    assert versions == {"serial: this": __version__, "serial: other": f"other-{__version__}"}
    assert {side: len(laps[0]["saves"]) for side, laps in found["checkpoints"].items()} == {"this": 5, "other": 5}
    assert [row[0] for row in found["rows"]] == ["serial, round", "checkpoint, 0.7 MB"]
    assert "this / other, CPU" in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--with", "plf"), "no framework of that name (pfl, flwr) and no checkout of fullrank"),
        (("--with", "tests", "--engines", "serail"), 'did you mean "serial"?'),
    ],
)
def test_what_cannot_be_raced_gets_one_sentence(options, sentence):
    done = cpu_round(*options)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bench_gpu_on_a_cpu(capsys):
    status, out, _ = fullrank("bench", "gpu", "--tiny", "--device", "cpu", "--rounds", 1, capsys=capsys)
    assert status == 0
    assert "times as fast as eager" in out


def test_bench_methods(capsys):
    command = ("bench", "methods", "--tiny", "--repeats", 2, "--methods", "fedprox,fedavg+feddecorr")
    status, out, _ = fullrank(*command, capsys=capsys)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["fedavg", "fedprox", "fedavg+feddecorr"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("cpu", "--networks", "cn"), 'did you mean "cnn"?'),
        (("cpu", "--repeats", "0"), "--repeats 0: must be at least 1"),
        (("methods", "--methods", "fedprocks"), 'method.name = "fedprocks" is not known'),
        (("gpu", "--device", "cpu", "--tiny", "--rounds", "0"), "must be at least 1, not counting the first round"),
        (("gpu", "--device", "cpu", "--tiny", "--eager-fraction", "2"), "must be above 0 and at most 1"),
        (("gpu", "--device", "cpu", "--tiny", "--set", "engine.slotz=1"), "engine.slotz: there is no such key"),
    ],
)
def test_wrong_input_gets_one_sentence(command, sentence, capsys):
    status, out, err = fullrank("bench", *command, capsys=capsys)
    assert status == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_no_gpu_is_said_in_one_sentence(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    status, _, err = fullrank("bench", "gpu", "--tiny", capsys=capsys)
    assert status == 2
    assert "no CUDA device" in err.splitlines()[-1]
