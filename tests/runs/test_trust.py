"""Reading somebody else's run or export runs none of their code unless the reader says that they trust it."""

import re
import shutil
import sys

import pytest
import tomli_w

import fullrank
from commands import fullrank as command
from fullrank.config.experiment import tomllib
from fullrank.errors import InputError
from fullrank.files import read_json, write_json

PAYLOAD = """
from dataclasses import dataclass
from pathlib import Path
import fullrank
from fullrank.data import load_dataset
from fullrank.federated.aggregation import RunningMean

Path(__file__).with_name("RAN").touch()

def data(root="", seed=0):
    return load_dataset("digits")

def net(num_classes, in_channels, width=8):
    return fullrank.models.build("mlp", num_classes, in_channels, width=width)

def split(labels, clients, seed):
    return fullrank.data.partition.dirichlet(labels, clients, 0.1, seed)

@dataclass(frozen=True)
class Nothing(fullrank.data.Operation):
    number: int = 0
    draws = 1

    def apply(self, x, u):
        return x

@dataclass(frozen=True)
class Hostile(fullrank.Method):
    pass

def metric(scores, labels):
    return 0.0

def criterion(logits, labels):
    return logits.logsumexp(1).mean()

class Aggregator(RunningMean):
    pass

def engine(site, options):
    return fullrank.engine.open_engine("serial", site, options)
"""
SETTINGS = {"model.name": "mlp", "model.width": 8, "train.rounds": 1, "data.clients": 2, "data.holdout": 0.2}
OF_THE_DATA = ("data", "partition", "augmentation")
NAMES = {
    "data": ('name = "digits"', 'name = "{}"', "folder.payload:data", "data.name"),
    "partition": ('partition = "dirichlet"', 'partition = "{}"', "folder.payload:split", "data.partition"),
    "augmentation": ('augment = "auto"', 'augment = ["crop:1", "{}"]', "folder.payload:Nothing:8", "data.augment"),
    "model": ('name = "mlp"', 'name = "{}"', "folder.payload:net", "model.name"),
    "method": ('name = "fedavg"', 'name = "{}"', "folder.payload:Hostile", "method.name"),
    "engine": ('name = "serial"', 'name = "{}"', "folder.payload:engine", "engine.name"),
    "composed": ('name = "fedavg"', 'name = "{}"', "fedprox+folder.payload:Hostile", "method.name"),
    "criterion": ('criterion = ""', 'criterion = "{}"', "folder.payload:criterion", "train.criterion"),
    "metric": ('metrics = [\n    "accuracy",', 'metrics = [\n    "{}",', "folder.payload:metric", "evaluate.metrics"),
    "aggregator": ('aggregator = "mean"', 'aggregator = "{}"', "folder.payload:Aggregator", "train.aggregator"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return fullrank.run(SETTINGS, tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture(params=NAMES)
def hostile(request, honest, tmp_path, monkeypatch):
    """An unpacked folder with a run that names a file next to it, seen from where it was unpacked."""
    line, changed, name, key = NAMES[request.param]
    shutil.copytree(honest.path, tmp_path / "folder" / "run")
    record = tmp_path / "folder" / "run" / "experiment.toml"
    assert record.read_text().count(f"{line}\n") == 1
    text = record.read_text().rpartition("# checksum")[0]  # an attacker would write another
    record.write_text(text.replace(f"{line}\n", f"{changed.format(name)}\n"))
    (tmp_path / "folder" / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield request.param, key, name
    for module in ("folder", "folder.payload"):
        sys.modules.pop(module, None)


def ran(tmp_path):
    return (tmp_path / "folder" / "RAN").exists()


COMMANDS = {
    "inspect": ("inspect", "folder/run"),
    "inspect a client": ("inspect", "folder/run", "--client", 0),
    "export": ("export", "folder/run", "--to", "out"),
    "export a client": ("export", "folder/run", "--client", 0, "--to", "out"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_commands_import_nothing_that_only_the_directory_names(arguments, hostile, tmp_path, capsys):
    kind, key, name = hostile
    status, out, err = command(*arguments, capsys=capsys)
    assert not ran(tmp_path)
    if kind == "engine":  # who reads a run needs no engine
        assert status == 0
        return
    assert f'{key} = "{name}"' in out + err  # said in any case
    if kind in OF_THE_DATA and arguments == COMMANDS["export"]:
        assert status == 0  # the global model needs no data
        assert "random inputs" in out
        return
    assert status == 2
    assert "--trust" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert command(*arguments, "--trust", capsys=capsys)[0] == 0
    assert ran(tmp_path)


ROUNDABOUT = {
    "a file's ending": {"model": {"name": "folder.payload:net.npz"}},
    "given model": {"model": {"name": "given:net"}},
    "given method": {"method": {"name": "given:Hostile"}},
    "given and more": {"method": {"name": "given:x+folder.payload:Hostile"}},
    "a loader as a model": {
        "model": {"name": "fullrank.data.sources.load:load_dataset", "source": "folder.payload:data"}
    },
    "a loader as a method": {"method": {"name": "fullrank.plugins:import_object"}},
    "a loader as a partition": {
        "data": {
            "partition": "fullrank.data.sources.load:load_dataset",
            "partition_options": {"source": "folder.payload:data"},
        }
    },
    "a loader as an augmentation": {
        "data": {"augment": ["fullrank.data.sources.load:load_dataset:folder.payload:data"]}
    },
    "an augmentation with a file's ending": {"data": {"augment": ["folder.payload:Nothing:8.npz"]}},
    "a partition with another file's ending": {"data": {"partition": "folder.payload:split.npz"}},
}


@pytest.mark.parametrize("case", ROUNDABOUT)
def test_no_roundabout_name_imports_what_only_a_file_names(case, honest, tmp_path, monkeypatch):
    shutil.copytree(honest.path, tmp_path / "folder" / "run")
    done = fullrank.export(honest, tmp_path / "out")
    for name in ("folder/payload.py", "given.py"):
        (tmp_path / name).write_text(PAYLOAD)
    values = tomllib.loads((tmp_path / "folder" / "run" / "experiment.toml").read_text())
    facts = read_json(done.path / "model.json")
    for key, table in ROUNDABOUT[case].items():
        values[key] = table
        if key != "data":
            facts[key].update(name=table["name"])
            facts["model"]["options"] = {k: v for k, v in table.items() if k != "name"}
    (tmp_path / "folder" / "run" / "experiment.toml").write_text(tomli_w.dumps(values))
    write_json(done.path / "model.json", facts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    need_no_data = (lambda: fullrank.load_export(done.path), lambda: fullrank.load_run("folder/run").model())
    for way in (
        *(() if "data" in ROUNDABOUT[case] else need_no_data),
        lambda: fullrank.load_run("folder/run").client_model(0),
        lambda: fullrank.run(fullrank.load_run("folder/run").experiment, "again"),
    ):
        with pytest.raises(InputError):
            way()
    assert not ran(tmp_path)
    assert not (tmp_path / "RAN").exists()


READERS = {
    "model": lambda run: run.model(),
    "client_model": lambda run: run.client_model(0),
    "export": lambda run: fullrank.export(run, "out"),
    "hash": lambda run: run.experiment.hash(),
    "changed": lambda run: fullrank.Experiment.of(run.experiment.but(seed=1)),
    "run": lambda run: fullrank.run(run.experiment, "again"),
}


@pytest.mark.parametrize("reader", READERS)
def test_programs_import_nothing_that_only_the_directory_names(reader, hostile, tmp_path):
    kind, _, name = hostile
    needs_no_data = reader in ("model", "export", "hash")
    needs_no_engine = needs_no_data or reader == "client_model"
    if (kind in OF_THE_DATA and needs_no_data) or (kind == "engine" and needs_no_engine):
        READERS[reader](fullrank.load_run("folder/run"))
    else:
        with pytest.raises(InputError, match=f'{re.escape(name)}".*trust=True'):
            READERS[reader](fullrank.load_run("folder/run"))
    assert not ran(tmp_path)


def test_a_run_of_another_experiment_is_rejected_before_its_names_are_imported(hostile, tmp_path, capsys):
    _, key, name = hostile
    settings = [word for k, v in SETTINGS.items() for word in ("--set", f"{k}={v}")]
    status, _, err = command("run", *settings, "--out", "folder/run", capsys=capsys)
    assert status == 2
    assert f"{key} was " in err
    assert f"'{name}'" in err
    assert not ran(tmp_path)


def test_metrics_and_comparisons_need_no_trust(hostile, tmp_path, capsys):
    assert fullrank.load_run("folder/run").summary()["rounds"] == 1
    assert command("compare", "--runs", "folder/run", capsys=capsys)[0] == 0
    assert not ran(tmp_path)


@pytest.mark.parametrize("key", ["model", "method"])
def test_an_export_names_code_only_for_those_who_trust_it(key, honest, tmp_path, monkeypatch):
    done = fullrank.export(honest, tmp_path / "folder" / "out")
    (tmp_path / "folder" / "payload.py").write_text(PAYLOAD)
    facts = read_json(done.path / "model.json")
    facts[key]["name"] = NAMES[key][2]
    write_json(done.path / "model.json", facts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with pytest.raises(InputError, match=rf'{key}\.name = "{re.escape(NAMES[key][2])}".*trust=True'):
        fullrank.load_export(done.path)
    assert not ran(tmp_path)
    try:
        fullrank.load_export(done.path, trust=True)
        assert ran(tmp_path)
    finally:
        for module in ("folder", "folder.payload"):
            sys.modules.pop(module, None)


def test_the_librarys_own_names_need_no_trust(tmp_path):
    own = {"model": {"name": "fullrank.models.mlp:mlp", "width": 8}, "method.name": "fullrank.methods.fedavg:FedAvg"}
    fullrank.run({"train.rounds": 1, "data.clients": 2, **own}, tmp_path / "run")
    fullrank.load_run(tmp_path / "run").model()
    fullrank.load_export(fullrank.export(tmp_path / "run").path)


def test_a_run_of_this_process_needs_no_trust(tmp_path, monkeypatch):
    (tmp_path / "ownpayload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {**SETTINGS, "model.name": "ownpayload:net"}
    for _ in range(2):  # the second time it is finished already
        run = fullrank.run(settings, tmp_path / "run")
        run.model()
        run.client_model(0)
        assert fullrank.export(run).facts["experiment"] == run.experiment.hash()


# Callbacks


@pytest.fixture
def tracked(honest, tmp_path, monkeypatch):
    """An unpacked folder with a run whose experiment names a callback in a file next to it."""
    shutil.copytree(honest.path, tmp_path / "folder" / "run")
    record = tmp_path / "folder" / "run" / "experiment.toml"
    text = record.read_text().rpartition("# checksum")[0]
    assert text.count("track = []") == 1
    record.write_text(text.replace("track = []", 'track = ["folder.payload:Tracker"]'))
    (tmp_path / "folder" / "payload.py").write_text(f"{PAYLOAD}\nclass Tracker(fullrank.Callback):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield
    for module in ("folder", "folder.payload"):
        sys.modules.pop(module, None)


def test_the_callback_of_a_directory_is_not_imported_to_read_or_resume_the_run(tracked, tmp_path):
    run = fullrank.load_run("folder/run")
    assert run.experiment.run.track == ["folder.payload:Tracker"]
    run.model()
    run.client_model(0)
    assert run.experiment.hash()
    fullrank.export(run, "out")
    fullrank.run({**SETTINGS, "train.rounds": 2}, "folder/run")
    assert not ran(tmp_path)
    assert fullrank.load_run("folder/run").experiment.run.track == []


def test_the_callback_of_a_directory_is_imported_to_run_its_experiment_if_it_is_trusted(tracked, tmp_path):
    with pytest.raises(InputError, match=r'run\.track = "folder\.payload:Tracker".*trust=True'):
        fullrank.run(fullrank.load_run("folder/run").experiment, "again")
    assert not ran(tmp_path)
    fullrank.run(fullrank.load_run("folder/run", trust=True).experiment, "again")
    assert ran(tmp_path)


def test_a_callback_of_the_directory_does_not_hide_the_users_own_code(tracked, tmp_path):
    """A run whose method is the user's own is resumed by the user, whatever callback the directory names."""
    settings = {**SETTINGS, "method.name": "folder.payload:Hostile"}
    fullrank.run({**settings, "run.track": ["folder.payload:Tracker"]}, "mine")
    assert fullrank.run({**settings, "train.rounds": 2}, "mine").metrics[-1]["round"] == 2
