"""The page about reproductions is done as it says, with runs of one round."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import fullrank as command
from fullrank.papers.verdict import RULE, Kind

PAGE = Path(__file__).parents[1] / "docs" / "reproduce.md"
ON_OTHER_DATA = ["--set", "data.name=digits", "--set", "data.clients=2", "--set", "model.name=mlp"]
SHORT = ["--rounds", "1", "--jobs", "1", *ON_OTHER_DATA, "--set", "train.epochs=1", "--seeds", "0"]


def commands():
    return re.findall(r"^    ((?:python|fullrank) .*)$", PAGE.read_text(), re.MULTILINE)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for body in re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        file = tmp_path / body.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(body)
    found = commands()
    assert len(found) == 8
    for line in found:
        words = shlex.split(line)
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert re.findall("other settings", done.stdout) == ["other settings"] * 3
            continue
        lists, own = "--list" in words, "mine/table-1.toml" in words
        shortened = (
            words[1:] if lists or own else [word for word in words[1:] if word not in ("--root", "data")] + SHORT
        )
        status, out, err = command(*shortened, capsys=capsys)
        assert (status, err) == (0, ""), line
        if own:
            assert out.count("fewer seeds: 1 of at least 3") == 4


def test_the_page_explains_every_verdict():
    table = PAGE.read_text().split("\n## What a verdict means\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)[1:]
    assert [kind for row in rows for kind in row.split(", ")] == [
        "within spread",
        "above",
        "below",
        "fewer seeds",
        "shortened",
        "other settings",
        "nothing printed",
        "no value",
        "failed",
        "not run",
    ]
    assert {kind for row in rows for kind in row.split(", ")} == set(Kind.__args__)
    assert "2·√(s² + t²)" in table
    assert "2·√(s² + t²)" in RULE


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()))
def test_links_lead_somewhere(target):
    assert (PAGE.parent / target).exists()
