"""A user's method is shown by its own name, and recorded by its import path."""

import sys

import pytest

import fullrank
from commands import fullrank as command
from fullrank.comparison.table import compare_runs
from fullrank.config.experiment import Experiment, Recorded, method_labels
from fullrank.report.labels import names_of
from fullrank.runs.display import opening
from small import blobs, plain

SOURCE = """
from dataclasses import dataclass
from fullrank import Method

@dataclass(frozen=True)
class Entropy(Method):
    strength: float = 0.1

class Bare(Method):
    pass

class Renamed(Method):
    name = "another"
"""
SMALL = {"data.clients": 2, "model.name": "mlp", "train.rounds": 1, "train.steps": 1}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's file, in the working directory."""
    (tmp_path / "labelled.py").write_text(SOURCE)
    (tmp_path / "labelled_too.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "labelled"
    for name in ("labelled", "labelled_too"):
        sys.modules.pop(name, None)


def named(name):
    return Experiment.of({**SMALL, "method.name": name})


def test_the_label_is_the_methods_own_name(module):
    assert named("labelled:Entropy+feddecorr").method_label == "entropy+feddecorr"
    assert named("labelled:Renamed").method_label == "another"
    assert named("fedprox").method_label == "fedprox"
    assert "entropy on " in opening(named("labelled:Entropy"), None, 0, 2)[0]


def test_two_classes_of_one_name_keep_their_import_paths(module):
    three = [named(name) for name in ("labelled:Entropy", "labelled_too:Entropy", "labelled:Entropy")]
    assert method_labels(three) == ["labelled:Entropy", "labelled_too:Entropy", "labelled:Entropy"]
    assert method_labels(three[::2]) == ["entropy", "entropy"]


def test_a_recorded_experiment_keeps_the_path_and_needs_no_import_for_the_label(module, tmp_path):
    for name in ("Entropy", "Bare"):
        fullrank.run(named(f"labelled:{name}"), out=tmp_path / name)
        sys.modules.pop("labelled")
        run = fullrank.load_run(tmp_path / name)
        assert run.experiment.method.name == f"labelled:{name}"
        assert run.experiment.method_label == name.lower()
        assert names_of([run]) == [name.lower()]
        assert "labelled" not in sys.modules
    fullrank.run(named("labelled:Renamed"), out=tmp_path / "renamed")
    assert Recorded.by(tmp_path / "renamed").method_label == "another"
    found = compare_runs([tmp_path / "Entropy", tmp_path / "Bare"])
    assert found.methods == ("entropy", "bare")


def test_tables_of_a_comparison(module, tmp_path, capsys):
    methods = "fedavg,labelled:Entropy"
    keys = [f"--set={key}={value}" for key, value in SMALL.items()]
    status, out, _ = command(
        "compare",
        "--methods",
        methods,
        "--seeds",
        "0",
        "--jobs",
        "1",
        *keys,
        "--out",
        str(tmp_path / "all"),
        capsys=capsys,
    )
    assert status == 0
    assert "entropy seed 0" in out
    assert "labelled" not in out.replace("labelled.Entropy-seed0", "")
    assert (tmp_path / "all" / "labelled.Entropy-seed0").is_dir()
    assert [row["method"] for row in compare_runs([tmp_path / "all"]).table()] == ["fedavg", "entropy"]


def test_a_given_method_has_its_name(module):
    from labelled import Entropy

    run = fullrank.fit(plain(), blobs(), Entropy(), rounds=1)
    assert run.experiment.method_label == "entropy"
