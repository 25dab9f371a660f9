"""Input that nobody should give: one sentence on stderr and a status that is not 0; no traceback, and nothing hangs."""

import gzip
import io
import itertools
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fullrank as fr
from commands import fullrank
from fullrank import Method
from fullrank.data import memory_limit
from fullrank.errors import CallFailed, ClientFailed, InputError
from small import CLASSES, WIDTH, blobs

SMALL = ["--set", "model.name=mlp", "--set", "model.width=4", "--set", "train.rounds=1", "--set", "data.clients=3"]
DIGITS = "9" * 400


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)


def run_with(*values):
    return ["run", "-q", "--out", "out", *SMALL, *(word for value in values for word in ("--set", value))]


# Files, each written by a function of its own


def deep_toml():
    Path("mine.toml").write_text("a = " + "[" * 50_000, encoding="utf-8")


def long_number():
    Path("mine.toml").write_text(f"seed = {'9' * 5000}\n", encoding="utf-8")


def no_text():
    Path("mine.toml").write_bytes(b"seed = \xff\n")


def arrays(**changes):
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes}


def bad_class_names():
    np.savez("mine.npz", **arrays(classes=np.array([b"\xff\xfe", b"b"])))


def bad_domain_names():
    np.savez("mine.npz", **arrays(domain_train=np.array([b"\xff"] * 20)))


def npz_with(header, content=b""):
    """An .npz file whose x_train has this header."""
    text = header.encode().ljust(117) + b"\n"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content
    with zipfile.ZipFile("mine.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays().items():
            stored = io.BytesIO()
            np.save(stored, array)
            archive.writestr(f"{name}.npy", raw if name == "x_train" else stored.getvalue())


def huge_header():
    npz_with("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 1), }")


def negative_shape():
    npz_with("{'descr': '<f4', 'fortran_order': False, 'shape': (-20, 3), }", bytes(240))


def broken_header():
    npz_with("{'descr': '<f4', 'shape'", bytes(240))


def python_objects():
    np.savez("mine.npz", **arrays(x_train=np.array([{}] * 20, dtype=object)))


def zip_bomb():
    npz_with("{'descr': '|u1', 'fortran_order': False, 'shape': (20, 1000000), }", bytes(20_000_000))


def gzip_bomb():
    folder = Path("mnist")
    folder.mkdir()
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 20, 1000, 1000)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(20_000_000)))
    for name in ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"")


def unreadable():
    Path("mine.npz").symlink_to("/proc/self/mem")


def many_classes(labels):
    def write():
        np.savez("mine.npz", **arrays(y_train=labels))

    return write


def nested_pickle(place):
    """Tuples of tuples, each there twice, 60 levels deep: as a key of a batch, or as the name of a class."""

    def write():
        folder = Path("cifar-10-batches-py")
        folder.mkdir()
        deep = b")" + b"".join(b"2\x86" for _ in range(60))
        batch = b"\x80\x02}(" + deep + b"K\x01u."
        names = b"\x80\x02}(U\x0blabel_names](" + deep + b"eu."
        good = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, 2)
        for file in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            (folder / file).write_bytes(batch if place == "key" and file == "data_batch_1" else good)
        (folder / "batches.meta").write_bytes(
            names if place == "name" else pickle.dumps({"label_names": ["a"] * 10}, 2)
        )

    return write


def nothing():
    """No file is wanted."""


NPZ = ["partition", "--set", "data.name=mine.npz", "--set", "data.clients=2", "--set", "data.alpha=inf"]
ATTACKS = {
    "rounds of 400 digits": (
        nothing,
        run_with(f"train.rounds={DIGITS}"),
        "train.rounds = about 1e400: must be at most",
    ),
    "epochs of 400 digits": (nothing, run_with(f"train.epochs={DIGITS}"), "must be at most"),
    "steps of 100 digits": (nothing, run_with(f"train.steps={'9' * 100}"), "must be at most"),
    "rounds of 5000 digits": (nothing, run_with(f"train.rounds={'9' * 5000}"), "must be a whole number"),
    "warm-up of 400 digits": (nothing, run_with(f"train.warmup={DIGITS}"), "must lie within"),
    "many threads": (nothing, run_with(f"engine.threads={10**20}"), "engine.threads"),
    "many workers": (nothing, run_with(f"engine.workers={10**20}"), "engine.workers"),
    "large images": (nothing, run_with("data.size=20000"), "data.size = 20000: the images would take"),
    "wide network": (nothing, run_with(f"model.width={10**12}"), "smaller ones need less memory"),
    "wider network": (nothing, run_with(f"model.width={10**30}"), "smaller ones need less memory"),
    "wide convolutions": (
        nothing,
        run_with("model.name=cnn", f"model.width={10**12}"),
        "smaller ones need less memory",
    ),
    "large learning rate": (nothing, run_with("train.lr=1e308"), "train.lr = 1e+308: must be at most"),
    "large weight decay": (nothing, run_with("train.weight_decay=1e308"), "must be at most"),
    "ccvr.lr": (nothing, run_with("method.name=ccvr", "method.ccvr.lr=1e308"), "method.ccvr.lr = 1e+308: must be at"),
    "fedadam.tau": (nothing, run_with("method.name=fedadam", "method.fedadam.tau=1e308"), "must be at most"),
    "fedyogi.tau": (nothing, run_with("method.name=fedyogi", "method.fedyogi.tau=1e308"), "must be at most"),
    "deep TOML": (deep_toml, ["run", "mine.toml"], "nested too deeply"),
    "deep value": (nothing, run_with(f"data.augment={'[' * 50_000}"), "nested too deeply"),
    "deep key": (nothing, run_with(f"{'a.' * 3000}b=1"), "there is no such key"),
    "long number in a file": (long_number, ["run", "mine.toml"], "not valid TOML"),
    "file that is no text": (no_text, ["run", "mine.toml"], "not valid TOML"),
    "long directory": (nothing, ["run", "-q", *SMALL, "--out", "o" * 300], "File name too long"),
    "long file": (nothing, ["run", "o" * 300], "File name too long"),
    "long picture": (nothing, ["partition", "--png", "o" * 300 + ".png"], ""),
    "many seeds": (
        nothing,
        ["compare", "--methods", "fedavg", "--seeds", "0-2000000000", "--out", "out"],
        "more than 10000 seeds",
    ),
    "class names": (bad_class_names, NPZ, "not UTF-8"),
    "domain names": (bad_domain_names, NPZ, "not UTF-8"),
    "huge header": (huge_header, NPZ, "header announces"),
    "negative shape": (negative_shape, NPZ, "header announces"),
    "broken header": (broken_header, NPZ, "the file is damaged"),
    "Python objects": (python_objects, NPZ, "holds Python objects"),
    "unreadable file": (unreadable, NPZ, "cannot be read"),
    "label of 10**9": (many_classes(np.full(20, 10**9)), NPZ, "labels must number classes"),
    "key of nested tuples": (nested_pickle("key"), ["data", "check", "cifar10", "--root", "."], "damaged"),
    "name of nested tuples": (nested_pickle("name"), ["data", "check", "cifar10", "--root", "."], "names 1 classes"),
    "function outside": (nothing, ["run", *SMALL, "--set", "data.name=../../x/a/b:f"], "data.name"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_one_sentence(name, capsys, tmp_path):
    write, arguments, words = ATTACKS[name]
    if name == "unreadable file" and not Path("/proc/self/mem").exists():
        pytest.skip("this system has no file that everybody may open and nobody read")
    write()
    before = sorted(tmp_path.parent.iterdir())
    status, _, err = fullrank(*arguments, capsys=capsys)
    assert status in (1, 2), err
    assert re.fullmatch(r"fullrank: [^\n]+\n", err), err
    assert len(err) < 1000
    assert words in err
    assert sorted(tmp_path.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("write", "arguments"),
    [(zip_bomb, NPZ), (gzip_bomb, ["partition", "--set", "data.name=mnist", "--set", "data.root=."])],
)
def test_what_unpacks_to_more_than_there_is_memory_for(write, arguments, capsys, monkeypatch):
    write()
    for module in ("data.memory_limit", "data.sources.idx"):
        monkeypatch.setattr(f"fullrank.{module}.memory_limit", lambda: 10_000_000)
    status, _, err = fullrank(*arguments, capsys=capsys)
    assert status == 2
    assert re.fullmatch(r"fullrank: [^\n]+memory[^\n]+\n", err), err


def test_memory_is_limited_by_the_machine():
    assert 2**20 < memory_limit.memory_limit() < 2**60


def test_ten_to_the_five_classes_take_no_time(capsys):
    many_classes(np.r_[np.arange(19), 10**5 - 1])()
    assert fullrank(*NPZ, "--json", capsys=capsys)[0] == 0


# Terminals


@pytest.mark.parametrize(
    ("environment", "redirection"),
    [
        ({"PYTHONIOENCODING": "ascii"}, ""),
        ({"PYTHONIOENCODING": "latin-1"}, ""),
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, ""),
        ({}, ">&-"),
        ({}, ">&- 2>&-"),
    ],
)
def test_any_terminal_will_do(environment, redirection, tmp_path):
    words = " ".join([*SMALL, "--out", "out"])
    command = f"{sys.executable} -m fullrank run {words} {redirection}"
    rest = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    done = subprocess.run(command, shell=True, env={**rest, **environment}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "α=0.1" in (tmp_path / "out" / "log.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text on this system")
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_directory_whose_name_is_no_text(encoding, tmp_path, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    for command in (["run", *SMALL, "--out"], ["inspect"], ["probes"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            patch.setattr(sys, "argv", ["fullrank", *command, os.fsdecode(b"\xff\xfe")])
            with pytest.raises(SystemExit) as stop:
                fr.cli.app.main()
        assert stop.value.code == 2
    stream.flush()
    assert stream.buffer.getvalue().decode().splitlines()[0].startswith('fullrank: the name of the run directory "??"')
    assert not list(tmp_path.iterdir())


# What a program hands to fit


class Odd(torch.utils.data.Dataset):
    def __init__(self, length=12, item=None, error=None):
        self.length, self.item, self.error = length, item, error

    def __len__(self):
        return self.length

    def __getitem__(self, position):
        if self.error is not None:
            raise self.error
        return self.item if self.item is not None else (torch.zeros(WIDTH), position % CLASSES)


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Several(nn.Module):
    """A layer under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = self.a
        self.head = nn.Linear(WIDTH, CLASSES)
        self.again = self.head

    def forward(self, x):
        return self.head(self.b(self.a(x)).tanh())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.b(self.a(x)).tanh())


def net(width=WIDTH):
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, CLASSES))


def lazy():
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(4, CLASSES))


GIVEN = {
    "items that raise": (net, [Odd(error=KeyError("k"))], "the Odd of 12 samples raised KeyError: 'k' when item 0"),
    "items that raise without words": (net, [Odd(error=Wordless())], "its message cannot be shown"),
    "negative length": (net, [Odd(length=-1)], "has no length"),
    "length of no number": (net, [Odd(length=2.5)], "has no length"),
    "length beyond memory": (net, [Odd(length=10**14)], "would take"),
    "length beyond numbers": (net, [Odd(length=10**30)], "has no length"),
    "items of nothing": (net, [Odd(item=())], "not a pair"),
    "items of three": (net, [Odd(item=(1, 2, 3))], "not a pair"),
    "text as a sample": (net, [Odd(item=("a", 0))], "must be a tensor or an array"),
    "text as a label": (net, [Odd(item=(torch.zeros(WIDTH), "a" * 1000))], "must be a whole number"),
    "label of 10**30": (net, [Odd(item=(torch.zeros(WIDTH), 10**30))], "too large a number"),
    "label of 10**9": (
        net,
        [(torch.zeros(4, WIDTH), torch.tensor([0, 1, 2, 10**9]))],
        "the largest label is 1000000000",
    ),
    "lazy layers": (lazy, blobs(dtype=torch.float32), "run it once on a batch before fit"),
    "whole numbers": (net, [(torch.zeros(4, WIDTH, dtype=torch.int64), torch.arange(4) % 2)], "floating-point numbers"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_fit_cannot_use(name):
    module, clients, words = GIVEN[name]
    with pytest.raises(InputError) as caught:
        fr.fit(module(), clients, "fedavg", rounds=1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_lazy_layers_that_have_seen_a_batch_train():
    module = lazy()
    module(torch.zeros(2, WIDTH))
    assert len(fr.fit(module, blobs(dtype=torch.float32), "fedavg", rounds=1).metrics) == 1


@pytest.mark.parametrize("kind", [Several, Tied])
def test_layers_with_two_names_and_tied_weights_train_in_groups_as_one_by_one(kind):
    clients = blobs((8, 8, 8, 8, 8, 8), dtype=torch.float32)
    torch.manual_seed(0)
    module = kind()
    runs = [fr.fit(module, clients, "fedavg", rounds=2, engine=engine) for engine in ("serial", "vectorised")]
    assert "one_by_one" not in runs[1].metrics[0]
    for name, value in runs[0].model().state_dict().items():
        torch.testing.assert_close(runs[1].model().state_dict()[name], value, rtol=1e-5, atol=1e-6)


# Methods


@dataclass(frozen=True)
class Raises(Method):
    """Raises in one of the hooks that run at the server."""

    hook: str = ""

    def _maybe(self, hook):
        if hook == self.hook:
            raise Wordless if hook == "finish" else KeyError("lost")

    def server_state(self, server):
        self._maybe("server_state")
        return {}

    def model(self, net):
        self._maybe("model")
        return net

    def head(self, net):
        self._maybe("head")
        return nn.Linear(net.feature_dim, net.num_classes)

    def aggregate(self, server, new, up):
        self._maybe("aggregate")
        return new

    def finish(self, server):
        self._maybe("finish")


@pytest.mark.parametrize("hook", ["server_state", "model", "head", "aggregate", "finish"])
def test_a_hook_that_raises_is_named_with_its_method(hook, capsys):
    Path("mymethods.py").write_text("from test_bad_input import Raises\n", encoding="utf-8")
    method = ("method.name=mymethods:Raises", f"method.raises.hook={hook}")
    status, _, err = fullrank(*run_with(*method), capsys=capsys)
    assert status == 1
    said = "Wordless: its message cannot be shown" if hook == "finish" else "KeyError: 'lost'"
    assert err.splitlines()[-1].startswith(f'fullrank: the method "raises": its hook {hook} raised {said}')
    assert "_maybe" in err  # where it was raised
    with pytest.raises(CallFailed) as caught:
        fr.fit(net(), blobs(dtype=torch.float32), Raises(hook), rounds=1)
    assert "_maybe" in caught.value.traceback


@dataclass(frozen=True)
class Fits(Method):
    """Asks for a fit that cannot be."""

    setting: str = "steps"
    value: object = -1

    def train(self, client):
        client.fit(**{self.setting: self.value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [("steps", -1), ("steps", 1.5), ("epochs", -1), ("batch_size", 0), ("optimizer", "zzz"), ("last_batch", "zzz")],
)
def test_a_fit_that_cannot_be_ends(setting, value):
    with pytest.raises(ClientFailed, match=rf"client.fit\({setting}="):
        fr.fit(net(), blobs(dtype=torch.float32), Fits(setting, value), rounds=1)


# Rounds without data


def test_a_round_whose_clients_have_no_data_leaves_the_model_as_it_is(capsys):
    data = ["data.variant=plain", "data.alpha=0.01", "data.clients=60", "train.participation=1", "train.rounds=6"]
    status, out, err = fullrank(*[word for word in run_with(*data) if word != "-q"], capsys=capsys)
    assert (status, err) == (0, "")
    assert "so the model does not change" in out
    rows = fr.load_run("out").metrics
    still = [row["round"] for row in rows if row.get("idle")]
    assert 0 < len(still) < 6
    for before, row in itertools.pairwise(rows):
        assert (before["accuracy"] == row["accuracy"] and before["loss"] == row["loss"]) == (row["round"] in still)


def test_a_round_whose_clients_have_no_batch_says_what_to_do(capsys):
    status, _, err = fullrank(*run_with("train.last_batch=drop", "train.batch_size=100000"), capsys=capsys)
    assert status == 2
    assert "take a smaller train.batch_size" in err
