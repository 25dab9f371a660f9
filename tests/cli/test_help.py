"""Help pages: commands in groups, and text that fits the terminal."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest

import help_pages
from commands import finding, fullrank
from fullrank.cli.options import PANELS
from help_pages import commands, help_of

WIDTHS = (60, 80)


def test_commands_are_grouped_in_the_order_of_the_panels(capsys):
    lines = help_of("", 80, capsys).splitlines()
    titles = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    assert titles == ["Options", *(panel for panel in PANELS if panel in titles)]
    assert "Commands" not in titles


@pytest.mark.parametrize("group", ["", "bench", "data", "methods"])
def test_the_summary_of_every_command_is_one_line(group, capsys):
    lines = [line for line in help_of(group, 80, capsys).splitlines() if line.startswith("│ ") and "  --" not in line]
    names = [name.removeprefix(f"{group} ") for name in commands() if name and name.rpartition(" ")[0] == group]
    for name in names:
        (place,) = [number for number, line in enumerate(lines) if line.startswith(f"│ {name} ")]
        assert lines[place].rstrip(" │").endswith("."), name


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", commands())
def test_no_line_is_wrapped_twice(name, width, capsys):
    page = help_of(name, width, capsys)
    assert [line for line in page.splitlines() if len(line) > width] == []
    text = [line.rstrip() for line in page.partition("╭")[0].strip().splitlines()]
    for line, following in pairwise(text[text.index("") :]):  # after the usage, which Typer wraps
        if line and following and not following.startswith(" - "):
            assert len(line) + 1 + len(following.split()[0]) > width - 1, f"{line!r} ends too early"


@pytest.mark.parametrize("name", commands())
def test_no_python_type_is_shown(name, capsys):
    assert re.findall(r"<[\w\[\], |]+>", help_of(name, 80, capsys)) == []


def test_short_help_option(capsys):
    assert fullrank("run", "-h", capsys=capsys)[1] == fullrank("run", "--help", capsys=capsys)[1]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # so that an import of it fails
from fullrank.__main__ import main
from help_pages import commands
for arguments in (*([*name.split(), "--help"] for name in commands()), ["keys"], ["keys", "train.lr", "--json"]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, arguments
print("numpy" in sys.modules)
"""


def test_help_pages_and_keys_are_printed_without_importing_torch():
    around = finding(help_pages.__file__)
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, env=around)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("False\n")
