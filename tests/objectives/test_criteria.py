"""A criterion of a user's own, named by its import path, replaces cross-entropy with every engine."""

import json
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullrank
import hook_methods
from commands import fullrank as command
from engines import check_same
from fullrank import methods
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.vectorised import Vectorised
from fullrank.errors import ClientFailed, Conflict, InputError
from fullrank.files import read_json
from fullrank.methods import Composition
from fullrank.objectives.registry import CRITERIA
from small import assert_same_bits, plain, rerun, trained_alone

SOURCE = '''
import torch
import torch.nn.functional as F

def usual(logits, labels):
    return F.cross_entropy(logits, labels)

def focal(logits, labels):
    """Focal loss with exponent 2, written as a pure function of tensors."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()

def brier(logits, labels):
    hot = (labels[:, None] == torch.arange(logits.shape[1], device=labels.device)).to(logits.dtype)
    return (logits.softmax(1) - hot).square().sum(1).mean()

def by_sample(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")

def number(logits, labels):
    return F.cross_entropy(logits, labels).item()

def nothing(logits, labels):
    pass

def detached(logits, labels):
    return F.cross_entropy(logits.detach(), labels)

def fails(logits, labels):
    raise RuntimeError("no loss today")
'''
SMALL = {"model.name": "mlp", "model.width": 8, "data.clients": 4, "data.partition": "iid", "train.rounds": 2}
SMALL |= {"train.lr": 0.05, "train.steps": 5}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's folder, with a module outside the package."""
    (tmp_path / "owncriteria.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield tmp_path
    sys.modules.pop("owncriteria", None)


def weights(values, out=None):
    return fullrank.run(values, out).model().state_dict()


def options(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


# What it computes


def test_the_steps_are_those_of_torch_with_the_same_loss():
    """One client, one batch: the weights after each step are those of `torch.optim.SGD` with the user's function."""
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(12, 5, generator=rng, dtype=torch.float64), torch.randint(0, 3, (12,), generator=rng)
    settings = {"train": {"lr": 0.1, "momentum": 0.9, "batch_size": 12, "steps": 3}}
    for name in ("focal", "brier"):
        settings["train"]["criterion"] = f"owncriteria:{name}"
        run = fullrank.fit(plain(), [data], "fedavg", rounds=1, set={**settings, "data.normalise": "none"}, lr=0.1)
        function = getattr(sys.modules["owncriteria"], name)
        want = trained_alone(
            plain(), [data] * 3, lr=0.1, momentum=0.9, loss=lambda m, x, y, f=function: f(m(x), y)
        ).state_dict()
        for entry, value in run.model().state_dict().items():
            torch.testing.assert_close(value, want[entry], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "feddecorr", "fedsam+fedprox", "ditto", "scaffold"])
def test_cross_entropy_under_another_name_has_the_same_bits(method):
    values = {**SMALL, "method.name": method}
    want = weights(values, "usual")
    assert_same_bits(weights({**values, "train.criterion": "cross-entropy"}, "named"), want)
    assert_same_bits(weights({**values, "train.criterion": "owncriteria:usual"}, "own"), want)


def test_label_smoothing_acts_on_cross_entropy_by_its_name_as_well():
    values = {**SMALL, "train.label_smoothing": 0.1}
    want = weights(values, "usual")
    assert_same_bits(weights({**values, "train.criterion": "cross-entropy"}, "named"), want)
    assert not torch.equal(next(iter(weights(SMALL, "sharp").values())), next(iter(want.values())))


def test_from_a_file_the_command_line_and_programs_it_is_the_same(folder, capsys):
    values = {**SMALL, "train.criterion": "owncriteria:focal"}
    want = weights(values, "program")
    (folder / "e.toml").write_text('[train]\ncriterion = "owncriteria:focal"\n')
    assert command("run", "e.toml", *options(SMALL), "--out", "file", capsys=capsys)[0] == 0
    arguments = (*options(SMALL), "--set", "train.criterion=owncriteria:focal")
    assert command("run", *arguments, "--out", "line", capsys=capsys)[0] == 0
    for out in ("file", "line"):
        assert_same_bits(fullrank.load_run(out, trust=True).model().state_dict(), want)
    assert not torch.equal(next(iter(want.values())), next(iter(weights(SMALL).values())))
    # rows have its value as the term "criterion", and the cross-entropy as the loss of the evaluation
    row = fullrank.load_run("file").metrics[-1]
    assert row["clients"][0]["epochs"][0]["criterion"] < 0.9 * row["loss"]


def test_from_fit_with_a_method_of_a_program():
    rng = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 4, generator=rng), torch.randint(0, 2, (20,), generator=rng)) for _ in range(3)]
    found = {}
    for name in ("", "owncriteria:focal"):
        run = fullrank.fit(
            nn.Sequential(nn.Linear(4, 2)), clients, methods.build("feddecorr"), rounds=1, set={"train.criterion": name}
        )
        found[name] = run.metrics[0]["clients"][0]["epochs"][0]["criterion"]
    assert found["owncriteria:focal"] < found[""]
    for method in (methods.build("fedlc"), hook_methods.Balanced()):
        with pytest.raises(Conflict, match=f'cannot be combined with the method "{method.name}"'):
            fullrank.fit(nn.Linear(4, 2), clients, method, rounds=1, set={"train.criterion": "owncriteria:focal"})


# Engines


ENGINES = {
    "vectorised": lambda site: Vectorised(site, EngineOptions(clients=4)),
    "captured": lambda site: Cuda(
        site, EngineOptions(slots=2, clients=6), record=rerun, devices=(torch.device("cpu"),)
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "fedprox+feddecorr", "fedsam"])
def test_engines_that_trace_or_record_the_step_agree_with_serial(engine, method):
    values = {**SMALL, "method.name": method, "engine.precision": "float64", "train.criterion": "owncriteria:focal"}
    done = check_same(values, ENGINES[engine])
    assert not done.reasons  # it was traced, or recorded, indeed


def test_worker_processes_have_the_same_bits():
    values = {**SMALL, "train.criterion": "owncriteria:focal"}
    one, two = (weights({**values, "engine.name": name, "engine.workers": 1}, name) for name in ("serial", "processes"))
    assert_same_bits(one, two)


def test_a_criterion_that_cannot_be_traced_trains_client_by_client(folder):
    (folder / "owncriteria.py").write_text(
        "import torch.nn.functional as F\n\n"
        "def branches(logits, labels):\n"
        "    loss = F.cross_entropy(logits, labels)\n"
        "    return loss * 2 if loss.item() > 0 else loss\n"
    )
    values = {**SMALL, "train.criterion": "owncriteria:branches"}
    run = fullrank.run({**values, "engine.name": "vectorised"}, "vectorised")
    assert "train.criterion" in run.metrics[0]["one_by_one"][0]
    assert_same_bits(run.model().state_dict(), weights({**values, "engine.name": "serial"}, "serial"))


# Runs


def test_a_run_resumes_with_it_and_with_no_other(folder, capsys):
    values = {**SMALL, "train.criterion": "owncriteria:focal", "data.holdout": 0.2}
    want = fullrank.run({**values, "train.rounds": 3}, "whole")
    fullrank.run(values, "half")
    sys.modules.pop("owncriteria")
    again = fullrank.run({**values, "train.rounds": 3}, "half")
    assert_same_bits(again.model().state_dict(), want.model().state_dict())
    read = fullrank.load_run("half", trust=True)
    assert_same_bits(read.client_model(1).state_dict(), want.client_model(1).state_dict())
    assert "owncriteria" in read_json(folder / "half" / "environment.json")["sources"]
    with pytest.raises(InputError, match=r"train\.criterion was 'owncriteria:focal', is now ''"):
        fullrank.run(SMALL | {"data.holdout": 0.2}, "half")
    assert fullrank.load_export(fullrank.export(want, "out").path) is not None
    (folder / "owncriteria.py").write_text(SOURCE + "\n# changed\n")
    _, out, _ = command("run", *options({**values, "train.rounds": 4}), "--out", "half", capsys=capsys)
    assert "the source code of owncriteria has changed" in out


def test_the_default_has_the_directory_and_hash_that_it_always_had():
    assert Experiment.of({"train.criterion": ""}).hash() == Experiment().hash()
    assert Experiment.of({"train.criterion": "owncriteria:focal"}).hash() != Experiment().hash()


# What is rejected


UNKNOWN = {
    "cross_entropy": 'train.criterion = "cross_entropy" is not known; did you mean "cross-entropy"? Otherwise give '
    '"package.module:function"',
    "owncriteria:focall": 'the module "owncriteria" has no function "focall"; did you mean "focal"?',
    "owncriterion:focal": 'there is no module "owncriterion"; did you mean "owncriteria"?',
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_are_one_sentence(name, capsys):
    with pytest.raises(InputError) as caught:
        Experiment.of({"train.criterion": name})
    assert UNKNOWN[name] in str(caught.value)
    status, _, err = command("run", "--set", f"train.criterion={name}", capsys=capsys)
    assert status == 2
    assert err == f"fullrank: {caught.value}\n"


@pytest.mark.parametrize("name", ["cross-entropy", "owncriteria:focal"])
@pytest.mark.parametrize("method", ["fedlc", "fedprox+fedetf", "hook_methods:Balanced"])
def test_a_method_with_a_criterion_of_its_own_conflicts_with_the_key(method, name):
    with pytest.raises(Conflict) as caught:
        Experiment.of({"method.name": method, "train.criterion": name})
    owner = methods.build(method).parts[-1].name
    assert str(caught.value) == (
        f'train.criterion = "{name}" cannot be combined with the method "{owner}", which has its own loss in place of '
        "cross-entropy; leave train.criterion empty or take another method"
    )
    with pytest.raises(Conflict):
        Composition(methods.build(method), name)
    Composition(methods.build(method))


def test_label_smoothing_conflicts_with_a_criterion_of_ones_own():
    with pytest.raises(InputError) as caught:
        Experiment.of({"train.label_smoothing": 0.1, "train.criterion": "owncriteria:focal"})
    assert str(caught.value) == (
        "train.label_smoothing = 0.1: smooths the labels of cross-entropy, which train.criterion = "
        '"owncriteria:focal" replaces; set one of them only'
    )


WRONG = {
    "by_sample": "it returned a tensor of shape (64,); it must return a scalar tensor",
    "number": "it returned float; it must return a scalar tensor",
    "nothing": "it returned NoneType; it must return a scalar tensor",
    "detached": "what it returned does not depend on the logits",
    "fails": "it raised RuntimeError: no loss today",
}


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *((engine, name) for engine in ("serial", "vectorised") for name in WRONG),
        pytest.param("processes", "fails", marks=pytest.mark.slow),
    ],
)
def test_a_criterion_that_gives_no_loss_is_one_sentence(engine, name):
    with pytest.raises((ClientFailed, InputError)) as caught:
        fullrank.run({**SMALL, "train.criterion": f"owncriteria:{name}", "engine.name": engine, "engine.workers": 1})
    assert f'train.criterion = "owncriteria:{name}": {WRONG[name]}' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_registry_is_what_the_list_of_keys_shows(capsys):
    assert CRITERIA.names() == ("cross-entropy", "focal", "weighted")
    _, out, _ = command("keys", "train.criterion", "--json", capsys=capsys)
    assert json.loads(out)["train.criterion"]["values"] == list(CRITERIA.names())


def test_cross_entropy_is_that_of_torch():
    logits, labels = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
    assert torch.equal(CRITERIA.find("cross-entropy")(logits, labels), F.cross_entropy(logits, labels))
