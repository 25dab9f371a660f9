"""A run directory read elsewhere: without the data, from another working directory, with other code."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.files import read_json, write_json
from fullrank.models.reparam.scales import write_scales

BASE = {
    "data.name": "sites.npz",
    "data.clients": 2,
    "data.alpha": 5.0,
    "data.holdout": 0.2,
    "data.normalise": {"mean": [0.4], "std": [0.3]},
    "model.name": "cnn",
    "model.width": 4,
    "model.features": 8,
    "model.norm": "batch",
    "train.rounds": 1,
    "engine.name": "serial",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where a run is started: its data lie there, and are named by a relative path."""
    rng = np.random.default_rng(0)
    place = tmp_path / "home"
    place.mkdir()
    y = np.arange(120) % 3
    x = (rng.integers(0, 120, (120, 10, 10)) + 40 * y[:, None, None]).astype(np.uint8)
    names = np.array(["low", "middle", "high"])
    np.savez(place / "sites.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:], classes=names)
    monkeypatch.chdir(place)
    return place


def elsewhere(path, monkeypatch, without=()):
    """A copy of a run on a machine that has nothing else: other files are gone, and nothing is near."""
    away = path.parent.parent / "away"
    shutil.copytree(path, away / "run")
    for name in without:
        Path(name).unlink()
    monkeypatch.chdir(away)
    return away / "run"


def assert_same(module, other):
    want = other.state_dict()
    got = module.state_dict()
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name


# The global model


MODELS = {
    "fedavg": {},
    "fedetf": {"method.name": "fedetf"},
    "a neck": {"method.name": "moon", "method.moon.head": "moon"},
    "fedrod": {"method.name": "fedrod"},
    "calibrated": {"method.name": "ccvr", "method.ccvr.epochs": 1},
    "mlp": {"model": {"name": "mlp", "width": 8}},
    "half": {"data.normalise": "half"},
    "resized": {"data.size": 8},
    "unseen": {"data.clients": 4, "data.unseen": 0.25},
    "float64": {"engine.precision": "float64"},
}


def run_with(settings, home):
    base = {key: value for key, value in BASE.items() if not ("model" in settings and key.startswith("model."))}
    return fullrank.run({**base, **settings}, home / "run")


@pytest.mark.parametrize("case", MODELS)
def test_the_global_model_comes_from_the_directory_alone(case, home, monkeypatch, capsys):
    run = run_with(MODELS[case], home)
    here = elsewhere(run.path, monkeypatch, [home / "sites.npz"])
    assert_same(fullrank.load_run(here).model(), run.model())
    status, out, err = command("export", here, capsys=capsys)
    assert (status, err) == (0, "")
    assert "100 random inputs" in out
    card = json.loads((here / "export" / "model.json").read_text())
    full = fullrank.export(run).facts
    assert card["checked_on"] == "random inputs"
    assert "--root" in out
    assert str(home.parent) not in json.dumps(card)
    assert full["checked_on"] == "test samples"
    for same in ("model", "classes", "input", "method", "accuracy", "experiment", "data", "weights"):
        assert card[same] == full[same], same
    fullrank.load_export(here / "export")


def test_files_that_a_run_started_from_may_be_gone(home, monkeypatch):
    first = run_with({}, home)
    shutil.copy(first.path / "model.safetensors", home / "start.safetensors")
    shutil.copy(first.path / "partition.safetensors", home / "who.safetensors")
    table = {"model.start": "start.safetensors", "data.partition": "who.safetensors", "data.holdout": 0.0}
    run = fullrank.run({**BASE, **table}, home / "second")
    here = elsewhere(run.path, monkeypatch, [home / "start.safetensors", home / "who.safetensors", home / "sites.npz"])
    assert_same(fullrank.load_run(here).model(), run.model())


@pytest.mark.parametrize("gone", [False, True], ids=["scales there", "scales gone"])
def test_a_network_with_scales(gone, home, monkeypatch):
    options = {"name": "fullrank.models.reparam.repvgg:repvgg", "widths": [4, 4, 6], "blocks": [2, 1]}
    twin = fullrank.models.build(options["name"], 3, 1, mode="hs", widths=[4, 4, 6], blocks=[2, 1])
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if "tail.weight" in name:
                parameter.uniform_(0.5, 1.5)
    write_scales(home / "scales.safetensors", twin, "repvgg")
    model = {**options, "mode": "repopt", "scales": "scales.safetensors"}
    run = run_with({"model": model, "method.name": "fedrepopt"}, home)
    here = elsewhere(run.path, monkeypatch, [home / "scales.safetensors"] if gone else [])
    assert_same(fullrank.load_run(here).model(), run.model())


def test_a_directory_that_recorded_less_still_reads_its_data(home):
    run = run_with({}, home)
    facts = read_json(run.path / "partition.json")
    for key in ("dtype", "mean", "std"):
        del facts["data"][key]
    del facts["working_directory"]
    write_json(run.path / "partition.json", facts)
    assert_same(fullrank.load_run(run.path).model(), run.model())


def test_a_module_that_a_program_gave_is_asked_for(tmp_path):
    clients = [(torch.randn(20, 4), torch.arange(20) % 2)]
    fullrank.fit(torch.nn.Sequential(torch.nn.Linear(4, 2)), clients, rounds=1, method="fedavg", out=tmp_path / "run")
    for way in (fullrank.load_run(tmp_path / "run").model, lambda: fullrank.export(tmp_path / "run")):
        with pytest.raises(InputError, match=r"pass the same module, clients and settings to fullrank\.fit with out="):
            way()


# A client's model


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedetf"])
def test_a_clients_model_is_made_from_any_working_directory(method, home, monkeypatch, tmp_path):
    run = run_with({"method.name": method, "method.fedetf.repeats": 1}, home)
    shutil.copy(run.path / "partition.safetensors", home / "who.safetensors")
    monkeypatch.chdir(tmp_path)
    assert_same(fullrank.load_run("home/run").client_model(1), run.client_model(1))


def test_the_runs_own_division_replaces_a_file_that_has_gone(home, monkeypatch, tmp_path):
    first = run_with({}, home)
    shutil.copy(first.path / "partition.safetensors", home / "who.safetensors")
    run = fullrank.run({**BASE, "data.partition": "who.safetensors", "data.holdout": 0.0}, home / "second")
    (home / "who.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    assert_same(fullrank.load_run("home/second").client_model(1), run.client_model(1))


@pytest.mark.parametrize("given", ["folder", "file", "npz"])
def test_data_that_have_moved_are_found_by_root(given, home, monkeypatch, capsys):
    settings = {"data.name": "npz", "data.root": "sites.npz"} if given == "npz" else {}
    run = run_with(settings, home)
    there = home.parent / "store"
    there.mkdir()
    shutil.move(home / "sites.npz", there / "sites.npz")
    here = elsewhere(run.path, monkeypatch)
    status, _, err = command("export", here, "--client", 0, capsys=capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert "the model of client 0 needs that client's data" in err
    assert "--root" in err
    status, _, err = command("inspect", here, capsys=capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert "--root" in err
    root = there / "sites.npz" if given == "file" else there
    assert_same(fullrank.load_run(here, root=root).client_model(0), run.client_model(0))
    for arguments in (("export", here, "--client", 0), ("export", here), ("inspect", here)):
        status, out, _ = command(*arguments, "--root", root, capsys=capsys)
        assert status == 0
        assert "random inputs" not in out


def test_other_data_are_not_taken_for_the_runs_own(home, monkeypatch):
    run = run_with({}, home)
    arrays = dict(np.load(home / "sites.npz"))
    arrays["x_train"][0] += 1
    here = elsewhere(run.path, monkeypatch)
    np.savez("sites.npz", **arrays)
    with pytest.raises(InputError, match="the data set's content is not what it was"):
        fullrank.load_run(here, root=".").client_model(0)


def test_a_comparison_takes_a_root(home, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    settings = [
        word for key in ("data.name", "data.clients", "train.rounds") for word in ("--set", f"{key}={BASE[key]}")
    ]
    arguments = ("compare", *settings, "--methods", "fedavg", "--seeds", 0, "--out", "out", "--jobs", 1, "-q")
    assert command(*arguments, "--set", "model.name=mlp", "--root", "home", capsys=capsys)[0] == 0


# Personal models that a run keeps


KEPT = [(method, holdout, "serial") for method in ("fedavg", "fedbn", "fedetf") for holdout in (0.2, 0.0)]


@pytest.mark.parametrize(
    ("method", "holdout", "engine"), [*KEPT, pytest.param("fedbn", 0.2, "processes", marks=pytest.mark.slow)]
)
def test_kept_personal_models_need_no_data(method, holdout, engine, home, monkeypatch, capsys):
    table = {"method.name": method, "method.fedetf.repeats": 1, "data.holdout": holdout}
    run = run_with({**table, "run.keep_personal": True, "engine.name": engine, "engine.workers": 1}, home)
    assert sorted(file.name for file in (run.path / "personal").iterdir()) == [f"00000{k}.safetensors" for k in (0, 1)]
    made_again = run_with(table, home / "again")
    here = elsewhere(run.path, monkeypatch, [home / "sites.npz"])
    for client in (0, 1):
        assert_same(fullrank.load_run(here).client_model(client), made_again.client_model(client))
    if holdout:
        assert made_again.summary()["personal"] == run.summary()["personal"]
    assert command("export", here, "--client", 1, capsys=capsys)[0] == 0
    with pytest.raises(InputError, match="needs that client's data"):
        fullrank.load_run(here).client_model(0, "received")


def test_kept_models_of_an_earlier_end_are_not_taken(home):
    run_with({"run.keep_personal": True}, home)
    longer = run_with({"train.rounds": 2}, home)
    want = run_with({"train.rounds": 2}, home / "again").client_model(0)
    assert_same(longer.client_model(0), want)
    assert_same(fullrank.load_run(longer.path).client_model(0), want)


# A model function of the user's


OWN = """
import numpy as np, torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, scale):
        super().__init__()
        self.body, self.head = nn.Linear(100, 8), nn.Linear(8, classes)
        self.scale = scale

    def forward(self, x):
        return self.head((self.body(x.flatten(1)) * self.scale).relu())

def net(num_classes, in_channels, weights="", how="torch"):
    if how == "torch":
        scale = torch.load(weights, weights_only=True)["scale"]
    elif how == "load_file":
        scale = load_file(weights)["scale"]
    elif how == "safe_open":
        with safe_open(weights, "pt") as file:
            scale = file.get_tensor("scale")
    elif how == "numpy":
        scale = np.load(weights)["scale"]
    elif how == "text":
        with open(weights) as file:
            scale = file.read()
    open("touched.log", "w").close()
    return Net(num_classes, float(scale))
"""
WAYS = ["torch", "load_file", "safe_open", "numpy", "text"]


@pytest.fixture
def own(home, monkeypatch):
    (home / "ownnet.py").write_text(OWN)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "ownnet", raising=False)
    yield home
    sys.modules.pop("ownnet", None)


def write_weights(path, how, scale):
    tensors = {"scale": torch.tensor(scale)}
    if how == "torch":
        torch.save(tensors, path)
    elif how == "numpy":
        np.savez(path, scale=np.array(scale))
    elif how == "text":
        path.write_text(str(scale))
    else:
        save_file(tensors, path)


@pytest.mark.parametrize("how", WAYS)
def test_files_that_a_model_function_reads_are_recorded(how, own):
    weights = own / ("weights.npz" if how == "numpy" else "weights.bin")
    write_weights(weights, how, 1.0)
    settings = {"model": {"name": "ownnet:net", "weights": weights.name, "how": how}}
    run = run_with(settings, own)
    recorded = json.loads((run.path / "environment.json").read_text())["files"]
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert recorded == {f"model.name ({weights.name})": digest}
    write_weights(weights, how, 2.0)
    with pytest.raises(InputError, match=r"the file of model\.name \(weights\..*\) is not what it was"):
        run_with({**settings, "train.rounds": 2}, own)


def test_a_model_of_the_users_is_built_where_its_module_can_be_imported(own, monkeypatch):
    write_weights(own / "weights.bin", "torch", 1.0)
    run = run_with({"model": {"name": "ownnet:net", "weights": str(own / "weights.bin")}}, own)
    here = elsewhere(run.path, monkeypatch, [own / "sites.npz"])
    assert_same(fullrank.load_run(here, trust=True).model(), run.model())


@pytest.mark.parametrize("changed", [False, True], ids=["same code", "other code"])
def test_a_model_whose_code_changed_is_not_exported_under_the_recorded_accuracy(changed, own, capsys):
    write_weights(own / "weights.bin", "torch", 1.0)
    table = {"model": {"name": "ownnet:net", "weights": "weights.bin"}, "train.lr": 0.1, "train.epochs": 5}
    run = run_with(table, own)
    recorded = run.summary()["accuracy"]["last"]
    if changed:
        (own / "ownnet.py").write_text(OWN.replace(".relu()", ".sign() * -1"))
    del sys.modules["ownnet"]
    status, _, err = command("export", run.path, "--trust", capsys=capsys)
    if not changed:
        assert status == 0
        return
    assert (status, err.count("\n")) == (2, 1)
    assert f"but the run recorded {recorded:.4f}" in err
    assert not (run.path / "export").exists()


@pytest.mark.parametrize("damage", ["flipped", "lost", "never kept"])
def test_a_personal_model_that_is_not_whole_is_written_again(damage, tmp_path):
    table = {"data.clients": 3, "data.holdout": 0.2, "model.width": 2, "train.rounds": 1, "train.steps": 1}
    keeping = {**table, "engine.name": "serial", "run.keep_personal": True}
    fullrank.run({**keeping, "run.keep_personal": damage != "never kept"}, tmp_path / "run")
    fullrank.run(keeping, tmp_path / "whole")
    file = tmp_path / "run" / "personal" / "000001.safetensors"
    if damage == "flipped":
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    elif damage == "lost":
        file.unlink()
    fullrank.run(keeping, tmp_path / "run")
    for name in ("000000.safetensors", "000001.safetensors", "000002.safetensors"):
        want = (tmp_path / "whole" / "personal" / name).read_bytes()
        assert (tmp_path / "run" / "personal" / name).read_bytes() == want
