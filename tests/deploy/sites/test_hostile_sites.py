"""What a server does with answers of a site that sends something else than the result of its job."""

import dataclasses

import pytest
import torch

from deployments import deploy, experiment, network
from fullrank.channels import Mean
from fullrank.deploy.sites import Message
from fullrank.deploy.sites.samples import SiteData
from fullrank.errors import ClientFailed
from fullrank.federated.codec import pack, unpack
from fullrank.files import read_json


def answering(answer, change):
    """A node whose answers to jobs are changed: `change` takes the answer and returns bytes or another answer."""

    def answered(content):
        found = Message.from_bytes(answer(content))
        if found.kind != "result":
            return found.to_bytes()
        changed = change(found)
        return changed if isinstance(changed, bytes) else changed.to_bytes()

    return answered


def result(**changes):
    """Changes the result: fields, or `w`, a function of its weights."""

    def change(answer):
        found = unpack(answer.values["result"], answer.tensors)
        if w := changes.get("w"):
            mean = found.upload[""]["w"]
            found.upload[""]["w"] = dataclasses.replace(mean, tree=w(mean.tree))
        found = dataclasses.replace(found, **{name: value for name, value in changes.items() if name != "w"})
        packed = pack(found)
        return Message({**answer.values, "result": packed.form}, packed.tensors)

    return change


def metrics(**changes):
    """Changes what a client has measured; None removes an entry."""

    def change(answer):
        found = unpack(answer.values["result"], answer.tensors)
        changed = {name: value for name, value in {**found.metrics, **changes}.items() if value is not None}
        packed = pack(dataclasses.replace(found, metrics=changed))
        return Message({**answer.values, "result": packed.form}, packed.tensors)

    return change


def values(**changes):
    return lambda answer: Message({**answer.values, **changes}, answer.tensors)


FORM = SiteData.part(experiment(), [0]).form
HOSTILE = {
    "not finite": (result(w=lambda w: {k: v * float("nan") for k, v in w.items()}), "is not finite"),
    "huge values": (result(w=lambda w: {k: v + 1e30 for k, v in w.items()}), "above 1e\\+18"),
    "another model": (result(w=lambda w: {f"x{k}": v for k, v in w.items()}), "upload is rejected"),
    "other shapes": (result(w=lambda w: {k: v[..., None] for k, v in w.items()}), "upload is rejected"),
    "empty arrays": (result(w=lambda w: {k: v[:0] for k, v in w.items()}), "upload is rejected"),
    "huge arrays": (result(w=lambda w: {k: torch.zeros(10**6) for k in w}), "upload is rejected"),
    "whole numbers": (result(w=lambda w: {k: v.long() for k, v in w.items()}), "upload is rejected"),
    "nothing": (result(upload={}), "it is empty"),
    "more than the method sends": (result(upload={"x": {"y": Mean({"z": torch.ones(1)})}}), "upload is rejected"),
    "another number of samples": (result(samples=10**6), "it claims 1e\\+06, but the client has"),
    "another client": (result(client=1), "not the result of this client"),
    "no bytes": (lambda answer: b"", "cut off"),
    "junk": (lambda answer: b"\x80\x04junk" * 100, "not a message of fullrank"),
    "a job": (values(result={"type": "job"}), "no usable answer"),
    "an unknown kind": (values(kind="shell"), 'kind "shell" is not known'),
    "a long reason": (values(kind="rejected", reason="x" * 10**6), "xxx"),
    "a receipt of another round": (values(receipt=[7, 7]), "receipt of another round"),
    "a receipt of text": (values(receipt="x"), "receipt"),
    "a state": (result(state={"x": torch.ones(3)}), None),
    "a model that nobody asked for": (result(model={"x": torch.ones(3)}), None),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_answer_is_rejected_and_its_site_named(tmp_path, how):
    change, words = HOSTILE[how]
    channel = network(tmp_path, 2)
    channel.connected[100] = answering(channel.connected[100], change)
    what = experiment(data__clients=2, train__rounds=1, evaluate__personal="never", data__holdout=0.0)
    if words is None:  # of no effect: neither is used
        deploy(tmp_path, what, channel)
        assert not list((tmp_path / "deployed" / "checkpoints").glob("clients-*"))[1:]
        return
    with pytest.raises(ClientFailed, match=rf"(?s)client 0: .*{words}") as raised:
        deploy(tmp_path, what, channel)
    assert len(str(raised.value)) < 3000


ROW = {
    "stage": "local",
    "set": "holdout",
    "samples": 1,
    "metrics": {},
    "intervals": {},
    "recall": [None] * 10,
    "recall_intervals": [None] * 10,
    "confusion": [[0, 10, 1]],
}


@pytest.mark.parametrize(
    "measured",
    [
        {"steps": "x"},
        {"steps": -5},
        {"steps": None},
        {"samples": "x"},
        {"epochs": ["x"]},
        {"epochs": [{"criterion": "x"}]},
        {"personal": "x"},
        {"personal": {"received": {"accuracy": "x"}}},
        {"personal": {"received": {"accuracy": [0.5]}, "local": {"accuracy": [0.5]}}},
        {"personal": {"received": {"accuracy": 0.5}, "local": {"accuracy": 0.5}}},
        {"personal": {"local": {"accuracy": 0.5, "loss": 1.0, "samples": 1, "auroc": [0.5]}}},
        {"rows": 5},
        {"rows": [{"stage": "local"}]},
        {"rows": [ROW]},
        {"samples of a patient": [1.0]},
    ],
)
def test_hostile_metrics_are_those_of_a_client_that_failed(tmp_path, measured):
    channel = network(tmp_path, 2)
    channel.connected[100] = answering(channel.connected[100], metrics(**measured))
    what = experiment(data__clients=2, train__rounds=1, evaluate__personal="every", run__on_client_error="skip")
    found = deploy(tmp_path, what, channel)
    ending = read_json(found.path / "summary.json")["skipped"] if "skipped" not in found.metrics[0] else {}
    assert "its metrics" in {**found.metrics[0].get("skipped", {}), **ending}["0"]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"data": {"name": "x"}},
        {"data": {**FORM, "input_shape": [10**6] * 4}},
        {"data": {**FORM, "augment": ["os:system"]}},
        {"data": {**FORM, "augment": ["fullrank.data:load_dataset"]}},
        {"clients": []},
        {"clients": [{"client": -1, "name": "", "samples": 1, "holdout": 0, "test": 0}]},
        {"clients": [{"client": 0, "name": "", "samples": 2**60, "holdout": 0, "test": 0}]},
        {"clients": [{"client": 5, "name": "", "samples": 1, "holdout": 0, "test": 0}]},
        {"clients": [{"client": 0, "name": "\x1b[2J", "samples": 1, "holdout": 0, "test": 0, "classes": [1]}]},
    ],
)
def test_a_hostile_description_of_a_site_is_rejected(tmp_path, told):
    from fullrank.errors import InputError

    channel = network(tmp_path, 1)
    honest = channel.connected[100]

    def joined(content):
        found = Message.from_bytes(honest(content))
        if not told:
            return Message({"kind": "joined"}).to_bytes()
        return Message({**found.values, **told}).to_bytes()

    channel.connected[100] = joined
    with pytest.raises(InputError, match="node 100") as raised:
        deploy(tmp_path, experiment(data__clients=1, data__partition="iid"), channel)
    assert "\x1b" not in str(raised.value)
