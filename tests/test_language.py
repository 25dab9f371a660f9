"""Text that users read is plain English: no words of the project's old dialect."""

import re
from pathlib import Path

import pytest

from commands import fullrank
from fullrank import methods, models
from fullrank.cli.methods import facts
from help_pages import commands, help_of

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))

DIALECT = re.compile(
    r"""\b(
        judg(e|es|ed|ing)      # evaluate
        | play(s|ed|ing)?      # run a round
        | look(s|ed|ing)?      # probe, inspect, measure
        | refus(e|es|ed|ing|als?)  # error, reject
        | (go|goes|going|went)\ on  # continue
        | anew                 # from scratch
        | aside                # detached
        | beside               # alongside, compared with
        | alone                # only, exclusively
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
ALLOWED = re.compile(r"\blook(s|ed|ing)? (up|like)\b", re.IGNORECASE)
"""Phrases in which such a word is ordinary English. Each was read by a person; add none without that."""

CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
"""Names of functions, files and keys between backticks are not sentences."""


def dialect(text):
    """The words of the dialect in a text, with what surrounds them."""
    flat = ALLOWED.sub("", " ".join(CODE.sub("", text).split()))
    return [flat[max(0, found.start() - 40) : found.end() + 40] for found in DIALECT.finditer(flat)]


def test_the_search_finds_words_and_leaves_phrases():
    assert len(dialect("The model is judged apart, and the run\ngoes\non beside it. Refused.")) == 4
    assert dialect("Look up the display of a prejudged playground; replayed standalone. It looks like this.") == []
    assert dialect("`Server.play` runs a round.") == []


@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    found = dialect((ROOT / page).read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize("name", commands())
def test_help_pages(name, capsys):
    assert dialect(help_of(name, 80, capsys)) == []


@pytest.mark.parametrize("command", ["keys", "methods", "models"])
def test_lists(command, capsys):
    status, out, _ = fullrank(command, capsys=capsys)
    assert status == 0
    assert dialect(out) == []


@pytest.mark.parametrize("name", methods.available())
def test_descriptions_of_methods(name):
    known = facts(methods.find(name))
    for part in ("explanation", "sends", "keeps", "receives", "uploads"):
        assert dialect(str(known[part])) == [], part


def test_what_methods_show_says_of_every_method(capsys):
    assert dialect(fullrank("methods", "show", "fedavg", capsys=capsys)[1]) == []


@pytest.mark.parametrize("name", models.available())
def test_descriptions_of_models(name):
    assert dialect(models.available()[name].__doc__ or "") == []
