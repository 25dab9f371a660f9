"""What an exported file must not hold: samples, and places on the machine that wrote it."""

import importlib.util
import io
import site
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import fullrank

WINDOW = 64
"""Bytes in a row of one sample that are no coincidence."""
SIDE, COLUMNS = 12, 40
FORMATS = [
    "safetensors",
    "torch",
    pytest.param(
        "onnx",
        marks=pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs fullrank[onnx]"),
    ),
]
OWN = """
from torch import nn

class Own(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(width, 6), nn.BatchNorm1d(6), nn.Linear(6, classes)

    def forward(self, x):
        assert len(x) >= 1  # a number to one of torch's two tracers, a symbol to the other
        return self.head(self.norm(self.body(x.flatten(1))).relu())
"""


def images(number):
    x = torch.randint(0, 256, (number, 3, SIDE, SIDE), dtype=torch.uint8)
    return x, torch.arange(number) % 3


def tables(number):
    return torch.randn(number, COLUMNS), torch.arange(number) % 3


def trained(kind, module, with_test):
    torch.manual_seed(0)
    clients = [kind(30) for _ in range(2)]
    settings = {"data.normalise": {"mean": [0.4] * 3, "std": [0.3] * 3}} if kind is images else {}
    test = kind(150) if with_test else None
    return fullrank.fit(module, clients, method="fedavg", test=test, rounds=1, set=settings)


def own_module(folder, width, monkeypatch):
    (folder / "leakyown.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "leakyown", raising=False)
    return importlib.import_module("leakyown").Own(width, 3)


def contents(name, content):
    """A file's bytes, and those of everything in it that is an archive, to any depth."""
    yield name, content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for inner in archive.namelist():
                yield from contents(f"{name}/{inner}", archive.read(inner))


def layouts(x):
    """The bytes of each sample, with channels first and, of images, last."""
    orders = [x.contiguous(), x.movedim(1, -1).contiguous()] if x.dim() == 4 else [x.contiguous()]
    for order in orders:
        for sample in order:
            yield sample.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_no_sample_in(folder, a_run):
    data, prepare = a_run._assembled().federation.data, a_run._assembled().federation.pipeline
    written = [part for file in folder.iterdir() for part in contents(file.name, file.read_bytes())]
    assert len(written) >= 2
    for split in filter(None, (data.train, data.test)):
        for x in (split.x, prepare(split.x), prepare(split.x, None, torch.float64)):
            for sample in layouts(x):
                middle = sample[len(sample) // 3 :][:WINDOW]
                assert len(middle) == WINDOW
                assert len(set(middle)) > 8  # not a border of one colour
                for name, content in written:
                    assert middle not in content, f"{name} holds a sample"


@pytest.mark.parametrize("with_test", [True, False], ids=["test set", "no test set"])
@pytest.mark.parametrize(
    ("kind", "layout"), [(images, "contiguous"), (images, "channels last"), (tables, "contiguous")]
)
@pytest.mark.parametrize("form", FORMATS)
def test_no_sample_is_in_an_exported_file(form, kind, layout, with_test, tmp_path):
    name, options = ("cnn", {"in_channels": 3, "width": 4}) if kind is images else ("mlp", {"width": 8})
    module = fullrank.models.build(name, 3, **options)
    if layout == "channels last":
        module = module.to(memory_format=torch.channels_last)
    a_run = trained(kind, module, with_test)
    assert_no_sample_in(fullrank.export(a_run, tmp_path / "out", [form]).path, a_run)


@pytest.mark.parametrize("form", FORMATS)
def test_no_path_of_the_machine_is_in_an_exported_file(form, tmp_path, monkeypatch):
    module = own_module(tmp_path, COLUMNS, monkeypatch)
    done = fullrank.export(trained(tables, module, True), tmp_path / "out", [form])
    places = {str(tmp_path), "leakyown.py", str(Path(fullrank.__file__).parent), *map(str, site.getsitepackages())}
    places |= {sys.prefix, str(Path(torch.__file__).parent)}
    for file in done.path.iterdir():
        for name, content in contents(file.name, file.read_bytes()):
            for place in places:
                assert place.encode() not in content, f"{name} names {place}"
