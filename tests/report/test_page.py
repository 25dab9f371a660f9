"""Reports as data and as files: what they contain, what they never mix, and of which runs they can be made."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.errors import InputError
from fullrank.files import read_json, read_lines, write_json, write_lines
from fullrank.report.page import blocks
from fullrank.report.page.build import page_of
from fullrank.report.page.html import html_of
from fullrank.report.page.subject import COMPLETE, RUNNING, cohorts_of, spread, subject_of
from recorded_runs import HEALTHY, member, own, rows, seeds, subject, whole

FEW = {"data.clients": 3, "model.name": "mlp", "train.rounds": 3, "train.epochs": 1, "data.share": 0.3}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of two methods over two seeds."""
    folder = tmp_path_factory.mktemp("compared")
    fullrank.compare(FEW, ["fedavg", "fedproto"], [0, 1], folder, jobs=1)
    return folder


def page(*inputs):
    return page_of(subject_of(inputs))


def section(page, id):
    return next(each for each in page["sections"] if each["id"] == id)


def block(page, id):
    return next(each for each in blocks.figures_in(page) if each["id"] == id)


def absent(page, id):
    return [each["text"] for each in section(page, id)["blocks"] if each["type"] == "absent"]


# What is shown


def test_a_line_is_the_mean_over_seeds_with_their_standard_deviation():
    found = spread([{1: 2.0, 2: 3.0}, {1: 4.0, 2: 5.0}, {1: 6.0}])
    assert found["x"] == [1]
    assert found["y"] == [4.0]
    assert found["low"] == [2.0]
    assert found["high"] == [6.0]


def test_accuracies_are_those_of_the_rounds_in_per_cent(compared):
    chart = block(page(compared), "accuracy")["chart"]
    runs = [fullrank.load_run(compared / f"fedavg-seed{seed}") for seed in (0, 1)]
    (line,) = chart["series"]  # FedProto has no global model
    assert line["name"] == "fedavg (2 seeds)"
    for place, round in enumerate(line["x"]):
        values = [100 * run.metrics[round - 1]["accuracy"] for run in runs]
        assert line["y"][place] == pytest.approx(statistics.fmean(values), rel=1e-5)
        assert line["high"][place] - line["y"][place] == pytest.approx(statistics.stdev(values), abs=1e-3)


def test_the_partition_is_the_counts_that_the_run_recorded(compared):
    chart = block(page(compared / "fedavg-seed0"), "partition")["chart"]
    facts = json.loads((compared / "fedavg-seed0" / "partition.json").read_text())
    assert chart["values"] == facts["class_counts"]
    assert [sum(row) for row in chart["values"]] == facts["sizes"]


def test_a_run_without_recorded_counts_shows_sizes(compared, tmp_path):
    chart = block(page_of(seeds()), "partition")["chart"]
    assert (chart["kind"], chart["series"][0]["y"]) == ("bars", [64] * 4)


def test_many_clients_are_shown_as_quantiles_and_the_first_rows_of_a_table():
    table = [whole(), *(own(k, stage, k / 1000) for stage in ("received", "local") for k in range(1000))]
    found = page_of(subject(member(table=table)))
    (received, _) = block(found, "clients-holdout")["chart"]["frames"][0]["series"]
    assert received["x"] == [0, 10, 25, 50, 75, 90, 100]
    assert received["y"] == pytest.approx([0, 9.99, 24.975, 49.95, 74.925, 89.91, 99.9])
    rows = block(found, "clients-holdout-table")
    assert len(rows["rows"]) == 500
    assert rows["caption"].startswith("The first 500 of 2,000 rows")


def test_a_deployment_whose_server_knows_only_sizes_has_a_page(tmp_path):
    one = member(0, partition={"at_sites": True, "names": ["north", "south", "east", "west"]})
    for name in ("classes_per_client", "emd"):
        del one.partition[name]
    found = page_of(subject(one))
    figure = block(found, "partition")
    assert figure["caption"].endswith("64 to 64 each. The server does not know the sites' counts by class.")
    assert figure["chart"]["x"]["categories"] == ["north", "south", "east", "west"]


def test_the_experiment_is_shown_as_differences_from_the_defaults(compared):
    found = {row[0]: row[1:] for row in block(page(compared), "experiment")["rows"]}
    assert found["model.name"] == ["mlp", "cnn"]
    assert found["method.name"] == ["fedavg; fedproto", "fedavg"]
    assert found["seed"] == ["0, 1", "0"]
    assert "train.lr" not in found


def test_a_short_run_says_of_how_many_evaluations_its_mean_is(tmp_path):
    fullrank.run({**FEW, "train.rounds": 2}, tmp_path)
    (verdict,) = [each for each in section(page(tmp_path), "summary")["blocks"] if each["type"] == "verdict"]
    assert "(mean of the last 2 evaluations)" in verdict["lines"][0]


def test_the_whole_experiment_can_be_run_again(compared, tmp_path):
    found = section(page(compared / "fedavg-seed0"), "provenance")
    (code,) = [inner for each in found["blocks"] if each["type"] == "details" for inner in each["blocks"]]
    (tmp_path / "again.toml").write_text("\n".join(code["lines"]))
    again = fullrank.Experiment.from_toml(tmp_path / "again.toml")
    assert again.hash() == fullrank.load_run(compared / "fedavg-seed0").experiment.hash()


def test_what_is_missing_names_the_key_that_records_it(compared):
    found = page(compared)
    assert "data.holdout" in absent(found, "clients")[0]
    assert "probe.every" in absent(found, "representation")[0]
    assert "probe.every" in absent(found, "agreement")[0]
    assert "probe.embed" in absent(found, "embeddings")[0]


def test_targets_are_reached_where_the_rounds_say(compared):
    from fullrank.report.page.costs import reached

    one = member(metrics=rows([0.1, 0.4, 0.3, 0.6]))
    assert reached(one, 0.4) == (2, 0.004, 2.0)
    assert reached(one, 0.61) is None


def test_local_epochs_are_means_of_the_clients(compared):
    assert "epochs" not in {each["id"] for each in blocks.figures_in(page(compared))}  # one epoch is no course
    rounds = [
        {**row, "clients": [{"client": k, "epochs": [{"criterion": 1.0 + k}, {"criterion": 0.5}]} for k in range(3)]}
        for row in rows()
    ]
    chart = block(page_of(subject(member(metrics=rounds))), "epochs")["chart"]
    assert chart["dimensions"][0]["values"] == ["criterion"]
    assert len(chart["dimensions"][1]["values"]) == 10
    assert chart["dimensions"][1]["values"][::9] == ["round 1", "round 16"]
    assert chart["frames"][0]["series"][0]["y"] == [2, 0.5]


def test_the_documentation_lists_the_sections(compared):
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    table = text.partition("## What the page has")[2].partition("\n\nA section")[0]
    listed = re.findall(r"^\| ([A-Z]\w+) \|", table, flags=re.MULTILINE)
    assert listed == [each["short"] for each in page(compared)["sections"]]


# What is never mixed


def test_runs_on_different_data_are_in_different_charts():
    found = page_of(subject(*(member(k, **{"data.alpha": alpha}) for alpha in (0.1, 0.5) for k in range(2))))
    names = [[line["name"] for line in block(found, f"accuracy-{n}")["chart"]["series"]] for n in (1, 2)]
    assert names == [["fedavg (2 seeds)"], ["fedavg (2 seeds)"]]
    assert [block(found, f"accuracy-{n}")["title"].partition(": ")[2] for n in (1, 2)] == ["alpha = 0.1", "alpha = 0.5"]


def test_the_line_below_the_title_tells_that_there_are_other_settings(tmp_path):
    for alpha in (0.1, 1.0):
        fullrank.run({**FEW, "train.rounds": 1, "data.alpha": alpha}, tmp_path / str(alpha))
    assert "(dirichlet α=0.1), 1 round of 1 epoch, mlp, and 1 other setting · 2 runs" in page(tmp_path)["lead"]


def test_runs_with_the_same_keys_and_other_splits_are_apart(tmp_path):
    one = member(0, tmp_path / "a")
    other = member(0, tmp_path / "b", partition={"hash": "0" * 63 + "9"}, **{"method.name": "fedprox"})
    cohorts = cohorts_of([one, other])
    assert len(cohorts) == 2
    assert "partition 000000000000" in cohorts[0].title


def test_the_same_experiment_twice_is_not_two_seeds(tmp_path):
    (cohort,) = cohorts_of([member(0, tmp_path / "a"), member(0, tmp_path / "b")])
    assert [len(group.members) for group in cohort.groups] == [1, 1]
    assert "/b" in cohort.groups[1].label


def test_runs_that_are_not_complete_are_left_out_of_means():
    stopped = member(2, state="stopped", metrics=rows([0.1] * 3))
    (cohort,) = cohorts_of([member(0), member(1), stopped])
    assert [each.seed for each in cohort.groups[0].shown] == [0, 1]
    assert cohort.groups[0].over_rounds(lambda each: each.course("accuracy"))["y"] == pytest.approx(HEALTHY)


def test_runs_are_grouped_as_compare_groups_them(compared):
    found = subject_of([compared])
    assert [group.label for group in found.groups] == list(fullrank.compare_runs([compared]).methods)
    (cohort,) = found.cohorts
    assert cohort.comparison is None or cohort.measure == "accuracy"


# Of which runs


def test_a_report_changes_nothing_else_and_can_be_made_while_a_run_goes(tmp_path):
    code = (
        "import fullrank, time\n"
        "class Slow(fullrank.Callback):\n"
        "    def round_done(self, row):\n"
        "        if row['round'] == 2:\n"
        "            open('two', 'w').close(); time.sleep(60)\n"
        f"fullrank.run({FEW!r}, 'run', callbacks=[Slow()], progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        for _ in range(600):
            if (tmp_path / "two").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
        found = subject_of([tmp_path / "run"])
        written = fullrank.write_report(tmp_path / "run")
        after = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert after.pop(written)
    assert after == before
    assert [each.state for each in found.members] == [RUNNING]
    assert "still running (2 of 3 rounds)" in written.read_text()
    assert [each.state for each in subject_of([tmp_path / "run"]).members] == ["unfinished"]
    fullrank.run(FEW, tmp_path / "run")
    assert [each.state for each in subject_of([tmp_path / "run"]).members] == [COMPLETE]


def test_a_run_that_diverged_in_its_first_round_has_a_page(tmp_path):
    with pytest.raises(fullrank.FullrankError):
        fullrank.run({**FEW, "train.lr": 1e30}, tmp_path)
    found = page(tmp_path)
    said = {
        item["rule"]: item["text"]
        for part in section(found, "summary")["blocks"]
        if part["type"] == "reading"
        for item in part["items"]
    }
    assert "stopped after 0 of 3 rounds" in said["not_complete"]
    assert "diverged" in said["diverged"]
    assert html_of(found)


def test_a_method_without_a_global_model_has_a_result(compared, tmp_path):
    fullrank.run({**FEW, "method.name": "fedproto", "data.holdout": 0.3}, tmp_path)
    (verdict,) = [each for each in section(page(tmp_path), "summary")["blocks"] if each["type"] == "verdict"]
    mean = fullrank.load_run(tmp_path).summary()["personal"]["local"]["mean"]
    assert verdict["lines"][0].startswith(f"Clients' accuracy {100 * mean:.2f} %, of models after local training")
    assert absent(page(compared / "fedproto-seed0"), "predictions")[0].startswith(
        "There are no predictions of a global"
    )


def test_a_sweep_shows_trials_and_no_test_scores(tmp_path):
    fullrank.sweep({**FEW, "data.validation": 0.2}, {"train.lr": [0.01, 0.1]}, sampler="grid", out=tmp_path, jobs=1)
    found = page(tmp_path)
    trials = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    assert [row[0] for row in block(found, "trials")["rows"]] == [0, 1]
    assert [row[2]["value"] / 100 for row in block(found, "trials")["rows"]] == pytest.approx(
        [t["mean"] for t in trials], 1e-5
    )
    assert found["title"].startswith("Sweep over train.lr")
    assert "Test accuracy" not in json.dumps(found)
    assert {each["id"] for each in found["sections"]}.isdisjoint({"learning", "predictions", "clients"})
    run = fullrank.load_run(tmp_path / "trials" / "000-seed0")
    values = [100 * row["validation_accuracy"] for row in run.metrics]
    assert block(found, "trial-0")["chart"]["series"][0]["y"] == pytest.approx(values, rel=1e-5)


def test_a_reproduction_shows_its_cells_with_the_curves_of_their_runs(compared, tmp_path):
    write_json(
        compared / "reproduction.json",
        {
            "table": "a-paper/table-1",
            "cells": [
                {
                    "at": {"method": "fedavg", "alpha": "0.1"},
                    "measure": "accuracy",
                    "paper": {"mean": 64.85, "std": 2.01},
                    "ours": {"mean": 63.5, "std": None},
                    "difference": -1.35,
                    "verdict": {"kind": "agrees", "detail": "within the spread"},
                    "runs": [{"directory": "fedavg-seed0"}],
                },
                {"at": {"method": "moon", "alpha": "0.1"}, "paper": None, "ours": {"mean": None}, "runs": []},
            ],
        },
    )
    try:
        (compared / "comparison.json").rename(tmp_path / "elsewhere.json")
        found = page(compared)
    finally:
        (tmp_path / "elsewhere.json").rename(compared / "comparison.json")
        (compared / "reproduction.json").unlink()
    cells = block(found, "cells")
    assert cells["rows"][0][3]["text"] == "64.85 ± 2.01"
    assert cells["rows"][0][6] == "agrees: within the spread"
    assert len(cells["details"][0]["chart"]["series"][0]["y"]) == FEW["train.rounds"]
    assert cells["details"][1] is None
    assert found["title"] == "Reproduction of a-paper/table-1"


def test_runs_that_failed_before_they_had_a_directory_are_named(compared):
    record = json.loads((compared / "comparison.json").read_text())
    record.pop("checksum")
    write_json(
        compared / "comparison.json", {**record, "failed": [{"method": "moon", "seed": 3, "reason": "it broke"}]}
    )
    try:
        assert subject_of([compared]).failed == {"moon, seed 3": "it broke"}
    finally:
        write_json(compared / "comparison.json", record)


def test_a_run_in_memory_has_a_page_without_commands(tmp_path):
    digits = fullrank.data.load_dataset("digits").train
    clients = [(digits.x[k:90:3].float() / 255, digits.y[k:90:3]) for k in range(3)]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    run = fullrank.fit(net, clients, rounds=2)
    found = page(run)
    assert not [each for each in blocks.figures_in(found) if each.get("command")]
    assert np.array(block(found, "partition")["chart"]["values"]).sum() == 90
    (verdict,) = [each for each in section(found, "summary")["blocks"] if each["type"] == "verdict"]
    assert verdict["lines"][0] == "There is no result: no test set was given."
    assert fullrank.write_report(run, tmp_path / "page.html").is_file()
    with pytest.raises(InputError, match="the run has no directory"):
        fullrank.write_report(run)


# Files


def test_the_page_is_one_file_that_names_no_address(compared):
    text = html_of(page(compared))
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*", text) == []
    assert "url(" not in text
    assert len(text) < 500_000


def test_json_in_the_page_cannot_end_its_script_element():
    chart = blocks.lines(blocks.axis("x"), blocks.axis("</script><script>alert(1)</script>"), [])
    found = {"sections": [blocks.section("a", "a", [blocks.figure("f", "<img>", chart)])]}
    text = html_of({"title": "<b>", "lead": "&", "foot": "'", **found})
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img>" not in text

    class Reader(HTMLParser):
        inside, content = False, ""

        def handle_starttag(self, tag, attrs):
            self.inside = ("id", "charts") in attrs

        def handle_data(self, data):
            self.content += data if self.inside else ""

    reader = Reader()
    reader.feed(text)
    label = json.loads(reader.content)["f"]["y"]["label"]
    assert label == "</script><script>alert(1)</script>"


def test_control_characters_of_names_are_replaced():
    assert blocks.tidy({"name": "left\u202eright\n"}) == {"name": "left?right?"}


def test_numbers_are_short_and_undefined_ones_are_null():
    assert blocks.tidy([1 / 3, float("nan"), float("inf"), 2.0, True, 12345678]) == [
        0.333333,
        None,
        None,
        2,
        True,
        12345678,
    ]


def test_the_same_runs_give_the_same_file(compared):
    assert html_of(page(compared)) == html_of(page(compared))


def test_the_command_writes_html_json_and_csv(compared, tmp_path, capsys):
    run = compared / "fedavg-seed0"
    files = [tmp_path / "page.html", tmp_path / "page.json", tmp_path / "tables"]
    options = ["--out", str(files[0]), "--json", str(files[1]), "--csv", str(files[2])]
    status, out, err = command("report", str(run), *options, capsys=capsys)
    assert (status, err) == (0, "")
    assert out == f"written to {files[0]}\n"
    assert files[0].read_text().startswith("<!doctype html>")
    data = json.loads(files[1].read_text())
    assert [each["id"] for each in data["sections"]][:2] == ["summary", "setup"]
    with (files[2] / "accuracy.csv").open() as file:
        header, *lines = csv.reader(file)
    assert header == ["series", "Round", "Test accuracy (%)"]
    metrics = fullrank.load_run(run).metrics
    assert [float(line[2]) for line in lines] == pytest.approx([100 * row["accuracy"] for row in metrics], rel=1e-5)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("metrics.jsonl", {"terms": "x"}),
        ("metrics.jsonl", {"bytes_up": "x"}),
        ("metrics.jsonl", {"seconds": None}),
        ("partition.json", {"samples": "x"}),
        ("partition.json", {"sizes": 5}),
        ("partition.json", {"size": {"a": 1}}),
        ("partition.json", {"emd": "x"}),
        ("partition.json", {"class_counts": "x"}),
        ("environment.json", {"cpu": [1]}),
        ("environment.json", {"peak_memory": "x"}),
        ("probes.jsonl", {"global": "x"}),
        ("probes.jsonl", {"prototype_consistency": "x"}),
        ("probes.jsonl", {"cka_by_layer": "x"}),
    ],
)
def test_records_with_values_of_another_type_are_damaged(probed, file, changes, tmp_path):
    folder = shutil.copytree(probed, tmp_path / "run")
    if file.endswith(".json"):
        write_json(folder / file, {**read_json(folder / file), **changes})
    else:
        write_lines(folder / file, [{**row, **changes} for row in read_lines(folder / file)])
    with pytest.raises(InputError, match=rf"{file}.* is damaged .*{next(iter(changes))}"):
        page(folder)


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """A run with probes."""
    what = {**FEW, "train.rounds": 1, "data.clients": 2, "probe.every": 1}
    return fullrank.run(what, tmp_path_factory.mktemp("probed") / "run").path


def test_names_in_csv_are_no_formulas():
    names = ["=1+1", "+1-1", "-1+1", "@x", "\t=1", "a=1", "-1.5e-3", -2]
    chart = {
        "kind": "heatmap",
        "y": {"label": "=label", "categories": names},
        "x": {"label": "x", "categories": ["-"]},
        "scale": {"label": "value"},
        "values": [[-0.5]] * len(names),
    }
    header, *lines = csv.reader(io.StringIO(blocks.csv_of({"type": "figure", "chart": chart})))
    assert header == ["'=label", "x", "value"]
    assert [line[0] for line in lines] == ["'=1+1", "'+1-1", "'-1+1", "'@x", "'\t=1", "a=1", "-1.5e-3", "-2"]
    assert {tuple(line[1:]) for line in lines} == {("'-", "-0.5")}


def test_the_default_is_next_to_what_was_named(compared, tmp_path, monkeypatch):
    assert fullrank.write_report(compared / "fedavg-seed0") == compared / "fedavg-seed0" / "report.html"
    assert fullrank.write_report([compared / "fedavg-seed0", compared / "fedavg-seed1"]) == compared / "report.html"
    monkeypatch.chdir(compared)
    found = fullrank.write_report(["fedavg-seed0", "fedavg-seed1"])
    assert str(found) == "report.html"
    assert fullrank.load_run(compared / "fedavg-seed0").complete  # report.html in its directory does no harm


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["nowhere"], 'there is no run "nowhere"'),
        (["."], '"." is not a run directory and holds none'),
        ([], "a report needs at least one run"),
    ],
)
def test_what_is_no_run_is_rejected(inputs, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        fullrank.write_report(inputs, out="page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_rejected_as_the_file(compared, tmp_path):
    with pytest.raises(InputError, match="give the name of an HTML file"):
        fullrank.write_report(compared, tmp_path)


def test_commands_on_the_page_draw_figures(compared, tmp_path, capsys, monkeypatch):
    """Each command next to a chart is one that works, up to the name of the file."""
    monkeypatch.chdir(tmp_path)
    found = page(compared / "fedavg-seed0")
    commands = {each["command"] for each in blocks.figures_in(found) if each.get("command")}
    assert len(commands) > 2
    for text in commands:
        status, _, err = command(*text.split()[1:], capsys=capsys)
        assert (status, err) == (0, ""), text
