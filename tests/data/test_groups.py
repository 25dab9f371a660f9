"""Data with groups (samples of one patient): no group is on two sides of any split."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import fullrank as fr
from commands import fullrank
from fullrank import Experiment
from fullrank.data import DataSet, Pipeline, Split, load_dataset, partition
from fullrank.data.federation import divide
from fullrank.data.groups import choose_groups, members
from fullrank.data.registry import PARTITIONS
from fullrank.data.split import keep_share, split_by_class
from fullrank.errors import InputError

SAMPLES = 60
MLP = ("--set", "model.name=mlp", "--set", "model.width=4", "--set", "train.rounds=1", "--set", "data.clients=3", "-q")


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """60 samples of 20 patients at three sites, in the current directory; each patient has both classes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(SAMPLES, 3)).astype(np.float32), np.arange(SAMPLES) % 2
    extra = {"group_train": np.arange(SAMPLES) // 3, "domain_train": np.arange(SAMPLES) // 20}
    np.savez("patients.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], **extra)
    return load_dataset("patients.npz")


def words(**values):
    return [word for key, value in values.items() for word in ("--set", f"data.{key}={value}")]


def divided(data, seed=0, **table):
    """The data, divided by an experiment's table [data]."""
    keys = Experiment(data={"clients": 3, **table}).data.model_dump(exclude={"partition_options"})
    return divide(data, Pipeline(), keys["partition"], {**keys, "seed": seed})


# The rule by which whole groups are chosen


@pytest.mark.parametrize(
    ("sizes", "wanted", "most", "want"),
    [
        ([1, 1, 1, 1], 2, 3, [0, 1]),
        ([3, 3, 3], 4, 2, [0]),  # a second would make it 6, which is further from 4 than 3 is
        ([3, 3, 3], 5, 2, [0, 1]),
        ([9, 2, 9], 3, 2, [1]),  # 9 is further from 3 than 0 is
        ([9, 8, 9], 3, 2, [1]),  # none brings it nearer, so that the smallest is taken
        ([9, 8, 9], 0, 2, []),
        ([5], 3, 0, []),  # the last group stays
    ],
)
def test_groups_are_chosen_in_order_while_the_total_gets_nearer(sizes, wanted, most, want):
    assert np.flatnonzero(choose_groups(sizes, wanted, most)).tolist() == want


def test_a_share_of_every_class_is_split_off_in_whole_groups():
    # ten groups of two for each of three classes; a fifth of 20 are 4 samples of each, so two groups
    y, groups = np.repeat([0, 1, 2], 20), np.arange(60) // 2
    keep, taken = split_by_class(y, 0.2, 0, groups)
    assert np.bincount(y[taken]).tolist() == [4, 4, 4]
    assert len(np.unique(groups[taken])) == 6
    assert np.array_equal(np.sort(np.concatenate([keep, taken])), np.arange(60))
    assert not set(groups[keep]) & set(groups[taken])


def test_classes_are_met_as_nearly_as_whole_groups_allow():
    # of 8 + 8 samples a quarter are 2 of each; each group has a sample of each class, so two groups are exact
    y, groups = np.tile([0, 1], 8), np.arange(16) // 2
    assert np.bincount(y[split_by_class(y, 0.25, 3, groups)[1]]).tolist() == [2, 2]
    # a class of which both groups are far too large gives none; the total is made up by the other one's
    y, groups = np.array([0] * 20 + [1] * 20), np.array([0] * 10 + [1] * 10 + list(range(2, 22)))
    assert np.bincount(y[split_by_class(y, 0.1, 0, groups)[1]], minlength=2).tolist() == [0, 2]


def test_the_last_group_of_a_class_is_never_split_off():
    y, groups = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 2])
    for seed in range(10):
        assert 0 in y[split_by_class(y, 0.5, seed, groups)[0]]
    assert len(split_by_class(y, 0.9, 0, np.zeros(6, int))[1]) == 0


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_groups_of_one_sample_give_the_split_without_groups(share):
    rng = np.random.default_rng(5)
    y, single = rng.integers(0, 7, 300), rng.permutation(300)
    for plain, grouped in (
        (split_by_class(y, share, 4), split_by_class(y, share, 4, single)),
        ((keep_share(y, share, 4),), (keep_share(y, share, 4, single),)),
    ):
        assert all(map(np.array_equal, plain, grouped))
    parts = partition.iid(y, 5, 0)
    pairs = partition.hold_out(parts, share, 1), partition.hold_out(parts, share, 1, single)
    for plain, grouped in zip(*pairs, strict=True):
        assert all(map(np.array_equal, plain, grouped))


def test_a_group_at_several_clients_is_not_held_out():
    groups = np.array([0, 0, 1, 1, 0, 0, 2, 2])
    training, held_out = partition.hold_out([np.arange(4), np.arange(4, 8)], 0.5, 0, groups)
    assert [sorted(part.tolist()) for part in held_out] == [[2, 3], [6, 7]]
    assert [sorted(part.tolist()) for part in training] == [[0, 1], [4, 5]]


def test_members_are_in_the_order_of_their_first_samples():
    assert [m.tolist() for m in members(np.array([9, 1, 9, 1, 4]))] == [[0, 2], [1, 3], [4]]
    assert members(np.array([], int)) == []


# Every partition, with random groups

WAYS = [
    {"partition": "iid"},
    {"partition": "dirichlet", "alpha": 0.5, "variant": "plain"},
    {"partition": "dirichlet", "alpha": 0.5, "variant": "fedetf"},
    {"partition": "dirichlet", "alpha": 0.5, "variant": "fedrepopt"},
    {"partition": "dirichlet", "alpha": 2.0, "variant": "balanced"},
    {"partition": "dirichlet", "alpha": math.inf},
    {"partition": "pathological", "variant": "balanced"},
    {"partition": "pathological", "variant": "niid-bench"},
    {"partition": "pathological", "variant": "shards"},
    {"partition": "class-disjoint"},
    {"partition": "domain", "clients": 0},
    {"partition": "domain", "clients": 0, "equal": 0.5},
    {"partition": "natural", "clients": 0},
]


def test_every_partition_is_tried_with_groups():
    assert {way["partition"] for way in WAYS} == set(PARTITIONS.own)
    assert {way["variant"] for way in WAYS if "variant" in way} == {v for of in partition.VARIANTS.values() for v in of}


def data_of(groups, seed, mixed=False, apart=True):
    """Data with these groups; `mixed`: groups have several classes; `apart`: a group is at one site."""
    rng = np.random.default_rng(seed)
    number = len(groups)
    y = rng.integers(0, 4, number) if mixed else rng.integers(0, 4, groups.max() + 1)[groups]
    sites = rng.integers(0, 3, groups.max() + 1)[groups] if apart else rng.integers(0, 3, number)
    columns = {"domain": torch.from_numpy(sites), "client": torch.from_numpy(sites), "group": torch.from_numpy(groups)}
    train = Split(torch.zeros(number, 1), torch.from_numpy(y), **columns)
    return DataSet("mine", train, None, ("a", "b", "c", "d"))


def sides(federation):
    """The samples of each side of a federation's splits."""
    return [*federation.parts, *federation.holdouts, federation.validation]


random_groups = st.builds(
    lambda seed, number, size: np.random.default_rng(seed).permutation(
        np.repeat(np.arange(number), np.random.default_rng(seed).integers(1, size + 1, number))
    ),
    st.integers(0, 1000),
    st.integers(50, 90),
    st.integers(1, 12),
)
shares = st.sampled_from([0.0, 0.1, 0.35])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@settings(max_examples=15, deadline=None)
@given(groups=random_groups, seed=st.integers(0, 50), holdout=shares, validation=shares, whole=st.booleans())
def test_no_group_is_on_two_sides_of_a_split(way, groups, seed, holdout, validation, whole):
    data = data_of(groups, seed, mixed=way["partition"] in ("iid", "domain", "natural"))
    table = {**way, "holdout": holdout, "validation": validation, "share": 1.0 if whole else 0.9}
    try:
        federation = divided(data, seed, **table)
    except InputError:  # too few groups for so many clients
        reject()
    found = sides(federation)
    of_side = [set(groups[side].tolist()) for side in found]
    assert sum(map(len, of_side)) == len(set().union(*of_side))
    used = np.concatenate(found)
    assert len(np.unique(used)) == len(used) == len(groups) - federation.unassigned
    assert federation.groups.tolist() == [len(of) for of in of_side[: federation.clients]]
    assert divided(data, seed, **table).hash == federation.hash
    # whole groups: of each group all samples are on its side
    assert all(np.isin(np.flatnonzero(np.isin(groups, groups[side])), side).all() for side in found)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_of_one_sample_divide_data_as_no_groups_do(way, seed):
    single = np.random.default_rng(seed).permutation(200)
    data = data_of(single, seed)
    bare = dataclasses.replace(data, train=dataclasses.replace(data.train, group=None))
    table = {**way, "holdout": 0.2, "validation": 0.1, "share": 0.8}
    assert divided(data, seed, **table).hash == divided(bare, seed, **table).hash


@settings(max_examples=25, deadline=None)
@given(groups=random_groups, seed=st.integers(0, 50), way=st.sampled_from(["domain", "natural"]))
def test_groups_at_several_sites_are_never_both_trained_and_evaluated_on(groups, seed, way):
    federation = divided(data_of(groups, seed, apart=False), partition=way, clients=0, holdout=0.3, validation=0.2)
    trained = set(groups[np.concatenate(federation.parts)].tolist())
    apart = [set(groups[side].tolist()) for side in (*federation.holdouts, federation.validation)]
    assert not trained & set().union(*apart)
    assert sum(map(len, apart)) == len(set().union(*apart))


@settings(max_examples=40, deadline=None)
@given(groups=random_groups, seed=st.integers(0, 50), share=st.sampled_from([0.05, 0.2, 0.5, 0.9]), mixed=st.booleans())
def test_the_share_is_exceeded_by_less_than_one_group(groups, seed, share, mixed):
    y = data_of(groups, seed, mixed).train.y.numpy()
    keep, taken = split_by_class(y, share, seed, groups)
    assert not set(groups[keep].tolist()) & set(groups[taken].tolist())
    assert np.array_equal(np.sort(np.concatenate([keep, taken])), np.arange(len(groups)))
    assert set(y[keep].tolist()) == set(y.tolist())
    assert len(taken) < math.ceil(share * len(groups)) + np.bincount(groups).max()


def test_groups_of_several_classes_are_divided_by_iid_only():
    data = data_of(np.arange(120) // 3, 0, mixed=True)
    for name in ("dirichlet", "pathological", "class-disjoint"):
        with pytest.raises(InputError, match=rf'"{name}": .* of 40 groups .* several classes; take "iid"'):
            divided(data, partition=name)
    assert sum(divided(data, partition="iid").groups) == 40


def test_a_message_about_samples_says_that_they_are_groups():
    data = data_of(np.repeat(np.arange(20), 5), 0)
    with pytest.raises(
        InputError, match=r"each client 10 samples .*the data have groups: each of the 20 groups counts as one"
    ):
        divided(data, partition="dirichlet")
    with pytest.raises(InputError, match=r"data.passes = 2: .* set data.passes = 1"):
        divided(data, partition="class-disjoint", passes=2)


# End to end


@pytest.mark.parametrize("method", ["fedavg", "moon+feddecorr", "scaffold", "fedmr", "ditto"])
def test_methods_of_every_kind_run_on_data_with_groups(method, tmp_path):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 3)
    x, y = rng.normal(size=(120, 6)).astype(np.float32), groups % 3
    np.savez(tmp_path / "g.npz", x=x, y=y, group=groups)
    table = {"name": str(tmp_path / "g.npz"), "clients": 3, "partition": "dirichlet", "variant": "plain"}
    model = {"name": "mlp", "width": 4}
    run = fr.run(
        {"data": {**table, "alpha": 5.0, "holdout": 0.3}, "model": model, "method.name": method, "train.rounds": 1},
        tmp_path / "run",
    )
    facts = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert sum(facts["groups"]) + facts["holdout"] // 3 == 40 - facts["data"]["test"] // 3
    assert all(size == 3 * groups for size, groups in zip(facts["sizes"], facts["groups"], strict=True))
    assert len(run.metrics) == 1


def test_the_command_shows_how_many_groups_clients_have(patients, capsys):
    status, out, _ = fullrank("partition", *words(name="patients.npz", partition="iid", clients=4), capsys=capsys)
    assert status == 0
    assert "groups per client    5 to 5, median 5" in out


def test_a_test_set_is_split_off_in_whole_groups(tmp_path):
    x, y, groups = torch.randn(60, 3), torch.arange(60) // 6 % 2, torch.arange(60) // 3
    data = load_dataset(Split(x, y, group=groups))
    assert torch.bincount(data.test.y).tolist() == [6, 6]
    assert not set(data.train.group.tolist()) & set(data.test.group.tolist())
    np.savez(tmp_path / "whole.npz", x=x.numpy(), y=y.numpy(), group=groups.numpy())
    loaded = load_dataset(tmp_path / "whole.npz")
    assert torch.equal(loaded.train.x, data.train.x)
    with pytest.raises(InputError, match="no class has two groups"):
        load_dataset(Split(x, y, group=y))


def test_a_group_in_training_and_test_is_an_error(tmp_path):
    x, y = np.zeros((6, 3), np.float32), np.arange(6) % 2
    groups = {"group_train": list("aabbcc"), "group_test": list("dcbbdd")}
    np.savez(tmp_path / "both.npz", x_train=x, y_train=y, x_test=x, y_test=y, **groups)
    with pytest.raises(
        InputError, match=r"^.*: 2 groups of both .* first that of training sample 2 and test sample 2;"
    ):
        load_dataset(tmp_path / "both.npz")
    groups["group_test"] = list("deffgg")
    np.savez(tmp_path / "both.npz", x_train=x, y_train=y, x_test=x, y_test=y, **groups)
    assert load_dataset(tmp_path / "both.npz").test.group.tolist() == [3, 4, 5, 5, 6, 6]


def partition_file(data, train, holdout):
    return {
        "train": torch.cat(train),
        "train_sizes": torch.tensor([len(part) for part in train]),
        "holdout": torch.cat(holdout),
        "holdout_sizes": torch.tensor([len(part) for part in holdout]),
        "validation": torch.empty(0, dtype=torch.int64),
        "fingerprint": torch.tensor(list(bytes.fromhex(data.fingerprint())), dtype=torch.uint8),
    }


def test_a_partition_of_ones_own_keeps_groups_together_or_is_rejected(patients, capsys):
    whole = [torch.arange(20 * k, 20 * k + 15) for k in range(3)]
    held = [torch.arange(20 * k + 15, 20 * k + 20) for k in range(3)]
    held[0], held[1] = torch.arange(15, 18), torch.arange(36, 39)  # none of a patient who is trained on
    held[2] = torch.arange(57, 60)
    save_file(partition_file(patients, whole, held), "mine.safetensors")
    data = words(name="patients.npz", partition="mine.safetensors")
    assert fullrank("run", *MLP, *data, "--out", "out", capsys=capsys)[0] == 0
    held[0] = torch.tensor([15, 19])  # patient 6 is trained on by client 1
    save_file(partition_file(patients, whole, held), "mine.safetensors")
    status, _, err = fullrank("run", *MLP, *data, "--out", "other", capsys=capsys)
    assert status == 2
    assert "a group of samples" in err


def test_fit_holds_out_whole_groups_that_each_client_numbers_for_itself():
    x, y = torch.randn(24, 3), torch.arange(24) % 2
    clients = [Split(x, y, group=torch.arange(24) // 3), Split(x, y, group=torch.arange(24) // 4), (x[:8], y[:8])]
    table = {"data.holdout": 0.25, "data.validation": 0.2}
    test = Split(x, y, group=torch.arange(24) // 3)  # the same numbers, other groups
    run = fr.fit(torch.nn.Linear(3, 2), clients, rounds=1, method="fedavg", test=test, set=table)
    federation = run._assembled().federation
    groups = federation.data.train.group.numpy()
    assert len(np.unique(groups)) == 8 + 6 + 8
    of_side = [set(groups[side].tolist()) for side in sides(federation)]
    assert sum(map(len, of_side)) == len(set().union(*of_side)) == 22
    assert all(map(len, federation.holdouts))


@pytest.mark.parametrize(("groups", "said"), [(np.arange(60) // 20, False), (np.arange(60) % 20, True)])
def test_groups_at_several_sites_are_warned_of(groups, said, tmp_path):
    x, y = np.zeros((60, 4), np.float32), np.arange(60) % 3
    sites = {"group_train": groups, "domain_train": np.arange(60) // 20, "domain_test": np.arange(60) // 20}
    np.savez(tmp_path / "sites.npz", x_train=x, y_train=y, x_test=x, y_test=y, **sites)
    table = {"data.name": str(tmp_path / "sites.npz"), "data.partition": "domain", "data.clients": 3}
    fr.run({**table, "model.name": "mlp", "train.rounds": 1, "train.steps": 1}, tmp_path / "run")
    assert ("20 groups" in (tmp_path / "run" / "log.txt").read_text()) == said
