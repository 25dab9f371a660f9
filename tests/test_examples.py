"""The examples do what they say."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

import fullrank

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imports(name):
    """What an example imports of the library."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return [module for module in named if module.split(".")[0] == "fullrank"]


def test_the_plain_loop_uses_more_dimensions_with_feddecorr():
    plain = example("feddecorr_plain_loop")
    (rank, accuracy), (rank_with, accuracy_with) = plain.main().values()
    assert rank_with > 1.5 * rank
    assert min(accuracy, accuracy_with) > 0.95
    # Four orthogonal directions of equal variance are four dimensions, and a single one is one.
    assert plain.effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])) == pytest.approx(4)
    assert plain.effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(1)
    assert imports("feddecorr_plain_loop") == ["fullrank.objectives"]


def test_the_features_of_the_lightning_module_correlate_less_with_feddecorr():
    pytest.importorskip("lightning")
    correlation, correlation_with = example("feddecorr_lightning").main().values()
    assert 0 <= correlation_with < 0.3 * correlation <= 0.3
    assert imports("feddecorr_lightning") == ["fullrank.objectives"]


def test_fedavg_by_hand_gives_the_numbers_of_a_run(tmp_path, capsys):
    model = example("fedavg_by_hand").main().state_dict()
    run = fullrank.run(EXAMPLES / "fedavg_by_hand.toml", out=tmp_path)
    expected = run.model().state_dict()
    assert model.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=0, atol=1e-8 if value.is_floating_point() else 0)
    rounds = [f"round {row['round']}/5  accuracy {100 * row['accuracy']:.2f} %" for row in run.metrics]
    assert capsys.readouterr().out.splitlines() == rounds
    assert run.metrics[-1]["accuracy"] > 0.5  # it learns: the comparison is not one of two untrained models


def demo_table():
    """The accuracies by method and seed in the table that the README prints for `make demo`."""
    lines = (EXAMPLES.parent / "README.md").read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith(("    fedavg  ", "    fedavg+feddecorr  "))]
    return {row[0]: {seed: row[1 + seed] for seed in range(3)} for row in rows}


@pytest.mark.parametrize("seeds", [[1], pytest.param([0, 1, 2], marks=pytest.mark.slow)])
def test_the_readme_prints_the_table_of_the_demo(seeds, tmp_path):
    printed = demo_table()
    assert set(printed) == {"fedavg", "fedavg+feddecorr"}
    comparison = fullrank.compare(EXAMPLES / "demo.toml", list(printed), seeds=seeds, out=tmp_path)
    for method, by_seed in printed.items():
        for seed in seeds:
            value = 100 * comparison.runs[method, seed].summary()["accuracy"]["last5"]
            assert f"{value:.2f}" == by_seed[seed]
            assert value > 85  # the model has learnt
