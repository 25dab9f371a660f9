"""An engine from outside the package: named in a file, on the command line and in Python, and equal to serial."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import fullrank
from commands import fullrank as command
from fullrank.config.experiment import Experiment
from fullrank.engine import ENGINES, Engine, EngineOptions, open_engine
from fullrank.errors import CallFailed, InputError
from fullrank.files import read_json
from fullrank.runs.assemble import assemble

OWN = '''
from fullrank.engine import Engine
from fullrank.federated.site import Result

class Backwards(Engine):
    """Runs the last job first."""

    def __init__(self, site, options):
        self.site, self.options = site, options

    def run(self, jobs):
        waiting = [job for job in jobs]
        done = [self.site.do(job) for job in reversed(waiting)]
        self.last = len(done)
        yield from reversed(done)

    def notes(self):
        return {"ran_backwards": self.last, "clients_of_a_round": self.options.clients}

def backwards(site, options):
    return Backwards(site, options)

class Bare:
    """No subclass, and not complete."""

    def __init__(self, site, options):
        pass

    def run(self, jobs):
        return iter(())

class Broken(Backwards):
    def run(self, jobs):
        raise KeyError("nothing works")

class Unmade(Backwards):
    def __init__(self, site, options):
        raise OSError("no machine answers")

class Unordered(Backwards):
    def run(self, jobs):
        return map(self.site.do, reversed(list(jobs)))

class Short(Backwards):
    def run(self, jobs):
        return map(self.site.do, list(jobs)[:-1])

class Idle(Backwards):
    def run(self, jobs):
        return iter(())

class Odd(Backwards):
    def run(self, jobs):
        return (1 for job in jobs)

class Talkative(Backwards):
    def notes(self):
        raise RuntimeError("speechless")
'''
TABLE = {
    "model.name": "mlp",
    "model.width": 8,
    "data.clients": 4,
    "data.holdout": 0.2,
    "train.rounds": 3,
    "train.participation": 3,
    "train.steps": 2,
    "method.name": "scaffold",
}


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    (tmp_path / "ownengines.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ownengines", None)


def saved(path):
    files = [*path.glob("checkpoints/*.safetensors"), path / "model.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def rows(run):
    timed = ("seconds", "training_seconds", "ran_backwards", "clients_of_a_round", "checksum")
    return [{key: value for key, value in row.items() if key not in timed} for row in run.metrics]


@pytest.fixture
def reference(tmp_path):
    return fullrank.run({**TABLE, "engine.name": "serial"}, tmp_path / "serial")


@pytest.mark.parametrize("name", ["ownengines:Backwards", "ownengines:backwards"])
def test_an_engine_of_ones_own_gives_the_bits_of_serial_also_when_resumed(name, reference, tmp_path, capsys):
    table = {**TABLE, "engine.name": name}
    whole = fullrank.run(table, tmp_path / "whole")
    assert saved(whole.path) == saved(reference.path)
    assert rows(whole) == rows(reference)
    assert {(row["ran_backwards"], row["clients_of_a_round"]) for row in whole.metrics} == {(3, 3)}
    assert whole.experiment.engine.name == name

    Experiment.of({**table, "train.rounds": 1}).to_toml(tmp_path / "mine.toml")
    status, _, err = command("run", "mine.toml", "--out", "parts", "--quiet", capsys=capsys)
    assert (status, err) == (0, "")
    settings = ["--set", "train.rounds=3"]
    assert command("run", "mine.toml", "--out", "parts", "--quiet", *settings, capsys=capsys)[0] == 0
    assert saved(tmp_path / "parts") == saved(reference.path)
    set_here = [word for key, value in TABLE.items() for word in ("--set", f"{key}={value}")]
    set_here += ["--set", f"engine.name={name}", "--out", "line", "--quiet"]
    assert command("run", *set_here, capsys=capsys)[0] == 0
    assert saved(tmp_path / "line") == saved(reference.path)
    assert "ownengines" in read_json(tmp_path / "line" / "environment.json")["sources"]


def test_fit_takes_it_too():
    clients = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]
    module = nn.Sequential(nn.Linear(4, 2))
    engines = ("serial", "ownengines:Backwards")
    runs = [fullrank.fit(module, clients, "fedavg", rounds=2, engine=engine) for engine in engines]
    one, other = (run.model().state_dict() for run in runs)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_directory_does_not_choose_the_engine(tmp_path):
    """`auto` means the recorded engine only if that is one of the library's."""
    table = {**TABLE, "engine.name": "ownengines:Backwards"}
    fullrank.run({**table, "train.rounds": 1}, tmp_path / "run")
    with pytest.raises(InputError, match=r"engine\.name was 'ownengines:Backwards', is now 'auto'.*--change-engine"):
        fullrank.run(TABLE, tmp_path / "run")
    changed = fullrank.run(TABLE, tmp_path / "run", change_engine=True)
    assert changed.experiment.engine.name == "serial"


def test_reading_a_run_does_not_need_its_engine(tmp_path):
    run = fullrank.run({**TABLE, "engine.name": "ownengines:Backwards"}, tmp_path / "run")
    want = [run.model().state_dict(), run.client_model(1).state_dict()]
    (tmp_path / "ownengines.py").unlink()
    sys.modules.pop("ownengines")
    again = fullrank.load_run(tmp_path / "run")
    got = [again.model().state_dict(), again.client_model(1).state_dict()]
    for one, other in zip(want, got, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert "ownengines" not in sys.modules


WRONG = {
    "Bare": r"it created a Bare without notes; derive its class from fullrank\.engine\.Engine",
    "Unmade": "it raised OSError: no machine answers",
    "Broken": "it raised KeyError: 'nothing works'",
    "Unordered": r"it yielded the result of client \d where client \d's was due; keep the order of the jobs",
    "Short": r"it yielded no result for client \d",
    "Idle": r"it yielded no result for client \d",
    "Odd": "it yielded a int, which is not a result of a job",
    "Talkative": "it raised RuntimeError: speechless",
    "Missing": r'the module "ownengines" has no Class "Missing"; ',
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_engine_does_wrong_is_one_sentence_that_names_it(name, tmp_path, capsys):
    table = {**TABLE, "engine.name": f"ownengines:{name}"}
    with pytest.raises((InputError, CallFailed), match=rf'^engine\.name = "ownengines:{name}": {WRONG[name]}'):
        fullrank.run(table, tmp_path / "run")


def test_the_error_of_a_client_is_still_the_clients(tmp_path):
    clients = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]

    class Fails(nn.Linear):
        def forward(self, x):
            if self.training:
                raise RuntimeError("a client's own error")
            return super().forward(x)

    module = nn.Sequential(Fails(4, 4), nn.Linear(4, 2))
    with pytest.raises(fullrank.errors.ClientFailed, match="a client's own error"):
        fullrank.fit(module, clients, "fedavg", rounds=1, engine="ownengines:Backwards")


def test_names_that_are_not_known():
    with pytest.raises(InputError, match=r'engine\.name = "serail" is not known; did you mean "serial"\?'):
        Experiment.of({"engine.name": "serail"})
    with pytest.raises(InputError, match="known: cuda, processes, ray, serial, vectorised"):
        Experiment.of({"engine.name": "tractor"})


def test_the_librarys_engines_follow_the_protocol():
    assert ENGINES.names()[:4] == ("serial", "processes", "vectorised", "cuda")
    site = assemble(Experiment.of(TABLE)).site
    for name in ("serial", "vectorised"):
        engine = open_engine(name, site, EngineOptions(clients=3))
        assert isinstance(engine, ENGINES.find(name))
        assert Engine in type(engine).__mro__
        engine.close()
    with pytest.raises(InputError, match=r'engine\.name = "cuda" needs engine\.device = "cuda"'):
        open_engine("cuda", site)


def test_every_engine_is_listed(capsys):
    _, out, _ = command("keys", "engine.name", "--json", capsys=capsys)
    key = json.loads(out)["engine.name"]
    assert [name for name in (*ENGINES.own, "auto") if name not in key["what"]] == []
    assert key["values"] == list(ENGINES.names())
    assert key["type"].endswith('or "package.module:Class"')


def test_engines_are_imported_when_they_are_named():
    code = "import sys, fullrank; print(*[name for name in sys.modules if name.startswith('fullrank.engine.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.split(".")[2] in ("processes", "cuda", "vectorised", "serial")]
