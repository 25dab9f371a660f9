"""Pages of the documentation: their files are written and their commands run, as a reader would do."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from commands import fullrank

DOCS = Path(__file__).parents[2] / "docs"
SHORT_OR_WHOLE = pytest.mark.parametrize(
    "whole", [pytest.param(False, id="short"), pytest.param(True, id="whole", marks=pytest.mark.slow)]
)
"""A page is run in this process with fewer rounds, and by the slow tests as it stands, each command in a process."""


def write_files(text: str, folder: Path, changes: Mapping[str, str]) -> None:
    """Write the code blocks of a page that name a file, after some changes of their texts."""
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        file = folder / body.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        for before, after in changes.items():
            body = body.replace(before, after)
        file.write_text(body)


def commands_of(text: str) -> list[str]:
    """Return the indented lines of a page that begin with `python` or `fullrank`, continued lines joined."""
    return re.findall(r"^    ((?:python|fullrank) .*)$", text.replace("\\\n", " "), re.MULTILINE)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a folder the working directory, and forget the modules that are imported from it."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    sys.path.insert(0, "")
    importlib.invalidate_caches()
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and (folder in Path(file).parents or not os.path.isabs(file)):
                del sys.modules[name]


def run_here(line: str, capsys: Any, *further: str) -> str:
    """Run a command in this process with further arguments, and return what it printed."""
    program, *words = shlex.split(line)
    if program == "python":
        capsys.readouterr()
        runpy.run_path(words[0], run_name="__main__")
        return capsys.readouterr().out
    status, out, err = fullrank(*words, *further, capsys=capsys)
    assert status == 0, f"{line}\n{err}"
    return out


def run_in_process(line: str, *further: str) -> str:
    """Run a command in a process of its own with further arguments, and return what it printed."""
    program, *words = shlex.split(line)
    started = [sys.executable, *([] if program == "python" else ["-m", "fullrank"]), *words, *further]
    done = subprocess.run(started, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def run(line: str, capsys: Any, whole: bool, *further: str) -> str:
    """Run a command as a whole in a process of its own, or here with further arguments that shorten it."""
    return run_in_process(line) if whole else run_here(line, capsys, *further)
