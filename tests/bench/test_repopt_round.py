"""The benchmark of re-parameterisable networks' modes: its arithmetic, its memory, and a tiny pass through it."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import repopt
from fullrank.errors import InputError
from fullrank.methods.fedrepopt import FedRepOpt, mapped_kernels, multiplier
from fullrank.models import build
from fullrank.trees import Flat, FlatLayout

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "repopt_round.py"


def benchmark(*arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def test_modes_are_compared_in_the_same_turn():
    rounds = {"inf": [[1.0, 3.0], [4.0, 4.0]], "repopt": [[2.1, 2.1], [4.4, 4.4]], "tr": [[4.2, 4.2], [6.6, 6.6]]}
    found = repopt.compared(rounds)
    assert found["of_inf"]["repopt"]["median"] == pytest.approx((1.05 + 1.1) / 2)
    assert found["repopt_faster"]["tr"]["median"] == pytest.approx((100 + 50) / 2)
    assert found["seconds"]["inf"] == {"median": 3.0, "min": 2.0, "max": 4.0, "n": 2}


def test_the_papers_ratios_are_those_that_it_prints():
    vgg, ghost = repopt.paper_of("repvgg-a0"), repopt.paper_of("repghost-0.5")
    assert 100 * (vgg["tr"] / vgg["repopt"] - 1) == pytest.approx(57.4, abs=0.05)
    assert 100 * (ghost["tr"] / ghost["repopt"] - 1) == pytest.approx(11.7, abs=0.1)


def test_every_mode_makes_the_same_steps_of_the_same_size():
    size = repopt.Size(clients=2, samples=70, batch_size=32)
    assert size.steps == 4
    clients = repopt.federation(size)
    assert [len(part) for part in clients.parts] == [70, 70]
    inf, tr = (repopt.experiment("repvgg-small", mode, size) for mode in ("inf", "tr"))
    assert inf.but(model__mode="tr") == tr
    assert repopt.experiment("repvgg-small", "repopt", size).method.name == "fedrepopt"


def test_the_script_goes_the_whole_way(tmp_path, monkeypatch, capsys):
    arguments = ("--tiny", "--modes", "inf,repopt", "--json", tmp_path / "found.json")
    out = benchmark(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert "repopt takes" in out
    assert "peak MiB" in out
    found = json.loads((tmp_path / "found.json").read_text())["models"]["repvgg-small"]
    assert found["parameters"]["repopt"] == found["parameters"]["inf"]
    assert all(memory["peak"] > memory["before"] > 2**26 for memory in found["memory"].values())
    assert [len(turn) for turn in found["rounds"]["repopt"]] == [1]


def test_all_modes_are_reported(monkeypatch, capsys):
    out = benchmark("--tiny", "--no-memory", monkeypatch=monkeypatch, capsys=capsys)
    assert "faster than tr (paper 57.4 %)" in out
    assert "faster than csla (paper 66.0 %)" in out


def test_errors_name_what_is_right(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="did you mean"):
        benchmark("--tiny", "--models", "repvgg-smal", monkeypatch=monkeypatch, capsys=capsys)
    with pytest.raises(InputError, match="must be at least 1"):
        repopt.Size(repeats=0)


@pytest.mark.parametrize("name", ["repvgg-a0", "repghost-0.5"])
def test_a_flat_gradient_is_multiplied_to_the_bit_like_any_other_and_stays_as_it_is(name):
    net = build(name, 10, mode="repopt")
    model = dict(net.named_parameters())
    kernels = {kernel.name for kernel in mapped_kernels(tuple(model))}
    g = {key: torch.randn_like(value) for key, value in model.items() if value.requires_grad}
    flat = Flat.copied(g, FlatLayout.of(g))
    plain, made = (
        FedRepOpt().grad(tree, SimpleNamespace(model=model, fixed={"multiplier": multiplier(tree, model)}))
        for tree in (g, flat)
    )
    assert isinstance(made, Flat)
    for key, value in plain.items():
        assert torch.equal(made[key], value)
        assert torch.equal(flat[key], g[key])
        assert torch.equal(value, g[key]) == (key not in kernels)
    torch.testing.assert_close(made.base, Flat.copied(plain, flat.layout).base, rtol=0, atol=0)
