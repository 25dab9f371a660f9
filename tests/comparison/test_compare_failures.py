"""A run that fails does not stop a comparison: it is marked with its reason, the others continue."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import fullrank
from commands import fullrank as command
from fullrank import Method
from fullrank.errors import InputError, RunFailed
from fullrank.runs.directory import RunDirectory

QUICK = {"data.clients": 3, "model.name": "mlp", "model.width": 8, "train.rounds": 2, "train.steps": 1}
SETS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]


@dataclass(frozen=True)
class Diverges(Method):
    """With the second seed and in the second round, every upload is infinite, or the method raises an exception."""

    at_server: bool = False

    def after(self, client):
        if client._client._seed and client.round and not self.at_server:
            for tensor in client.model.values():
                tensor.fill_(float("inf"))
        return {}

    def weight(self, client):
        return float("inf") if client._client._seed and client.round and not self.at_server else client.n

    def aggregate(self, server, new, up):
        if server._server.seed and server.round and self.at_server:
            raise ZeroDivisionError("nothing to divide by")
        return new


NAME = "test_compare_failures:Diverges"
LABEL = "diverges"


def compare(*arguments, capsys):
    return command("compare", *SETS, *arguments, capsys=capsys)


@pytest.mark.parametrize(
    ("jobs", "on_error"), [(1, "stop"), (1, "skip"), pytest.param(2, "stop", marks=pytest.mark.slow)]
)
def test_one_diverging_run_is_marked_and_the_others_continue(jobs, on_error, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["-m", f"fedavg,{NAME}", "-s", "0,1", "-j", jobs, "--out", out]
    status, text, err = compare(*arguments, "--set", f"run.on_client_error={on_error}", capsys=capsys)
    assert status == 1
    assert err.splitlines()[-1].startswith("fullrank: 1 of 4 runs failed")
    cells = next(line for line in text.splitlines() if line.startswith(f"{LABEL}  ")).split()
    assert cells[2] == "failed"
    assert "±" not in cells  # one seed is left
    assert f"{LABEL} seed 1: failed: " in text
    assert f"{LABEL} with seed 1 is left out of mean and difference: failed: " in text
    assert "3 runs complete, 1 failed" in text
    record = json.loads((out / "comparison.json").read_text())
    (failed,) = record["failed"]
    assert (failed["method"], failed["seed"]) == (LABEL, 1)
    reason = "no client sent anything" if on_error == "skip" else "its upload"
    assert reason in failed["reason"]
    assert len(record["runs"]) == 3
    log = (out / f"{NAME.replace(':', '.')}-seed1" / "log.txt").read_text()
    assert reason in log.splitlines()[-1]
    assert log.splitlines()[-1].startswith("stopped: ")


def test_a_run_that_diverges_in_a_process_of_its_own_is_marked(tmp_path, capsys):
    arguments = ["-m", f"fedavg,{NAME}", "-s", "1", "-j", "2", "--out", tmp_path / "out"]
    status, text, err = compare(*arguments, capsys=capsys)
    assert status == 1
    assert err.splitlines()[-1].startswith("fullrank: 1 of 2 runs failed")
    assert "1 run complete, 1 failed" in text
    (failed,) = json.loads((tmp_path / "out" / "comparison.json").read_text())["failed"]
    assert (failed["method"], failed["seed"]) == (LABEL, 1)
    assert "its upload" in failed["reason"]


def test_json_has_the_failures_and_the_same_command_tries_them_again(tmp_path, capsys):
    arguments = ["-m", f"{NAME},fedavg", "-s", "0,1", "-j", "1", "--out", tmp_path / "out", "--json"]
    for _ in range(2):
        status, text, _ = compare(*arguments, "--set", "method.diverges.at_server=true", capsys=capsys)
        assert status == 1
        facts = json.loads(text)
        assert facts["methods"] == [LABEL, "fedavg"]
        assert [list(row["values"]) for row in facts["rows"]] == [["0"], ["0", "1"]]
        assert facts["rows"][0]["absent"]["1"].endswith(
            "its hook aggregate raised ZeroDivisionError: nothing to divide by"
        )
        assert list(facts["rows"][1]["difference"]["values"]) == ["0"]
    log = (tmp_path / "out" / f"{NAME.replace(':', '.')}-seed1" / "log.txt").read_text()
    assert "Traceback" in log
    assert log.count("stopped: ") == 2
    assert RunDirectory(tmp_path / "out" / f"{NAME.replace(':', '.')}-seed1").last_round() == 1


def test_the_function_returns_what_there_is(tmp_path):
    found = fullrank.compare(QUICK, ["fedavg", NAME], [0, 1], tmp_path / "out", jobs=1)
    assert list(found.failed) == [(LABEL, 1)]
    assert set(found.runs) == {("fedavg", 0), (LABEL, 0), ("fedavg", 1)}
    assert found.by("loss").failed == found.failed


def test_if_every_run_fails_so_does_the_comparison(tmp_path):
    with pytest.raises(RunFailed, match=r"seed 1: client \d: its upload .*; all 2 runs failed"):
        fullrank.compare(QUICK, [NAME], [1, 2], tmp_path / "out", jobs=1)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_wrong_with_all_runs_stops_before_any_has_begun(jobs, tmp_path):
    wrong = {**QUICK, "data.name": "cifar10", "data.root": str(tmp_path)}
    with pytest.raises(InputError, match=r"fedavg seed \d: "):
        fullrank.compare(wrong, ["fedavg"], [0, 1], tmp_path / "out", jobs=jobs)
    assert not list((tmp_path / "out").glob("*-seed*"))


def test_a_method_that_is_rejected_later_is_marked(tmp_path):
    """FedBN needs norm layers, which this network does not have; what the other runs took is not lost."""
    for _ in range(2):
        found = fullrank.compare(QUICK, ["fedavg", "fedbn"], [0], tmp_path / "out", jobs=1)
        assert list(found.failed) == [("fedbn", 0)]
        assert found.rows()[1].mean is None


def test_the_log_of_a_single_run_says_why_it_failed(tmp_path):
    with pytest.raises(fullrank.errors.ClientFailed):
        fullrank.run({**QUICK, "method.name": NAME, "seed": 1}, out=tmp_path / "run")
    assert "stopped: client " in (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]


@pytest.mark.parametrize("existing", [False, True])
def test_a_rejected_comparison_leaves_nothing_behind(existing, tmp_path):
    if existing:
        (tmp_path / "out").mkdir()
    x, y = np.zeros((40, 4), np.float32), np.arange(40) % 4
    np.savez(tmp_path / "groups.npz", x_train=x, y_train=y, x_test=x, y_test=y, group_train=np.arange(40) // 4)
    table = {"data.name": str(tmp_path / "groups.npz"), "model.name": "mlp", "data.clients": 2, "train.rounds": 1}
    with pytest.raises(InputError, match="group"):
        fullrank.compare(table, ["fedavg", "fedprox"], seeds=[0, 1], jobs=2, out=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["groups.npz"] + ["out"] * existing
    assert not existing or not list((tmp_path / "out").iterdir())
