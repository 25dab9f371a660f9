"""What `methods show` says of what leaves a site, and what `check` compares it with."""

import json
import re
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from commands import fullrank
from fullrank import Method, Sum, fit, methods
from fullrank.cli.methods import leaving
from fullrank.testing import CheckFailed, check
from small import blobs, plain

LEAKY = """
from fullrank import Method, Sum

class Leaky(Method):
    def after(self, client):
        return {"picture": Sum({"x": client.samples.x[client.samples.index[:1]].float()})}
"""


def said(text):
    return " ".join(text.split())


def test_show_lists_what_a_users_method_really_sends(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, _ = fullrank("methods", "show", "leaky:Leaky", capsys=capsys)
    assert status == 0
    assert "leaky/picture (after each round): Sum of x (1, an input's shape: as large as samples themselves)" in said(
        out
    )
    status, out, _ = fullrank("methods", "show", "leaky:Leaky", "--json", capsys=capsys)
    assert "picture" in str(json.loads(out)["leaves"]["round"])
    with pytest.raises(CheckFailed, match='"leaky" sends picture, which it does not declare'):
        check(methods.build("leaky:Leaky"), only=["uploads"])


EXTRA = {
    "scaffold": {"scaffold/change": "Sum of as many numbers as the shared weights"},
    "feddc": {"feddc/change": "Sum of as many numbers as the shared weights"},
    "fedmr": {"fedmr/classes": "Sum of sums (C, d), counts (C)"},
    "fedproc": {"fedproc/classes": "Sum of sums (C, d), counts (C)"},
    "fedproto": {"fedproto/classes": "Sum of sums (C, d), counts (C)"},
    "fednh": {"fednh/seen": "Sum of sums (C, d), counts (C)"},
    "fedexp": {"fedexp/step": "Mean of square (one number)"},
    "fednova": {"fednova/travel": "Mean of a (one number), inverse (one number)"},
}


@pytest.mark.parametrize("name", methods.available())
def test_what_each_method_sends_and_declares(name):
    method = methods.build(name)
    found = leaving(method)
    assert not found["problem"]
    assert found["start"] == {}
    sent = {what: words for what, words in found["round"].items() if "/" in what}
    assert sent == EXTRA.get(name, {})
    assert found["end"] == ({"ccvr/moments": "Sum of n (C), z (C, d), zz (C, d, d)"} if name == "ccvr" else {})
    assert {what.split("/")[1] for what in {**sent, **found["end"]}} == set(method.uploads)
    assert ("w" in found["round"]) == (name != "fedproto")
    assert ("buffers" in found["round"]) == (name not in ("fedbn", "fedproto"))


def test_show_says_what_travels_with_a_result_and_who_sees_it(capsys):
    out = said(fullrank("methods", "show", "fedbn", capsys=capsys)[1])
    for words in (
        "samples, steps and skipped batches",
        "the terms of the loss, the norm of the gradient and the drift",
        "the recall of each class, which reveals the classes that a client lacks",
        "The server process receives the upload of each client; methods see sums and means.",
        "secure aggregation, which fullrank does not implement",
        "checkpoints contain what a client keeps between rounds",
    ):
        assert words in out
    assert "Never leaves" not in out
    assert "shifted by its drift" not in said(fullrank("methods", "show", "feddc", capsys=capsys)[1])


def test_every_measurement_of_a_result_is_named(capsys):
    """A measurement that is added to results must be added to the text, too."""
    run = fit(plain(), blobs(), "fedavg", rounds=1, set={"data.holdout": 0.3, "evaluate.personal": "every"})
    client = run.metrics[0]["clients"][0]
    assert set(client) <= {"client", "samples", "steps", "skipped_batches", "epochs", "personal"}
    assert set(client["epochs"][0]) <= {"criterion", "grad_norm", "drift"}


def test_a_method_that_cannot_run_is_shown_with_the_reason(tmp_path, monkeypatch, capsys):
    (tmp_path / "unrunnable.py").write_text(
        LEAKY.replace("return", 'raise ValueError("no such column")\n        return')
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, _ = fullrank("methods", "show", "unrunnable:Leaky", capsys=capsys)
    assert status == 0
    assert re.search(
        r"cannot run on the small federation .*no such column.* known only from its declaration", said(out)
    )


@pytest.mark.parametrize("name", ["fedmr", "fedproto", "fedproc", "ccvr"])
def test_min_count_is_explained_and_single_samples_are_a_warning(name, capsys):
    assert "has fewer than `min_count` samples: with 0 or 1" in said(
        fullrank("methods", "show", name, capsys=capsys)[1]
    )
    data = blobs((12, 9, 7, 6))
    for _, y in data[:2]:  # one sample of class 0
        y[y == 0] = 1
        y[0] = 0
    for _, y in data[2:]:
        y[:] = torch.arange(len(y)) % 3
    assert methods.build(name).min_count == 0
    with pytest.warns(
        UserWarning, match=rf"{name} sends a statistic of a single sample.*\(clients 0, 1\b.*min_count = 2"
    ):
        run = fit(plain(), data, methods.build(name), rounds=1)
    assert any("single sample" in text for text in run.metrics[0]["cautions"])
    run = fit(plain(), data, methods.build(name, **{name: {"min_count": 2}}), rounds=1)
    assert "cautions" not in run.metrics[0]


def test_the_warning_names_a_few_of_ten_thousand_clients():
    counts = np.ones((10_000, 10), dtype=np.int64)
    start = time.perf_counter()
    text = methods.build("fedmr").caution_of_data(counts, np.arange(10_000))
    assert "clients 0, 1, 2, 3, 4 and 9995 more" in text
    assert time.perf_counter() - start < 0.5


def test_a_declared_upload_passes():
    @dataclass(frozen=True)
    class Declares(Method):
        uploads = {"n": "how many samples it has"}

        def after(self, client):
            return {"n": Sum({"n": client.counts.sum()})}

    assert check(Declares(), only=["uploads", "writes"]).results == {"uploads": "holds", "writes": "holds"}
