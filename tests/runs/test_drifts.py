"""A client whose weights moved much farther than the others' is noted in the row, in the log and on the display."""

import json

import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.runs.drifts import far_client


def clients(*drifts):
    return [{"client": k, "epochs": [{"drift": 99.0}, {"drift": drift}]} for k, drift in enumerate(drifts)]


def test_the_definition():
    """More than twice the second largest drift after the last epoch, of three clients at least."""
    assert far_client(clients(5.0, 36.0, 5.5)) == {"client": 1, "drift": 36.0, "next": 5.5}
    assert far_client(clients(5.0, 11.0, 5.5)) is None  # twice as far, not more
    assert far_client(clients(5.0, 36.0)) is None
    assert far_client(clients(30.0, 36.0, 5.5)) is None
    assert far_client(clients(0.0, 0.0, 1.0)) is None  # where the others share nothing
    assert far_client([*clients(5.0, 5.0, float("nan"), 12.0), {"client": 9, "epochs": []}])["client"] == 3


def test_a_run_notes_it(tmp_path, monkeypatch, capsys):
    """Client 2 has a hundred times as many samples, and so makes a hundred times as many steps."""
    rng = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 4, generator=rng), torch.randint(0, 3, (n,), generator=rng)) for n in (10, 10, 1000)]
    run = fullrank.fit(torch.nn.Linear(4, 3), data, "fedavg", rounds=1, batch_size=10, out=tmp_path / "run")
    row = run.metrics[0]
    drifts = sorted(client["epochs"][-1]["drift"] for client in row["clients"])
    assert row["far_client"] == {"client": 2, "drift": drifts[2], "next": drifts[1]}
    sentence = (
        f"round 1: the weights of client 2 moved by {drifts[2]:.3g}, those of the next client by {drifts[1]:.3g}; "
    )
    assert sentence in (tmp_path / "run" / "log.txt").read_text()
    equal = fullrank.fit(torch.nn.Linear(4, 3), data[:1] * 3, "fedavg", rounds=1, batch_size=10)
    assert "far_client" not in equal.metrics[0]


def test_the_command_line_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fullrank.runs.run.far_client", lambda found: {"client": 4, "drift": 36.04, "next": 5.2})
    values = {"model.name": "mlp", "model.width": 4, "data.clients": 3, "train.rounds": 1, "train.steps": 1}
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    _, out, _ = command("run", *options, capsys=capsys)
    assert (
        "round 1: the weights of client 4 moved by 36, those of the next client by 5.2; if the accuracy falls, it may "
        "be because of this client" in out
    )
    _, out, _ = command("run", *options, "--json", "--out", "other", capsys=capsys)
    assert json.loads(out.splitlines()[0])["far_client"] == pytest.approx({"client": 4, "drift": 36.04, "next": 5.2})
