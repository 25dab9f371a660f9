"""A SuperNode without a site.toml takes no part, and only Flower's simulation does without such a file."""

import sys
import types

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr")

import flwr.app
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fullrank.config.experiment import Experiment
from fullrank.deploy.flower import client, client_app
from fullrank.deploy.flower.records import from_records, to_records
from fullrank.deploy.sites import Message
from fullrank.deploy.sites.message import PROTOCOL
from fullrank.deploy.sites.samples import load_site


@pytest.fixture(autouse=True)
def node(monkeypatch, tmp_path):
    """The process of an app, as Flower starts it, whose files are in a folder."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(client, "_hosts", {})
    monkeypatch.delenv(client.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def answered(content, config, load=load_site):
    """What a site answers to the records of a request to join."""
    asked = flwr.app.Message(content, 7, "query")
    asked.metadata.__dict__["_message_id"] = "1"
    context = Context(run_id=1, node_id=7, node_config=config, state=RecordDict(), run_config={})
    return from_records(client_app(load)(asked, context).content)


def joining(**table):
    """The records of a request to join, which a server may send unchecked."""
    values = Experiment.of({"data.clients": 2, "model.name": "mlp"}).model_dump()
    for name, keys in table.items():
        values[name] = {**values[name], **keys}
    text = tomli_w.dumps({name: value for name, value in values.items() if value is not None})
    return to_records(Message({"kind": "join", "protocol": PROTOCOL, "run": "0123456789abcdef", "experiment": text}))


def unread(*arguments):
    raise AssertionError("the samples were loaded")


@pytest.mark.parametrize("config", [{}, {"partition-id": 0, "num-partitions": 2}, {"site": ""}])
def test_a_supernode_without_site_toml_says_what_is_missing_and_does_nothing(tmp_path, capsys, config):
    np.savez(tmp_path / "secret.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    for table in ({}, {"data": {"name": "npz", "root": str(tmp_path / "secret.npz")}}, {"model": {"name": "evil:net"}}):
        answer = answered(joining(**table), config, unread)
        assert answer.kind == "rejected"
        said = answer.values["reason"]
        assert "its SuperNode was started without a site.toml" in said
        assert "--node-config" in said
        assert "FULLRANK_SITE" in said
        assert said in capsys.readouterr().err, "whoever starts the SuperNode sees it too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.py", "secret.npz"], "nothing was written"
    # It is said before a request is read.
    assert "without a site.toml" in answered(RecordDict(), config, unread).values["reason"]


@pytest.mark.parametrize("by", ["node-config", "variable"])
def test_a_supernode_with_site_toml_joins(tmp_path, monkeypatch, by):
    (tmp_path / "site.toml").write_text('[site]\nname = "north"\nclient = 1\n')
    path = str(tmp_path / "site.toml")
    monkeypatch.setenv(client.VARIABLE, path if by == "variable" else "")
    answer = answered(joining(), {"site": path} if by == "node-config" else {})
    assert answer.kind == "joined", answer.values
    assert answer.values["clients"][0]["name"] == "north"


def test_a_site_toml_that_does_not_exist_is_named(tmp_path):
    said = answered(joining(), {"site": str(tmp_path / "sit.toml")}, unread).values["reason"]
    assert f'there is no file "{tmp_path / "sit.toml"}"' in said


def test_a_message_of_an_unexpected_exception_stays_at_the_site(monkeypatch, capsys):
    def broken(*arguments):
        raise RuntimeError("John Doe, born 1970")

    monkeypatch.setattr(client, "host_of", broken)
    answer = answered(joining(), {})
    assert answer.values["reason"] == "cannot take part: its code raised RuntimeError"
    assert "John Doe" in capsys.readouterr().err


def ray(started=True, actor="b14b"):
    """The parts of Ray that tell an actor's process from others."""
    return types.SimpleNamespace(
        is_initialized=lambda: started,
        get_runtime_context=lambda: types.SimpleNamespace(get_actor_id=lambda: actor),
    )


@pytest.mark.parametrize(
    ("found", "actors", "expected"),
    [
        (ray(), True, True),
        (ray(), False, False),  # an actor of another program
        (ray(actor=None), True, False),  # a program that uses Ray
        (ray(started=False), True, False),
        (types.SimpleNamespace(), True, False),  # a Ray of another form
        (None, True, False),
        (None, False, False),
    ],
)
def test_a_simulation_is_an_actor_of_flowers(monkeypatch, found, actors, expected):
    for name, module in (("ray", found), (client.ACTORS, types.ModuleType(client.ACTORS) if actors else None)):
        if module is None:
            monkeypatch.delitem(sys.modules, name, raising=False)
        else:
            monkeypatch.setitem(sys.modules, name, module)
    assert client.in_simulation() == expected
    answer = answered(joining(), {"partition-id": 0, "num-partitions": 2})
    assert answer.kind == ("joined" if expected else "rejected")
