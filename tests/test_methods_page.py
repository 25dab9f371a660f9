"""The page about methods is complete, and what it shows runs."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fullrank
from fullrank.methods._compose import EXCLUSIVE
from fullrank.testing import check

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"


def table(heading):
    """The rows of the table below a heading: the names in the first column, and the other columns."""
    text = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: rest for first, *rest in rows for name in re.findall(r"`(\w+)", first)}


def members(kind):
    return {name for name in (*vars(kind), *inspect.get_annotations(kind)) if not name.startswith("_")}


def test_every_hook_and_declaration_is_listed():
    hooks = {name for name, member in vars(fullrank.Method).items() if inspect.isfunction(member) and name[0] != "_"}
    listed = table("Hooks")
    assert set(listed) == hooks
    assert {name for name, (combined, *_) in listed.items() if combined == "exclusive"} == set(EXCLUSIVE)
    for name in listed:
        arguments = list(inspect.signature(getattr(fullrank.Method, name)).parameters)[1:]
        assert f"`{name}({', '.join(arguments)})`" in PAGE.read_text()
    assert set(table("Declarations")) == set(inspect.get_annotations(fullrank.Method))


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("What a batch has: `b`", fullrank.Batch),
        ("What a client has", fullrank.Client),
        ("What the server has", fullrank.Server),
    ],
)
def test_every_member_is_listed(heading, kind):
    assert set(table(heading)) == members(kind) - {"extras"}


def test_every_check_is_listed():
    assert tuple(table("Testing")) == inspect.signature(check).parameters["only"].default


def test_the_page_runs(tmp_path):
    text = PAGE.read_text()
    for body in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
    commands = [
        line for line in re.findall(r"^    (.*)$", text, re.MULTILINE) if line.startswith(("python", "fullrank"))
    ]
    assert len(commands) == 6
    for command in commands:
        started = command.replace("python", sys.executable, 1).replace("fullrank ", f"{sys.executable} -m fullrank ", 1)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(shlex.split(started), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.startswith("python"):
            assert done.stdout.count("holds") >= 30
            assert [line for line in done.stdout.splitlines() if line.endswith(":")] == [
                "entropy:",
                "variates:",
                "fedspeed:",
                "topk+fedspeed:",
            ]
