"""Clients that the data name: writers, hospitals."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fullrank as fr
from fullrank import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import divide
from fullrank.data.heterogeneity import draw_text
from fullrank.errors import InputError


def data_set():
    y = torch.tensor([0, 1, 0, 1, 1])
    train = Split(torch.arange(10.0).view(5, 2), y, client=torch.tensor([2, 0, 2, 0, 2]))
    test = Split(torch.ones(3, 2), y[:3], client=torch.tensor([0, 2, 2]))
    return DataSet("mine", train, test, ("a", "b"), clients=("x", "y", "z"))


def divided(clients=0, **keys):
    experiment = Experiment(data={"partition": "natural", "clients": clients, **keys})
    return divide(data_set(), Pipeline(), "natural", {**experiment.data.model_dump(), "seed": 0})


def test_each_natural_client_is_a_client_with_its_own_test_samples():
    federation = divided()
    assert [part.tolist() for part in federation.parts] == [[1, 3], [0, 2, 4]]
    assert [part.tolist() for part in federation.tests] == [[0], [1, 2]]
    assert federation.names == ("x", "z")


def test_their_number_follows_from_the_data_unless_it_is_given():
    assert Experiment(data={"partition": "natural"}).data.clients == 0
    assert Experiment(data={"partition": "natural", "clients": 2}).data.clients == 2
    assert Experiment().data.clients == 10
    assert divided(clients=2).clients == 2
    with pytest.raises(InputError, match=r"data\.clients = 3: natural divides the data among 2 clients"):
        divided(clients=3)


def test_data_without_natural_clients_are_rejected():
    data = data_set()
    bare = DataSet("mine", data.train.take(torch.from_numpy(np.arange(5))), None, ("a", "b"))
    object.__setattr__(bare.train, "client", None)
    with pytest.raises(InputError, match="the data set has no natural"):
        divide(bare, Pipeline(), "natural", {**Experiment(data={"partition": "natural"}).data.model_dump(), "seed": 0})


def test_clients_with_too_few_samples_for_a_hold_out_are_kept():
    federation = divided(holdout=0.4)  # of two samples and of three
    assert [len(held) for held in federation.holdouts] == [0, 1]
    assert [len(part) for part in federation.parts] == [2, 2]


def test_a_client_whose_samples_are_all_left_out_has_no_name_and_no_test_samples():
    y = torch.tensor([0] * 10 + [1])
    clients = torch.tensor([1] * 5 + [2] * 5 + [0])  # that of the only sample of a class is never split off
    train = Split(torch.zeros(11, 1), y, client=clients)
    test = Split(torch.zeros(3, 1), y[:3], client=torch.tensor([2, 1, 0]))
    data = DataSet("mine", train, test, ("a", "b"), clients=("x", "y", "z"))
    for seed in range(20):
        keys = Experiment(data={"partition": "natural", "share": 0.2}).data.model_dump()
        federation = divide(data, Pipeline(), "natural", {**keys, "seed": seed})
        names = ["xyz"[int(clients[part[0]])] for part in federation.parts]
        assert list(federation.names) == names
        assert [int(test.client[own[0]]) for own in federation.tests] == ["xyz".index(name) for name in names]


def test_thousands_of_clients_take_a_moment(tmp_path):
    rng = np.random.default_rng(0)
    number = 3000
    clients = torch.from_numpy(rng.permutation(np.repeat(np.arange(number), rng.integers(1, 40, number))))
    x, y = torch.zeros(len(clients), 4), torch.from_numpy(rng.integers(0, 10, len(clients)))
    names = tuple(f"writer{k:04}" for k in range(number))
    split = Split(x, y, group=torch.from_numpy(rng.integers(0, 3, len(clients))) + 3 * clients, client=clients)
    test = Split(x, y, client=clients)
    data = DataSet("writers", split, test, tuple(map(str, range(10))), clients=names)
    keys = Experiment(data={"partition": "natural", "holdout": 0.2, "validation": 0.1}).data.model_dump()
    start = time.perf_counter()
    federation = divide(data, Pipeline(), "natural", {**keys, "seed": 0})
    facts, saved = federation.describe(), federation.tensors()
    assert time.perf_counter() - start < 10  # about one second; with steps that are quadratic in clients, minutes
    assert federation.clients == len(federation.tests) == len(federation.names) > 2900
    assert sum(map(len, federation.tests)) <= len(test)
    assert sum(facts["sizes"]) + facts["holdout"] + facts["validation"] == len(split)
    assert bytes(saved["names"].tolist()).startswith(b'["writer0')


def test_the_table_and_the_figure_name_few_clients():
    counts = np.array([[3, 0], [1, 2]])
    lines = draw_text(counts, ["a", "b"], 60, ["st-thomas", "a\x1bhospital-with-a-very-long-name"]).splitlines()
    assert lines[0].split() == ["client", "size", "a", "b"]
    assert lines[1].split()[:2] == ["st-thomas", "3"]
    assert lines[2].split()[:2] == ["a?hospital-with-a-v…", "3"]
    assert lines[0].index("size") + 4 == lines[1].index("3") + 1
    many = np.ones((41, 2), int)
    assert draw_text(many, None, 60, [f"site{k}" for k in range(41)]).splitlines()[1].split()[0] == "0"


# Partitions in files


def again(path, data=None, **keys):
    experiment = Experiment(data={"partition": str(path), **keys})
    return divide(data or data_set(), Pipeline(), str(path), {**experiment.data.model_dump(), "seed": 0})


@pytest.mark.parametrize("named", [True, False])
def test_a_saved_partition_by_site_keeps_the_test_samples_of_the_sites(named, tmp_path):
    data = data_set() if named else replace(data_set(), clients=())
    experiment = Experiment(data={"partition": "natural", "validation": 0.4})
    one = divide(data, Pipeline(), "natural", {**experiment.data.model_dump(), "seed": 0})
    save_file(one.tensors(), tmp_path / "saved.safetensors")
    two = again(tmp_path / "saved.safetensors", data)
    assert two.names == (("x", "z") if named else ("0", "2"))
    assert [part.tolist() for part in two.tests] == [[0], [1, 2]]
    assert [part.tolist() for part in two.validations] == [part.tolist() for part in one.validations]
    assert sum(map(len, two.validations)) == len(one.validation) > 0


def test_a_table_that_gives_sites_their_own_samples_keeps_their_test_samples(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("sample,client\n0,z\n1,x\n2,z\n")  # not all of them
    federation = again(path)
    assert (federation.names, [part.tolist() for part in federation.tests]) == (("x", "z"), [[0], [1, 2]])


@pytest.mark.parametrize(
    "rows", ["0,x\n1,z\n", "0,z\n1,x\n2,x\n", "0,north\n1,x\n"], ids=["swapped", "mixed", "another-name"]
)
def test_clients_with_other_names_or_samples_than_sites_have_no_test_samples(rows, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("sample,client\n" + rows)
    federation = again(path)
    assert federation.tests == federation.validations == []


@pytest.fixture
def wards(tmp_path, monkeypatch):
    """A table of three wards in the current directory; some of their rows are for the test."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{k},{'ab'[k % 2]},{'nse'[k // 2 % 3]},{'test' if k % 5 == 0 else 'train'}" for k in range(60)]
    (tmp_path / "wards.csv").write_text("\n".join(["x,label,client,split", *rows]))
    return {"data.name": "wards.csv", "model.name": "mlp", "model.width": 4, "train.rounds": 1}


def test_a_run_on_a_saved_partition_evaluates_at_sites_or_says_that_it_does_not(wards, tmp_path):
    one = fr.run({**wards, "data.partition": "natural"}, "one")
    two = fr.run({**wards, "data.partition": "one/partition.safetensors"}, "two")
    assert set(one.metrics[-1]["accuracy_by_site"]) == {"n", "s", "e"}
    assert two.metrics[-1]["accuracy_by_site"] == one.metrics[-1]["accuracy_by_site"]
    (tmp_path / "mine.csv").write_text("sample,client\n" + "".join(f"{k},{'nsw'[k % 3]}\n" for k in range(40)))
    with pytest.warns(
        UserWarning, match=r'the clients of "mine.csv" are not natural clients of "wards" by their names'
    ):
        three = fr.run({**wards, "data.partition": "mine.csv"}, "three")
    assert "accuracy_by_site" not in three.metrics[-1]
