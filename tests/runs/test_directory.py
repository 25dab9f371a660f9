"""The run directory: what lies in it, what may change between two calls, what is rejected, what survives."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fullrank
import stateful
from commands import finding
from fullrank.data import partition
from fullrank.errors import CallFailed, ClientFailed, InputError, Interrupted, RunFailed, WriteFailed
from fullrank.federated.client_states import ClientStates
from fullrank.files import append_line, save_tensors, write_atomically, write_json
from fullrank.local.step import Step
from fullrank.runs.directory import RunDirectory, read_json, read_rows
from fullrank.runs.status import MESSAGES, Status
from fullrank.trees import flatten
from killing import (
    Points,
    Strike,
    assert_equal_outcomes,
    assert_tidy,
    attempt,
    forked,
    nothing_changes,
    outcome,
    saved_states,
)
from small import assert_same_bits

SETTINGS = {
    "data.clients": 4,
    "data.alpha": 0.5,
    "model.width": 2,
    "model.features": 8,
    "train.rounds": 3,
    "train.steps": 2,
    "train.batch_size": 8,
    "engine.name": "serial",  # whose functions the points lie in
}
STATEFUL = {"method.name": "stateful:Variates+stateful:OwnNorms", "model.norm": "batch", "train.participation": 3}


def run(out, *tables, **options):
    return fullrank.run({key: value for table in (SETTINGS, *tables) for key, value in table.items()}, out, **options)


def client_states(out):
    """The newest checkpoint's tensors of clients, by path."""
    states = {}
    for file, clients in saved_states(out).items():
        tensors = load_file(out / "checkpoints" / file)
        states |= {name: t for name, t in tensors.items() if int(name.split("/")[0]) in clients}
    return states


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A few digits in an .npz file."""
    data = fullrank.data.load_dataset("digits")
    path = tmp_path_factory.mktemp("data") / "few.npz"
    split = {"x_train": data.train.x[:200], "y_train": data.train.y[:200], "x_test": data.test.x, "y_test": data.test.y}
    np.savez(path, **{name: tensor.numpy() for name, tensor in split.items()})
    return path


# What lies in it


def test_a_run_directory_holds_what_is_promised(tmp_path):
    result = run(tmp_path / "run", STATEFUL, {"method.name": "fedprox+stateful:Variates"})
    path = tmp_path / "run"
    assert result.path == path
    assert {entry.name for entry in path.iterdir()} == {
        ".lock",
        "checkpoints",
        "clients.jsonl",
        "environment.json",
        "experiment.toml",
        "log.txt",
        "metrics.jsonl",
        "model.safetensors",
        "partition.json",
        "partition.safetensors",
        "summary.json",
    }
    assert_tidy(path)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert all(row.pop("checksum") for row in rows)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert {"accuracy", "loss", "bytes_up", "bytes_down", "seconds", "training_seconds", "clients"} <= rows[0].keys()
    assert rows == result.metrics == fullrank.load_run(path).metrics
    summary = json.loads((path / "summary.json").read_text())
    ending = summary.pop("ending")
    assert summary.pop("checksum")
    assert result.summary() == summary
    assert ending == {"absent": summary["absent"], "seconds": summary["ending_seconds"]}
    assert summary["accuracy"]["last"] == rows[-1]["accuracy"]
    around = json.loads((path / "environment.json").read_text())
    assert around["threads"] == 1
    assert around["torch"] == torch.__version__
    assert "resumed" not in around
    facts = json.loads((path / "partition.json").read_text())
    assert facts["data"]["fingerprint"] == fullrank.data.load_dataset("digits").fingerprint()
    sizes = load_file(path / "partition.safetensors")["train_sizes"]
    assert len(sizes) == 4
    assert int(sizes.sum()) == facts["data"]["train"]


def test_the_saved_experiment_is_the_resolved_one_and_reads_back_equal(tmp_path):
    table = {"method.name": "fedprox+feddecorr", "data.augment": ["crop", "flip"], "engine.name": "auto"}
    result = run(tmp_path / "run", table)
    again = fullrank.Experiment.from_toml(tmp_path / "run" / "experiment.toml")
    assert again == result.experiment == fullrank.load_run(tmp_path / "run").experiment
    assert again.engine.name != "auto"  # but what it stood for
    assert again.method.tables == {"fedprox": {"mu": 0.001}, "feddecorr": {"beta": 0.1, "scale": "code"}}
    *text, checksum = (tmp_path / "run" / "experiment.toml").read_text().splitlines(keepends=True)
    assert again.as_toml() == "".join(text)
    assert checksum.startswith("# checksum: ")
    fullrank.run(tmp_path / "run" / "experiment.toml", tmp_path / "again")
    assert_equal_outcomes(tmp_path / "again", tmp_path / "run")


def test_the_saved_partition_repeats_the_run(tmp_path):
    run(tmp_path / "run", {"data.holdout": 0.1, "data.validation": 0.1})
    saved = {"data.partition": str(tmp_path / "run" / "partition.safetensors")}
    run(tmp_path / "again", saved)
    assert_equal_outcomes(tmp_path / "again", tmp_path / "run")


def test_the_saved_model_is_the_global_one_without_personal_entries(tmp_path):
    run(tmp_path / "run", STATEFUL)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert "head.weight" in saved
    assert not [name for name in saved if name.startswith(("backbone.1.", "backbone.5."))]  # the norm layers
    server = load_file(tmp_path / "run" / "checkpoints" / "server-000003.safetensors")
    assert all(torch.equal(tensor, server[f"model/{name}"]) for name, tensor in saved.items())


def test_keep_keeps_so_many_checkpoints(tmp_path):
    run(tmp_path / "run", STATEFUL, {"run.keep": 2, "train.rounds": 5, "train.participation": 2})
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("*.json"))
    assert kept == ["000004.json", "000005.json"]
    assert_tidy(tmp_path / "run", keep=2)


def test_what_somebody_else_puts_into_the_checkpoints_folder_stays(tmp_path):
    run(tmp_path / "run", {"train.rounds": 1})
    folder = tmp_path / "run" / "checkpoints"
    (folder / "notes.txt").write_text("mine")
    (folder / "best").mkdir()
    run(tmp_path / "run")
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "best").is_dir()


# More rounds


@pytest.mark.parametrize(
    "table",
    [
        {},
        STATEFUL,
        {"method.name": "stateful:Calibrated+stateful:Momentum"},
        {"method.name": "stateful:Frame", "train.participation": 2},
    ],
    ids=["fedavg", "state", "finish", "frozen"],
)
def test_more_rounds_continue_from_the_end_of_a_finished_run(table, tmp_path):
    run(tmp_path / "whole", table, {"train.rounds": 5})
    for rounds in (2, 3, 5):
        result = run(tmp_path / "run", table, {"train.rounds": rounds})
        assert result.complete
        assert len(result.metrics) == rounds
        assert result.experiment.train.rounds == rounds
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == rounds
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")
    history = json.loads((tmp_path / "run" / "environment.json").read_text())["resumed"]
    assert [entry["after_round"] for entry in history] == [2, 3]


def test_finish_changes_the_result_and_not_the_rounds_that_follow(tmp_path):
    table = {"method.name": "stateful:Calibrated"}
    run(tmp_path / "plain")
    result = run(tmp_path / "run", table)
    server = load_file(tmp_path / "run" / "checkpoints" / "server-000003.safetensors")
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert all(torch.equal(tensor, server[f"model/{name}"]) for name, tensor in plain.items())
    saved = load_file(tmp_path / "run" / "model.safetensors")
    changed = [name for name in saved if not torch.equal(saved[name], plain[name])]
    assert changed == ["head.weight"]
    assert torch.equal(result.model().head.weight, saved["head.weight"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy"]["final"] == summary["ending"]["accuracy"] != summary["accuracy"]["last"]
    assert fullrank.load_run(tmp_path / "run").summary() == result.summary()


def test_an_extended_run_that_was_interrupted_shows_nothing_of_its_former_end(tmp_path):
    table = {"method.name": "stateful:Calibrated"}
    run(tmp_path / "run", table, {"train.rounds": 2})
    ended = attempt({**SETTINGS, **table, "train.rounds": 5}, tmp_path / "run", Strike("a checkpoint", 2))
    assert ended.signal == signal.SIGKILL
    loaded = fullrank.load_run(tmp_path / "run", trust=True)
    assert not loaded.complete
    assert loaded.summary()["rounds"] == 4
    assert "final" not in loaded.summary()["accuracy"]
    server = load_file(tmp_path / "run" / "checkpoints" / "server-000004.safetensors")
    assert torch.equal(loaded.model().head.weight, server["model/head.weight"])


def test_fewer_rounds_than_are_done_are_rejected(tmp_path):
    run(tmp_path / "run")
    with (
        nothing_changes(tmp_path / "run"),
        pytest.raises(InputError, match=r"train.rounds = 2.* has 3 rounds already"),
    ):
        run(tmp_path / "run", {"train.rounds": 2})


def test_a_complete_run_returns_at_once(tmp_path, monkeypatch):
    first = run(tmp_path / "run", {"method.name": "stateful:Calibrated"})
    before = outcome(tmp_path / "run")

    def reject(*args):
        raise AssertionError("a local step was made")

    monkeypatch.setattr(Step, "advance_", reject)
    with pytest.raises(ClientFailed, match="a local step was made"):
        run(tmp_path / "fresh")
    again = run(tmp_path / "run", {"method.name": "stateful:Calibrated"})
    assert again.complete
    assert again.metrics == first.metrics
    assert again.summary() == first.summary()
    assert outcome(tmp_path / "run") == before
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again.model()(x), first.model()(x))


def test_resume_false_rejects_a_directory_that_holds_a_run(tmp_path):
    run(tmp_path / "run")
    with nothing_changes(tmp_path / "run"), pytest.raises(InputError, match="holds a run already"):
        run(tmp_path / "run", resume=False)


# What may differ


@pytest.mark.parametrize(
    ("key", "value", "before", "now"),
    [
        ("seed", 1, "0", "1"),
        ("data.alpha", 0.05, "0.5", "0.05"),
        ("data.clients", 5, "4", "5"),
        ("train.lr", 0.2, "0.1", "0.2"),
        ("train.participation", 2, "1.0", "2"),
        ("train.participation", 1, "1.0", "1"),
        ("model.width", 3, "2", "3"),
        ("model.norm", "group", "None", "'group'"),
        ("method.name", "feddecorr", "'fedprox'", "'feddecorr'"),
        ("method.fedprox.mu", 0.5, "0.001", "0.5"),
        ("evaluate.every", 2, "1", "2"),
    ],
)
def test_a_changed_key_is_rejected_with_both_values(key, value, before, now, one_run, tmp_path):
    with nothing_changes(one_run), pytest.raises(InputError) as caught:
        run(one_run, {"method.name": "fedprox", key: value})
    assert f"{key} was {before}, is now {now}" in str(caught.value)
    assert str(one_run) in str(caught.value)


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "run"
    run(path, {"method.name": "fedprox", "train.rounds": 1})
    return path


def test_one_client_a_round_and_all_of_them_are_different_runs():
    one, all_ = fullrank.Experiment.of({"train.participation": 1}), fullrank.Experiment.of({"train.participation": 1.0})
    assert one.directory() != all_.directory() == fullrank.Experiment().directory()


def test_two_changed_keys_are_shown_together(one_run):
    with pytest.raises(InputError, match=r"data.alpha was 0.5, is now 1.0; train.lr was 0.1, is now 0.2"):
        run(one_run, {"method.name": "fedprox", "data.alpha": 1.0, "train.lr": 0.2})


def test_tables_of_methods_that_do_not_take_part_do_not_matter(tmp_path):
    run(tmp_path / "run", {"train.rounds": 1})
    assert run(tmp_path / "run", {"method.feddecorr.beta": 3.0}).complete


def test_keys_that_may_differ_are_accepted(digits, tmp_path):
    table = {"data.name": "npz", "data.root": str(digits)}
    run(tmp_path / "whole", table)
    run(tmp_path / "run", table, {"train.rounds": 2})
    elsewhere = str(shutil.copy(digits, tmp_path / "copy.npz"))
    free = {"data.root": elsewhere, "run.keep": 3, "run.checkpoint_every": 2, "run.on_client_error": "skip"}
    result = run(tmp_path / "run", table, free)
    assert result.experiment.data.root == elsewhere
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


def test_changed_data_are_rejected(digits, tmp_path):
    with np.load(digits) as arrays:
        content = dict(arrays)
    np.savez(tmp_path / "data.npz", **content)
    table = {"data.name": "npz", "data.root": str(tmp_path / "data.npz")}
    run(tmp_path / "run", table, {"train.rounds": 1})
    content["x_test"][5, 0, 3, 3] ^= 1
    np.savez(tmp_path / "data.npz", **content)
    with nothing_changes(tmp_path / "run" / "checkpoints"), pytest.raises(InputError) as caught:
        run(tmp_path / "run", table)
    assert "the data set's content is not what it was" in str(caught.value)
    assert str(tmp_path / "run") in str(caught.value)


def test_a_changed_partition_is_rejected(tmp_path):
    run(tmp_path / "other", {"seed": 1, "train.rounds": 1})
    division = tmp_path / "division.safetensors"
    run(tmp_path / "first", {"train.rounds": 1})
    shutil.copy(tmp_path / "first" / "partition.safetensors", division)
    run(tmp_path / "run", {"data.partition": str(division), "train.rounds": 1})
    shutil.copy(tmp_path / "other" / "partition.safetensors", division)
    with pytest.raises(InputError, match="the partition is not what it was"):
        run(tmp_path / "run", {"data.partition": str(division)})


def recorded_hash(run):
    return read_json(run.path / "partition.json")["hash"]


def test_a_run_whose_partition_comes_out_otherwise_now_is_rejected_and_its_partition_can_be_used(tmp_path, monkeypatch):
    old = run(tmp_path / "run", {"train.rounds": 1})
    before = recorded_hash(old)

    def otherwise(indices, shares):
        ends = np.floor(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        return np.split(indices, np.maximum(ends - 1, 0))

    monkeypatch.setattr(partition, "_cut", otherwise)
    with (
        nothing_changes(tmp_path / "run"),
        pytest.raises(InputError, match="the partition is not what it was") as caught,
    ):
        run(tmp_path / "run")
    kept = tmp_path / "run" / "partition.safetensors"
    assert f'a new run has the partition of this one with data.partition = "{kept}"' in str(caught.value)
    assert recorded_hash(run(tmp_path / "new", {"data.partition": str(kept)})) == before


OTHER_THREADS = """
import sys
import torch
from test_directory import InputError, run

torch.set_num_threads(1)
out = sys.argv[1]
run(out, {"train.rounds": 1})
try:
    run(out, {"engine.threads": 2})
except InputError as error:
    print(error)
assert run(out, {"engine.threads": 2}, change_engine=True).complete
assert torch.get_num_threads() == 1  # as the process had it
"""


def test_another_number_of_threads_needs_consent_and_is_recorded(tmp_path):
    # In a process that is not forked from this one: several threads may wait for each other forever after a fork.
    command = [sys.executable, "-c", OTHER_THREADS, tmp_path / "run"]
    kept = {"capture_output": True, "text": True, "env": finding(__file__)}
    done = subprocess.run(command, check=False, timeout=120, **kept)
    assert (done.returncode, done.stderr) == (0, "")
    assert "engine.threads was 1, is now 2" in done.stdout
    assert "--change-engine" in done.stdout
    around = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert (around["threads"], around["resumed"][-1]["threads"]) == (1, 2)
    assert fullrank.load_run(tmp_path / "run").experiment.engine.threads == 2


def test_a_run_in_another_precision_continues_in_it(tmp_path):
    run(tmp_path / "run", {"train.rounds": 1, "method.name": "stateful:Variates"})
    table = {"engine.precision": "float64", "method.name": "stateful:Variates"}
    result = run(tmp_path / "run", table, change_engine=True)
    assert load_file(tmp_path / "run" / "model.safetensors")["head.weight"].dtype == torch.float64
    assert result.model().head.weight.dtype == torch.float64


def test_consent_to_another_engine_covers_nothing_else(one_run):
    with pytest.raises(InputError, match=r"train.lr was 0.1, is now 0.2") as caught:
        run(one_run, {"method.name": "fedprox", "train.lr": 0.2, "engine.threads": 2}, change_engine=True)
    assert "threads" not in str(caught.value)
    assert "--change-engine" not in str(caught.value)


def test_a_key_that_the_recorded_experiment_lacks_has_its_default(tmp_path):
    run(tmp_path / "run", {"train.rounds": 1})
    file = tmp_path / "run" / "experiment.toml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith(("buffers", "decay_on", "# check"))]
    file.write_text("\n".join(kept))
    assert run(tmp_path / "run").complete


# Who may write


def test_a_second_process_is_rejected_and_readers_are_not(tmp_path):
    run(tmp_path / "run", {"train.rounds": 2})
    ready, tell = os.pipe()
    wait, release = os.pipe()

    def hold():
        os.close(release)
        directory = RunDirectory(tmp_path / "run")
        directory.open()
        os.write(tell, b"x")
        os.read(wait, 1)

    def meanwhile(pid):
        os.close(tell)
        os.read(ready, 1)
        with nothing_changes(tmp_path / "run"), pytest.raises(InputError) as caught:
            run(tmp_path / "run")
        assert "another process is running in" in str(caught.value)
        assert str(tmp_path / "run") in str(caught.value)
        assert len(fullrank.load_run(tmp_path / "run").metrics) == 2
        os.close(release)

    forked(hold, during=meanwhile).succeeded()
    for end in (ready, wait):
        os.close(end)
    assert run(tmp_path / "run").complete


def test_a_directory_is_free_again_after_a_failure(tmp_path):
    with pytest.raises(InputError):
        run(tmp_path / "run", {"train.participation": 9})
    assert run(tmp_path / "run").complete


@pytest.mark.parametrize("name", ["thesis.tex", "metrics.jsonl", "summary.json", "checkpoints/other.pt", "movie.part"])
def test_a_directory_with_other_files_is_rejected_and_not_changed(name, tmp_path):
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [Path(name).parts[0]]
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_an_empty_directory_is_fine(tmp_path):
    assert run(tmp_path).complete


@pytest.mark.parametrize("below", ["file/run", "file", "run/checkpoints/run"])
def test_a_path_that_cannot_be_written_is_rejected(below, tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file")
    with pytest.raises(InputError, match=r"cannot be written|is not empty") as caught:
        run(tmp_path / below)
    assert str(tmp_path / below) in str(caught.value)


# What survives


@pytest.mark.parametrize("torn", ["{", '{"round": 4, "accura', "\x00\x00\x00"])
def test_a_torn_last_row_is_survived(torn, tmp_path):
    run(tmp_path / "whole")
    run(tmp_path / "run", {"train.rounds": 2})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [row["round"] for row in fullrank.load_run(tmp_path / "run").metrics] == [1, 2]
    run(tmp_path / "run")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


def test_rounds_beyond_the_newest_checkpoint_are_run_again(tmp_path):
    run(tmp_path / "whole")
    attempt({**SETTINGS, "run.checkpoint_every": 2}, tmp_path / "run", Strike("half of server", 2))
    assert len(read_rows(tmp_path / "run")) == 3
    attempt(SETTINGS, tmp_path / "run", Strike("a local step", 1))
    assert len(read_rows(tmp_path / "run")) == 2
    run(tmp_path / "run")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


def test_a_damaged_row_is_named(tmp_path):
    run(tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_text(file.read_text().replace('"round": 2', '"round" 2'))
    for read in (fullrank.load_run, run):
        with pytest.raises(InputError, match=r"metrics.jsonl.* is damaged"):
            read(tmp_path / "run")


@pytest.mark.parametrize("keep", [slice(0), slice(1), slice(1, None)])
def test_missing_rows_are_rejected(keep, tmp_path):
    run(tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[keep]))
    with pytest.raises(InputError, match=r"metrics.jsonl.* does not hold all of the 3 rounds"):
        run(tmp_path / "run", {"train.rounds": 4})


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def overwrite(path):
    path.write_bytes(b"\x00" * 100 + b"\n")


@pytest.fixture(scope="module")
def two_of_three_rounds(tmp_path_factory):
    """A run of three rounds, and one that has two of them and both checkpoints."""
    path = tmp_path_factory.mktemp("damaged")
    run(path / "whole", STATEFUL)
    run(path / "run", STATEFUL, {"train.rounds": 2, "run.keep": 2})
    return path


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("server-000002.safetensors", truncate),
        ("server-000002.safetensors", overwrite),
        ("server-000002.safetensors", Path.unlink),
        ("clients-000002.safetensors", truncate),
        ("clients-000002.safetensors", overwrite),
        ("clients-000002.safetensors", Path.unlink),
        ("000002.json", truncate),
        ("000002.json", overwrite),
    ],
)
def test_a_damaged_checkpoint_is_named_and_an_older_one_takes_its_place(file, damage, two_of_three_rounds, tmp_path):
    shutil.copytree(two_of_three_rounds / "run", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    damage(folder / file)
    problem = f'"{folder / file}" {"is missing" if damage is Path.unlink else "is damaged"}'
    with nothing_changes(tmp_path / "run"), pytest.raises(InputError, match=re.escape(problem)) as caught:
        fullrank.load_run(tmp_path / "run", trust=True).client_model(0)
    assert "\n" not in str(caught.value)
    run(tmp_path / "run", STATEFUL)
    assert f"{problem}" in (log := (tmp_path / "run" / "log.txt").read_text())
    assert "the run continues from round 1" in log
    assert_equal_outcomes(tmp_path / "run", two_of_three_rounds / "whole")


def test_a_damaged_checkpoint_that_is_not_the_newest_does_no_harm(two_of_three_rounds, tmp_path):
    shutil.copytree(two_of_three_rounds / "run", tmp_path / "run")
    overwrite(tmp_path / "run" / "checkpoints" / "000001.json")
    run(tmp_path / "run", STATEFUL, {"run.keep": 2})
    assert_equal_outcomes(tmp_path / "run", two_of_three_rounds / "whole")


@pytest.mark.parametrize(("damage", "problem"), [(overwrite, "is damaged"), (Path.unlink, "does not reach to round 2")])
def test_damaged_notes_of_clients_are_named(damage, problem, two_of_three_rounds, tmp_path):
    shutil.copytree(two_of_three_rounds / "run", tmp_path / "run")
    notes = tmp_path / "run" / "checkpoints" / "clients.jsonl"
    damage(notes)
    for way in (
        lambda: run(tmp_path / "run", STATEFUL),
        lambda: fullrank.load_run(tmp_path / "run", trust=True).client_model(0),
    ):
        with nothing_changes(tmp_path / "run"), pytest.raises(InputError, match=problem) as caught:
            way()
        assert str(notes) in str(caught.value)


def test_the_only_checkpoint_damaged(tmp_path):
    run(tmp_path / "run", {"train.rounds": 1})
    truncate(tmp_path / "run" / "checkpoints" / "server-000001.safetensors")
    with pytest.raises(InputError, match=r"server-000001.safetensors.* is damaged .*; start a new run"):
        run(tmp_path / "run")


def test_a_checkpoint_of_a_later_version_is_rejected(tmp_path):
    run(tmp_path / "run", {"train.rounds": 2})
    file = tmp_path / "run" / "checkpoints" / "000002.json"
    write_json(file, {**read_json(file), "format": 4})
    with pytest.raises(
        InputError,
        match=rf"have format 4, this version reads 2 and 3; they were written by fullrank {fullrank.__version__}",
    ):
        run(tmp_path / "run")


def test_half_written_files_of_a_killed_process_are_swept(tmp_path):
    attempt(SETTINGS, tmp_path / "run", Strike("half of server", 2))
    attempt(SETTINGS, tmp_path / "run", Strike("half of environment", 1))
    assert list(tmp_path.rglob("*.part"))
    run(tmp_path / "run")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_former_content(failing, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    monkeypatch.undo()
    write_atomically(path, b"after")
    assert path.read_bytes() == b"after"


@pytest.mark.parametrize(
    ("file", "saved"),
    [
        ("partition.json", "no round was complete yet"),
        ("checkpoints/server-000001.safetensors", "no round was complete yet"),
        ("checkpoints/000002.json", "the first 1 of 3 rounds are saved"),
        ("model.safetensors", "the first 3 of 3 rounds are saved"),
    ],
)
def test_a_full_disk_is_one_sentence_and_the_run_continues_once_there_is_room(file, saved, tmp_path, monkeypatch):
    path, replace = tmp_path / "run", os.replace

    def full(source, target):
        if Path(target) == path / file:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunFailed) as caught:
        run(path, STATEFUL)
    sentence = f'"{path / file}" cannot be written: No space left on device; {saved} in "{path}"; the same command'
    assert str(caught.value).startswith(sentence)
    assert not list(path.rglob("*.part"))
    monkeypatch.undo()
    run(path, STATEFUL)
    run(tmp_path / "whole", STATEFUL)
    assert_equal_outcomes(path, tmp_path / "whole")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_line_that_finds_no_room_names_its_file():
    with pytest.raises(WriteFailed, match='"/dev/full" cannot be written: No space left on device'):
        append_line(Path("/dev/full"), {})


def test_a_function_that_raises_before_round_1_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "raising.py").write_text("def model(num_classes, in_channels):\n    raise ValueError('kaboom')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CallFailed, match=r'model\.name = "raising:model": it raised ValueError: kaboom') as caught:
        fullrank.run({"model.name": "raising:model"}, tmp_path / "run")
    assert isinstance(caught.value.__cause__, ValueError)
    assert not (tmp_path / "run").exists()


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 3_000_000 for number in range(4)]
    write_atomically(path, contents[0])

    def write():
        for content in contents * 5:
            write_atomically(path, content)

    def read(pid):
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            assert path.read_bytes() in contents

    forked(write, during=read).succeeded()


def test_tensors_that_share_memory_or_are_not_contiguous_are_saved(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 2, 2)
    tensors = {
        "a": base,
        "b": base,
        "view": base[1],
        "transposed": base.transpose(0, 1),
        "last": base.to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0),
        "empty too": torch.empty(0),
    }
    save_tensors(tmp_path / "file.safetensors", tensors)
    loaded = load_file(tmp_path / "file.safetensors")
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in tensors.items())


# SIGTERM and Ctrl-C


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    run(path, LONGER)
    return path


LONGER = {
    **STATEFUL,
    "method.name": "feddecorr+stateful:Variates+stateful:OwnNorms+stateful:Calibrated",
    "train.rounds": 4,
    "run.checkpoint_every": 5,
}


@pytest.mark.parametrize(
    ("number", "point", "arrival", "saved"),
    [
        (signal.SIGTERM, "a local step", 3, 0),
        (signal.SIGTERM, "a local step", 15, 2),
        (signal.SIGINT, "a local step", 15, 2),
        (signal.SIGINT, "an upload, not yet summed", 7, 2),
        (signal.SIGTERM, "a sum", 6, 2),
        (signal.SIGINT, "a row, not yet its checkpoint", 2, 2),
        (signal.SIGTERM, "name of server", 1, 4),
        (signal.SIGTERM, "an upload, not yet summed", 14, 4),  # of the query that `finish` sends
    ],
)
def test_a_signal_saves_the_last_complete_round(number, point, arrival, saved, uninterrupted, tmp_path):
    out = tmp_path / "run"
    ended = attempt({**SETTINGS, **LONGER}, out, Strike(point, arrival, number))
    assert ended.error == "Interrupted", ended.traceback
    assert str(out) in ended.message
    if saved:
        assert f"the first {saved} of 4 rounds are saved" in ended.message
    assert RunDirectory(out).last_round() == saved
    assert len(read_rows(out)) == saved
    assert not (out / "summary.json").exists()
    attempt({**SETTINGS, **LONGER}, out).succeeded()
    assert_equal_outcomes(out, uninterrupted, f"{point}, {arrival}, {signal.Signals(number).name}")


def test_a_signal_from_outside(uninterrupted, tmp_path):
    ready, tell = os.pipe()

    def wait_for_it():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.write(tell, b"x")
        while signal.SIGTERM not in signal.sigpending():
            time.sleep(0.005)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def send(pid):
        os.close(tell)  # so that the read ends even if the child does without a word
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)

    strike = Strike("a local step", 9, signal.SIGCONT)  # by itself it does nothing
    ended = attempt({**SETTINGS, **LONGER}, tmp_path / "run", strike, during=send, reached=wait_for_it)
    os.close(ready)
    assert ended.error == "Interrupted", ended.traceback
    assert RunDirectory(tmp_path / "run").last_round() == 1
    run(tmp_path / "run", LONGER)
    assert_equal_outcomes(tmp_path / "run", uninterrupted)


def test_a_signal_after_the_last_check_lets_the_run_end(uninterrupted, tmp_path):
    strike = Strike("the methods' finish", 1, signal.SIGTERM)
    attempt({**SETTINGS, **LONGER}, tmp_path / "run", strike).succeeded()
    assert_equal_outcomes(tmp_path / "run", uninterrupted)


def test_a_second_ctrl_c_stops_at_once(uninterrupted, tmp_path):
    def impatient():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(fullrank.local.interrupt.AGAIN + 0.1)

    strike = Strike("a local step", 15, signal.SIGINT)
    ended = attempt({**SETTINGS, **LONGER}, tmp_path / "run", strike, reached=impatient)
    assert ended.error == "StoppedNow"
    assert "stopped at once; no round was complete yet" in ended.message
    assert RunDirectory(tmp_path / "run").last_round() == 0  # nothing was saved on the way out
    run(tmp_path / "run", LONGER)
    assert_equal_outcomes(tmp_path / "run", uninterrupted)


def test_signal_handlers_are_as_before_afterwards(tmp_path, monkeypatch):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    run(tmp_path / "run", {"train.rounds": 1})
    assert [signal.getsignal(number) for number in numbers] == before

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return {"criterion": torch.zeros(())}

    monkeypatch.setattr(Step, "advance_", interrupted)
    with pytest.raises(Interrupted):
        run(tmp_path / "run")
    assert [signal.getsignal(number) for number in numbers] == before
    monkeypatch.undo()
    assert run(tmp_path / "run").complete  # the signal is forgotten


def test_a_run_in_another_thread_does_not_change_signal_handlers(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "run", {"train.rounds": 1})))
    thread.start()
    thread.join()
    assert results[0].complete


# Clients that fail


def failing(**fields):
    return {"method.name": "stateful:Failing", **{f"method.failing.{name}": value for name, value in fields.items()}}


def test_a_skipped_client_is_counted_and_keeps_its_state(tmp_path):
    result = run(tmp_path / "run", failing(who=2, when=1), {"run.on_client_error": "skip"})
    reason = "KeyError: 'the disk at this client is full'"
    assert [row.get("skipped") for row in result.metrics] == [None, {"2": reason}, None]
    assert [sorted(c["client"] for c in row["clients"]) for row in result.metrics] == [
        [0, 1, 2, 3],
        [0, 1, 3],
        [0, 1, 2, 3],
    ]
    assert result.summary()["skipped"] == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["skipped"] == 1
    rounds = {int(name.split("/")[0]): int(t) for name, t in client_states(tmp_path / "run").items()}
    assert rounds == {0: 3, 1: 3, 2: 2, 3: 3}


@pytest.mark.parametrize("how", ["raise", "nan", "shape", "type", "missing", "weight"])
def test_a_skipped_client_leaves_no_trace_in_the_model(how, tmp_path):
    """The same model as if the client had not been there; whatever was wrong with it."""
    table = {"run.on_client_error": "skip", "train.rounds": 1}
    run(tmp_path / "run", failing(who=3, when=0, how=how), table)
    run(tmp_path / "raise", failing(who=3, when=0, how="raise"), table)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "raise")]
    assert models[0] == models[1]
    assert {int(name.split("/")[0]) for name in client_states(tmp_path / "run")} == {0, 1, 2}


def test_skipping_and_resuming_equals_skipping(tmp_path):
    settings = {**SETTINGS, **failing(who=0, when=1), "run.on_client_error": "skip"}
    attempt(settings, tmp_path / "whole").succeeded()
    for arrival in (9, 15, 18):
        out = tmp_path / str(arrival)
        assert attempt(settings, out, Strike("a local step", arrival)).signal == signal.SIGKILL
        attempt(settings, out).succeeded()
        assert_equal_outcomes(out, tmp_path / "whole")


def test_nobody_left_is_an_error(tmp_path):
    table = {"method.name": "stateful:AllFail", "run.on_client_error": "skip"}
    for _ in range(2):  # also when resumed
        with pytest.raises(InputError) as caught:
            run(tmp_path / "run", table)
        assert "round 2: no client sent anything" in str(caught.value)
        assert "client 3: OSError: client 3 has no power" in str(caught.value)
    assert RunDirectory(tmp_path / "run").last_round() == 1


def test_the_first_failure_stops_a_run_with_the_clients_own_exception(tmp_path):
    with pytest.raises(ClientFailed) as caught:
        run(tmp_path / "run", failing(who=2, when=1))
    assert caught.value.client == 2
    assert str(caught.value) == "client 2: KeyError: 'the disk at this client is full'"
    cause = caught.value.__cause__
    assert type(cause) is KeyError
    frames = []
    place = cause.__traceback__
    while place is not None:
        frames.append(place.tb_frame.f_code.co_filename)
        place = place.tb_next
    assert frames[-1] == stateful.__file__  # the traceback ends in the method's own line
    assert RunDirectory(tmp_path / "run").last_round() == 1
    assert len(read_rows(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("nan", "in its w, head.weight is not finite"),
        ("shape", "in its failing/extra, t has shape (3,) instead of (2,)"),
        ("type", "its failing/extra is a Mean, the method sends a Sum"),
        ("missing", "its uploads differ from what the method sends in failing/extra"),
        ("weight", "the weight of its w is inf"),
    ],
)
def test_an_unusable_upload_names_client_and_tensor(how, sentence, tmp_path):
    smallest = int(load_sizes(tmp_path).argmin())  # which comes last
    with pytest.raises(ClientFailed) as caught:
        run(tmp_path / "run", failing(who=smallest, when=0, how=how))
    assert caught.value.client == smallest
    assert str(caught.value) == f"client {smallest}: its upload is rejected: {sentence}"


def load_sizes(tmp_path):
    run(tmp_path / "sizes", {"train.rounds": 1})
    return load_file(tmp_path / "sizes" / "partition.safetensors")["train_sizes"]


def test_a_run_continues_once_the_failure_is_gone(tmp_path, monkeypatch):
    with pytest.raises(ClientFailed):
        run(tmp_path / "run", failing(who=2, when=1))
    monkeypatch.setattr(stateful.Failing, "_now", lambda *args: False)
    run(tmp_path / "run", failing(who=2, when=1))
    run(tmp_path / "whole", failing(who=2, when=1))
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")


# Models


@pytest.mark.parametrize("method", ["fedavg", "stateful:Calibrated", "stateful:Frame", "stateful:Variates"])
def test_the_same_model_from_everywhere(method, tmp_path):
    first = run(tmp_path / "run", {"method.name": method, "model.norm": "batch", "train.participation": 2})
    again = run(tmp_path / "run", {"method.name": method, "model.norm": "batch", "train.participation": 2})
    loaded = fullrank.load_run(tmp_path / "run", trust=True)
    x = torch.rand(7, 1, 8, 8)
    want = first.model()(x)
    for result in (first, again, loaded):
        assert not result.model().training
        assert torch.equal(result.model()(x), want)
        for client in range(4):
            assert torch.equal(result.client_model(client, "received")(x), want)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in first.model().state_dict().items())


@pytest.mark.parametrize("method", ["stateful:OwnNorms", "stateful:OwnHead", "stateful:OwnHead+stateful:Variates"])
def test_the_same_personal_models_from_everywhere(method, tmp_path):
    table = {"method.name": method, "model.norm": "batch", "train.participation": 2, "train.rounds": 2}
    first = run(tmp_path / "run", table)
    assert len({name.split("/")[0] for name in client_states(tmp_path / "run")}) < 4  # somebody never took part
    x = torch.rand(7, 1, 8, 8)
    want = [first.client_model(client)(x) for client in range(4)]
    assert not any(torch.equal(want[0], other) for other in want[1:])
    for result in (first, run(tmp_path / "run", table), fullrank.load_run(tmp_path / "run", trust=True)):
        for client in random.Random(0).sample(range(4), 4):  # in whatever order they are asked for
            assert torch.equal(result.client_model(client)(x), want[client])
        with pytest.raises(InputError, match=r"no complete global model.*client_model\(k\)"):
            result.model()
        with pytest.raises(InputError, match="there is no client 4; clients are 0 to 3"):
            result.client_model(4)


def test_a_model_is_a_copy_of_its_own(tmp_path):
    result = run(tmp_path / "run")
    x = torch.rand(7, 1, 8, 8)
    want = result.model()(x)
    with torch.no_grad():
        result.model().head.weight.zero_()
    result.client_model(0).train()
    assert torch.equal(result.model()(x), want)


def test_an_unfinished_run_gives_the_model_of_its_newest_checkpoint(tmp_path):
    attempt({**SETTINGS, "train.rounds": 5}, tmp_path / "run", Strike("a local step", 20))
    loaded = fullrank.load_run(tmp_path / "run")
    assert not loaded.complete
    assert loaded.summary()["rounds"] == 2
    run(tmp_path / "two", {"train.rounds": 2})
    x = torch.rand(7, 1, 8, 8)
    assert torch.equal(loaded.model()(x), fullrank.load_run(tmp_path / "two").model()(x))


def test_a_directory_that_holds_no_run_is_not_loaded(tmp_path):
    with pytest.raises(InputError, match=r"is not a run directory: it has no experiment.toml"):
        fullrank.load_run(tmp_path)


# A program's own model and data


def fit(out, rounds=4, width=6, method="stateful:Variates", **options):
    random = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 5, generator=random), torch.arange(20) % 3) for _ in range(3)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))
    return fullrank.fit(module, clients, method, clients[0], rounds=rounds, batch_size=8, out=out, **options)


def test_fit_is_killed_and_resumed(tmp_path):
    fit(tmp_path / "whole")

    def killed():
        Points(Strike("a local step", 25)).install()
        fit(tmp_path / "run")

    assert forked(killed).signal == signal.SIGKILL
    assert RunDirectory(tmp_path / "run").last_round() == 2
    result = fit(tmp_path / "run")
    assert_equal_outcomes(tmp_path / "run", tmp_path / "whole")
    in_memory = fit(None)
    assert in_memory.path is None
    x = torch.rand(4, 5)
    assert torch.equal(in_memory.model()(x), result.model()(x))


def test_fit_rejects_to_continue_with_another_module(tmp_path):
    fit(tmp_path / "run", rounds=1)
    with pytest.raises(InputError, match=r"model.structure was .*, is now"):
        fit(tmp_path / "run", width=7)


def test_what_a_program_gave_is_not_loaded_without_it(tmp_path):
    fit(tmp_path / "run", rounds=1)
    loaded = fullrank.load_run(tmp_path / "run")
    assert loaded.summary()["rounds"] == 1
    with pytest.raises(InputError, match=r"pass the same module, clients and settings to fullrank\.fit"):
        loaded.model()


# The store of clients' states


@pytest.mark.parametrize("table", [{}, {"run.checkpoint_every": 2}, {"run.keep": 2}], ids=["", "every2", "keep2"])
def test_states_that_do_not_fit_into_memory_come_from_disk(table, tmp_path, monkeypatch):
    settings = (STATEFUL, {"train.rounds": 6}, table)
    run(tmp_path / "memory", *settings)
    read = []
    original = ClientStates._read

    def counted(store, client):
        read.append(client)
        assert len(store._saved) <= 1
        return original(store, client)

    monkeypatch.setattr(ClientStates, "_read", counted)
    monkeypatch.setattr("fullrank.federated.server.ClientStates", functools.partial(ClientStates, limit=1))
    run(tmp_path / "disk", *settings)
    assert len(read) > 4
    assert_equal_outcomes(tmp_path / "disk", tmp_path / "memory")


def test_the_store_gives_back_what_was_put(tmp_path):
    store = ClientStates(limit=1)
    assert store.get(0) is None
    states = {
        client: {"m": {"w": torch.rand(3), "deep": {"n": torch.tensor(client), "nothing": {}}}, "empty": {}}
        for client in (1, 11, 111)
    }
    for client, state in states.items():
        store.put(client, state)
    for client, state in states.items():
        assert_same_tree(store.get(client), state)
    save_tensors(tmp_path / "first", flatten(store.unsaved()))
    note = store.note("first")
    assert store.saved_as("first", tmp_path) == []
    assert store.unsaved() == {}
    for client in (11, 1, 111, 1):
        assert_same_tree(store.get(client), states[client])
    newer = {"m": {"w": torch.rand(3)}}
    store.put(11, newer)
    assert_same_tree(store.get(11), newer)  # not the file's
    assert list(store.unsaved()) == ["11"]
    other = ClientStates()
    assert other.follow(note, tmp_path) == []
    assert_same_tree(other.get(11), states[11])
    assert other.get(2) is None


def test_the_store_tells_which_files_hold_nothing_any_more(tmp_path):
    store, other = ClientStates(), ClientStates()
    left = []
    for number, clients in enumerate([(0, 1), (2, 3), (1, 2), (0,), (0, 3)]):
        for client in clients:
            store.put(client, {"w": torch.tensor(number)})
            store.meet(client, number // 2)
        note = json.loads(json.dumps(store.note(f"file {number}")))
        left.append(store.saved_as(f"file {number}", tmp_path))
        assert other.follow(note, tmp_path) == left[-1]
    assert left == [[], [], [], ["file 0"], ["file 3", "file 1"]]
    assert store.files == other.files == {0: "file 4", 1: "file 2", 2: "file 2", 3: "file 4"}
    assert store.contacts == other.contacts == {0: 2, 1: 1, 2: 1, 3: 2}
    assert store.note("next")["contacts"] == {}


def test_the_store_keeps_the_states_used_last(tmp_path):
    store = ClientStates(limit=3 * 40)
    for client in range(5):
        store.put(client, {"w": torch.full((10,), float(client))})
    save_tensors(tmp_path / "file", flatten(store.unsaved()))
    store.saved_as("file", tmp_path)
    assert list(store._saved) == [2, 3, 4]
    store.get(2)
    store.get(0)
    assert list(store._saved) == [4, 2, 0]
    store.put(2, {"w": torch.zeros(10)})
    assert list(store._saved) == [4, 0]
    assert store._bytes == 80


def assert_same_tree(got, want):
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


# Without checkpoints


def stripped(path, **keys):
    """A run that ended, as somebody keeps it who needs no more than its numbers."""
    run = fullrank.run({"data.clients": 2, "model.name": "mlp", "train.rounds": 2, "train.steps": 1, **keys}, path)
    shutil.rmtree(path / "checkpoints")
    return run


def test_a_run_whose_checkpoints_are_gone_keeps_its_rows(tmp_path):
    run = stripped(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for rounds in (2, 3):
        with pytest.raises(InputError, match="its checkpoints are gone: it can be read, not continued"):
            fullrank.run({**run.experiment.model_dump(), "train.rounds": rounds}, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert fullrank.load_run(tmp_path / "run").summary() == run.summary()


def test_a_model_that_is_not_there_is_not_made_up(tmp_path):
    run = stripped(tmp_path / "run")
    want = run.model().state_dict()
    assert_same_bits(fullrank.load_run(tmp_path / "run").model().state_dict(), want)
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither a checkpoint nor model\.safetensors"):
        fullrank.load_run(tmp_path / "run").model()


def test_clients_own_entries_are_not_made_up(tmp_path):
    stripped(tmp_path / "run", **{"method.name": "fedrep"})
    with pytest.raises(InputError, match="with them the state of the clients"):
        fullrank.load_run(tmp_path / "run", trust=True).client_model(0)


# Files of a run that ended, damaged


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    path = tmp_path_factory.mktemp("ended") / "run"
    run(path)
    return path


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_a_lost_or_damaged_model_is_written_again(damage, ended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    damage(path / "model.safetensors")
    if damage is truncate:
        with pytest.raises(
            InputError, match=r"model\.safetensors\" is damaged .*; the command that started the run writes"
        ):
            fullrank.load_run(path).model()
    run(path)
    assert_equal_outcomes(path, ended)


def test_a_damaged_model_without_a_checkpoint_is_gone(tmp_path):
    path = tmp_path / "run"
    stripped(path)
    truncate(path / "model.safetensors")
    with pytest.raises(
        InputError, match=r"model\.safetensors\" is damaged .*; run the same experiment in another directory"
    ):
        fullrank.load_run(path).model()


def test_an_emptied_experiment_is_not_taken_for_the_defaults(ended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    (path / "experiment.toml").write_text("")
    for way in (run, fullrank.load_run, lambda path: fullrank.compare_runs([path])):
        with pytest.raises(
            InputError, match=r'experiment\.toml" is empty, so it is damaged; write the experiment of the run into it'
        ):
            way(path)
    shutil.copy(ended / "experiment.toml", path)
    assert run(path, {"train.rounds": 4}).complete


def test_a_damaged_summary_is_written_again_as_its_error_says(ended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    (path / "summary.json").write_text("")
    for way in (run, fullrank.load_run):
        with pytest.raises(InputError, match=r'summary\.json" is damaged .*; delete it and give the command'):
            way(path)
    (path / "summary.json").unlink()
    run(path)
    assert_equal_outcomes(path, ended)


def test_a_damaged_summary_is_not_to_be_deleted_where_the_run_would_start_from_scratch(tmp_path):
    stripped(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("")
    with pytest.raises(InputError, match=r'summary\.json" is damaged .*; run the same experiment in another directory'):
        fullrank.load_run(tmp_path / "run")


@pytest.mark.parametrize("damage", [lambda file: file.write_text(""), Path.unlink])
@pytest.mark.parametrize("name", ["partition.json", "environment.json"])
def test_a_run_continues_with_the_files_of_an_equal_run(name, damage, ended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    damage(path / name)
    with pytest.raises(
        InputError, match=rf"{name}.* the same experiment in another directory writes one before round 1"
    ):
        run(path, {"train.rounds": 4})
    run(tmp_path / "other", {"train.rounds": 1})
    shutil.copy(tmp_path / "other" / name, path)
    assert run(path, {"train.rounds": 4}).complete


# What a directory holds

PARTS = {
    "c": "checkpoints",
    "s": "summary.json",
    "m": "model.safetensors",
    "r": "metrics.jsonl",
    "e": "experiment.toml",
}


@pytest.mark.parametrize(
    ("gone", "status", "rejected"),
    [
        ("", Status.COMPLETE, set()),
        ("m", Status.WITHOUT_MODEL, {"export", "inspect", "predict"}),
        ("sm", Status.BEFORE_END, {"export", "compare"}),
        ("smr", Status.UNFINISHED, {"export", "compare"}),
        ("c", Status.STRIPPED, {"resume"}),
        ("cm", Status.NUMBERS_ONLY, {"resume", "export", "inspect", "predict", "read the model"}),
        ("cmr", Status.CUT, set(MESSAGES)),
        ("csm", Status.ROWS_ONLY, set(MESSAGES) - {"resume"}),
        ("csmr", Status.UNSAVED, set(MESSAGES) - {"resume"}),
        ("csmre", Status.EMPTY, {"compare"}),
    ],
)
def test_what_is_left_of_a_run_decides_what_it_can_be_used_for(gone, status, rejected, ended, tmp_path):
    shutil.copytree(ended, tmp_path / "run")
    for letter in gone:
        part = tmp_path / "run" / PARTS[letter]
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    directory, rounds = RunDirectory(tmp_path / "run"), fullrank.load_run(ended).experiment.train.rounds
    assert directory.status(rounds) is directory.status(rounds, verify=True) is status
    for use in MESSAGES:
        if use in rejected:
            with pytest.raises(InputError, match=str(tmp_path / "run")) as caught:
                directory.check(use, rounds)
            assert "{" not in str(caught.value)
        else:
            directory.check(use, rounds)
