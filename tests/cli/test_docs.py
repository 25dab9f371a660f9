"""A page of the documentation is done as it says, from top to bottom."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "your-own.md"


def test_your_own_data_sites_and_model(tmp_path):
    text = PAGE.read_text()
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
    commands = re.findall(r"^    (.*)$", text.split("```python", 1)[1], re.MULTILINE)
    commands = [command for command in commands if command.startswith(("python ", "fullrank "))]
    assert len(commands) == 29
    for command in commands:
        started = command.replace("python", sys.executable, 1).replace("fullrank ", f"{sys.executable} -m fullrank ", 1)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(shlex.split(started), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert {path.name for path in tmp_path.iterdir()} >= {"hospitals.npz", "east", "runs"}
    names = {"fedavg", "fedbn", "waves", "median", "mine", "focal", "tracked", "growing", "darker", "wards", "images"}
    names |= {"patients", "words"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    assert len((tmp_path / "runs" / "tracked" / "accuracy.csv").read_text().splitlines()) == 3
