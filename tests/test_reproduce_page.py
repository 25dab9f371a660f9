"""The page about reproductions is done as it says, with runs of one round."""

import re
import shlex

import pytest

from commands import fullrank as command
from fullrank.papers.verdict import RULE, Kind
from pages import DOCS, commands_of, run_here, working_in, write_files

PAGE = DOCS / "reproduce.md"
ON_OTHER_DATA = ["--set", "data.name=digits", "--set", "data.clients=2", "--set", "model.name=mlp"]
SHORT = ["--rounds", "1", "--jobs", "1", *ON_OTHER_DATA, "--set", "train.steps=1", "--seeds", "0"]


def test_the_page_runs(tmp_path, capsys):
    write_files(PAGE.read_text(), tmp_path, {})
    found = commands_of(PAGE.read_text())
    assert len(found) == 8
    with working_in(tmp_path):
        run_shortened(found, capsys)


def run_shortened(found, capsys):
    for line in found:
        words = shlex.split(line)
        if words[0] == "python":
            assert re.findall("other settings", run_here(line, capsys)) == ["other settings"] * 3
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
