"""A share of the training samples, and a number of test samples, for a quick look."""

import numpy as np
import pytest
import torch

import fullrank as fr
from commands import fullrank
from fullrank import Experiment
from fullrank.data import load_dataset
from fullrank.data.split import choose_by_class, keep_share
from fullrank.errors import InputError
from fullrank.runs.assemble import assemble, federate

SMALL = {"model.name": "mlp", "model.width": 4, "train.rounds": 1, "data.clients": 3}


def test_a_share_of_each_class_is_kept():
    y = np.repeat([0, 1, 2], [100, 50, 3])
    kept = keep_share(y, 0.1, seed=3)
    assert np.bincount(y[kept]).tolist() == [9, 5, 1]  # ⌊15.3⌋ in all; the rarest class keeps its last
    assert np.array_equal(kept, keep_share(y, 0.1, seed=3))
    assert not np.array_equal(kept, keep_share(y, 0.1, seed=4))
    assert len(keep_share(np.zeros(1000, int), 0.3, 0)) == 300  # not 299, as 1 - 0.3 in binary would give


@pytest.mark.parametrize(("number", "want"), [(7, [5, 2]), (70, [47, 23]), (150, [100, 50]), (900, [100, 50])])
def test_a_number_of_samples_is_chosen_by_class(number, want):
    y = np.repeat([0, 1], [100, 50])
    assert np.bincount(y[choose_by_class(y, number, seed=0)]).tolist() == want


def test_a_share_is_divided_and_positions_are_those_of_all_samples():
    data = load_dataset("digits")
    federation = federate(Experiment.of({"data": {"share": 0.1, "holdout": 0.2, "validation": 0.1, "clients": 4}}))
    used = np.sort(np.concatenate([*federation.parts, *federation.holdouts, federation.validation]))
    assert np.array_equal(used, keep_share(data.train.y, 0.1, 0))
    assert federation.unassigned == 1437 - len(used)
    assert len(used) == 143
    assert np.array_equal(federation.class_counts.sum(0) > 0, np.ones(10, bool))


def test_the_whole_share_changes_nothing():
    assert federate(Experiment.of({"data.share": 1.0})).hash == federate(Experiment()).hash


@pytest.mark.parametrize("share", [0, 1.5, -0.1])
def test_other_shares_are_rejected(share, capsys):
    status, _, err = fullrank("partition", "--set", f"data.share={share}", capsys=capsys)
    assert status == 2
    assert "data.share" in err


def test_fit_takes_no_share():
    with pytest.raises(InputError, match=r"data.share"):
        fr.fit(torch.nn.Linear(3, 2), [(torch.zeros(4, 3), torch.zeros(4, dtype=int))], set={"data.share": 0.5})


def test_a_run_with_a_share_and_fewer_test_samples_continues(tmp_path):
    table = {**SMALL, "data.share": 0.2, "evaluate.samples": 50}
    whole = fr.run({**table, "train.rounds": 2}, tmp_path / "whole")
    fr.run(table, tmp_path / "parts")
    parts = fr.run({**table, "train.rounds": 2}, tmp_path / "parts")
    right = [50 * run.metrics[-1]["accuracy"] for run in (whole, parts)]
    assert right[0] == right[1] == pytest.approx(round(right[0]))


def test_test_samples_are_drawn_by_class_and_domain(tmp_path):
    y, domains = np.arange(120) % 2, np.arange(120) // 80
    x = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, domain_train=domains, domain_test=domains)
    experiment = Experiment.of({**SMALL, "data.name": str(tmp_path / "d.npz"), "evaluate.samples": 30})
    ((_, some),) = assemble(experiment).evaluator._splits
    assert np.bincount(some.y.numpy() + 2 * some.domain.numpy()).tolist() == [10, 10, 5, 5]
