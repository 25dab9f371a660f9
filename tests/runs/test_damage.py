"""Nothing is lost and nothing is silently wrong: rejected commands, damaged files, changed software."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fullrank
import fullrank.federated.site
from commands import fullrank as command
from fullrank import Method
from fullrank.errors import InputError, RunFailed
from fullrank.files import read_json, write_json
from fullrank.trees import pointwise
from killing import assert_equal_outcomes, nothing_changes

SETTINGS = {
    "data.clients": 3,
    "data.alpha": 0.5,
    "model.width": 2,
    "model.features": 8,
    "train.rounds": 4,
    "train.steps": 1,
    "train.batch_size": 8,
    "engine.name": "serial",
    "method.name": "scaffold+fedbn",
    "model.norm": "batch",
    "probe.every": 2,
    "probe.clients": 1,
    "run.keep": 2,
}


def run(out, **keys):
    return fullrank.run({**SETTINGS, **{key.replace("__", "."): value for key, value in keys.items()}}, out)


@pytest.fixture(scope="module")
def four_rounds(tmp_path_factory):
    """A finished run of four rounds."""
    path = tmp_path_factory.mktemp("four") / "run"
    run(path)
    return path


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory):
    """The same run, of six rounds at once."""
    path = tmp_path_factory.mktemp("six") / "run"
    run(path, train__rounds=6)
    return path


@pytest.fixture
def copied(four_rounds, tmp_path):
    shutil.copytree(four_rounds, tmp_path / "run")
    return tmp_path / "run"


# A command that ends in an error leaves everything as it was


@pytest.mark.parametrize(
    "name",
    ["log.txt", "partition.safetensors", "partition.json", "environment.json", ".lock", "checkpoints/clients.jsonl"],
)
@pytest.mark.parametrize("key", ["data.name", "train.rounds"], ids=["rejected", "accepted"])
def test_files_of_the_users_own_are_kept(name, key, tmp_path, capsys):
    mine = tmp_path / "mine"
    (mine / name).parent.mkdir(parents=True)
    (mine / name).write_text("my precious notes")
    with nothing_changes(mine):
        status, _, err = command("run", "--set", f"{key}=1", "--out", mine, capsys=capsys)
    assert status == 2
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("existing", ["", "a", "a/b"])
def test_a_rejected_run_removes_the_folders_that_it_created_and_no_others(existing, tmp_path):
    (tmp_path / existing).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError):
        fullrank.run({"data.name": "nosuchdata"}, tmp_path / "a" / "b")
    assert sorted(tmp_path.rglob("*")) == before


def damage_the_probes(path):
    lines = (path / "probes.jsonl").read_text()
    (path / "probes.jsonl").write_text(lines.replace('"round"', '"round', 1))


def cut_the_probes(path):
    os.truncate(path / "probes.jsonl", (path / "probes.jsonl").stat().st_size - 1)


def damage_the_checkpoints(path):
    for file in (path / "checkpoints").glob("server-*"):
        file.write_bytes(file.read_bytes() + b"x")


@pytest.mark.parametrize(
    "damage",
    [
        damage_the_probes,
        cut_the_probes,
        lambda path: (path / "probes.jsonl").unlink(),
        lambda path: (path / "probes.jsonl").write_text(""),
        lambda path: (path / "probes" / "000002.safetensors").unlink(),
        damage_the_checkpoints,
        lambda path: (path / "metrics.jsonl").write_text(""),
        lambda path: (path / "checkpoints" / "clients.jsonl").write_text("{}\n"),
    ],
    ids=["probes", "cut", "no probes", "empty probes", "probe file", "checkpoints", "rows", "notes"],
)
def test_a_rejected_continuation_changes_nothing(damage, copied):
    damage(copied)
    with nothing_changes(copied), pytest.raises(InputError) as caught:
        run(copied, train__rounds=6)
    assert "\n" not in str(caught.value)


def test_an_engine_that_does_not_open_changes_nothing(copied, monkeypatch):
    def fails(*args, **options):
        raise InputError("a worker process did not start")

    monkeypatch.setattr(sys.modules["fullrank.runs.run"], "open_engine", fails)
    with nothing_changes(copied), pytest.raises(InputError, match="did not start"):
        run(copied, train__rounds=6)
    assert fullrank.load_run(copied).complete


def test_the_former_result_is_there_until_a_further_round_is_saved(copied, monkeypatch):
    def fails(self, job):
        raise KeyboardInterrupt

    model = (copied / "model.safetensors").read_bytes()
    monkeypatch.setattr(fullrank.federated.site.Site, "do", fails)
    with pytest.raises(RunFailed, match="raised KeyboardInterrupt"):
        run(copied, train__rounds=6)
    assert (copied / "model.safetensors").read_bytes() == model
    assert fullrank.load_run(copied).summary()["rounds"] == 4


# Damaged checkpoints


@pytest.mark.parametrize("how", ["damaged", "deleted"])
def test_a_finished_run_without_its_newest_checkpoint_runs_that_round_again(how, copied, four_rounds):
    newest = copied / "checkpoints"
    if how == "damaged":
        (newest / "server-000004.safetensors").open("ab").write(b"x")
    else:
        (newest / "000004.json").unlink()
    run(copied)
    assert_equal_outcomes(copied, four_rounds)
    assert len((copied / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_finished_run_whose_rows_are_not_all_there_is_not_complete(copied):
    rows = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(rows[:-1]))
    with pytest.raises(InputError, match="not complete"):
        fullrank.compare_runs([copied])


FILES = [
    "experiment.toml",
    "environment.json",
    "partition.json",
    "metrics.jsonl",
    "probes.jsonl",
    "probes/000002.safetensors",
    "summary.json",
    "model.safetensors",
    "checkpoints/000004.json",
    "checkpoints/clients.jsonl",
    "checkpoints/server-000004.safetensors",
    "checkpoints/clients-000004.safetensors",
]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_noticed_or_does_no_harm(file, four_rounds, six_rounds, tmp_path):
    content = (four_rounds / file).read_bytes()
    rng = random.Random(file)
    for attack in range(4):
        path = tmp_path / str(attack)
        shutil.copytree(four_rounds, path)
        place = rng.randrange(len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        (path / file).write_bytes(flipped)
        try:
            if file in ("summary.json", "model.safetensors"):
                loaded = fullrank.load_run(path)
                assert loaded.summary() == fullrank.load_run(four_rounds).summary()
            run(path, train__rounds=6)
        except InputError as problem:
            assert "\n" not in str(problem)  # noqa: PT017 - either a sentence or the right result
        else:
            assert_equal_outcomes(path, six_rounds, f"bit of byte {place} of {file}")


@pytest.mark.parametrize("file", [name for name in FILES if name.endswith("safetensors")])
def test_a_flipped_bit_in_a_tensor_is_always_noticed(file, copied):
    content = bytearray((copied / file).read_bytes())
    content[-1] ^= 4
    (copied / file).write_bytes(content)
    loaded = fullrank.load_run(copied)
    read = (lambda: loaded.probes) if file.startswith("probes") else functools.partial(loaded.client_model, 0)
    with pytest.raises(InputError, match=f"{Path(file).name}.*is damaged.*does not match its checksum"):
        read()


READERS = {
    "run": lambda path: run(path, train__rounds=5),
    "load": lambda path: fullrank.load_run(path).summary(),
    "model": lambda path: fullrank.load_run(path).client_model(0),
    "compare": lambda path: fullrank.compare_runs([path]).table(),
    "probes": lambda path: fullrank.load_run(path).probes,
}


@pytest.mark.parametrize("content", ["{}", "[1]", '"x"', "null", '{"round": "3"}', "[" * 5000])
@pytest.mark.parametrize("file", [name for name in FILES if "json" in name])
def test_json_of_another_shape_is_one_sentence(file, content, copied):
    (copied / file).write_text(content + "\n")
    for name, read in READERS.items():
        try:
            read(copied)
        except (InputError, RunFailed) as problem:
            assert "\n" not in str(problem), name  # noqa: PT017 - not every reader reads every file


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("partition.json", "hash"),
        ("partition.json", "data"),
        ("summary.json", "rounds"),
        ("checkpoints/000004.json", "server"),
    ],
)
def test_a_missing_key_is_named(file, key, copied):
    facts = read_json(copied / file)
    del facts[key]
    write_json(copied / file, facts)
    reader = fullrank.load_run if file == "summary.json" else READERS["model" if "0" in file else "run"]
    with pytest.raises(InputError, match=rf"{Path(file).name}.* is damaged \({key}: Field required"):
        reader(copied)


# While a run is active


@dataclass
class Meddler(fullrank.Callback):
    """Does something to the directory after the second round."""

    path: Path
    act: object

    def round_done(self, row):
        if row["round"] == 2:
            self.act(self.path)


def replaced(path):
    (path / ".lock").unlink()
    (path / ".lock").touch()


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda path: (path / ".lock").unlink(), "was deleted or replaced"),
        (replaced, "was deleted or replaced"),
        (lambda path: (path / "metrics.jsonl").unlink(), "was changed by another program"),
        (lambda path: (path / "metrics.jsonl").open("a").write("{}\n"), "was changed by another program"),
    ],
    ids=["deleted lock", "replaced lock", "deleted rows", "added rows"],
)
def test_a_run_stops_when_its_directory_is_no_longer_its_own(act, said, tmp_path):
    with pytest.raises(RunFailed, match=said):
        fullrank.run(SETTINGS, tmp_path / "run", callbacks=[Meddler(tmp_path / "run", act)])
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("0*.json")) == [
        "000001.json",
        "000002.json",
    ]


@dataclass(frozen=True)
class Explodes(Method):
    """After the second round, weights so large that the loss overflows."""

    def aggregate(self, server, new, up):
        return pointwise(new, lambda tensor: tensor * 1e17) if server.round >= 1 else new


def test_the_last_checkpoint_with_a_finite_loss_is_kept(tmp_path):
    keys = {"method.name": "test_damage:Explodes", "run.keep": 1, "probe.every": 0}
    table = {**SETTINGS, **keys, "train.rounds": 2}
    fullrank.run(table, tmp_path / "run")
    assert fullrank.load_run(tmp_path / "run").metrics[-1]["loss"] is None
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("0*.json"))
    assert kept == ["000001.json", "000002.json"]
    (tmp_path / "run" / "checkpoints" / "000002.json").unlink()
    assert fullrank.load_run(tmp_path / "run").metrics[0]["loss"] is not None


# Other software than before


def test_another_version_is_warned_of(copied):
    facts = read_json(copied / "environment.json")
    write_json(copied / "environment.json", {**facts, "torch": "2.4.0", "fullrank": "0.0.9"})
    run(copied, train__rounds=5)
    log = (copied / "log.txt").read_text()
    assert "the run so far used torch 2.4.0 and continues with torch" in log
    assert "the run so far used fullrank 0.0.9 and continues with fullrank" in log
    run(copied, train__rounds=6)
    assert (copied / "log.txt").read_text().count("the run so far used") == 2


MODULE = """
from dataclasses import dataclass
import torch
from torch import nn
from fullrank import Method

def net(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, num_classes))

@dataclass(frozen=True)
class Mine(Method):
    def loss(self, b):
        return 0.01 * b.z.square().mean()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine_that_changes.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("mine_that_changes", None)


@pytest.mark.parametrize(
    "change", [("nn.ReLU", "nn.Tanh"), ("0.01 *", "10 *"), ("", "")], ids=["model", "method", "none"]
)
def test_changed_code_of_the_users_is_warned_of(change, module, tmp_path):
    names = {"model.name": "mine_that_changes:net", "method.name": "mine_that_changes:Mine"}
    table = {"data.clients": 2, "train.steps": 1, "engine.name": "serial", **names}
    fullrank.run({**table, "train.rounds": 1}, tmp_path / "run")
    sys.modules.pop("mine_that_changes")
    module.write_text(MODULE.replace(*change) if change[0] else MODULE)
    os.utime(module, (1, 1))  # otherwise Python may take the bytecode of a second ago
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    fullrank.run({**table, "train.rounds": 2}, tmp_path / "run")
    said = "the source code of mine_that_changes has changed" in (tmp_path / "run" / "log.txt").read_text()
    assert said == bool(change[0])


def test_a_changed_class_given_by_a_program_is_warned_of(tmp_path):
    x, y = torch.rand(20, 4), torch.arange(20) % 2
    fit = functools.partial(fullrank.fit, clients=[(x, y), (x, y)], out=tmp_path / "run", engine="serial")
    fit(torch.nn.Sequential(Doubled(), torch.nn.Linear(4, 2)), rounds=1)
    file = tmp_path / "run" / "environment.json"
    facts = read_json(file)
    assert list(facts["sources"]) == ["test_damage.Doubled"]
    write_json(file, {**facts, "sources": {"test_damage.Doubled": "another"}})
    fit(torch.nn.Sequential(Doubled(), torch.nn.Linear(4, 2)), rounds=2)
    assert "the source code of test_damage.Doubled has changed" in (tmp_path / "run" / "log.txt").read_text()


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def test_runs_without_checksums_are_read(copied, six_rounds):
    """As a version that knew none has left them."""
    for file in copied.rglob("*.json*"):
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        values = [json.loads(line) for line in lines]
        for value in values:
            value.pop("checksum")
            value |= {"format": 2} if "format" in value else {}
        file.write_text("".join(json.dumps(value) + "\n" for value in values))
    run(copied, train__rounds=6)
    assert_equal_outcomes(copied, six_rounds)
