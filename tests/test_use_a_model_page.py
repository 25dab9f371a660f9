"""What the page about trained models shows runs."""

import csv
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

import fullrank
from commands import fullrank as command

PAGE = Path(__file__).parents[1] / "docs" / "use-a-model.md"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    for module in ("PIL", "onnxruntime", "onnxscript"):
        pytest.importorskip(module)
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    for body in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        Path(body.splitlines()[0].removeprefix("# ")).write_text(body)
    lines = [line for line in re.findall(r"^    (.*)$", text, re.MULTILINE) if line.startswith(("python", "fullrank"))]
    assert len(lines) == 11
    printed = {}
    for line in lines:
        program, first, *rest = shlex.split(line)
        capsys.readouterr()
        if program == "python":
            runpy.run_path(first)
            printed[first] = capsys.readouterr().out.splitlines()
        else:
            short = ["--set", "data.clients=3", "--set", "train.epochs=1"] if first == "run" else []
            status, out, err = command(first, *rest, *short, capsys=capsys)
            assert (status, err) == (0, ""), f"{line}\n{err}"
            printed[line] = out
    with Path("predictions.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["path"] for row in rows] == [f"monday/{k}.png" for k in range(5)]
    assert len(set(printed["deployed.py"])) <= 2  # NumPy and torch write the same class differently
    assert re.findall(r"\d", printed["deployed.py"][0]) == [rows[0]["label"]]
    assert "6 of 8 entries of the model come from" in printed[lines[-1]]
    start = json.loads(Path("runs/further/environment.json").read_text())["start"]
    assert len(start["fitted"]) == 8
    assert fullrank.load_run("runs/partial").complete
