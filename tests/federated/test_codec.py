"""Jobs and results as bytes: what goes in comes out, and bytes that are something else are rejected in one sentence."""

import json
import math
import pickle
import struct

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fullrank.channels import Mean, Sum
from fullrank.errors import InputError, RemoteError
from fullrank.federated.codec import BadMessage, decode, encode
from fullrank.federated.site import Job, Result
from fullrank.trees import Flat, FlatLayout

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
names = st.text(max_size=12)
numbers = st.integers(-(2**62), 2**62)
floats = st.floats(allow_nan=False)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    values = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    tensor = values.to(draw(st.sampled_from(DTYPES)))
    how = draw(st.sampled_from(["plain", "turned", "channels last", "part", "repeated"]))
    if how == "turned":
        return tensor.mT if tensor.dim() > 1 else tensor
    if how == "channels last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if how == "part" and tensor.dim():
        return tensor[1:]
    if how == "repeated" and tensor.dim() == 1:
        return tensor[:1].expand(3) if len(tensor) else tensor
    return tensor


flat = st.dictionaries(names, tensors(), max_size=4)
trees = st.dictionaries(names, tensors() | flat | st.dictionaries(names, flat, max_size=2), max_size=3)
plain = st.recursive(
    st.none() | st.booleans() | numbers | floats | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
jobs = st.builds(
    Job,
    kind=st.sampled_from(["train", "query", "personal"]),
    client=numbers,
    round=numbers,
    broadcast=trees,
    frozen=st.dictionaries(names, tensors(), max_size=3),
    personal=st.dictionaries(names, tensors(), max_size=3),
    state=st.none() | trees,
    query=st.tuples(names, names),
    evaluate=st.booleans(),
    show=st.booleans(),
    stage=st.sampled_from([None, "received", "local", "personalised"]),
)
parts = st.builds(Sum, trees) | st.builds(Mean, trees, floats | numbers)
results = st.builds(
    Result,
    client=numbers,
    samples=numbers,
    upload=st.dictionaries(names, st.dictionaries(names, parts, max_size=2), max_size=2),
    state=trees,
    metrics=st.dictionaries(names, plain, max_size=3),
    model=st.dictionaries(names, tensors(), max_size=3),
)


def assert_same(one, other):
    assert type(one) is type(other) or isinstance(one, dict)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
        if one.stride() != torch.empty(one.shape).stride() and is_dense(one):
            assert one.stride() == other.stride()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name, value in one.items():
            assert_same(value, other[name])
    elif isinstance(one, (Sum, Mean, Job, Result)):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


def is_dense(tensor):
    return tensor.numel() and tensor.contiguous().untyped_storage().nbytes() == (
        (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
    )


@settings(max_examples=60, deadline=None)
@given(jobs | results)
def test_what_goes_in_comes_out(message):
    assert_same(message, decode(encode(message)))


def a_job(**values):
    w = {"w": {"head.weight": torch.ones(2, 3)}, "buffers": {}, "sent": {"scaffold": {"c": {}}}}
    return Job("train", 1, 0, **{"broadcast": w, "frozen": {}, "personal": {}, "state": None, **values})


def test_names_of_empty_trees_and_the_order_of_names_stay():
    tree = {"b": {}, "a": {"z": torch.tensor(1.0), "y": {}}}
    assert list(decode(encode(a_job(broadcast=tree))).broadcast) == ["b", "a"]
    assert decode(encode(a_job(broadcast=tree))).broadcast["a"]["y"] == {}


def test_tensors_that_share_memory_come_apart():
    base = torch.arange(6.0)
    layout = FlatLayout.of({"a": base[:2], "b": base[2:].view(2, 2)})
    frozen = {"one": base, "two": base, "part": base[2:], "row": base.expand(2, 6)}
    given = a_job(frozen=frozen, state=Flat(base, layout))
    got = decode(encode(given))
    assert_same(vars(given)["frozen"], got.frozen)
    assert got.state["b"].tolist() == [[2, 3], [4, 5]]
    got.frozen["one"].zero_()
    assert got.frozen["two"].tolist() == base.tolist()


def test_values_of_losses_that_are_not_finite_travel():
    found = decode(encode(Result(0, 1, metrics={"epochs": [{"criterion": math.nan, "drift": math.inf}]})))
    epoch = found.metrics["epochs"][0]
    assert math.isnan(epoch["criterion"])
    assert epoch["drift"] == math.inf


def test_numbers_of_numpy_travel_as_pythons():
    found = decode(encode(Result(0, 1, metrics={"a": np.float32(0.5), "b": [np.float64(0.1), np.int64(3)]})))
    assert found.metrics == {"a": 0.5, "b": [0.1, 3]}
    assert [type(value) for value in found.metrics["b"]] == [float, int]


def test_an_error_travels_as_its_kind_sentence_and_traceback():
    try:
        raise ZeroDivisionError("nothing to divide by")
    except ZeroDivisionError as error:
        result = decode(encode(Result(3, 5, error=error)))
    assert isinstance(result.error, RemoteError)
    assert (result.error.kind, str(result.error)) == ("ZeroDivisionError", "nothing to divide by")
    assert "test_codec.py" in result.error.traceback
    again = decode(encode(result)).error
    assert (again.kind, again.message, again.traceback) == (
        result.error.kind,
        result.error.message,
        result.error.traceback,
    )


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Result(0, 1, upload={"": {"w": {"a": torch.ones(1)}}}), "/w is a dict; uploads are a Sum or a Mean"),
        (Result(0, 1, upload={"": {"w": Sum({"a": 1.0})}}), "/w/a is a float, not a dict of tensors by name"),
        (Result(0, 1, upload={"": {"w": Sum({1: torch.ones(1)})}}), "/w has the name 1, which is not text"),
        (Result(0, 1, model={"a": torch.empty(1, device="meta")}), "model/a cannot be sent: it has no values"),
        (Result(0, 1, model={"a": torch.ones(2).to_sparse()}), "it is of layout torch.sparse_coo"),
        (Result(0, 1, model={"a": torch.ones(2, dtype=torch.complex128)}), "a tensor cannot be sent"),
        (Result(0, 1, metrics={"a": object()}), "metrics.a holds a object, which is not a plain value"),
    ],
)
def test_what_cannot_be_sent_is_said(message, sentence):
    with pytest.raises(InputError, match=sentence.replace(".", r"\.")):
        encode(message)


def sealed(form, tensors=None, version=1, length=None, numbers=None):
    """A message with a right checksum, whatever is in it."""
    text = form if isinstance(form, bytes) else json.dumps(form).encode()
    numbers = save(tensors or {}) if numbers is None else numbers
    body = struct.pack("<Q", len(text) if length is None else length) + text + numbers
    return struct.pack("<8sI8s", b"fullrank", version, xxhash.xxh64_digest(body)) + body


def form_of(**values):
    form = {"type": "job", "kind": "train", "client": 0, "round": 0, "broadcast": {}, "frozen": {}, "personal": {}}
    form |= {"state": None, "query": ["", ""], "evaluate": False, "show": False, "stage": None, "strides": {}}
    return {**form, **values}


RESULT = {"type": "result", "client": 0, "samples": 1, "upload": {}, "state": {}, "metrics": {}, "model": {}}
RESULT |= {"error": None, "strides": {}}
DEEP = b'{"a":' * 100_000
STRANGE = b'{"0":{"dtype":"X1","shape":[1],"data_offsets":[0,4]}}'.ljust(56)
BAD = {
    "nothing": b"",
    "a pickle": pickle.dumps(a_job()),
    "another version": sealed(form_of(), version=2),
    "a header that is too long": sealed(form_of(), length=2**63),
    "a header that is longer than the message": sealed(form_of(), length=10_000),
    "no text": sealed(b"\xff\xfe\x00"),
    "no JSON": sealed(b"{"),
    "nesting without end": sealed(DEEP),
    "a number without end": sealed(b'{"type": ' + b"9" * 10_000 + b"}"),
    "a list": sealed([]),
    "an unhashable type": sealed({"type": ["job"]}),
    "another type": sealed({"type": "os.system"}),
    "no kind": sealed({key: value for key, value in form_of().items() if key != "kind"}),
    "another kind": sealed(form_of(kind="__class__")),
    "text for a number": sealed(form_of(client="1")),
    "truth for a number": sealed(form_of(client=True)),
    "a list for a tree": sealed(form_of(broadcast=[])),
    "text for a tensor": sealed(form_of(frozen={"a": "0"})),
    "truth for a tensor": sealed(form_of(frozen={"a": True}), {"1": torch.ones(1)}),
    "a tensor that is not there": sealed(form_of(frozen={"a": 0})),
    "a tensor twice": sealed(form_of(frozen={"a": 0, "b": 0}), {"0": torch.ones(1)}),
    "a tensor too many": sealed(form_of(), {"0": torch.ones(1)}),
    "strides of another shape": sealed(form_of(frozen={"a": 0}, strides={"0": [1, 2]}), {"0": torch.ones(3)}),
    "strides without end": sealed(form_of(frozen={"a": 0}, strides={"0": [10**15]}), {"0": torch.ones(3)}),
    "strides of text": sealed(form_of(frozen={"a": 0}, strides={"0": ["1"]}), {"0": torch.ones(3)}),
    "three names in a query": sealed(form_of(query=["a", "b", "c"])),
    "a mean without a weight": sealed({**RESULT, "upload": {"": {"w": {"kind": "Mean", "tree": {}}}}}),
    "another upload": sealed({**RESULT, "upload": {"": {"w": {"kind": "Eval", "tree": {}}}}}),
    "an error that is no error": sealed({**RESULT, "error": {"kind": 1}}),
    "no safetensors": sealed(form_of(), numbers=b"\x08\x00\x00\x00\x00\x00\x00\x00{}      more"),
    "a safetensors header without end": sealed(form_of(), numbers=b"\xff" * 16),
    "a dtype that is none": sealed(form_of(frozen={"a": 0}), numbers=struct.pack("<Q", 56) + STRANGE + b"0000"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bytes_that_are_no_message_raise_one_sentence(content):
    with pytest.raises(BadMessage) as raised:
        decode(content)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_message_that_was_cut_off_or_changed_is_noticed():
    whole = encode(a_job())
    assert_same(decode(whole), a_job())
    for end in range(len(whole)):
        with pytest.raises(BadMessage):
            decode(whole[:end])
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(BadMessage):
            decode(changed)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_message_or_an_error(content, with_header):
    with pytest.raises(BadMessage):
        decode(sealed(content) if with_header else content)
