"""What the page about trained models shows runs."""

import csv
import json
import re
from pathlib import Path

import pytest

import fullrank
from pages import DOCS, commands_of, run_here, working_in, write_files

PAGE = DOCS / "use-a-model.md"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    for module in ("PIL", "onnxruntime", "onnxscript"):
        pytest.importorskip(module)
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    write_files(text, tmp_path, {})
    lines = commands_of(text)
    assert len(lines) == 11
    short = ["--set", "data.clients=3", "--set", "train.epochs=1"]
    with working_in(tmp_path):
        printed = {line: run_here(line, capsys, *(short if " run " in line else [])) for line in lines}
    monkeypatch.chdir(tmp_path)
    with Path("predictions.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["path"] for row in rows] == [f"monday/{k}.png" for k in range(5)]
    deployed = printed["python deployed.py"].splitlines()
    assert len(set(deployed)) <= 2  # NumPy and torch write the same class differently
    assert re.findall(r"\d", deployed[0]) == [rows[0]["label"]]
    assert "6 of 8 entries of the model come from" in printed[lines[-1]]
    start = json.loads(Path("runs/further/environment.json").read_text())["start"]
    assert len(start["fitted"]) == 8
    assert fullrank.load_run("runs/partial").complete
