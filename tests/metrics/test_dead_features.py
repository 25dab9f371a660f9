"""The share of dead features is in the metrics, and a run in which it grows says so once."""

import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import fullrank
from commands import fullrank as command
from fullrank.metrics.evaluate import FeatureRange, dying

SMALL = {"data.clients": 4, "model.name": "mlp", "train.rounds": 4, "train.epochs": 1, "train.lr": 0.05}
DECORRELATED = {**SMALL, "method.name": "fedavg+feddecorr", "method.feddecorr.beta": 0.2}
RESULTS = Path(__file__).parents[2] / "results" / "feddecorr-small-networks"
WARNING = "of the features are dead"


def run(values, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fullrank.run(values, **options)
    return found, [str(warning.message) for warning in caught if WARNING in str(warning.message)]


@pytest.mark.parametrize("engine", ["serial", "vectorised", "processes"])
def test_a_growing_share_of_dead_features_is_told_once(engine, tmp_path):
    values = {**DECORRELATED, "engine.name": engine, "engine.workers": 1}
    found, told = run(values, out=tmp_path / "run")
    assert len(told) == 1
    assert 'scale = "paper"' in told[0]
    shares = [row["dead_features"] for row in found.metrics]
    first = next(k for k in range(len(shares)) if dying(shares[: k + 1]))
    assert told[0].startswith(f"round {first + 1}: {100 * shares[first]:.0f} % ")
    assert [row.get("cautions", []) for row in found.metrics] == [told if k == first else [] for k in range(4)]
    assert (tmp_path / "run" / "log.txt").read_text().count(told[0]) == 1


def test_federated_averaging_is_not_warned(tmp_path):
    found, told = run(SMALL, out=tmp_path / "run")
    assert not told
    assert all("cautions" not in row and row["dead_features"] < 0.25 for row in found.metrics)
    assert WARNING not in (tmp_path / "run" / "log.txt").read_text()


def test_a_resumed_run_does_not_tell_it_again(tmp_path):
    _, before = run({**DECORRELATED, "train.rounds": 3}, out=tmp_path / "run")
    resumed, after = run(DECORRELATED, out=tmp_path / "run")
    straight, told = run(DECORRELATED, out=tmp_path / "straight")
    assert before == told
    assert not after
    shares = [[row["dead_features"] for row in one.metrics] for one in (resumed, straight)]
    assert shares[0] == shares[1]


def test_the_command_line_prints_it(tmp_path, capsys):
    settings = [part for key, value in DECORRELATED.items() for part in ("--set", f"{key}={value}")]
    status, out, _ = command("run", *settings, "--out", tmp_path / "run", capsys=capsys)
    assert status == 0
    assert out.count(WARNING) == 1
    status, out, _ = command("run", *settings, "--out", tmp_path / "json", "--json", capsys=capsys)
    rows = [json.loads(line) for line in out.splitlines()[:-1]]
    assert sum(WARNING in text for row in rows for text in row.get("cautions", [])) == 1


def test_a_comparison_prints_it(tmp_path, capsys):
    values = {**SMALL, "method.feddecorr.beta": 0.2}
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    options = ("--methods", "fedavg+feddecorr", "--seeds", "0", "--out", tmp_path / "both")
    status, out, _ = command("compare", *settings, *options, capsys=capsys)
    assert status == 0
    assert [line.split(":")[0] for line in out.splitlines() if WARNING in line] == ["fedavg+feddecorr seed 0"]


class Halved(nn.Module):
    """A network whose second half of features is constant, though not zero, whatever is trained."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 4), nn.Linear(8, 2)

    def forward(self, x):
        z = self.body(x)
        return self.head(torch.cat([z, torch.ones_like(z)], 1))


def test_a_feature_that_is_constant_is_dead_whatever_its_value():
    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    found = fullrank.fit(Halved(), [(x, y)], test=(x, y), rounds=2)
    assert [row["dead_features"] for row in found.metrics] == [0.5, 0.5]
    assert not any("cautions" in row for row in found.metrics)  # it was so from the start


def test_with_a_validation_share_the_test_set_is_the_one_that_counts():
    found, _ = run({**SMALL, "train.rounds": 1, "data.validation": 0.2})
    assert found.metrics[0].keys() >= {"dead_features", "validation_accuracy"}
    assert "validation_dead_features" not in found.metrics[0]


def test_features_are_dead_in_every_batch_or_not_at_all():
    seen = FeatureRange()
    seen.add(torch.tensor([[0.0, 5.0, 1.0, 0.0], [0.0, 5.0, 2.0, 0.0]]))
    seen.add(torch.tensor([[0.0, 5.0, 3.0, 1e-3]]))
    assert seen.dead_share() == 0.5


# What is written about it


def study(*arguments):
    done = subprocess.run([sys.executable, RESULTS / "study.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_shows_the_table_of_the_recorded_runs():
    page = (RESULTS.parent.parent / "docs" / "feddecorr-small-networks.md").read_text()
    assert study("table") in page
    assert study("resnet20") in page


def test_the_page_counts_the_warnings_of_the_recorded_runs():
    warned, runs = Counter(), Counter()
    for line in (RESULTS / "runs.jsonl").read_text().splitlines():
        row = json.loads(line)
        kind = row["setting"].rpartition(" ")[2]
        runs[kind] += 1
        shares = row["dead_features"]
        warned[kind] += any(dying(shares[:k]) for k in range(1, len(shares) + 1))
    assert runs == {"fedavg": 24, "feddecorr": 24, "0.01": 6, "paper": 6}
    assert warned == {"fedavg": 0, "feddecorr": 23, "0.01": 4, "paper": 0}


def test_the_methods_three_scales_are_explained(capsys):
    status, out, _ = command("methods", "show", "feddecorr", capsys=capsys)
    assert status == 0
    said = " ".join(out.split())
    for formula in (
        'scale = "code" (default): (N−1)²/N · mean of r_ij² over i ≠ j',
        'scale = "paper": (1/d²) · Σ r_ij² over all i and j',
        'scale = "algorithm": ((N−1)/N)² times "paper"',
        "Which to choose",
    ):
        assert formula in said


# The rule


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([], False),
        ([0.7], False),
        ([0.24, 0.04, 0.24], False),
        ([0.2, 0.39], False),
        ([0.2, 0.4], True),
        ([0.6, 0.69], False),
        ([0.6, 0.5, 0.63], True),
        ([0.6, 0.5, 0.63, 0.5, 0.7], False),
        ([0.75], True),
        ([0.75, 0.8], False),
    ],
)
def test_the_rule(shares, told):
    assert dying(shares) is told
