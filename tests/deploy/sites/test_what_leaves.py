"""The messages of every method contain what is declared, and nothing else."""

import runpy
from pathlib import Path

import pytest
import torch

import fullrank
from deployments import VALUES, deploy, experiment, host, node
from fullrank import methods
from fullrank.channels import upload_names
from fullrank.cli.methods import leaving
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites import Message
from fullrank.deploy.sites.channel import InMemory
from fullrank.federated.codec import unpack
from small import on_its_network

DOCS = Path(__file__).parents[3] / "docs"
QUICK = ("scaffold", "fedmr", "fedbn")
ANSWER = {
    "joined": {"kind", "release", "data", "clients"},
    "result": {"kind", "result", "receipt"},
}
METRICS = {"samples", "steps", "skipped_batches", "epochs", "personal", "rows"}
EPOCH = {"criterion", "grad_norm", "drift"}
ROW = {"stage", "set", "samples", "metrics", "intervals", "recall", "recall_intervals", "confusion"}
SAMPLES = fullrank.data.load_dataset("digits").train.x


class Wire:
    """Nodes whose requests and answers are recorded."""

    def __init__(self, folder, clients):
        self.requests, self.answers = [], []
        self.channel = InMemory({100 + k: self.recorded(node(host(folder, k))) for k in range(clients)})

    def recorded(self, answer):
        def answered(content):
            found = answer(content)
            self.requests.append(Message.from_bytes(content))
            self.answers.append(Message.from_bytes(found))
            return found

        return answered


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in methods.available()]
)
def test_the_messages_of_a_method_have_what_it_declares(tmp_path, name):
    what = Experiment.of(on_its_network({**VALUES, "data.clients": 2, "evaluate.personal": "every"}, name))
    wire = Wire(tmp_path, 2)
    deploy(tmp_path, what, wire.channel)
    found = {"data": set(), "train": set(), "query": set(), "personal": set()}
    for request, answer in zip(wire.requests, wire.answers, strict=True):
        assert set(answer.values) == ANSWER[answer.kind]
        assert not holds_samples(answer)
        if request.kind == "join":
            assert not answer.tensors
            assert all(set(c) == {"client", "name", "samples", "holdout", "test"} for c in answer.values["clients"])
            continue
        job, result = unpack(request.values["job"], request.tensors), unpack(answer.values["result"], answer.tensors)
        assert job.state is None, "a state never travels"
        assert result.state == {}
        assert result.model == {}, "nor does a client's own model"
        found[job.kind] |= {what for what in upload_names(result.upload) if tensors(result.upload, what)}
        check_metrics(result.metrics, name)
    declared = leaving(methods.build(name))
    assert not declared["problem"]
    assert found["data"] == set(declared["start"])
    assert found["train"] == set(declared["round"])
    assert found["query"] == set(declared["end"])
    assert found["personal"] == set()


def tensors(upload, what):
    space, _, name = what.rpartition("/")
    return upload[space][name].tree


def check_metrics(metrics, method):
    assert set(metrics) <= METRICS
    names = {part.name for part in methods.build(method).parts}
    for epoch in metrics.get("epochs", []):
        assert {key.partition(".")[0] for key in epoch} <= EPOCH | names
        assert all(isinstance(value, float) for value in epoch.values())
    for row in metrics.get("rows", []):
        assert set(row) <= ROW


def holds_samples(answer):
    """Whether a tensor of an answer has the shape of samples, or their values."""
    shape = tuple(SAMPLES.shape[1:])
    return any(tuple(t.shape[-3:]) == shape or t.dtype == torch.uint8 for t in answer.tensors.values())


def test_the_question_for_class_counts_is_declared(tmp_path):
    wire = Wire(tmp_path, 2)
    deploy(tmp_path, experiment(data__clients=2, train__criterion="weighted"), wire.channel)
    asked = [unpack(r.values["job"], r.tensors) for r in wire.requests if r.kind == "job"]
    first = next(answer for answer in wire.answers if answer.kind == "result")
    assert asked[0].query == ("criterion", "class_counts")
    assert upload_names(unpack(first.values["result"], first.tensors).upload) == {"criterion/counts"}
    assert "`criterion/counts`" in (DOCS / "what-leaves-a-site.md").read_text()


def test_the_page_is_current():
    written = runpy.run_path(str(DOCS / "write_what_leaves.py"))["page"]()
    assert (DOCS / "what-leaves-a-site.md").read_text() == written, "run python docs/write_what_leaves.py"
