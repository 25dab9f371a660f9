"""What `auto` means in the table `[engine]`, as a table: the outcomes are those of the first release's rules."""

import ast
import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

import fullrank
from fullrank.config.experiment import Experiment
from fullrank.config.schema import EngineTable
from fullrank.engine import facts as facts_module
from fullrank.engine.resolve import Facts, alongside_others, as_recorded, resolve_engine, runs_at_once
from fullrank.runs.assemble import assemble
from small import assert_same_bits, blobs, normed, plain

SMALL = Facts(
    parameters=1000,
    dtype="float32",
    library_model=True,
    dense=True,
    client_bytes=2**20,
    obstacle="",
    clients=8,
    samples=800.0,
    rounds=10,
    batch_size=64,
    cores=8,
)
LARGE = dataclasses.replace(SMALL, parameters=10**6, dense=False, rounds=1000)
ON_GPU = dataclasses.replace(LARGE, capability=9)
LONG = dataclasses.replace(ON_GPU, rounds=16_000)  # 200 000 local steps

# table, facts, what the run directory records in place of auto, autocast, channels last
CASES = {
    "small and dense": ({}, SMALL, {"name": "vectorised"}, False, False),
    "on the cpu by name": ({"device": "cpu"}, SMALL, {"name": "vectorised"}, False, False),
    "on the cpu by number": ({"device": "cpu:0"}, SMALL, {"name": "vectorised"}, False, False),
    "few clients": ({}, {"clients": 7}, {"name": "serial"}, False, True),
    "large clients": ({}, {"client_bytes": 2**20 + 1}, {"name": "serial"}, False, True),
    "convolutions": ({}, {"dense": False}, {"name": "serial"}, False, True),
    "an obstacle": ({}, {"obstacle": "the model has dropout"}, {"name": "serial"}, False, True),
    "double": ({}, {"dtype": "float64", "dense": False}, {"name": "serial"}, False, False),
    "half": ({}, {"dtype": "float16", "dense": False}, {"name": "serial"}, False, False),
    "worth processes": ({}, LARGE, {"name": "processes"}, False, True),
    "just not worth it": ({}, {**vars(LARGE), "rounds": 25}, {"name": "serial"}, False, True),
    "one core": ({}, {**vars(LARGE), "cores": 1}, {"name": "serial"}, False, True),
    "one worker": ({"workers": 1}, LARGE, {"name": "serial"}, False, True),
    "one client": ({}, {**vars(LARGE), "clients": 1}, {"name": "serial"}, False, True),
    "a numbered cpu": ({"device": "cpu:0"}, LARGE, {"name": "serial"}, False, True),
    "another device": ({"device": "mps"}, SMALL, {"name": "serial"}, False, False),
    "one core changes no bit": ({}, {"cores": 1}, {"name": "vectorised"}, False, False),
    "one worker changes no bit": ({"workers": 1}, SMALL, {"name": "vectorised"}, False, False),
    "serial": ({"name": "serial"}, LARGE, {}, False, True),
    "processes": ({"name": "processes"}, SMALL, {}, False, True),
    "vectorised": ({"name": "vectorised"}, LARGE, {}, False, False),
    "an engine of the user": ({"name": "mine:Engine"}, LARGE, {}, False, True),
    "bfloat16 on a cpu": ({"name": "serial", "precision": "bfloat16"}, LARGE, {}, True, True),
    "serial on a gpu": ({"name": "serial", "device": "cuda"}, ON_GPU, {}, False, False),
    "an engine of the user on a gpu": ({"name": "mine:Engine", "device": "cuda"}, ON_GPU, {}, False, False),
    "a gpu": (
        {"device": "cuda"},
        ON_GPU,
        {"name": "cuda", "precision": "bfloat16", "compile": "off"},
        True,
        True,
    ),
    "a long run on a gpu": (
        {"device": "cuda:1"},
        LONG,
        {"name": "cuda", "precision": "bfloat16", "compile": "on"},
        True,
        True,
    ),
    "a foreign model on a gpu": (
        {"device": "cuda"},
        {**vars(LONG), "library_model": False},
        {"name": "cuda", "precision": "bfloat16", "compile": "off"},
        True,
        True,
    ),
    "an old gpu": (
        {"device": "cuda"},
        {**vars(ON_GPU), "capability": 7},
        {"name": "cuda", "compile": "off"},
        False,
        False,
    ),
    "double on a gpu": (
        {"device": "cuda", "precision": "float64"},
        {**vars(ON_GPU), "dtype": "float64"},
        {"name": "cuda", "compile": "off"},
        False,
        False,
    ),
    "a double model on a gpu": (
        {"device": "cuda"},
        {**vars(ON_GPU), "dtype": "float64"},
        {"name": "cuda", "compile": "off"},
        False,
        False,
    ),
    "cuda": ({"name": "cuda", "device": "cuda"}, ON_GPU, {"precision": "bfloat16", "compile": "off"}, True, True),
    "cuda in full": (
        {"name": "cuda", "device": "cuda", "precision": "float32", "compile": "on"},
        ON_GPU,
        {},
        False,
        False,
    ),
    "bfloat16 on an old gpu": (
        {"name": "cuda", "device": "cuda", "precision": "bfloat16"},
        {**vars(ON_GPU), "capability": 7},
        {"compile": "off"},
        True,
        True,
    ),
    # fullrank.fit: never processes by itself; on a GPU the precision of the program's own model
    "fit": (
        {},
        {"allowed": ("serial", "vectorised"), "own_precision": "float32"},
        {"name": "vectorised"},
        False,
        False,
    ),
    "a large fit": (
        {},
        {**vars(LARGE), "allowed": ("serial", "vectorised"), "own_precision": "float32"},
        {"name": "serial"},
        False,
        True,
    ),
    "fit on a gpu": (
        {"device": "cuda"},
        {**vars(ON_GPU), "allowed": ("cuda",), "own_precision": "float32", "library_model": False},
        {"name": "cuda", "precision": "float32", "compile": "off"},
        False,
        False,
    ),
    "fit of several precisions on a gpu": (
        {"device": "cuda"},
        {**vars(ON_GPU), "allowed": ("cuda",), "library_model": False},
        {"name": "cuda", "precision": "bfloat16", "compile": "off"},
        True,
        True,
    ),
    "fit with an engine on a gpu": (
        {"name": "cuda", "device": "cuda"},
        {**vars(ON_GPU), "allowed": ("cuda",), "own_precision": "float32"},
        {"precision": "bfloat16", "compile": "off"},
        True,
        True,
    ),
}


def resolved(table, facts):
    known = facts if isinstance(facts, Facts) else dataclasses.replace(SMALL, **facts)
    return resolve_engine(EngineTable(**table), known)


@pytest.mark.parametrize("case", CASES)
def test_what_auto_means(case):
    table, facts, recorded, autocast, channels_last = CASES[case]
    found = resolved(table, facts)
    assert (dict(found.recorded), found.autocast, found.channels_last) == (recorded, autocast, channels_last)
    assert "auto" not in (found.name, found.precision, found.compile)
    assert found.name == recorded.get("name", table.get("name"))
    for reason in found.reasons.values():
        assert reason[0].isupper()
        assert reason.endswith(".")
    EngineTable(**{**table, **found.recorded})  # what is recorded is an [engine] table
    assert resolved({**table, **found.recorded}, facts).recorded == {}  # and means itself when the run continues


def test_nothing_that_may_change_a_bit_depends_on_cores_and_workers():
    sides = itertools.product(("", "cpu", "cuda"), (SMALL, LARGE, LONG), ("auto", "serial", "processes"))
    for device, facts, name in sides:
        found = [
            resolved({"name": name, "device": device, "workers": workers}, dataclasses.replace(facts, cores=cores))
            for workers in (0, 1, 4)
            for cores in (1, 2, 64)
        ]
        kinds = {"serial" if one.name == "processes" else one.name for one in found}
        assert len(kinds) == 1
        assert len({(one.precision, one.compile, one.autocast) for one in found}) == 1


def test_the_facts_are_those_of_the_run(monkeypatch):
    seen = []
    monkeypatch.setattr(facts_module, "cores", lambda: 3)
    monkeypatch.setattr(
        "fullrank.runs.assemble.resolve_engine", lambda table, facts: seen.append(facts) or resolve_engine(table, facts)
    )
    values = {"model.name": "mlp", "model.width": 8, "data.clients": 4, "data.holdout": 0.5, "train.participation": 3}
    parts = assemble(Experiment.of({**values, "train.epochs": 2, "train.rounds": 7}))
    (facts,) = seen
    weights = list(parts.network.module.parameters())
    largest = max(map(len, parts.federation.parts))
    assert facts == Facts(
        parameters=sum(w.numel() for w in weights),
        dtype="float32",
        library_model=True,
        dense=True,
        client_bytes=4 * (sum(w.numel() for w in weights) + 64 * min(64, largest)),
        obstacle="",
        clients=3,
        samples=sum(map(len, parts.federation.parts)) * 3 / 4 * 2,
        rounds=7,
        batch_size=64,
        cores=3,
    )
    assemble(Experiment.of({**values, "train.steps": 5, "train.lr_schedule_by": "step"}))
    assert seen[-1].samples == 3 * 5 * 64
    assert "learning rate" in seen[-1].obstacle


def test_a_run_records_what_was_chosen_and_why(tmp_path):
    table = {"model.name": "mlp", "data.clients": 10, "train.rounds": 1, "train.steps": 1}
    run = fullrank.run(table, tmp_path / "run")
    again = fullrank.run({**table, "train.rounds": 2}, tmp_path / "run")
    assert run.experiment.engine == again.experiment.engine == EngineTable(name="vectorised")
    around = fullrank.files.read_json(tmp_path / "run" / "environment.json")
    assert around["engine"]["name"] == "vectorised"
    assert around["engine"]["precision"] == "float32"
    assert around["engine"]["reasons"]["name"].startswith("All layers are dense")
    assert around["resumed"][0]["engine"]["reasons"]["name"] == 'The experiment says engine.name = "vectorised".'


def test_fit_asks_the_same_function(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fullrank.runs.assemble.resolve_engine", lambda table, facts: seen.append(facts) or resolve_engine(table, facts)
    )
    clients = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(9)]
    for dtype, kept in ((torch.float32, "float32"), (torch.float64, "float64"), (torch.float16, "")):
        module = nn.Sequential(nn.Linear(4, 2)).to(dtype)
        if dtype != torch.float16:
            run = fullrank.fit(module, clients, "fedavg", rounds=1)
            assert run.experiment.engine == EngineTable(name="vectorised")
            assert run._assembly.network.dtype == dtype
            assert (seen[-1].own_precision, seen[-1].allowed) == (kept, ("serial", "vectorised"))


def test_fit_trains_dense_modules_vectorised_and_resumes_so(tmp_path):
    clients = blobs((20, 18, 17, 15, 12, 12, 10, 9))

    def fit(rounds, **values):
        return fullrank.fit(plain(), clients, "fedavg+feddecorr", rounds=rounds, batch_size=8, seed=3, **values)

    fit(2, out=tmp_path / "run")
    resumed, whole = fit(4, out=tmp_path / "run"), fit(4)
    assert resumed.experiment.engine.name == whole.experiment.engine.name == "vectorised"
    assert fullrank.load_run(tmp_path / "run").experiment.engine.name == "vectorised"
    assert_same_bits(resumed.model().state_dict(), whole.model().state_dict())
    serial = fit(4, engine="serial").model().state_dict()
    for name, value in whole.model().state_dict().items():
        torch.testing.assert_close(value, serial[name], rtol=1e-9, atol=1e-9)


def test_a_run_of_fit_that_was_started_serially_is_resumed_serially(tmp_path):
    clients = blobs((12,) * 8)
    fullrank.fit(plain(), clients, "fedavg", rounds=1, engine="serial", out=tmp_path / "run")
    assert fullrank.fit(plain(), clients, "fedavg", rounds=2, out=tmp_path / "run").experiment.engine.name == "serial"


@pytest.mark.parametrize(("module", "sizes"), [(normed, (12,) * 8), (plain, (12,) * 7)])
def test_fit_stays_serial_for_other_layers_and_for_few_clients(module, sizes):
    assert fullrank.fit(module(), blobs(sizes), "fedavg", rounds=1).experiment.engine.name == "serial"


def test_a_resumed_run_means_by_auto_what_it_meant():
    recorded = EngineTable(name="cuda", device="cuda", precision="bfloat16", compile="on")
    assert as_recorded(EngineTable(device="cuda"), recorded) == {
        "name": "cuda",
        "precision": "bfloat16",
        "compile": "on",
    }
    assert as_recorded(EngineTable(name="serial", precision="float32", compile="off"), recorded) == {}
    assert "name" not in as_recorded(EngineTable(), EngineTable(name="mine:Engine"), foreign=True)


def test_the_number_of_simultaneous_runs():
    assert runs_at_once(EngineTable(), 8) == 8
    assert runs_at_once(EngineTable(threads=3), 8) == 2
    assert runs_at_once(EngineTable(threads=9), 8) == 1
    for several in ({"name": "processes"}, {"device": "cuda"}, {"name": "mine:Engine"}):
        assert runs_at_once(EngineTable(**several), 8) == 1
    assert alongside_others(EngineTable()) == {"workers": 1}
    assert alongside_others(EngineTable(name="serial")) == {}


def test_nothing_else_reads_auto_of_the_engine():
    """No other comparison with "auto" in the package concerns a key of [engine]."""
    found = []
    root = Path(fullrank.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Constant) and side.value == "auto" for side in (node.left, *node.comparators)
            ):
                found.append(str(file.relative_to(root)))
    assert set(found) <= {
        "bench/ours.py",  # the word of its own command line
        "data/augment/pipeline.py",
        "local/plan.py",  # train.last_batch
        "runs/assemble.py",  # data.normalise
        "runs/cautions.py",  # data.normalise
    }
