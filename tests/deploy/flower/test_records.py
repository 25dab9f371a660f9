"""Messages as Flower's records: what goes in comes out to the bit, and records of something else are rejected."""

import json
import math

import pytest
import torch

pytest.importorskip("flwr")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fullrank.channels import Mean, Sum
from fullrank.deploy.flower.records import from_records, to_records
from fullrank.deploy.sites import Message
from fullrank.federated.codec import BadMessage, pack, unpack
from fullrank.federated.site import Job, Result

TENSORS = {
    "float": torch.randn(3, 4),
    "double": torch.randn(2, dtype=torch.float64),
    "half": torch.randn(5).half(),
    "bfloat": torch.randn(7).bfloat16(),
    "whole": torch.tensor([2**60, -1]),
    "counter": torch.tensor(3),
    "bytes": torch.arange(9, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
    "last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "none": torch.empty(0, 3),
    "odd": torch.tensor([math.nan, math.inf, -0.0]),
}


def there_and_back(message):
    """The message after Flower's own serialisation of the records."""
    records = to_records(message)
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    return from_records(recorddict_from_proto(recorddict_to_proto(records)))


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride() and bits(one, other)


def bits(one, other):
    as_bytes = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(*as_bytes)


def test_a_job_is_the_same_after_flower():
    job = Job("train", 3, 1, {"w": TENSORS, "buffers": {}, "sent": {"m": TENSORS}}, {"f": TENSORS["last"]}, {}, None)
    packed = pack(job)
    message = there_and_back(Message({"kind": "job", "job": packed.form, "x": None}, packed.tensors, packed.paths))
    back = unpack(message.values["job"], message.tensors)
    for name, tensor in TENSORS.items():
        assert same(back.broadcast["w"][name], tensor), name
        assert same(back.broadcast["sent"]["m"][name], tensor), name
    assert same(back.frozen["f"], TENSORS["last"])
    assert message.values["x"] is None


def test_a_result_is_the_same_and_its_metrics_are_numbers_by_name():
    metrics = {"samples": 7, "epochs": [{"criterion": 0.5, "drift": math.nan}], "flag": True, "none": None, "n": "text"}
    upload = {"": {"w": Mean(TENSORS, 7.0)}, "m": {"s": Sum({"a": {"b": torch.ones(2)}})}}
    packed = pack(Result(3, 7, upload, metrics=metrics))
    message = Message({"kind": "result", "result": packed.form}, packed.tensors, packed.paths)
    records = to_records(message)
    assert records.metric_records["metrics"]["samples"] == 7
    assert records.metric_records["metrics"]["epochs.0.criterion"] == 0.5
    assert set(records.array_records) == {"upload"}
    assert "m/s/a/b" in records.array_records["upload"]
    message = there_and_back(message)
    back = unpack(message.values["result"], message.tensors)
    assert repr(back.metrics) == repr(metrics)
    assert same(back.upload["m"]["s"].tree["a"]["b"], torch.ones(2))


def test_messages_share_no_records_but_convert_a_broadcast_once():
    w, known = {"a": torch.ones(4)}, {}
    made = []
    for client in range(2):
        packed = pack(Job("train", client, 0, {"w": w, "buffers": {}, "sent": {}}, {}, {}, None))
        made.append(to_records(Message({"job": packed.form}, packed.tensors, packed.paths), known))
    first, second = (records.array_records["broadcast"] for records in made)
    assert first is not second
    assert first["broadcast/w/a"].data is second["broadcast/w/a"].data
    changed = pack(Job("train", 0, 1, {"w": {"a": torch.zeros(4)}, "buffers": {}, "sent": {}}, {}, {}, None))
    third = to_records(Message({"job": changed.form}, changed.tensors, changed.paths), known)
    assert third.array_records["broadcast"]["broadcast/w/a"].numpy().sum() == 0


def header(shape, dtype="<f4", data=b"\0" * 16):
    import io

    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def records_with(array=None, values=None, names=None, kinds="{}", metrics=None):
    config = {
        "json": json.dumps({"kind": "result"}) if values is None else values,
        "arrays": ["upload:a"] if names is None else names,
        "kinds": kinds,
    }
    array = array or Array(np.ones(4, np.float32))
    return RecordDict(
        {
            "values": ConfigRecord(config),
            "upload": ArrayRecord({"a": array}),
            "metrics": MetricRecord(metrics or {"x": 1}),
        }
    )


def test_usable_records_are_read():
    assert from_records(records_with()).tensors["0"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"values": ConfigRecord({"json": "{}"})}),
        records_with(values="not json"),
        records_with(values="[]"),
        records_with(values="[" * 100_000),
        records_with(names=["upload:b"]),
        records_with(names=["other:a"]),
        records_with(names=[]),
        records_with(names=["a"]),
        records_with(kinds="[]"),
        records_with(kinds='{"0": "bfloat16"}'),
        records_with(kinds='{"0": "object"}'),
        records_with(values='{"result": {"metrics": {"$metric": "absent"}}}'),
        records_with(array=Array("float32", (4,), "pickle", b"cos\nsystem\n")),
        records_with(array=Array("float32", (4,), "numpy.ndarray", b"junk")),
        records_with(array=Array("float32", (10**12,), "numpy.ndarray", header((10**12,)))),
        records_with(array=Array("float32", (4,), "numpy.ndarray", header((5,)))),
        records_with(array=Array("float32", (4,), "numpy.ndarray", header((-4,)))),
        records_with(array=Array("object", (2,), "numpy.ndarray", header((2,), "|O"))),
        records_with(array=Array("str", (4,), "numpy.ndarray", header((4,), "<U1"))),
    ],
)
def test_other_records_are_rejected(records):
    with pytest.raises(BadMessage, match="the records are not a message of fullrank"):
        from_records(records)
