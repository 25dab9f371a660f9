"""Reproductions of tables: a small one of the test's own, and a cell of a real one with fewer rounds on other data."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fullrank
from commands import fullrank as command
from fullrank import papers
from fullrank.errors import InputError
from fullrank.papers.plan import directory_name, estimate, make_plan, measure
from fullrank.papers.reproduction import markdown_table

SETTINGS = """
[data]
name = "digits"
clients = 2
[model]
name = "mlp"
[train]
rounds = 3
epochs = 1
[method.fedprox]
mu = 0.1
"""
TABLE = """
title = "Two methods"
settings = "digits"
value = "last"
columns = [{ rate = 0.1 }, { rate = [0.03, 0.1] }]

[axes]
rate = "train.lr"

[[rows]]
at = { method = "fedavg" }
printed = ["70.00 ± 30.00", "12"]

[[rows]]
at = { method = "fedprox" }
printed = ["1.00 ± 0.10", ""]

[[notes]]
kind = "slip"
at = { method = "fedprox" }
text = "The printed value is wrong."
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of one's own in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "paper.toml").write_text('title = "Mine"')
    (folder / "digits.toml").write_text(SETTINGS)
    (folder / "table-1.toml").write_text(TABLE)
    return "mine/table-1.toml"


def last_accuracy(folder, method, seed, rate):
    """The last accuracy in percent of the one run with these keys, from its files."""
    found = []
    for path in folder.glob("*-rounds"):
        experiment = fullrank.Experiment.from_toml(path / "experiment.toml")
        if (experiment.method.name, experiment.seed, experiment.train.lr) == (method, seed, rate):
            found.append(json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"])
    (accuracy,) = found
    return 100 * accuracy


def test_cells_have_the_means_of_their_runs_and_share_equal_ones(table, capsys):
    arguments = ["reproduce", table, "--jobs", "1", "--quiet", "--cell", "method=fedavg"]
    status, out, err = command(*arguments, capsys=capsys)
    assert (status, err) == (0, "")
    folder = Path("runs/reproduce-table-1")
    # Two rates and three seeds: the runs with rate 0.1 belong to both columns.
    assert len(list(folder.glob("*-rounds"))) == 6
    facts = json.loads((folder / "reproduction.json").read_text())
    one, mean, prox, _ = facts["cells"]
    values = [last_accuracy(folder, "fedavg", seed, 0.1) for seed in range(3)]
    others = [last_accuracy(folder, "fedavg", seed, 0.03) for seed in range(3)]
    assert one["ours"]["mean"] == pytest.approx(statistics.mean(values))
    assert one["ours"]["std"] == pytest.approx(statistics.stdev(values))
    assert one["difference"] == pytest.approx(statistics.mean(values) - 70)
    assert list(mean["ours"]["by_seed"].values()) == pytest.approx(
        [(a + b) / 2 for a, b in zip(values, others, strict=True)]
    )
    assert (one["verdict"]["kind"], prox["verdict"]["kind"]) == ("within spread", "not run")
    shared = {run["directory"] for run in one["runs"]} & {run["directory"] for run in mean["runs"]}
    assert len(shared) == 3
    run = one["runs"][0]
    experiment = fullrank.Experiment.from_toml(folder / run["directory"] / "experiment.toml")
    assert run["hash"] == experiment.hash()
    assert (run["rounds"], run["fullrank"]) == (3, fullrank.__version__)
    assert facts["command"] == "fullrank reproduce mine/table-1.toml --cell method=fedavg --seeds 0-2"
    page = (folder / "reproduction.md").read_text()
    assert f"| fedavg | 0.1 | 70.00 ± 30.00 | {statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} |" in page
    assert "- The other 2 cells of the table were not run." in page
    assert "Error in the paper" not in out + page  # a note on cells that were not asked for
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    assert command(*arguments, capsys=capsys)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")} == before


def test_a_killed_reproduction_continues_with_the_same_command(table, capsys):
    arguments = ["reproduce", table, "--cell", "method=fedavg,rate=0.1", "--seeds", "0", "--jobs", "1"]
    arguments += ["--rounds", "30", "--out", "killed", "--set", "run.checkpoint_every=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [sys.executable, "-m", "fullrank", *arguments]
    process = subprocess.Popen(started, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any(len(rows.read_text().splitlines()) > 5 for rows in Path("killed").glob("*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("killed/reproduction.json").exists()
    status, out, _ = command(*arguments, capsys=capsys)
    assert status == 0
    assert "resumes after round" in out
    facts = json.loads(Path("killed/reproduction.json").read_text())
    cell = next(cell for cell in facts["cells"] if cell["runs"])
    whole = fullrank.run(Path("killed") / cell["runs"][0]["directory"] / "experiment.toml", "whole")
    assert cell["ours"]["by_seed"]["0"] == 100 * whole.metrics[-1]["accuracy"]
    assert cell["verdict"] == {"kind": "other settings", "detail": "train.rounds = 30"}


def test_a_cell_of_a_real_table_is_run_in_one_round_on_other_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cell = "data=cifar10,alpha=0.05,method=fedavg+feddecorr"
    small = ["data.name=digits", "data.clients=2", "model.name=mlp", "train.epochs=1"]
    arguments = ["feddecorr-tpami/table-1", "--cell", cell, "--rounds", "1", "--seeds", "0"]
    arguments += [part for change in small for part in ("--set", change)]
    status, out, err = command("reproduce", *arguments, "--json", capsys=capsys)
    assert (status, err) == (0, "")
    facts = json.loads(out)
    (run,) = [cell for cell in facts["cells"] if cell["runs"]]
    assert run["at"] == {"method": "fedavg+feddecorr", "data": "cifar10", "alpha": "0.05"}
    assert run["paper"] == {"mean": 73.06, "std": 0.81}
    assert run["rounds"] == [1, 100]
    assert run["verdict"]["kind"] == "other settings"
    assert set(run["changed"]) == {"data.name", "data.clients", "model.name", "train.epochs"}
    assert {cell["verdict"]["kind"] for cell in facts["cells"] if cell is not run} == {"not run"}
    assert facts["command"].startswith("fullrank reproduce feddecorr-tpami/table-1 --cell data=cifar10,")


def test_cells_whose_data_are_absent_are_marked_and_the_others_run(table, capsys):
    file = Path(table)
    text = TABLE.replace('settings = "digits"', "").replace(
        "{ rate = 0.1 }, { rate = [0.03, 0.1] }", '{ data = "digits" }, { data = "absent" }'
    )
    file.write_text(text)
    (file.parent / "absent.toml").write_text(SETTINGS.replace('"digits"', '"cifar10"'))
    arguments = [table, "--seeds", "0", "--rounds", "1", "--jobs", "1", "--cell", "method=fedavg", "--root", "nowhere"]
    status, out, _ = command("reproduce", *arguments, capsys=capsys)
    assert status == 0
    assert "method=fedavg,data=absent is left out: CIFAR-10 is not in " in out
    facts = json.loads(next(Path("runs").glob("*/reproduction.json")).read_text())
    there, absent = (cell for cell in facts["cells"] if cell["at"]["method"] == "fedavg")
    assert there["verdict"]["kind"] == "shortened"
    assert absent["verdict"]["kind"] == "not run"
    assert "data_batch_1.bin" in absent["verdict"]["detail"]
    status, _, err = command("reproduce", *arguments, "--cell", "data=absent", "--dry-run", capsys=capsys)
    assert status == 0  # FedAvg's cell on the digits is still among them
    status, _, err = command("reproduce", table, "--cell", "data=absent", "--root", "nowhere", capsys=capsys)
    assert status == 2
    assert err.startswith("fullrank: CIFAR-10 is not in ")
    assert len(err.splitlines()) == 1


def test_a_cell_whose_runs_lack_the_measure_says_why(table, capsys):
    Path(table).write_text(TABLE.replace('value = "last"', 'measure = "personal"'))
    arguments = [table, "--seeds", "0", "--rounds", "1", "--jobs", "1", "--cell", "method=fedavg,rate=0.1", "--json"]
    status, out, _ = command("reproduce", *arguments, capsys=capsys)
    assert status == 0
    (cell,) = [cell for cell in json.loads(out)["cells"] if cell["runs"] and cell["at"]["rate"] == "0.1"]
    assert cell["verdict"]["kind"] == "no value"
    assert "clients have no hold-out" in cell["verdict"]["detail"]


def test_a_plan_without_data_is_shown(table, capsys):
    arguments = ["feddecorr-tpami/table-8", "--cell", "alpha=0.05,method=fedavg", "--root", "nowhere", "--dry-run"]
    status, out, _ = command("reproduce", *arguments, capsys=capsys)
    assert status == 0
    assert out.count("; left out (1)") == 3
    assert out.count("\n(1) CIFAR-10 is not in") == out.count("CIFAR-10 is not in") == 1
    assert "0 runs in" in out


def test_reasons_that_cells_share_are_printed_once(table, capsys):
    file = Path(table)
    changed = TABLE.replace('settings = "digits"', "").replace("{ rate = [0.03, 0.1] }", '{ data = "absent" }')
    file.write_text(changed.replace("{ rate = 0.1 }", '{ data = "digits" }'))
    (file.parent / "absent.toml").write_text(SETTINGS.replace('"digits"', '"cifar10"'))
    status, out, _ = command(
        "reproduce", table, "--seeds", "0", "--rounds", "1", "--jobs", "1", "--root", "nowhere", capsys=capsys
    )
    assert status == 0
    assert out.count("2 of 4 cells are left out: CIFAR-10 is not in ") == 1
    assert out.count("not run (1)") == 2
    assert out.count("\n(1) CIFAR-10 is not in") == 1
    page = next(Path("runs").glob("*/reproduction.md")).read_text()
    assert (page.count("not run (1)"), page.count("- (1) CIFAR-10 is not in")) == (2, 1)
    assert "- Error in the paper: The printed value is wrong." in page


DIVERGING = '''
import fullrank


class Diverging(fullrank.Method):
    """It fails."""

    def loss(self, b):
        raise ValueError("it never works")
'''


def test_a_run_that_fails_marks_its_cell_with_the_reason(table, capsys, monkeypatch):
    Path("failing.py").write_text(DIVERGING)
    monkeypatch.syspath_prepend(".")
    Path(table).write_text(TABLE.replace('method = "fedprox" }', 'method = "failing:Diverging" }', 1))
    arguments = [table, "--seeds", "0", "--rounds", "1", "--jobs", "1", "--cell", "rate=0.1", "--json"]
    status, out, err = command("reproduce", *arguments, capsys=capsys)
    assert status == 1
    assert "1 of 2 runs failed" in err
    worked, failed = (cell for cell in json.loads(out)["cells"] if cell["at"]["rate"] == "0.1")
    assert worked["verdict"]["kind"] == "shortened"
    assert failed["verdict"]["kind"] == "failed"
    assert "it never works" in failed["verdict"]["detail"]


def test_times_are_compared_as_ratios_to_fedavg(table):
    timed = (
        TABLE.replace('value = "last"', 'measure = "time_ratio"\nunit = "s"\nreference = { method = "fedavg" }')
        .replace("70.00 ± 30.00", "200")
        .replace("1.00 ± 0.10", "300")
    )
    Path(table).write_text(timed)
    found = papers.reproduce(table, ["rate=0.1,method=fedprox"], [0], rounds=2)
    first, second = found.selected
    seconds = {
        run.experiment.method.name: run.metrics[1]["seconds"]
        for run in map(fullrank.load_run, found.plan.folder.glob("*-rounds"))
    }
    assert (first.printed.mean, second.printed.mean) == (1.0, 1.5)
    assert first.mean == 1.0
    assert second.mean == pytest.approx(seconds["fedprox"] / seconds["fedavg"])
    assert second.reference == "method=fedavg,rate=0.1"


def test_the_plan_measures_the_first_rounds_and_the_runs_continue_from_them(table):
    plan = make_plan(papers.load_table(table), ["rate=0.1"], seeds=[0, 1], rounds=6)
    assert estimate(plan, jobs=1).unknown == 4
    measure(plan, jobs=1)
    # Seeds are one workload, methods are two.
    assert [task.done for task in plan.tasks] == [2, 2, 0, 0]
    left = estimate(plan, jobs=1)
    rows = {task.path: task.path / "metrics.jsonl" for task in plan.tasks[:2]}
    second = [json.loads(file.read_text().splitlines()[1])["seconds"] for file in rows.values()]
    assert left.unknown == 0
    assert left.rounds == 20
    assert left.seconds == pytest.approx(10 * second[0] + 10 * second[1])
    whole = fullrank.run(plan.tasks[0].experiment, "whole")
    found = papers.reproduce(table, ["rate=0.1"], [0, 1], rounds=6, jobs=1)
    assert found.selected[0].values[0] == 100 * whole.metrics[-1]["accuracy"]


def test_shortened_runs_have_directories_of_their_own():
    short = fullrank.Experiment(train={"rounds": 1})
    assert directory_name(short) == f"digits-fedavg-{short.hash()[:8]}-seed0-1-round"
    assert directory_name(short.but(train__rounds=2)) == f"digits-fedavg-{short.hash()[:8]}-seed0-2-rounds"


def test_lists_and_plans_run_nothing(table, capsys):
    names = json.loads(command("reproduce", "--list", "--json", capsys=capsys)[1])
    assert [one["name"] for one in names] == [*papers.available(), *papers.figures()]
    first = next(one for one in names if one["name"] == "feddecorr-tpami/table-1")
    assert (first["cells"], first["title"]) == (120, "Label heterogeneity under the Dirichlet partition")
    out = command("reproduce", table, "--list", capsys=capsys)[1]
    assert re.search(r"method=fedavg,rate=0.03 0.1 +12 +accuracy last", out)
    out = command("reproduce", "fedrepopt/table-1", "--list", capsys=capsys)[1]
    assert re.search(r"model=repvgg-b1,mode=tr,metric=parameters,alpha=0.1 +55.8 +parameters *\n", out)
    out = command("reproduce", table, "--dry-run", capsys=capsys)[1]
    assert "2 clients (dirichlet α=0.1), 3 rounds of 1 epoch, mlp" in out
    assert "12 runs in runs/reproduce-table-1, 0 complete; 36 rounds remain" in out
    facts = json.loads(command("reproduce", table, "--dry-run", "--json", capsys=capsys)[1])
    assert (facts["runs"], facts["pending"], facts["rounds"]) == (12, 12, 36)
    assert not Path("runs").exists()


def test_in_a_narrow_terminal_each_coordinate_is_a_column(table, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that the output counts as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    out = command("reproduce", "feddecorr-tpami/table-8", "--list", capsys=capsys)[1]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert re.search(r"^alpha +method +model +paper +measure *$", plain, re.MULTILINE)
    assert re.search(r"^0.05 +fedavg\+feddecorr +resnet18 +[\d.]+ +accuracy last *$", plain, re.MULTILINE)
    assert max(len(line) for line in plain.splitlines() if not line.startswith("Shi")) <= 80


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a table"),
        (["feddecorr-tpami/table-11"], 'there is no table "feddecorr-tpami/table-11"; did you mean'),
        (["feddecorr-tpami/table-1", "--cell", "methd=fedavg"], 'has no coordinate "methd"; did you mean "method"'),
        (["feddecorr-tpami/table-1", "--cell", "method=fedsgd"], 'method has no value "fedsgd"'),
        (["feddecorr-tpami/table-1", "--seeds", "a"], '--seeds "a" is not a list of seeds'),
        (["mine/table-1.toml", "--rounds", "0"], "there must be at least one round"),
        (["mine/table-1.toml", "--set", "seed=1"], "use --seeds"),
        (["mine/table-1.toml", "--set", "train.ephocs=1"], 'there is no such key; did you mean "epochs"'),
        (["mine/table-1.toml", "--estimate"], "--estimate belongs to --dry-run"),
        (["mine/table-1.toml", "--jobs", "-1"], "jobs = -1"),
        (["nothing.toml"], '"nothing.toml" does not exist'),
    ],
)
def test_wrong_input_ends_in_one_sentence(table, arguments, sentence, capsys):
    status, _, err = command("reproduce", *arguments, capsys=capsys)
    assert status == 2
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()


FIGURE = """
title = "Accuracy over rounds"
settings = "digits"
draw = ["KIND"]
panels = ["rate"]
columns = [{ rate = 0.1 }, { rate = 0.03 }]

[axes]
rate = "train.lr"

[[rows]]
at = { method = "fedavg" }
"""


def test_a_figure_is_drawn_from_its_runs_a_panel_at_a_time(table, capsys):
    pytest.importorskip("matplotlib")
    Path("mine/figure-1.toml").write_text(FIGURE.replace('"KIND"', '"accuracy", {}'))
    arguments = ["reproduce", "mine/figure-1.toml", "--seeds", "0", "--rounds", "2", "--jobs", "1", "--out", "figure"]
    status, out, err = command(*arguments, capsys=capsys)
    assert (status, err) == (0, "")
    files = sorted(path.name for path in Path("figure").glob("*.png"))
    assert files == ["figure-rate-0.03.png", "figure-rate-0.1.png"]
    assert all(f"drawn in figure/{file}" in out for file in files)
    # A figure that cannot be drawn, here because there are no probes, leaves the results as they are.
    Path("mine/figure-1.toml").write_text(FIGURE.replace('"KIND"', '"spectrum", {}'))
    status, _, err = command(*arguments, capsys=capsys)
    assert status == 0
    assert "figure-rate-0.1.png was not drawn" in err


def test_a_run_directory_is_no_folder_of_a_reproduction(table):
    fullrank.run({"train.rounds": 1, "data.clients": 2, "model.name": "mlp"}, "run")
    with pytest.raises(InputError, match='"run" is a run itself'):
        papers.reproduce(table, out="run")


def test_bars_in_cells_are_escaped():
    assert markdown_table(["a"], [["b|c\nd"]]) == ["| a |", "|---|", "| b\\|c d |"]
