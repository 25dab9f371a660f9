"""The page about evaluation is done as it says, in fewer rounds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"


def test_the_page_runs(tmp_path):
    text = PAGE.read_text()
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        body = body.replace("rounds = 10", "rounds = 2").replace("width = 8", "width = 2")
        (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
    commands = re.findall(r"^    ((?:python|fullrank) .*)$", text, re.MULTILINE)
    assert len(commands) == 9
    printed = {}
    for command in commands:
        started = command.replace("python", sys.executable, 1).replace("fullrank ", f"{sys.executable} -m fullrank ", 1)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(shlex.split(started), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[command] = done.stdout
    tables = [out for command, out in printed.items() if "--by site" in command and "compare" in command]
    assert [re.search(r"method +north +south +average", out) is not None for out in tables] == [True] * 3
    assert re.search(r"north: 0\.\d+ \(0\.\d+ to [01]\.\d+\), \d+ samples", printed["python table.py"])
