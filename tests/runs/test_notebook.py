"""Runs in a notebook: progress in a cell, and results as tables."""

import sys
import types

import pytest

import fullrank
from fullrank.runs.notebook import in_notebook

FEW = {"train.rounds": 2, "train.epochs": 1, "data.clients": 2, "model.name": "mlp"}


class Cell:
    """Stands in for the output of a notebook's cell."""

    def __init__(self):
        self.shown = []

    def update(self, content):
        self.shown.append(content)


@pytest.fixture
def cell(monkeypatch):
    output = Cell()
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})

    def display(content, display_id):
        assert display_id
        output.update(content)
        return output

    module = types.SimpleNamespace(
        get_ipython=lambda: shell, display=types.SimpleNamespace(HTML=lambda text: text, display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", module)
    return output


def test_a_notebook_shows_progress_in_place(cell, tmp_path, capsys):
    assert in_notebook()
    run = fullrank.run(FEW, out=tmp_path / "run")
    assert "round 0/2" in cell.shown[0]
    assert "value='0.5000'" in "".join(cell.shown)
    assert f"round 2/2  accuracy {100 * run.metrics[-1]['accuracy']:.2f} %" in cell.shown[-1]
    assert capsys.readouterr().out == ""


def test_progress_can_be_silenced_and_is_shown_outside_of_notebooks_on_request(cell, tmp_path, capsys, monkeypatch):
    fullrank.run(FEW, out=tmp_path / "a", progress=False)
    assert cell.shown == []
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
    fullrank.run(FEW, out=tmp_path / "b")
    assert capsys.readouterr().out == ""
    fullrank.run(FEW, out=tmp_path / "c", progress=True)
    assert "round 2/2  accuracy" in capsys.readouterr().out


def test_problems_and_failures_stay_in_the_cell(cell, tmp_path):
    with pytest.raises(fullrank.FullrankError):
        fullrank.run({**FEW, "train.lr": 1e25}, out=tmp_path / "run")
    assert "stopped: " in cell.shown[-1]


def test_a_comparison_shows_its_runs(cell, tmp_path):
    found = fullrank.compare(FEW, ["fedavg", "fedprox"], seeds=[0], out=tmp_path / "all", jobs=1)
    assert "2/2 runs complete" in cell.shown[-1]
    assert "fedprox seed 0: 2 rounds" in cell.shown[-1]
    table = found._repr_html_()
    assert "<th>mean ± std</th>" in table
    assert "<td>fedprox</td>" in table
    assert repr(found) == f"Comparison(fedavg, fedprox; 2 runs, accuracy, {tmp_path / 'all'})"


def test_results_are_tables_in_which_nothing_is_markup(tmp_path):
    folder = tmp_path / "<b>bold"
    run = fullrank.run({**FEW, "data.holdout": 0.2}, out=folder)
    accuracy = f"{100 * run.metrics[-1]['accuracy']:.2f} %"
    assert repr(run) == f"Run(fedavg on digits, seed 0: 2 of 2 rounds, accuracy {accuracy}, {folder})"
    shown = run._repr_html_()
    assert "<b>" not in shown
    assert f"<td>accuracy</td><td>{accuracy}</td>" in shown
    assert "<td>received</td>" in shown


def test_fit_shows_progress_too(cell):
    torch = pytest.importorskip("torch")
    clients = [(torch.randn(20, 4), torch.randint(0, 2, (20,))) for _ in range(2)]
    fullrank.fit(torch.nn.Linear(4, 2), clients, method="fedavg", rounds=1)
    assert "round 1/1" in cell.shown[-1]
