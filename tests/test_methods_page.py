"""The page about methods is complete, and what it shows runs."""

import inspect
import re

import pytest

import fullrank
from fullrank.methods._compose import EXCLUSIVE
from fullrank.testing import check
from pages import DOCS, SHORT_OR_WHOLE, commands_of, run, working_in, write_files

PAGE = DOCS / "methods.md"
QUICK = ("writes", "degenerate", "exchange", "uploads", "head")


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


@SHORT_OR_WHOLE
def test_the_page_runs(whole, tmp_path, capsys):
    """The short run leaves out the checks that trace, that run other engines and that resume."""
    text = PAGE.read_text()
    changes = {} if whole else {"check(method)": f"check(method, only={QUICK!r})"}
    write_files(text, tmp_path, changes)
    commands = commands_of(text)
    assert len(commands) == 6
    with working_in(tmp_path):
        short = {line: ["--set", "train.steps=2"] if line.startswith("fullrank run") else [] for line in commands}
        printed = {line: run(line, capsys, whole, *short[line]) for line in commands}
    checked = printed["python trying.py"].splitlines()
    assert [line for line in checked if line.endswith(":")] == ["entropy:", "variates:", "fedspeed:", "topk+fedspeed:"]
    assert sum("holds" in line for line in checked) >= (30 if whole else 3 * len(QUICK))
