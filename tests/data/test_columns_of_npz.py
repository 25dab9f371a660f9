"""Arrays of an .npz by their names: labels, clients, groups; images of 16 bits, signals and whole numbers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fullrank as fr
from commands import fullrank
from fullrank.data import Split, load_dataset
from fullrank.errors import InputError


def stored(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_clients_are_read_without_keys(tmp_path):
    y = np.arange(6) % 2
    names = np.array(["n", "s", "e"] * 2)
    parts = {"x_train": np.zeros((6, 2)), "y_train": y, "x_test": np.ones((3, 2)), "y_test": y[:3]}
    data = load_dataset(stored(tmp_path / "a.npz", **parts, client_train=names, client_test=names[:3]))
    assert data.clients == ("e", "n", "s")
    assert (data.train.client.tolist(), data.test.client.tolist()) == ([1, 2, 0, 1, 2, 0], [1, 2, 0])
    data = load_dataset(
        stored(tmp_path / "b.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2, client=np.arange(10) % 3 + 5)
    )
    assert data.clients == ("5", "6", "7")


def test_keys_name_arrays(tmp_path):
    x, lesion = np.arange(24.0)[:, None], np.arange(24) // 2
    arrays = {"x": x, "stage": np.arange(24) // 4 % 2, "ward": np.arange(24) % 3, "lesion": lesion}
    path = stored(tmp_path / "a.npz", **arrays, group=np.zeros(24, int))
    data = load_dataset(path, label="stage", client="ward", group="lesion")
    for split in (data.train, data.test):
        row = split.x[:, 0].long()
        assert split.y.tolist() == (row // 4 % 2).tolist()
        assert split.client.tolist() == (row % 3).tolist()
        assert split.group.tolist() == (row // 2).tolist()
    assert not set(data.train.group.tolist()) & set(data.test.group.tolist())
    for key in ("label", "client", "group"):
        with pytest.raises(InputError, match=f'data.{key} = "no": .*arrays'):
            load_dataset(path, **{"label": "stage", key: "no"})
    with pytest.raises(InputError, match=r"data\.image = .* has nothing that this key could name"):
        load_dataset(path, label="stage", image="x")


def test_labels_in_words(tmp_path):
    words = np.array(["well", "ill", "ill", "well"] * 3)
    assert load_dataset(stored(tmp_path / "a.npz", x=np.zeros((12, 1)), y=words)).classes == ("ill", "well")
    ordered = load_dataset(stored(tmp_path / "b.npz", x=np.zeros((12, 1)), y=words, classes=["well", "ill", "dead"]))
    assert ordered.classes == ("well", "ill", "dead")
    assert sorted([*ordered.train.y.tolist(), *ordered.test.y.tolist()]) == [0] * 6 + [1] * 6
    with pytest.raises(InputError, match="1 of the labels are not among the names in classes"):
        load_dataset(stored(tmp_path / "c.npz", x=np.zeros((12, 1)), y=words, classes=["well", "dead"]))


@pytest.mark.parametrize(
    ("shape", "seen"), [((20, 4, 5), (1, 4, 5)), ((20, 4, 5, 3), (3, 4, 5)), ((20, 3, 4, 5), (3, 4, 5))]
)
def test_images_of_16_bits_are_divided_by_65535(shape, seen, tmp_path):
    x = np.random.default_rng(0).integers(0, 65536, shape).astype(np.uint16)
    x.flat[:2] = 0, 65535
    data = load_dataset((x, np.zeros(20, int)))
    assert (data.train.x.dtype, data.input_shape) == (torch.float32, seen)
    assert load_dataset(stored(tmp_path / "a.npz", x=x, y=np.zeros(20, int))).fingerprint() == data.fingerprint()
    levels = torch.cat([data.train.x, data.test.x]).double() * 65535
    assert torch.equal(levels.round().flatten().sort().values, torch.from_numpy(np.sort(x.ravel()).astype(np.float64)))
    np.testing.assert_array_equal(Split(torch.from_numpy(x), torch.zeros(20).long()).x, x / np.float32(65535))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_whole_numbers_keep_their_values(dtype):
    x = np.arange(100).reshape(20, 5).astype(dtype)
    data = load_dataset((x, np.arange(20) % 2))
    assert data.train.x.dtype == (torch.int32 if dtype == "int32" else torch.int64)
    assert sorted([*data.train.x.flatten().tolist(), *data.test.x.flatten().tolist()]) == list(range(100))
    with pytest.raises(InputError, match=r"2\*\*63"):
        Split(torch.from_numpy(np.array([[2**63]], np.uint64)), torch.zeros(1).long())


MODELS = """
from torch import nn


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def words(num_classes, in_channels, vocabulary):
    return nn.Sequential(nn.Embedding(vocabulary, 8), Mean(), nn.Linear(8, num_classes))


def signal(num_classes, in_channels):
    layers = nn.Conv1d(in_channels, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, num_classes))
"""


@pytest.fixture
def sentences(tmp_path, monkeypatch):
    """240 sentences of six words in a file, and a module with networks, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "networks_of_mine.py").write_text(MODELS)
    rng = np.random.default_rng(0)
    y = np.arange(240) % 2
    x = rng.integers(0, 50, (240, 6)) + 50 * y[:, None]
    x[0] = 99
    stored("words.npz", x=x.astype(np.int16), y=y)
    words = ["--set", "data.name=words.npz", "--set", "model.name=networks_of_mine:words"]
    return x, y, [*words, "--set", "data.clients=3", "--set", "data.alpha=10", "--set", "train.rounds=4", "-q"]


@pytest.mark.parametrize("other", ["vectorised", pytest.param("processes", marks=pytest.mark.slow)])
def test_words_reach_an_embedding_with_every_engine(other, sentences, capsys):
    *_, words = sentences
    losses = []
    for engine in ("serial", other):
        more = ["--set", "model.vocabulary=100", "--set", "train.lr=0.5", "--set", f"engine.name={engine}"]
        more += ["--set", "data.holdout=0.2", "--set", "probe.every=4", "--set", "engine.workers=1"]
        status, _, err = fullrank("run", *words, *more, "--out", engine, capsys=capsys)
        assert status == 0, err
        losses.append(fr.load_run(engine).metrics[-1]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_model_of_words_predicts_and_is_exported(sentences, capsys):
    x, y, words = sentences
    more = ["--set", "model.vocabulary=100", "--set", "train.lr=0.5"]
    assert fullrank("run", *words, *more, "--out", "run", capsys=capsys)[0] == 0
    run = fr.load_run("run", trust=True)
    assert run.metrics[-1]["accuracy"] > 0.9
    found = run.predict(x)
    assert float((found.argmax(1).numpy() == y).mean()) > 0.9
    torch.testing.assert_close(run.predict(x.astype(np.int32)), found)
    fr.export(run, "export", formats=("safetensors", "torch"))
    loaded = fr.load_export("export", trust=True)
    torch.testing.assert_close(loaded(torch.from_numpy(x)).softmax(1), found)


def test_an_embedding_with_too_few_rows_is_named_before_training(sentences, capsys):
    *_, words = sentences
    status, _, err = fullrank("run", *words, "--set", "model.vocabulary=99", "--out", "run", capsys=capsys)
    assert status == 2
    assert "whole numbers of 0 to 99, so an embedding needs at least 100 rows" in err


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.uint16])
def test_fit_takes_words_of_any_type(dtype):
    x, y = torch.arange(120).reshape(40, 3) % 30, torch.arange(40) % 2
    module = nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(12, 2))
    clients = [(x[:20].to(dtype), y[:20]), TensorDataset(x[20:].to(dtype), y[20:])]
    run = fr.fit(module, clients, "fedavg", test=(x.to(dtype), y), rounds=2)
    same = fr.fit(module, [(x[:20], y[:20]), (x[20:], y[20:])], "fedavg", test=(x, y), rounds=2)
    assert run.metrics[-1]["loss"] == same.metrics[-1]["loss"]


def test_signals_with_channels_reach_a_convolution(sentences, capsys):
    y = np.arange(120) % 2
    wave = np.sin(np.linspace(0, 6, 32) * (1 + 2 * y[:, None])).astype(np.float32)
    stored("waves.npz", x=np.stack([wave, -wave, wave], 1), y=y)
    assert load_dataset("waves.npz").in_channels == 3
    words = ["--set", "data.name=waves.npz", "--set", "model.name=networks_of_mine:signal", "--set", "data.clients=2"]
    more = ["--set", "data.partition=iid", "--set", "train.rounds=3", "--set", "train.lr=0.1", "-q"]
    assert fullrank("run", *words, *more, "--out", "run", capsys=capsys)[0] == 0
    assert fr.load_run("run", trust=True).metrics[-1]["accuracy"] == 1.0


DATASETS = """
import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    def __init__(self, count, start):
        self.count, self.start = count, start

    def __len__(self):
        return self.count

    def __getitem__(self, position):
        return torch.full((1, 8, 8), self.start + position, dtype=torch.float32), position % 3


def one(root, seed):
    return Numbers(30, 0)


def two(root, seed):
    return Numbers(30, 0), Numbers(12, 100)
"""


def test_functions_that_return_torch_datasets(sentences, tmp_path, capsys):
    (tmp_path / "datasets_of_mine.py").write_text(DATASETS)
    whole, apart = load_dataset("datasets_of_mine:one"), load_dataset("datasets_of_mine:two")
    assert sorted(torch.cat([whole.train.x, whole.test.x])[:, 0, 0, 0].tolist()) == list(range(30))
    assert (len(whole.test), len(apart.train), len(apart.test)) == (6, 30, 12)
    assert apart.test.x[:, 0, 0, 0].tolist() == list(range(100, 112))
    words = ["--set", "data.name=datasets_of_mine:two", "--set", "data.clients=2", "--set", "data.partition=iid"]
    assert fullrank("run", *words, "--set", "train.rounds=1", "-q", "--out", "run", capsys=capsys)[0] == 0
