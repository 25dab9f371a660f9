"""Partitions in files: a CSV with the client of each sample, and the partition that a run saved."""

import csv
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import fullrank as fr
from commands import fullrank
from fullrank import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import divide
from fullrank.errors import InputError
from fullrank.plugins import is_foreign

SMALL = {"model.name": "mlp", "model.width": 4, "train.rounds": 1}


def data_set(group=None):
    y = torch.tensor([0, 1] * 5)
    train = Split(torch.arange(20.0).view(10, 2), y, group=None if group is None else torch.tensor(group))
    return DataSet("mine", train, None, ("a", "b"))


def divided(path, group=None, **table):
    keys = Experiment(data={"partition": str(path), **table}).data.model_dump()
    return divide(data_set(group), Pipeline(), str(path), {**keys, "seed": 0})


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def lists(arrays):
    return [array.tolist() for array in arrays]


WITH_PARTS = "sample,client,part\n7,north,train\n1,south,\n0,south,train\n2,south,holdout\n9,,validation\n"


@pytest.mark.parametrize(
    "text",
    [
        WITH_PARTS,
        WITH_PARTS.replace(",", ";"),
        WITH_PARTS.replace(",", "\t"),
        WITH_PARTS.replace(",", "|"),
        "\ufeff" + WITH_PARTS,
        WITH_PARTS.replace("\n", "\r\n"),
        WITH_PARTS.rstrip("\n"),
        WITH_PARTS.replace("\n", "\n\n").replace("7,north", ' 7 , "north"'),
        "Part,Sample,Client\n,7,north\n,1,south\ntrain,0,south\nholdout,2,south\nvalidation,9,south\n",
    ],
    ids=[
        "commas",
        "semicolons",
        "tabs",
        "bars",
        "byte-order-mark",
        "crlf",
        "no-last-newline",
        "blank-rows",
        "other-order",
    ],
)
def test_a_csv_says_who_has_which_sample(text, tmp_path):
    federation = divided(written(tmp_path / "mine.csv", text))
    assert federation.names == ("north", "south")
    assert lists(federation.parts) == [[7], [1, 0]]
    assert lists(federation.holdouts) == [[], [2]]
    assert federation.validation.tolist() == [9]
    assert federation.unassigned == 5


def test_numbers_of_clients_are_sorted_as_numbers(tmp_path):
    assert divided(written(tmp_path / "a.csv", "sample,client\n0,10\n1,9\n2,010\n")).names == ("9", "010", "10")
    assert divided(written(tmp_path / "b.csv", "sample,client\n0,10\n1,9\n2,x\n")).names == ("10", "9", "x")


def test_a_csv_without_parts_leaves_hold_outs_and_validation_to_the_keys(tmp_path):
    text = "sample,client\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(10))
    federation = divided(written(tmp_path / "mine.csv", text), holdout=0.5, validation=0.2)
    assert len(federation.validation) == 2
    assert [len(held) for held in federation.holdouts] == [2, 2]
    assert [len(part) for part in federation.parts] == [2, 2]
    for client, pair in enumerate(zip(federation.parts, federation.holdouts, strict=True)):
        assert all(sample % 2 == client for part in pair for sample in part)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; its first row must name the columns"),
        ("sample,client\n", "gives no sample to a client"),
        ("sample,client,part\n3,a,validation\n", "gives no sample to a client"),
        ("0,a\n1,b\n", "has the columns 0, a; sample and client must be among them"),
        ("sample,hospital\n0,a\n", "client must be among them"),
        ("sample,client,split\n0,a,test\n", '"split" is not known, only sample, client and part are'),
        ("sample,client,client\n0,a,b\n", 'two columns are called "client"'),
        ("sample,client,Client\n0,a,b\n", "one of them twice"),
        ("sample,client\n0,a\n0,b\n", "row 3 of .*: sample 0 is in row 2 already"),
        ("sample,client\n0,a\n10,b\n", "row 3 of .*: there is no sample 10; the training split has 10 samples"),
        ("sample,client\n" + "9" * 5000 + ",b\n", "row 2 of .*: there is no sample 9"),
        ("sample,client\n-1,a\n", 'row 2 of .*: sample is "-1"'),
        ("sample,client\n0,a\n\n1.0,a\n", 'row 4 of .*: sample is "1.0"; it must be the position'),
        ("sample,client\n0\n", "row 2 has 1 cells, and the header 2"),
        ("sample,client\n0,a,b\n", "row 2 has 3 cells"),
        ("sample,client\n0,\n", "row 2 of .*: the client is empty"),
        ("sample,client,part\n0,a,test\n", 'row 2 of .*: part is "test"; it must be train, holdout or validation'),
        ('sample,client\n0,"a\n', "row 2 cannot be read"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_row(text, words, tmp_path):
    with pytest.raises(InputError, match=words) as caught:
        divided(written(tmp_path / "mine.csv", text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_files_that_are_no_csv_are_rejected(tmp_path):
    with pytest.raises(InputError, match="row 1 is not UTF-8"):
        divided(written(tmp_path / "mine.csv", "sample,client\n0,a\n", "utf-16"))
    with pytest.raises(InputError, match="there is no file"):
        divided(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="there is no file"):
        divided(tmp_path / "folder.csv")


def test_keys_that_a_file_leaves_no_room_for_are_rejected(tmp_path):
    path = written(tmp_path / "mine.csv", WITH_PARTS)
    for table, words in (
        ({"holdout": 0.2}, "a CSV with a column part, brings its own"),
        ({"share": 0.5}, "data.share: a partition in a file says which samples are used"),
        ({"clients": 3}, "data.clients = 3, but the partition .* has 2 clients"),
        ({"partition_options": {"a": 1}}, "takes no options"),
    ):
        with pytest.raises(InputError, match=words):
            divided(path, **table)


def test_groups_are_not_torn_between_training_and_hold_out(tmp_path):
    path = written(tmp_path / "mine.csv", WITH_PARTS)
    with pytest.raises(InputError, match=r"a group of samples .* is both in training and in a hold-out"):
        divided(path, group=[0, 1, 1, 2, 3, 4, 5, 6, 7, 8])
    assert divided(path, group=list(range(10))).groups.tolist() == [1, 2]


def test_a_name_with_a_colon_is_a_path():
    assert not is_foreign("data.partition", "D:mine.csv")
    assert Experiment.of({"data.partition": "D:mine.csv"}).data.clients == 0


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    """A CSV in the current directory that divides the digits among three clients."""
    monkeypatch.chdir(tmp_path)
    with open("mine.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", "client"])
        writer.writerows([k, ("west", "east", "north")[k % 3]] for k in range(300))
    return {**SMALL, "data.partition": "mine.csv", "data.holdout": 0.1, "data.validation": 0.1}


def test_a_run_records_it_and_continues_only_with_the_same(by_hand, tmp_path):
    run = fr.run(by_hand, "run")
    facts = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert (facts["clients"], facts["names"]) == (3, ["east", "north", "west"])
    assert fr.run({**by_hand, "train.rounds": 2}, "run").metrics[0] == run.metrics[0]
    (tmp_path / "mine.csv").write_text("sample,client\n0,a\n1,b\n2,c\n")
    with pytest.raises(InputError, match="the partition is not what it was"):
        fr.run({**by_hand, "train.rounds": 3, "data.holdout": 0.1}, "run")
    (tmp_path / "mine.csv").unlink()
    loaded = fr.load_run("run")
    federation = loaded._assembled().federation
    assert federation.names == ("east", "north", "west")
    assert sum(map(len, federation.holdouts)) == facts["holdout"]
    assert loaded.client_model(1) is not None


def test_a_saved_partition_brings_the_names_and_the_number_of_clients(by_hand, tmp_path, capsys):
    fr.run(by_hand, "run")
    again = {**SMALL, "data.partition": "run/partition.safetensors"}
    run = fr.run(again, "again")
    assert run.experiment.data.clients == 0
    assert json.loads((tmp_path / "again" / "partition.json").read_text())["names"] == ["east", "north", "west"]
    words = [word for key, value in again.items() for word in ("--set", f"{key}={value}")]
    status, out, _ = fullrank("partition", *words, capsys=capsys)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["east", "north", "west"]


def test_a_saved_partition_without_names_can_be_read(by_hand, tmp_path):
    fr.run(by_hand, "run")
    tensors = load_file(tmp_path / "run" / "partition.safetensors")
    del tensors["names"]
    save_file(tensors, "earlier.safetensors")
    fr.run({**SMALL, "data.partition": "earlier.safetensors", "data.clients": 3}, "again")
    assert "names" not in json.loads((tmp_path / "again" / "partition.json").read_text())
    assert np.array_equal(tensors["train"], load_file(tmp_path / "again" / "partition.safetensors")["train"])


@settings(max_examples=200, deadline=None)
@given(
    header=st.sampled_from(["sample,client\n", "sample;client;part\r\n", "client\tsample\n", ""]),
    rest=st.text(st.sampled_from('0123456789abc,;\t"\n\r -.\ufeff\x00²é'), max_size=40) | st.binary(max_size=30),
)
def test_any_bytes_are_a_partition_or_one_sentence(header, rest, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(header.encode() + (rest if isinstance(rest, bytes) else rest.encode()))
    try:
        federation = divided(path)
    except InputError as error:
        problem = str(error)
    else:
        problem = ""
        assert 0 < len(federation.names) == federation.clients
    assert "\n" not in problem
