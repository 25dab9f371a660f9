"""The page about comparisons and sweeps is done as it says, in fewer rounds and trials."""

import re
import runpy
import shlex
from pathlib import Path

from commands import fullrank as command

PAGE = Path(__file__).parents[1] / "docs" / "compare-and-sweep.md"
SHORTER = {
    "rounds = 20": "rounds = 1\nsteps = 1",
    "--seeds 0-2": "--seeds 0",
    "--seeds 0,1": "--seeds 0",
    "--trials 12": "--trials 2",
    "trials=4": "trials=2, jobs=1",
}


def shortened(text):
    for full, short in SHORTER.items():
        text = text.replace(full, short)
    return text


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        Path(body.splitlines()[0].removeprefix("# ")).write_text(shortened(body))
    commands = [shortened(line) for line in re.findall(r"^    (fullrank .*)$", text, re.MULTILINE)]
    assert len(commands) == 6
    printed = []
    for line in commands:
        arguments = shlex.split(line)[1:]
        several = arguments[0] in ("compare", "sweep") and "--runs" not in arguments
        status, out, err = command(*arguments, *(["--jobs", "1"] if several else []), capsys=capsys)
        assert status == 0, f"{line}\n{err}"
        printed.append(out)
    assert "    python search.py\n" in text
    runpy.run_path("search.py")
    assert "{'train.lr': " in capsys.readouterr().out
    assert "feddecorr (feddecorr.beta=0.01, train.lr=0.1)" in printed[0]
    assert "fedprox (train.lr=0.05)" in printed[0]
    assert "only rows on the same data and splits are compared" in printed[1]
    assert "best: trial " in printed[3]
    assert {path.name for path in tmp_path.iterdir()} >= {"grid.csv", "grid.md", "grid.tex", "runs"}
