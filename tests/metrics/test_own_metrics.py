"""A metric of a user's own, named by its import path, is everywhere where the library's metrics are."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.config.experiment import Experiment
from fullrank.errors import CallFailed, ClientFailed, InputError
from fullrank.files import read_json
from fullrank.metrics import registry
from fullrank.metrics.registry import METRICS, TAKEN, find_metrics
from fullrank.runs.summary import measures as metrics_by_key

SOURCE = '''
import numpy as np
import torch
from pathlib import Path

Path(__file__).with_name("IMPORTED").touch()

def cohen_kappa(scores, labels):
    """Agreement beyond chance, written with NumPy."""
    predicted, true = scores.argmax(1).numpy(), labels.numpy()
    classes = range(scores.shape[1])
    chance = sum((predicted == c).mean() * (true == c).mean() for c in classes)
    return (predicted == true).mean() - chance  # a number of NumPy

def mistakes(scores, labels):
    scores.zero_()[torch.arange(len(labels)), labels] = 1  # writes into what it was given
    labels += 1
    return torch.tensor(0.0) + len(labels)

def error(scores, labels):
    return (scores.argmax(1) != labels).double().mean()  # a tensor

error.lower_is_better = True
error.is_share = True

def shares(scores, labels):
    return torch.bincount(labels, minlength=scores.shape[1]) / len(labels)

def never(scores, labels):
    return None

def fails(scores, labels):
    raise RuntimeError("no scores today")

def endless(scores, labels):
    return float("inf")

def word(scores, labels):
    return "high"

def table(scores, labels):
    return {"a": 1.0}

def nested(scores, labels):
    return [[1.0], [2.0]]

def one_argument(scores):
    return 1.0

def loss(scores, labels):
    return 1.0

def per_class(scores, labels):
    return 1.0

def worst_decile(scores, labels):
    return 1.0

def validation_error(scores, labels):
    return 1.0

def error_by_domain(scores, labels):
    return 1.0
'''
SMALL = {"model.name": "mlp", "model.width": 8, "data.clients": 3, "data.partition": "iid", "train.rounds": 2}
OWN = ["accuracy", "ownmetrics:cohen_kappa", "ownmetrics:error"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's folder, with a module outside the package."""
    (tmp_path / "ownmetrics.py").write_text(SOURCE)
    (tmp_path / "others.py").write_text("def error(scores, labels):\n    return 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield tmp_path
    for module in ("ownmetrics", "others", "declared"):
        sys.modules.pop(module, None)


def options(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def test_a_metric_of_ones_own_is_everywhere_without_being_named_again(folder, capsys):
    values = {**SMALL, "data.holdout": 0.2, "data.validation": 0.1, "evaluate.personal": "every"}
    (folder / "e.toml").write_text('[evaluate]\nmetrics = ["ownmetrics:cohen_kappa", "ownmetrics:error"]\n')
    status, out, _ = command("run", "e.toml", *options(values), "--out", "run", capsys=capsys)
    assert status == 0
    # display: the global model's table has it, on the test set and on the validation set
    for line in ("accuracy", "loss", "cohen kappa", "error", "validation cohen kappa", "validation error"):
        assert any(shown.startswith(f"{line} ") for shown in out.splitlines()), line
    # rows, of the global model and of the clients' own
    run = fullrank.load_run("run")
    for row in run.metrics:
        assert row["error"] == pytest.approx(1 - row["accuracy"])
        assert row["validation_error"] == pytest.approx(1 - row["validation_accuracy"])
        assert -1 <= row["cohen_kappa"] <= row["accuracy"]
        for stage, found in row["personal"].items():
            assert found["error"]["mean"] == pytest.approx(1 - found["mean"])
            assert found["cohen_kappa"]["clients"] == 3
            of_clients = [client["personal"][stage] for client in row["clients"]]
            # over clients: the worst tenth is where the metric says so
            assert found["error"]["worst_decile"] == max(client["error"] for client in of_clients)
            assert found["cohen_kappa"]["worst_decile"] == min(client["cohen_kappa"] for client in of_clients)
    # summary, with best in the right direction; what is read from the directory imports nothing
    (folder / "IMPORTED").unlink()
    sys.modules.pop("ownmetrics")
    summary = fullrank.load_run("run").summary()
    assert summary["error"]["best"] == min(row["error"] for row in run.metrics)
    assert summary["cohen_kappa"]["best"] == max(row["cohen_kappa"] for row in run.metrics)
    assert summary["validation_error"]["last"] == run.metrics[-1]["validation_error"]
    assert summary["personal"]["local"]["cohen_kappa"]["clients"] == 3
    # compare
    for measure, unit in {
        "cohen_kappa": "Cohen kappa, ",
        "error": "Error in percent, ",
        "validation_error": "Validation error in percent, ",
        "personal.local.error.mean": "Personal.local.error.mean in percent:",
        "personal.received.cohen_kappa.worst_decile": "Personal.received.cohen kappa.worst decile:",
    }.items():
        status, out, _ = command("compare", "--runs", "run", "--measure", measure, capsys=capsys)
        assert status == 0, measure
        assert out.strip().startswith(unit), measure
    assert not (folder / "IMPORTED").exists()


def test_without_a_global_model_it_is_shown_of_the_clients(capsys):
    values = {**SMALL, "method.name": "fedrep", "data.holdout": 0.2, "evaluate.metrics": OWN}
    _, out, _ = command("run", *options(values), capsys=capsys)
    for measure in ("accuracy", "cohen kappa", "error"):
        assert re.search(rf"^{measure} +local +[-\d]", out, re.MULTILINE)


def test_a_comparison_is_of_ones_own_metric(folder, capsys):
    values = {**SMALL, "train.rounds": 1, "evaluate.metrics": OWN}
    arguments = ("--methods", "fedavg,fedprox", "--seeds", "0,1", "--measure")
    status, out, _ = command("compare", *options(values), *arguments, "cohen_kappa", "--jobs", 2, capsys=capsys)
    assert status == 0
    assert "\nCohen kappa, mean of the last 1 round:" in out
    for measure, why in {
        "cohen_kapa": 'there is no measure "cohen_kapa"; did you mean "cohen_kappa"?',
        "auroc": 'no run would have the measure "auroc"; add "auroc" to evaluate.metrics',
        "personal.local.macro_f1.mean": 'add "macro-f1" to evaluate.metrics',
        "quality": 'there is no measure "quality"; known: accuracy, ',
    }.items():
        status, _, err = command("compare", *options(values), *arguments, measure, "--out", "none", capsys=capsys)
        assert status == 2
        assert why in err
        assert not (folder / "none").exists()


@pytest.mark.parametrize("engine", ["serial", "processes", "vectorised"])
def test_every_engine_evaluates_it(engine):
    values = {
        **SMALL,
        "data.clients": 5,
        "data.holdout": 0.2,
        "evaluate.metrics": OWN,
        "engine.name": engine,
        "engine.workers": 1,
    }
    run = fullrank.run({**values, "evaluate.personal": "every", "train.rounds": 1})
    for stage in run.metrics[0]["personal"].values():
        assert stage["error"]["mean"] == pytest.approx(1 - stage["mean"])


def test_from_a_program_over_its_own_clients():
    rng = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 4, generator=rng), torch.randint(0, 2, (20,), generator=rng)) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    run = fullrank.fit(model, clients, test=clients[0], rounds=1, set={"evaluate.metrics": OWN})
    assert run.metrics[0]["error"] == pytest.approx(1 - run.metrics[0]["accuracy"])
    assert run.summary()["error"]["last"] == run.metrics[0]["error"]


def test_by_domain_every_number_is_there(folder):
    rng = np.random.default_rng(0)
    x, y, site = rng.normal(size=(120, 6)).astype(np.float32), rng.integers(0, 3, 120), rng.integers(0, 3, 120)
    names = np.array(["b", "a", "c"])[site]
    np.savez(folder / "sites.npz", x_train=x, y_train=y, x_test=x, y_test=y, domain_train=names, domain_test=names)
    values = {"data.name": "sites.npz", "data.partition": "domain", "data.clients": 3, "model.name": "mlp"}
    asked = ["macro-f1", "per-class", "ownmetrics:error", "ownmetrics:shares", "ownmetrics:never"]
    row = fullrank.run({**values, "train.rounds": 1, "evaluate.metrics": asked}).metrics[0]
    found = {key: value for key, value in row.items() if key.endswith("_by_domain")}
    numbers = ("accuracy", "loss", "macro_f1", "error", "never")
    assert set(found) == {f"{key}_by_domain" for key in numbers}
    assert all(set(values) == {"a", "b", "c"} for values in found.values())
    sizes = {name: int((names == name).sum()) for name in "abc"}
    for key in ("accuracy", "loss", "error"):
        mean = sum(sizes[name] * found[f"{key}_by_domain"][name] for name in sizes) / 120
        assert mean == pytest.approx(row[key], rel=1e-6), key
    assert row["domain_accuracy"] == pytest.approx(np.mean(list(found["accuracy_by_domain"].values())))
    assert found["never_by_domain"] == dict.fromkeys("abc")
    assert row["never"] is None
    assert row["shares"] == pytest.approx([float((y == c).mean()) for c in range(3)])


def test_a_metric_that_writes_into_what_it_is_given_harms_no_other():
    values = {**SMALL, "data.holdout": 0.2, "evaluate.personal": "every"}
    asked = ["ownmetrics:mistakes", "balanced-accuracy", "ownmetrics:error"]
    one = fullrank.run({**values, "evaluate.metrics": ["balanced-accuracy", "ownmetrics:error"]}, "one")
    two = fullrank.run({**values, "evaluate.metrics": asked}, "two")
    for a, b in zip(one.metrics, two.metrics, strict=True):
        for key in ("accuracy", "loss", "balanced_accuracy", "error"):
            assert a[key] == b[key]


def test_values_that_are_no_numbers_of_json_have_none_in_files():
    run = fullrank.run({**SMALL, "train.rounds": 1, "evaluate.metrics": ["ownmetrics:endless"]}, "run")
    assert run.metrics[0]["endless"] is None
    assert "endless" not in run.summary()
    found = find_metrics(["ownmetrics:endless"])[0].function
    assert math.isinf(found(torch.eye(3), torch.arange(3)))


UNKNOWN = {
    "acuracy": 'evaluate.metrics = "acuracy" is not known; did you mean "accuracy"? Otherwise give ',
    "balanced_accuracy": 'did you mean "balanced-accuracy"?',
    "quality": "known: accuracy, auroc, balanced-accuracy, calibration, loss, macro-f1, per-class, top5",
    "ownmetrics:cohen_kapa": 'the module "ownmetrics" has no function "cohen_kapa"; did you mean "cohen_kappa"?',
    "ownmetric:cohen_kappa": 'there is no module "ownmetric"; did you mean "ownmetrics"?',
    "ownmetrics:": 'evaluate.metrics = "ownmetrics:" is not of the form "package.module:function"',
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_are_one_sentence_from_every_side(name, folder, capsys):
    with pytest.raises(InputError) as caught:
        fullrank.run({**SMALL, "evaluate.metrics": ["accuracy", name]})
    assert UNKNOWN[name] in str(caught.value)
    (folder / "e.toml").write_text(f'[evaluate]\nmetrics = ["accuracy", "{name}"]\n')
    for arguments in (("e.toml",), ("--set", f'evaluate.metrics=["{name}"]')):
        status, _, err = command("run", *arguments, capsys=capsys)
        assert status == 2
        assert err == f"fullrank: {caught.value}\n"


@pytest.mark.parametrize("value", [["accuracy", 5], "accuracy", [["accuracy"]]])
def test_values_of_the_key_that_are_no_list_of_names(value):
    with pytest.raises(InputError, match=r"^evaluate\.metrics"):
        Experiment.of({"evaluate.metrics": value})


CLASHES = {
    "loss": 'evaluate.metrics: "loss" and "ownmetrics:loss" would both be "loss"; give the function another name',
    "per_class": '"per-class" and "ownmetrics:per_class" would both be "per_class"',
    "worst_decile": 'evaluate.metrics = "ownmetrics:worst_decile": the metrics of a run have "worst_decile" already',
    "validation_error": 'have "validation_error" already',
    "error_by_domain": 'have "error_by_domain" already',
}


@pytest.mark.parametrize("name", CLASHES)
def test_a_key_that_is_taken_is_rejected(name):
    with pytest.raises(InputError) as caught:
        Experiment.of({"evaluate.metrics": [f"ownmetrics:{name}"]})
    assert CLASHES[name] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_functions_of_one_name_are_rejected_and_one_named_twice_is_not():
    with pytest.raises(InputError, match=r'"ownmetrics:error" and "others:error" would both be "error"'):
        Experiment.of({"evaluate.metrics": ["ownmetrics:error", "others:error"]})
    assert len(find_metrics(["auroc", "ownmetrics:error", "auroc", "ownmetrics:error"])) == 2


def test_every_key_of_rows_and_summaries_is_a_metric_or_taken():
    """So that a metric of one's own can never replace anything else."""
    values = {**SMALL, "data.clients": 6, "data.unseen": 0.34, "data.holdout": 0.2, "data.validation": 0.1}
    values |= {"evaluate.personal": "every", "evaluate.every": 3, "evaluate.metrics": list(METRICS.own)}
    keys = set()
    for method in ("fedetf", "ccvr"):
        engine = {"engine.name": "vectorised", "method.name": method}  # whose notes are in rows too
        run = fullrank.run({**values, **engine}, method)
        written = read_json(run.path / "summary.json")
        keys |= {*written, *written["ending"], "checksum"}.union(*run.metrics)
        for row in (*run.metrics, written["ending"]):
            for stage in row.get("personal", {}).values():
                keys |= stage.keys()
            for client in row.get("clients", []):
                keys |= client.keys()
                keys = keys.union(*client.get("personal", {}).values())
    known = {metric.key for metric in METRICS.own.values()} | metrics_by_key().keys()
    derived = {key for key in keys if key.startswith(registry.PREFIXES) or key.endswith(registry.BY_DOMAIN)}
    assert keys - known - derived - TAKEN == set()
    assert len(keys & TAKEN) > 20


def test_what_a_metric_raises_is_one_sentence_after_its_traceback(capsys):
    words = 'evaluate.metrics = "ownmetrics:fails": it raised RuntimeError: no scores today'
    with pytest.raises(CallFailed) as caught:
        fullrank.run({**SMALL, "evaluate.metrics": ["ownmetrics:fails"]}, "a")
    assert str(caught.value) == words
    assert 'raise RuntimeError("no scores today")' in caught.value.traceback
    status, _, err = command("run", *options({**SMALL, "evaluate.metrics": ["ownmetrics:fails"]}), capsys=capsys)
    assert status == 1
    assert err.splitlines()[-1] == f"fullrank: {words}"
    with pytest.raises(CallFailed, match=r"one_argument\(\) takes 1 positional argument"):
        fullrank.run({**SMALL, "evaluate.metrics": ["ownmetrics:one_argument"]}, "b")


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_what_it_raises_on_a_hold_out_names_the_client_too(engine):
    values = {**SMALL, "data.holdout": 0.2, "evaluate.personal": "every", "method.name": "fedrep"}
    with pytest.raises(ClientFailed, match=r'^client \d: .*evaluate\.metrics = "ownmetrics:fails"') as caught:
        fullrank.run({**values, "engine.name": engine, "evaluate.metrics": ["ownmetrics:fails"]})
    assert "no scores today" in caught.value.traceback()


KINDS = {"word": "it returned a str", "table": "it returned a dict", "nested": "it returned a list"}


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_another_kind_is_one_sentence(name, capsys):
    values = {**SMALL, "evaluate.metrics": [f"ownmetrics:{name}"]}
    status, _, err = command("run", *options(values), capsys=capsys)
    assert status == 2
    assert err == (
        f'fullrank: evaluate.metrics = "ownmetrics:{name}": {KINDS[name]}; it must return a number, a list of numbers, '
        "or None\n"
    )


def test_an_entry_point_needs_no_import_path(folder, capsys):
    info = folder / "declared-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fullrank.metrics]\nown-error = ownmetrics:error\n")
    run = fullrank.run({**SMALL, "evaluate.metrics": ["own-error"]}, "run")
    assert run.summary()["own_error"]["best"] == min(row["own_error"] for row in run.metrics)
    assert fullrank.load_run("run").summary()["own_error"] == run.summary()["own_error"]
    _, out, _ = command("keys", "evaluate.metrics", "--json", capsys=capsys)
    assert json.loads(out)["evaluate.metrics"]["values"] == [*METRICS.own, "own-error"]


def test_a_resume_goes_through_and_notices_changed_code(folder, capsys):
    values = {**SMALL, "evaluate.metrics": OWN}
    fullrank.run(values, "run")
    sources = read_json(folder / "run" / "environment.json")["sources"]
    assert "ownmetrics" in sources
    assert read_json(folder / "run" / "environment.json")["metrics"] == {
        "cohen_kappa": {"lower_is_better": False, "is_share": False},
        "error": {"lower_is_better": True, "is_share": True},
    }
    (folder / "ownmetrics.py").write_text(SOURCE + "\n# changed\n")
    _, out, _ = command("run", *options({**values, "train.rounds": 3}), "--out", "run", capsys=capsys)
    assert "the source code of ownmetrics has changed" in out
    again = fullrank.load_run("run")
    assert len(again.metrics) == 3
    assert again.summary()["error"]["best"] == min(row["error"] for row in again.metrics)
    with pytest.raises(InputError, match=r"evaluate\.metrics was .*, is now"):
        fullrank.run({**values, "evaluate.metrics": ["accuracy"]}, "run")


def test_the_readme_lists_the_registry():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    listed = re.findall(r"`([\w-]+)`", text.split("`evaluate.metrics` adds", 1)[1].split(" or ", 1)[0])
    assert listed == [name for name in METRICS.own if name not in ("accuracy", "loss")]
