"""Evaluation of a run on any data set: values, intervals, sites, classes by name, and what is rejected."""

import json

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.report.evaluate import evaluate_run

NAMES = np.array(["low", "middle", "high"])


def samples(number, seed=0, classes=3, side=8):
    rng = np.random.default_rng(seed)
    y = np.arange(number) % classes
    x = rng.integers(0, 150, (number, side, side)) + 50 * y[:, None, None]
    return x.clip(0, 255).astype(np.uint8), y


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluated")
    x, y = samples(120)
    np.savez(path / "own.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:], classes=NAMES)
    settings = {"data.clients": 2, "data.alpha": 10.0, "train.rounds": 2, "engine.name": "serial"}
    model = {"name": "mlp", "width": 8}
    return fullrank.run(
        {
            **settings,
            "data.name": str(path / "own.npz"),
            "model": model,
            "evaluate.metrics": ["accuracy", "balanced-accuracy"],
        },
        path / "run",
    )


@pytest.fixture
def sites(tmp_path):
    """Data of two sites, with the classes in another order and one of them absent."""
    x, y = samples(60, seed=4, classes=2)
    order = np.array([1, 0])  # "middle" is class 0 here, "low" class 1
    np.savez(
        tmp_path / "sites.npz",
        **{"x_train": x[:20], "y_train": order[y[:20]], "x_test": x[20:], "y_test": order[y[20:]]},
        classes=NAMES[[1, 0]],
        domain_train=np.repeat(["north", "south"], 10),
        domain_test=np.repeat(["north", "south"], [10, 30]),
    )
    return tmp_path / "sites.npz"


def test_values_by_site_are_those_of_the_predictions_by_class_name(run, sites):
    found = evaluate_run(run, str(sites), metrics=["per-class"])
    x, y = samples(60, seed=4, classes=2)
    right = run.predict(x[20:]).argmax(1).numpy() == y[20:]
    assert found.all.samples == 40
    assert found.all.values["accuracy"] == pytest.approx(right.mean())
    assert {name: site.samples for name, site in found.sites.items()} == {"north": 10, "south": 30}
    assert found.sites["south"].values["accuracy"] == pytest.approx(right[10:].mean())
    recall = [right[y[20:] == k].mean() for k in range(2)]
    assert found.all.values["per_class"] == [pytest.approx(recall[0]), pytest.approx(recall[1]), None]
    assert found.classes == tuple(NAMES)
    assert [metric.key for metric in found.metrics] == ["accuracy", "loss", "balanced_accuracy", "per_class"]
    low, high = found.all.intervals["accuracy"]
    assert low <= right.mean() <= high
    spread = 1.96 * np.sqrt(right.mean() * (1 - right.mean()) / 40)  # the normal approximation
    assert high - low == pytest.approx(2 * spread, abs=0.06)


def test_the_runs_own_test_set_gives_what_the_run_recorded(run):
    found = evaluate_run(run)
    for key in ("accuracy", "loss", "balanced_accuracy"):
        assert found.all.values[key] == pytest.approx(run.summary()[key]["last"], abs=1e-6)
    assert found.sites == {}


def test_parts_of_the_data(run, sites):
    counts = {part: evaluate_run(run, str(sites), part=part).all.samples for part in ("test", "train", "all")}
    assert counts == {"test": 40, "train": 20, "all": 60}
    assert evaluate_run(run, str(sites), part="all").sites["north"].samples == 20
    with pytest.raises(InputError, match="choose from test, train, all"):
        evaluate_run(run, str(sites), part="val")


def test_a_clients_own_model(run, sites):
    found = evaluate_run(run, str(sites), client=1)
    x, y = samples(60, seed=4, classes=2)
    right = run.predict(x[20:], client=1).argmax(1).numpy() == y[20:]
    assert found.stage == "local"
    assert found.model == f"client 1's model of {run.path}"
    assert found.all.values["accuracy"] == pytest.approx(right.mean())


def test_images_of_another_size_are_resized_with_a_note(run, tmp_path):
    x, y = samples(30, side=16)
    np.savez(tmp_path / "large.npz", x=x, y=y, classes=NAMES)
    found = evaluate_run(run, str(tmp_path / "large.npz"))
    assert found.notes == ("images were resized to 8×8",)


def test_a_folder_of_images_is_evaluated(run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    x, y = samples(12)
    for k, (pixels, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / "photos" / NAMES[label]).mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(tmp_path / "photos" / NAMES[label] / f"{k}.png")
    found = evaluate_run(run, str(tmp_path / "photos"), part="all")
    assert found.all.samples == 12
    assert found.all.values["accuracy"] == pytest.approx((run.predict(x).argmax(1).numpy() == y).mean())


def test_the_command_prints_sites_intervals_and_json(run, sites, capsys):
    arguments = ("evaluate", run.path, sites, "--metrics", "per-class", "--resamples", 50)
    status, out, err = command(*arguments, capsys=capsys)
    assert (status, err) == (0, "")
    for words in ("global model of", "sites, test samples", "north", "south", "balanced accuracy", "middle", "["):
        assert words in out
    facts = json.loads(command(*arguments, "--json", capsys=capsys)[1])
    assert facts["resamples"] == 50
    assert facts["sites"]["north"]["samples"] == 10
    assert facts["all"]["accuracy"]["low"] <= facts["all"]["accuracy"]["value"] <= facts["all"]["accuracy"]["high"]
    assert facts["all"]["per_class"]["low"][2] is None


def test_errors_are_one_sentence(run, sites, tmp_path, capsys):
    x, y = samples(12)
    np.savez(tmp_path / "unknown.npz", x=x, y=y, classes=np.array(["low", "middle", "highest"]))
    np.savez(tmp_path / "float.npz", x=x.astype(np.float32), y=y, classes=NAMES)
    for arguments, words in (
        ((run.path, tmp_path / "unknown.npz"), 'has samples of "highest", but the classes of the run are "low"'),
        ((run.path, tmp_path / "float.npz"), "x is float32, but the run was trained on samples of uint8"),
        ((run.path, sites, "--metrics", "acuracy"), 'did you mean "accuracy"?'),
        ((run.path, sites, "--part", "val"), "choose from test, train, all"),
        ((run.path, sites, "--client", 9), "clients are 0 to 1"),
        ((run.path, tmp_path / "nowhere.npz"), "there is no file"),
    ):
        status, out, err = command("evaluate", *arguments, capsys=capsys)
        assert (status, out) == (2, ""), words
        assert words in err
        assert err.count("\n") == 1


def test_data_without_a_test_split_are_told_so(tmp_path):
    torch.manual_seed(0)
    clients = [(torch.randn(20, 4), torch.arange(20) % 2)]
    run = fullrank.fit(torch.nn.Sequential(torch.nn.Linear(4, 2)), clients, rounds=1, method="fedavg")
    with pytest.raises(InputError, match="has no test split; choose its training samples with --part train or all"):
        evaluate_run(run)
    assert evaluate_run(run, part="train").all.samples == 20
