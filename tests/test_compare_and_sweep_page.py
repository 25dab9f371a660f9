"""The page about comparisons and sweeps is done as it says, in fewer rounds and trials."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

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


def test_the_page_runs(tmp_path):
    text = PAGE.read_text()
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(shortened(body))
    commands = re.findall(r"^    ((?:python|fullrank) .*)$", text, re.MULTILINE)
    assert len(commands) == 7
    printed = []
    for command in commands:
        started = shortened(command).replace("python", sys.executable, 1)
        started = started.replace("fullrank ", f"{sys.executable} -m fullrank ", 1)
        if re.search("fullrank (compare demo|sweep)", command):
            started += " --jobs 1"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(shlex.split(started), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed.append(done.stdout)
    assert "feddecorr (feddecorr.beta=0.01, train.lr=0.1)" in printed[0]
    assert "fedprox (train.lr=0.05)" in printed[0]
    assert "only rows on the same data and splits are compared" in printed[1]
    assert "best: trial " in printed[3]
    assert {path.name for path in tmp_path.iterdir()} >= {"grid.csv", "grid.md", "grid.tex", "runs"}
