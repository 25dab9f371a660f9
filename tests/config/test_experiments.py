"""The experiments that come with the library are valid, say what the papers say, and run when made small."""

import json
from pathlib import Path

import pytest

from commands import fullrank
from fullrank import Experiment, load_run
from fullrank.config.experiment import read_toml

FOLDER = Path(__file__).parents[2] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
SMALL = (
    "data.name=fullrank.bench.gpu:tiny_images",
    "data.clients=2",
    "data.alpha=100.0",
    "model.name=fullrank.models.reparam.repvgg:repvgg",
    "model.widths=[4, 4, 6]",
    "model.blocks=[2, 1]",
    "train.rounds=1",
    "train.epochs=1",
    "train.batch_size=8",
    "train.participation=1.0",
)


def settings(name, *overrides):
    return Experiment.from_toml(FOLDER / f"{name}.toml", ["data.name=cifar100", *overrides])


def test_there_are_experiments():
    assert {"fedrepopt-cross-silo.toml", "fedrepopt-cross-device.toml"} <= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_is_valid_and_written_as_it_is_read(file):
    experiment = Experiment.from_toml(file, ["data.name=cifar100"])
    assert Experiment(**read_toml(file)).but(data__name="cifar100") == experiment
    assert experiment.resolved().hash() == experiment.hash()


def test_fedrepopts_two_settings_differ_in_clients_and_rounds_only():
    silo, device = settings("fedrepopt-cross-silo").flat(), settings("fedrepopt-cross-device").flat()
    different = {key: (silo[key], device[key]) for key in silo if silo[key] != device[key]}
    assert different == {
        "data.clients": (10, 100),
        "train.rounds": (240, 1000),
        "train.participation": (1.0, 0.1),
        "train.epochs": (1, 5),
    }


@pytest.mark.parametrize("mode", ["tr", "inf", "csla"])
@pytest.mark.parametrize("model", ["repvgg-b1", "repghost-0.5"])
def test_fedrepopts_other_rows_are_overrides(model, mode):
    rows = settings("fedrepopt-cross-silo", "method.name=fedavg", f'model.mode="{mode}"', f"model.name={model}")
    assert rows.model.options["mode"] == mode


@pytest.mark.parametrize("kind", ["silo", "device"])
def test_fedrepopts_settings_run_when_small(kind, tmp_path, capsys):
    small = [piece for text in SMALL for piece in ("--set", text)]
    command = ("run", FOLDER / f"fedrepopt-cross-{kind}.toml", *small, "--out", tmp_path / "run", "--json")
    status, out, err = fullrank(*command, capsys=capsys)
    assert status == 0, err
    assert json.loads(out.splitlines()[-1])
    run = load_run(tmp_path / "run")
    assert all(client["steps"] > 1 for client in run.metrics[0]["clients"])
    assert 0 <= run.summary()["top5"]["last"] <= 1
    assert "cautions" not in run.metrics[0]
