"""Data with groups (samples of one patient): whatever would put a group on both sides of an evaluation is rejected."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fullrank as fr
from commands import fullrank
from fullrank.data import Split, load_dataset
from fullrank.errors import InputError

SAMPLES = 60
MLP = ("--set", "model.name=mlp", "--set", "model.width=4", "--set", "train.rounds=1", "--set", "data.clients=3", "-q")


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """60 samples of 20 patients at three sites, in the current directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(SAMPLES, 3)).astype(np.float32), np.arange(SAMPLES) % 2
    extra = {"group_train": np.arange(SAMPLES) // 3, "domain_train": np.arange(SAMPLES) // 20}
    np.savez("patients.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], **extra)
    return load_dataset("patients.npz")


def settings(**values):
    return [word for key, value in values.items() for word in ("--set", f"data.{key}={value}")]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"partition": "domain", "holdout": 0.2}, ["data.holdout = 0.2"]),
        ({"partition": "domain", "validation": 0.1}, ["data.validation = 0.1"]),
        ({"partition": "domain", "holdout": 0.2, "validation": 0.1}, ["data.holdout", "data.validation"]),
        ({"partition": "iid"}, ['data.partition = "iid"']),
        ({"partition": "dirichlet"}, ['data.partition = "dirichlet"']),
        ({"partition": "pathological"}, ['data.partition = "pathological"']),
        ({"partition": "class-disjoint"}, ['data.partition = "class-disjoint"']),
    ],
)
def test_divisions_that_separate_samples_of_a_group_are_rejected(table, words, patients, tmp_path, capsys):
    data = settings(name="patients.npz", **table)
    for command in (["run", *MLP, "--out", "out"], ["partition", "--set", "data.clients=3"]):
        status, out, err = fullrank(*command, *data, capsys=capsys)
        assert (status, out) == (2, "")
        assert "groups" in err
        assert 'data.partition = "domain" without hold-out' in err
        assert all(word in err for word in words)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_sites_as_clients_keep_groups_together(patients, capsys):
    data = settings(name="patients.npz", partition="domain")
    assert fullrank("run", *MLP, *data, "--out", "out", capsys=capsys)[0] == 0


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
    data = settings(name="patients.npz", partition="mine.safetensors")
    assert fullrank("run", *MLP, *data, "--out", "out", capsys=capsys)[0] == 0
    held[0] = torch.tensor([15, 19])  # patient 6 is trained on by client 1
    save_file(partition_file(patients, whole, held), "mine.safetensors")
    status, _, err = fullrank("run", *MLP, *data, "--out", "other", capsys=capsys)
    assert status == 2
    assert "a group of samples" in err


@pytest.mark.parametrize("key", ["data.holdout", "data.validation"])
def test_fit_rejects_splits_with_groups_and_a_share_drawn_by_sample(key):
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    clients = [Split(x, y), Split(x, y, group=torch.arange(12) // 3)]
    module = torch.nn.Linear(3, 2)
    with pytest.raises(InputError, match="client 1 has groups"):
        fr.fit(module, clients, rounds=1, set={key: 0.25})
    assert len(fr.fit(module, clients, rounds=1, method="fedavg").metrics) == 1


def test_no_test_set_is_split_off_data_with_groups():
    whole = Split(torch.randn(12, 3), torch.arange(12) % 2, group=torch.arange(12) // 3)
    with pytest.raises(InputError, match="splitting off a test set"):
        load_dataset(whole)


@pytest.mark.parametrize(("groups", "said"), [(np.arange(60) // 20, False), (np.arange(60) % 20, True)])
def test_groups_at_several_sites_are_warned_of(groups, said, tmp_path):
    x, y = np.zeros((60, 4), np.float32), np.arange(60) % 3
    sites = {"group_train": groups, "domain_train": np.arange(60) // 20, "domain_test": np.arange(60) // 20}
    np.savez(tmp_path / "sites.npz", x_train=x, y_train=y, x_test=x, y_test=y, **sites)
    table = {"data.name": str(tmp_path / "sites.npz"), "data.partition": "domain", "data.clients": 3}
    fr.run({**table, "model.name": "mlp", "train.rounds": 1, "train.steps": 1}, tmp_path / "run")
    assert ("20 groups" in (tmp_path / "run" / "log.txt").read_text()) == said
