"""The examples do what they say."""

import importlib.util
from pathlib import Path

import torch

import fullrank

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_fedavg_by_hand_gives_the_numbers_of_a_run(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("fedavg_by_hand", EXAMPLES / "fedavg_by_hand.py")
    by_hand = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(by_hand)
    model = by_hand.main().state_dict()
    run = fullrank.run(EXAMPLES / "fedavg_by_hand.toml", out=tmp_path)
    expected = run.model().state_dict()
    assert model.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=0, atol=1e-8 if value.is_floating_point() else 0)
    rounds = [f"round {row['round']}/5  accuracy {row['accuracy']:.4f}" for row in run.metrics]
    assert capsys.readouterr().out.splitlines() == rounds
    assert run.metrics[-1]["accuracy"] > 0.5  # it learns: the comparison is not one of two untrained models
